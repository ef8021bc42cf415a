"""Options: one declaration for the commands, their help, configuration files and variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest

from costream.__main__ import main
from costream.cli.run_command import run_command
from costream.core.errors import ExitCode
from costream.core.records import RawAudioFormat
from costream.options.budget import Budget
from costream.options.flags import EVERY, Group, declared_flags, flag
from costream.options.options import Options
from kit.paths import SAMPLES
from kit.runs import refused, run

RUNNERS = {
    "detect": "costream.runtime.detect.detect",
    "listen": "costream.runtime.detect.detect",
    "read": "costream.runtime.detect.detect",
    "batch": "costream.runtime.batch.command.batch",
    "watch": "costream.runtime.watch.command.watch",
    "features": "costream.runtime.features.features",
}


@dataclass(frozen=True)
class SparkleFlags(Group):
    heading: ClassVar[str] = "Sparkles"
    commands: ClassVar[tuple[str, ...]] = ("detect",)
    sparkle: int = flag("--sparkle", "Number of sparkles.", default=1, minimum=1)


@dataclass(frozen=True)
class MoreOptions(SparkleFlags, Options):
    """Options with a group that a test declares."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder without settings of the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Options]:
    """Return the options that a command line makes."""

    def options(command: str, *args: str) -> Options:
        made: list[Options] = []

        def run(options: Options, effective: object = ()) -> ExitCode:
            made.append(options)
            return ExitCode.OK

        monkeypatch.setattr(RUNNERS[command], run)
        assert main([command, *args]) == 0
        return made[0]

    return options


def test_a_new_option_is_one_declaration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MoreOptions] = []

    @run_command("detect", "SOURCE...", MoreOptions)
    def command(options: MoreOptions, effective: list[str]) -> ExitCode:
        made.append(options)
        return ExitCode.OK

    def sparkle(*args: str) -> int:
        command.main([*args, "clip.mp4"], prog_name="detect", standalone_mode=False)
        return made[-1].sparkle

    shown = command.get_help(click.Context(command))
    assert "--sparkle" in shown
    assert "Sparkles: --sparkle N Number of sparkles. [default: 1]" in " ".join(shown.split())
    assert sparkle() == 1
    (folder / "costream.toml").write_text("sparkle = 2\n")
    assert sparkle() == 2
    monkeypatch.setenv("COSTREAM_SPARKLE", "3")
    assert sparkle() == 3
    assert sparkle("--sparkle", "4") == 4
    assert {"sparkle": 4}.items() <= made[-1].identity.items()
    with pytest.raises(click.BadParameter):
        sparkle("--sparkle", "0")


def test_every_field_has_one_declaration() -> None:
    declared = list(declared_flags(Options))
    assert {each.name for each in declared} == {f.name for f in fields(Options)} - {"sources"}
    names = Counter(
        name for each in declared for part in each.flag.names for name in part.split("/")
    )
    assert set(names.values()) == {1}
    for command in EVERY:
        click_command = import_module(f"costream.cli.{command}").command
        options = [p for p in click_command.params if isinstance(p, click.Option)]
        known = Counter(
            (*p.opts, *p.secondary_opts)
            for p in options
            if p.name not in ("config", "help", "as_json")
        )
        assert set(known.values()) == {1}
        assert len(known) == sum(command in each.commands for each in declared)


@pytest.mark.parametrize(
    ("command", "args", "changed"),
    [
        ("detect", (), {}),
        ("listen", (), {"model": "mn04"}),
        ("batch", ("-o", "out"), {"output": "out", "skip_existing": True}),
        ("watch", (), {}),
        ("features", ("-o", "out"), {"output": "out", "model": "cooadtr"}),
    ],
)
def test_defaults_of_the_command_line_are_those_of_the_fields(parse, command, args, changed):
    assert parse(command, "x.mp4", *args) == Options(sources=("x.mp4",), dtype="float32", **changed)


def test_values_are_stored_parsed(parse):
    got = parse(
        "detect", "x", "--start", "1:00", "--duration", "5s", "-f", "csv,jsonl", "-f", "CSV"
    )
    assert (got.start_s, got.end_s, got.formats) == (60.0, 65.0, ("csv", "jsonl"))
    got = parse("detect", "x", "--budget", "20MMAC", "-vv", "--fps", "5")
    assert (got.budget, got.verbosity, got.rate_hz) == (Budget.parse("20MMAC"), 2, 5.0)
    assert parse("listen", "x", "--raw", "s16le:8000:2").raw == RawAudioFormat("s16le", 8000, 2)
    assert parse("listen", "--mic").sources == ("mic",)
    assert parse("listen", "--mic", "2", "-q").sources == ("mic:2",)
    got = parse("batch", "x", "-o", "file:///tmp/out", "--jobs", "2", "--timeout-per-file", "1:00")
    assert (got.output, got.jobs, got.file_timeout_s) == ("/tmp/out", 2, 60.0)


