"""What commands print with --json fits its schema, and every command that prints a table has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from costream.__main__ import main
from costream.cli import cli
from costream.cli.schema import FILES, NAMES, PRINTED, schema
from costream.core.records import Header, Segment, dumps, to_json
from costream.core.tables import Table
from kit.media import make_video

jsonschema = pytest.importorskip("jsonschema")

# These print no table: files, paths, TOML, a dialogue, or a page.
_NO_TABLE = {"demo", "watch", "zones", "features", "train", "mcp", "schema", "completion", "help"}
_NO_TABLE |= {f"models {name}" for name in ("compress", "export", "import", "init")}
_NO_TABLE |= {f"models {name}" for name in ("path", "push", "remove")}


def commands(group: click.Command, *path: str) -> dict[str, click.Command]:
    """Return all commands by their words."""
    if not isinstance(group, click.Group):
        return {" ".join(path): group}
    context, found = click.Context(group), dict[str, click.Command]()
    for name in group.list_commands(context):
        part = group.get_command(context, name)
        assert part is not None
        found |= commands(part, *path, name)
    return found


def test_every_command_that_prints_a_table_prints_json() -> None:
    without = {
        name
        for name, command in commands(cli).items()
        if not any("--json" in param.opts for param in command.params)
    }
    assert without == _NO_TABLE


@pytest.mark.parametrize("name", [*FILES, *PRINTED])
def test_schemas_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert len(set(NAMES)) == len(NAMES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film, results of it, labels, and other results."""
    found = tmp_path_factory.mktemp("json")
    film = make_video(found / "film.mp4", 75)
    for name, score in (("film.mp4.jsonl", 0.9), ("other.jsonl", 0.8)):
        header = Header("0", "m", "0", ("a", "b"), "a", 8.0, 0.0, str(film), "video", None, {})
        records = (header, Segment(1.0, 2.0, "b", score))
        (found / name).write_text("".join(f"{dumps(to_json(r))}\n" for r in records), "utf-8")
    (found / "labels.csv").write_text("file,start,end,label\nfilm.mp4,1,2.5,b\n", "utf-8")
    (found / "results").mkdir()
    (found / "film.mp4.jsonl").rename(found / "results" / "film.mp4.jsonl")
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("models-list", "models list"),
        ("models-show", "models show mn04"),
        ("models-fetch", "models fetch"),
        ("doctor-files", "doctor film.mp4 labels.csv"),
        ("diff", "report --diff results/film.mp4.jsonl other.jsonl"),
        ("evaluate", "evaluate --results results --labels labels.csv"),
        ("clips", "clips results/film.mp4.jsonl"),
        pytest.param("doctor", "doctor", marks=pytest.mark.slow),
        pytest.param("models-verify", "models verify cotrans", marks=pytest.mark.slow),
    ],
)
def test_what_is_printed_fits_its_schema(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main([*words.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed
    check(printed, schema(name))


def check(printed: Any, against: dict[str, Any]) -> None:
    """Validate, and check that each entry has only fields that the schema describes."""
    jsonschema.validate(printed, against)
    (reference,) = (x["$ref"] for x in (against, against.get("items", {})) if "$ref" in x)
    described = against["$defs"][reference.rpartition("/")[2]]
    for entry in printed if isinstance(printed, list) else [printed]:
        if described["title"] != "Evaluation":  # the metrics of the task follow
            assert entry.keys() <= described["properties"].keys()
        assert not jsonschema.Draft202012Validator(against).is_valid([{}])


def test_tables_of_benchmarks_fit_their_schema() -> None:
    table = Table("Speed", ("way", "us"), (("one", 2.5), ("another", None)), ("A note.",))
    check([json.loads(json.dumps(table.to_json()))], schema("bench"))
    check(json.loads(json.dumps(table.to_json())), schema("doctor-tune"))
