"""The manual and the README: examples run, options exist, links lead somewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import av
import click
import pytest

from costream.cli import COMMANDS, cli
from costream.cli.help import MANUAL, find, pages, render
from costream.core.errors import ExitCode, UsageError
from costream.core.records import Header, Record, Summary
from costream.sinks.registry import FORMATS
from kit.data_audio import write_folder
from kit.program import ROOT, costream, environment, python

SKILL = (MANUAL / "skills" / "costream" / "SKILL.md").read_text("utf-8")
DOCUMENTS = {**pages(), "README": (ROOT / "README.md").read_text("utf-8"), "SKILL": SKILL}
# Names that the examples use without a definition.
PREAMBLE = """
import numpy as np
make = np.random.default_rng(0)
camera = [make.integers(0, 256, (120, 160, 3), np.uint8) for _ in range(40)]
front, back = camera, camera[::-1]
blocks = [make.normal(0, 0.1, 4800) for _ in range(20)]
tracker = [(k / 15, make.normal(0, 1, (25, 3))) for k in range(30)]
"""
# Lines that need neither samples nor what is not here; those with samples are run, too.
RUN = ("costream report out/", "costream detect room.npz", "costream help")
RUN += tuple(
    f"costream models {name}" for name in ("list", "show", "verify cooadtr", "path cooadtr")
)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def lines(text: str) -> Iterator[str]:
    """Yield the lines of the shell blocks, without comments, continued lines in one."""
    for block in blocks(text, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"(^|\s+)# .*", "", line).strip()


def calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each ``costream`` in a line."""
    for part in re.split(r"\|(?=(?:[^']*'[^']*')*[^']*$)|&&", line):
        words = shlex.split(part.partition(" > ")[0])
        if words and words[0].endswith("costream"):
            yield words[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the samples, for all lines."""
    made = tmp_path_factory.mktemp("manual")
    (made / "samples").symlink_to(ROOT / "samples")
    return made


def marked(value: str, page: str) -> Any:
    """Return a parameter; all pages but those that one reads first take long."""
    return value if page in ("README", "index") else pytest.param(value, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [marked(n, n) for n, text in DOCUMENTS.items() if blocks(text, "python")]
)
def test_python_runs(name, tmp_path):
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    code = "\n".join([PREAMBLE, *blocks(DOCUMENTS[name], "python")])
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


EXAMPLES: dict[str, str] = {}  # each line, and the first page that has it
for _name, _text in pages().items():
    for _line in lines(_text):
        of_users = "mine.safetensors" in _line  # what a line before makes of their clips
        if (_line.startswith(RUN) and not of_users) or (
            _line.startswith("costream") and "samples/" in _line
        ):
            EXAMPLES.setdefault(_line, _name)


@pytest.mark.parametrize("line", [marked(*example) for example in EXAMPLES.items()])
def test_shell_lines_run(line, folder):
    (arguments,) = calls(line)
    if "png" in line:
        pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    done = costream(*arguments, cwd=folder)
    assert done.returncode == ExitCode.OK, done.stderr


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="the lines are those of a POSIX shell")
def test_the_readme_runs_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    """In a shell that has activated an environment; but for what is fetched and installed."""
    venv.create(tmp_path / ".venv")
    program = tmp_path / ".venv" / "bin" / "costream"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m costream "$@"\n')
    program.chmod(0o755)
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    text = "".join(blocks(DOCUMENTS["README"], "sh"))
    fetched = ("python3 -m venv .venv && ", "pip install ", "costream models fetch ")
    left_out = (*fetched, "costream demo")  # whose tests are in tests/cli/test_demo.py
    kept = [line for line in text.splitlines() if not line.startswith(left_out)]
    assert kept[0] == ". .venv/bin/activate"
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(kept)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "# costream" in done.stdout
    made = {path.name for path in tmp_path.iterdir()} - {".venv", "samples"}
    assert {"out", "levels.safetensors", "alerts.jsonl", "log"} <= made
    assert "room.mp4: alert: fall" in done.stderr


# What stands for the files, cameras and sounds that the recipes are about.
STAND_INS = (
    (" --clips 5,10", ""),  # of files there are none
    (" --web 8080", ""),
    ("--metrics 9100", "--metrics 0"),
    ("zones rtsp://192.168.1.20/stream1", "zones samples/room.mp4"),
    ("rtsp://192.168.1.20/stream1", "samples/room.mp4 --realtime --speed 20"),
    ("watch feeds.toml", "watch feeds.toml --realtime --speed 20"),
    ("Owl", "Siren"),
    ("--group patient", "--group patient --steps 20"),
    ("walk.mp4 -m costgcn-2d", "walk.mp4 -m costgcn-2d --end 4"),
    ("listen --mic --only 'owl,bark'", "listen night/20260514_230000.ogg --only siren"),
)


def write_stand_ins(folder: Path) -> None:
    """Write the files that the recipes name, from the samples and from tones."""
    for name in ("videos", "films", "truth", "walks", "night"):
        (folder / name).mkdir()
    samples = folder / "samples"
    samples.symlink_to(ROOT / "samples")
    for name in ("videos/room.mp4", "films/room.mp4", "truth/room.json"):
        shutil.copy(samples / Path(name).name, folder / name)
    shutil.copy(samples / "corridor.mp4", folder / "walk.mp4")
    with av.open(samples / "room.mp4") as film:
        next(film.decode(video=0)).to_image().save(folder / "dog.jpg")
    shutil.copy(samples / "street.ogg", folder / "night" / "20260514_230000.ogg")
    acts = json.loads((samples / "moves.json").read_text("utf-8"))["segments"]
    for clips, names in (("clips.csv", ("anna", "ben", "cem")), ("others.csv", ("dora",))):
        rows = ["file,start,end,label,patient"]
        for name in names:
            shutil.copy(samples / "moves.csv", folder / "walks" / f"{name}.csv")
            for act in acts:
                where = f"walks/{name}.csv,{act['start_s']},{act['end_s']}"
                rows.append(f"{where},{act['label']},{name}")
        (folder / clips).write_text("\n".join(rows), "utf-8")
    write_folder(folder / "classes", 8)
    write_folder(folder / "new", 3, first_seed=100)
    shutil.copy(next((folder / "new").rglob("*.wav")), folder / "new.wav")
    feeds = [f'[[feed]]\nname = "{n}"\nurl = "samples/{n}.mp4"\n' for n in ("room", "corridor")]
    (folder / "feeds.toml").write_text("".join(feeds), "utf-8")


@pytest.mark.long
@pytest.mark.parametrize("story", re.findall(r"^## (.+)$", pages()["recipes"], re.MULTILINE))
def test_a_recipe_runs_from_its_first_line_to_its_last(story: str, tmp_path: Path) -> None:
    write_stand_ins(tmp_path)
    for line in lines(find(story.lower().replace(" ", "-"))):
        for wanted, here in STAND_INS:
            line = line.replace(wanted, here)
        (words,) = calls(line)
        done = costream(*words, cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert done.returncode == ExitCode.OK, f"{line}\n{done.stderr}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_exist(name):
    shown = list(lines(DOCUMENTS[name]))
    if name == "migration":
        shown += re.findall(r"^\|.* `(costream .+?)`[ ,:|]", DOCUMENTS[name], re.MULTILINE)
    for line in shown:
        for words in calls(line):
            command: click.Command | None = cli
            while isinstance(command, click.Group) and words:
                command = command.get_command(click.Context(command), words.pop(0))
            assert command is not None, line
            command.make_parser(click.Context(command)).parse_args(args=words)


@pytest.mark.parametrize("name", pages())
def test_pages_are_complete(name):
    text = render(pages()[name])
    assert not re.search(r"^\{\{", text, re.MULTILINE)
    assert re.match(r"# [\w ]+\n\n[^\n]+\n", text), "a title and a line that index.md shows"
    assert not re.search(r"(?<!`)``(?!`)|\bNone: ", text), "words of the source"
    for link in re.findall(r"\]\((\w+\.md)\)", text):
        assert link.removesuffix(".md") in pages(), link
    if name in COMMANDS:
        assert f"costream {name} --help" in text


def test_the_skill_has_the_head_that_assistants_read():
    _, head, body = SKILL.split("---\n", 2)
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    assert facts["name"] == "costream"  # that of its folder
    assert 0 < len(facts["description"]) <= 1024
    assert len(body.splitlines()) < 500
    for command in re.findall(r"`costream (\w+)", body):
        assert command in COMMANDS


def test_links_of_the_readme_exist():
    for link in re.findall(r"\]\((.+?)\)", DOCUMENTS["README"]):
        assert (ROOT / link).exists(), link


def test_nothing_is_missing():
    for command in COMMANDS:
        assert find(command)
    results = render(pages()["results"])
    for kind in (Header, *get_args(Record), Summary):
        section = results.split(f"### {kind.type}\n")[1].split("\n#")[0]
        assert all(f"`{field.name}`" in section for field in dataclasses.fields(kind))
    assert "| `wall_s` | number or null |" in results
    assert all(f"\n| {int(code)} |" in results for code in ExitCode)
    assert all(f"| `{name}` |" in results for name in FORMATS)


def test_ten_tasks_in_five_lines():
    tasks = pages()["python"].split("## Ten tasks")[1].split("\n## ")[0]
    codes = blocks(tasks, "python")
    assert len(codes) == 10
    assert max(len([line for line in code.splitlines() if line]) for code in codes) <= 5


def test_help_shows_pages_and_sections():
    code = "import sys; from costream.__main__ import main; assert main(['help', 'models']) == 0; "
    assert python("-c", code + "sys.exit('torch' in sys.modules)").returncode == 0
    assert costream("help").stdout.startswith("# costream")
    assert costream("help", "exit", "codes").stdout.startswith("## Exit codes")
    assert costream("help", "conf").stdout.startswith("# Configuration")
    done = costream("help", "skeleton-s")
    assert done.returncode == ExitCode.USAGE
    assert "did you mean skeletons" in done.stderr
    assert find("exit") == find("exit-codes")
    with pytest.raises(UsageError, match="lists the pages"):
        find("zzzz")
