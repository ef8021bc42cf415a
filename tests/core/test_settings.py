"""Configuration files: precedence, tables, error messages."""

from __future__ import annotations

import click
import pytest

from costream.cli import cli
from costream.core.errors import UsageError
from costream.core.settings import COMMANDS, OUTWARD, load_config, user_config_path


@pytest.fixture(autouse=True)
def homes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


OPTIONS = ("top_k", "device", "model")


def write_user(text):
    path = user_config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_nothing():
    assert load_config("detect", OPTIONS) == {}


def test_project_wins_over_user_and_section_over_shared(homes):
    write_user('device = "cuda:0"\n[detect]\ntop-k = 9\nmodel = "a"\n')
    (homes / "costream.toml").write_text('model = "shared"\n[detect]\nmodel = "b"\n')
    assert load_config("detect", OPTIONS) == {"device": "cuda:0", "top_k": 9, "model": "b"}


def test_named_file_replaces_the_project_file(homes):
    (homes / "costream.toml").write_text("top-k = 1\n")
    (homes / "other.toml").write_text("[detect]\ntop-k = 2\n")
    assert load_config("detect", OPTIONS, "other.toml") == {"top_k": 2}


def test_other_commands_tables_are_left_alone(homes):
    (homes / "costream.toml").write_text("[listen]\nanything = 1\n")
    assert load_config("detect", OPTIONS) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("top-q = 1\n", "top-q"),
        ("= 1\n", "TOML"),
        ("detect = 3\n", r"\[detect\] must be a table"),
        (
            "[detct]\ntop-k = 1\n",
            r"unknown table \[detct\]; tables are named after commands: detect,",
        ),
        ("top-k = true\n", "top-k takes a value, not true"),
    ],
)
def test_mistakes_are_named(homes, text, says):
    (homes / "costream.toml").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        load_config("detect", OPTIONS)
    assert "costream.toml" in str(caught.value)


def test_switches_may_be_true_or_false(homes):
    (homes / "costream.toml").write_text("quiet = false\n")
    assert load_config("detect", ("quiet",), switches={"quiet"}) == {"quiet": False}


def test_tables_are_named_after_the_commands_that_read_them():
    with click.Context(cli) as ctx:
        every = [(name, cli.get_command(ctx, name)) for name in cli.list_commands(ctx)]
    readers = {name for name, c in every if c and any("--config" in p.opts for p in c.params)}
    assert readers == set(COMMANDS)


def test_named_file_must_exist():
    with pytest.raises(UsageError, match="no such configuration file"):
        load_config("detect", OPTIONS, "missing.toml")


@pytest.mark.parametrize("key", sorted(key.replace("_", "-") for key in OUTWARD))
@pytest.mark.parametrize("text", ["{} = 'x'", "[watch]\n{} = ['x']", "[watch]\n{} = true"])
def test_a_file_of_the_current_folder_starts_and_writes_nothing(homes, key, text):
    options = (key.replace("-", "_"),)
    (homes / "costream.toml").write_text(text.format(key))
    with pytest.raises(UsageError, match=rf"^costream.toml: '{key}' is not taken from a file of"):
        load_config("watch", options, switches=options)
    assert load_config("watch", options, "costream.toml", switches=options)
    (homes / "costream.toml").unlink()
    write_user(text.format(key))
    assert load_config("watch", options, switches=options)


# Options with the name of a file, a folder or an address that is read only.
READ = {
    *("config", "model", "weights", "layout", "data", "labels", "results", "compare", "budget"),
    "suggest",
    "also",
}


def test_every_option_that_writes_or_sends_is_known_as_one():
    with click.Context(cli) as ctx:
        options = {
            name.removeprefix("--"): str(option.metavar)
            for command in COMMANDS
            for option in getattr(cli.get_command(ctx, command), "params", ())
            for name in option.opts
            if name.startswith("--")
        }
    words = ("FILE", "FOLDER", "PATH", "HOST", "URL", "COMMAND")
    outward = {name for name, metavar in options.items() if any(w in metavar for w in words)}
    assert outward - READ <= {name.replace("_", "-") for name in OUTWARD}
    assert {name.replace("_", "-") for name in OUTWARD} - {"code"} <= options.keys()
