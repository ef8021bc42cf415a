"""``costream models``: list, show, import and verify models and their weights."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from costream.checkpoints.config import KEYS, Config, read_pairs
from costream.checkpoints.formats import FORMATS
from costream.checkpoints.weights_file import SUFFIX, read_card, read_header
from costream.errors import CostreamError, ExitCode, ModelError, UsageError
from costream.models.card import Card
from costream.models.registry import cache_folder, find_weights, list_models


@click.group()
def command() -> None:
    """List, show, import and verify models and their weights."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the models, and where their weights are."""
    entries = list_models()
    if as_json:
        rows = [
            {**dataclasses.asdict(e), "path": None if e.path is None else str(e.path)}
            for e in entries
        ]
        _print_json(rows)
        return
    table = [("MODEL", "WEIGHTS", "WHAT IT IS", "FILE")]
    table += [
        (e.name, e.origin or "none", e.summary, "" if e.path is None else str(e.path))
        for e in entries
    ]
    _print_table(table)


@command.command("show")
@click.argument("model", metavar="NAME|FILE")
@click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(model: str, weights: str | None, as_json: bool) -> None:
    """Show the card of a model: what it is, where it comes from and how far to trust it."""
    path = find_weights(model, weights)
    card, header = read_card(path), read_header(path)
    numbers = sum(math.prod(info.shape) for info in header.tensors.values())
    digest = header.metadata.get("tensors_sha256", "")
    if as_json:
        facts = {"path": str(path), "tensors_sha256": digest, "parameters": numbers}
        _print_json({**facts, **json.loads(card.to_json())})
        return
    lines = [
        ("file", str(path)),
        ("sha256", digest),
        ("parameters", f"{numbers:,}"),
        *_describe(card),
    ]
    width = max(len(key) for key, _ in lines if " " not in key)
    for key, value in lines:
        click.echo(f"{key:<{width}}  {value}")


def _keys() -> str:
    head = "Keys of --config (what the tensors say already is checked against them):"
    lines = [f"{key:<20} {what} ({kind})" for key, (_, kind, what) in KEYS.items()]
    return "\b\n" + "\n".join([head, *lines])


@command.command("import", epilog=_keys())
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as", "form", type=click.Choice(list(FORMATS)), help="Format; found by itself without."
)
@click.option("--name", metavar="NAME", help="Name of the model (default: that of the file).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write there, not to the cache.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the checkpoint does not say; repeatable.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace existing weights.")
def import_command(
    checkpoints: tuple[Path, ...],
    form: str | None,
    name: str | None,
    output: Path | None,
    pairs: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Convert a foreign checkpoint; prints the file it wrote.

    Without -o it goes to the user cache, where '-m NAME' finds it. Nothing in the checkpoint is
    run: pickles may hold arrays and plain containers only.

    Skeleton networks of several streams become one model: give their checkpoints and name their
    streams in this order (--config stream=joint,bone). A network for sound becomes one with its
    VGGish: give that checkpoint too, and its PCA file where the network was trained with it.
    """
    config = read_pairs(pairs)
    Config(config, KEYS)  # a typo is told before torch is imported
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            raise ModelError("there is no such file", where=checkpoint)
    if len(checkpoints) > 1 and not (name or output):
        raise UsageError("several checkpoints become one model: say its --name")
    name = name or (output or checkpoints[0]).stem
    if not name or set(name) & set("/\\"):
        raise UsageError(f"--name {name!r}: not a file name")
    target = output or cache_folder() / f"{name}{SUFFIX}"
    if target.suffix != SUFFIX:
        raise UsageError(f"-o {target}: the name must end in {SUFFIX}")
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=target, hint="use --name, -o or --overwrite")

    from costream.checkpoints.importing import import_files
    from costream.checkpoints.weights_file import write_weights
    from costream.models.build import build

    card, tensors = import_files(checkpoints, name, config, form)
    build(card, tensors)  # proves that they fit before anything is written
    write_weights(target, card, tensors)
    click.echo(f"{name}: {card.description} See: costream models show {target}", err=True)
    click.echo(str(target))


@command.command("verify")
@click.argument("models", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify_command(models: tuple[str, ...], as_json: bool) -> int:
    """Check weight files: checksum, card, tensors, and a few steps. All of them without a name.

    Exit code 5 when one fails.
    """
    from costream.models.verify import verify

    rows = []
    for name in models or [e.name for e in list_models() if e.path is not None]:
        path, problem = None, None
        try:
            path = find_weights(name)
            digest = verify(path)
        except CostreamError as error:
            digest, problem = "", str(error)
        where = name if path is None else str(path)
        rows.append({"path": where, "ok": problem is None, "sha256": digest, "problem": problem})
    if not rows:
        click.echo("there are no weight files to verify", err=True)
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            click.echo(f"ok    {row['path']}" if row["ok"] else f"FAIL  {row['problem']}")
    failed = any(not row["ok"] for row in rows)
    return int(ExitCode.MODEL if failed else ExitCode.OK)


def _describe(card: Card) -> Iterable[tuple[str, str]]:
    for field in dataclasses.fields(card):
        value: Any = getattr(card, field.name)
        if value in ("", None, {}, ()):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, dict):
            yield from _leaves(field.name, value)
            continue
        if isinstance(value, tuple):
            value = f"{len(value)}: {', '.join(value)}"
        yield field.name, str(value)


def _leaves(path: str, table: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Give a line for the plain values of each table in a table; longer lists are in the JSON."""
    nested = {k: v for k, v in table.items() if isinstance(v, dict)}
    plain = {k: v for k, v in table.items() if k not in nested and v is not None}
    short = [f"{k}={v}" for k, v in plain.items() if not (isinstance(v, list) and len(v) > 5)]
    if short:
        yield path, ", ".join(short)
    for key, value in nested.items():
        yield from _leaves(f"{path} {key}", value)


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
