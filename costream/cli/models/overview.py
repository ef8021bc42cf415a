"""``costream models list`` and ``show``: list the models, and print the card of one."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any

import click

from costream.checkpoints.card import Card
from costream.checkpoints.file import read_card, read_header
from costream.cli.models.text import print_json, print_table
from costream.models.registry import find_weights, list_models


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the models and the locations of their weights.

    Weights that are "published" are not installed: costream models fetch NAME downloads them.
    """
    entries = list_models()
    if as_json:
        rows = [
            {**dataclasses.asdict(e), "path": None if e.path is None else str(e.path)}
            for e in entries
        ]
        print_json(rows)
        return
    table = [("MODEL", "WEIGHTS", "DESCRIPTION", "FILE")]
    table += [
        (e.name, e.origin or "none", e.summary, "" if e.path is None else str(e.path))
        for e in entries
    ]
    print_table(table)


@click.command("show")
@click.argument("model", metavar="NAME|FILE")
@click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(model: str, weights: str | None, as_json: bool) -> None:
    """Show the card of a model: description, origin and reliability."""
    path = find_weights(model, weights)
    card, header = read_card(path), read_header(path)
    numbers = sum(math.prod(info.shape) for info in header.tensors.values())
    digest = header.metadata.get("tensors_sha256", "")
    if as_json:
        facts = {"path": str(path), "tensors_sha256": digest, "parameters": numbers}
        print_json({**facts, **json.loads(card.to_json())})
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
    """Yield a line with the plain values of each nested table, without long lists (see --json)."""
    nested = {k: v for k, v in table.items() if isinstance(v, dict)}
    plain = {k: v for k, v in table.items() if k not in nested and v is not None}
    short = [f"{k}={v}" for k, v in plain.items() if not (isinstance(v, list) and len(v) > 5)]
    if short:
        yield path, ", ".join(short)
    for key, value in nested.items():
        yield from _leaves(f"{path} {key}", value)