def test_the_identity_of_a_batch_is_that_of_earlier_versions() -> None:
    absent = ("end_s", "rate_hz", "layout", "columns", "threshold", "min_length_s", "min_gap_s")
    earlier: dict[str, Any] = {
        "model": "auto",
        "start_s": 0.0,
        "top_k": 3,
        "device": "auto",
        "dtype": "float32",
        **dict.fromkeys((*absent, "channel", "raw", "tokens", "budget")),
        **dict.fromkeys(("scores", "wait", "track"), False),
    }
    options = Options(dtype="float32", output="out", formats=("csv",), threads=2, quiet=True)
    assert options.identity == earlier
    options = replace(options, budget=Budget.parse("2GMAC"), duration_s=3.0, end_s=3.0)
    assert options.identity == {**earlier, "budget": "2GMAC", "end_s": 3.0}
    assert replace(options, stream="2").identity == {**options.identity, "stream": "2"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--columns", "a,b"), "--columns: cannot parse 'a'"),
        (("--layout", "ntu"), "there is no joint layout 'ntu'"),
        (("--layout", "gone.toml"), "gone.toml: cannot be read"),
    ],
)
def test_wrong_values_are_reported_before_anything_is_opened(tmp_path, options, message):
    refused(2, message, "detect", "no-such-file.csv", *options, cwd=tmp_path)


@pytest.mark.parametrize("option", ["--timeout", "--max-lag"])
def test_no_time_is_not_a_limit_of_a_feed(option):
    refused(2, f"'{option}': must be greater than 0", "watch", "rtsp://127.0.0.1/x", option, 0)


def test_file_environment_and_flag(tmp_path):
    """The flag wins over the environment, that over the file."""
    (tmp_path / "costream.toml").write_text('layout = "of-the-file"\n[detect]\ncolumns = "x,y"\n')
    arguments = ("detect", "no-such-file.csv", "-v")
    assert "'of-the-file'" in run(*arguments, cwd=tmp_path, code=2).stderr
    named = {"COSTREAM_LAYOUT": "of-the-environment"}
    assert "'of-the-environment'" in run(*arguments, cwd=tmp_path, env=named, code=2).stderr
    done = run(*arguments, "--layout", "coco-17", cwd=tmp_path, env=named, code=4)
    assert "layout = coco-17 (commandline)" in done.stderr
    assert "columns = x,y (costream.toml)" in done.stderr


def test_a_stronger_origin_wins_where_options_exclude_each_other(
    parse: Callable[..., Options], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSTREAM_END", "5")
    assert parse("detect", "a.mp4").end_s == 5
    assert parse("detect", "a.mp4", "--duration", "3").end_s == 3
    refused(2, "exclude each other", "detect", "a.mp4", "--end", "5", "--duration", "3")
    (folder / "costream.toml").write_text("[detect]\nquiet = true\ntokens = 9\n")
    made = parse("detect", "a.mp4", "-v", "--budget", "40ms")
    assert (made.quiet, made.verbose, made.tokens) == (False, 1, None)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1001"])
def test_steps_a_second(value: str) -> None:
    refused(2, "--fps", "detect", "a.mp4", "--fps", value)


@pytest.mark.parametrize("command", ["detect", "listen", "batch", "watch"])
@pytest.mark.parametrize("name", ["x.xlsx", "page.html", "y.TXT"])
def test_a_file_that_is_not_written_is_not_a_folder(tmp_path, command, name):
    refused(2, "name a folder", command, SAMPLES / "room.mp4", "-o", name, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / name).mkdir()
    words = "none" if command == "watch" else "none: no such file"
    refused(4, words, command, "none", "-o", name, cwd=tmp_path)


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("192.168.1.20", 4, "a URL, as in rtsp://192.168.1.20"),
        ("cam:554/live", 4, "a URL, as in rtsp://cam:554/live"),
        ("none.mp4", 4, "none.mp4: no such file\n"),
    ],
)
def test_what_is_almost_a_feed(source, code, words):
    refused(code, words, "watch", source)


@pytest.mark.parametrize("command", ["detect", "listen", "read", "batch"])
def test_json_stands_for_its_format(parse, command):
    source = ("-o", "out", "-m", "x", "a.mp4")
    assert parse(command, *source, "--json").formats == ("json",)
    assert parse(command, "--json", *source, "-f", "json,csv").formats == ("json", "csv")
    assert parse(command, "-f", "csv", "--json", *source).formats == ("csv", "json")
    assert parse(command, *source, "--", "--json").sources == ("a.mp4", "--json")
    assert parse(command, *source, "-m", "--json").model == "--json"  # a value
