"""Printing of tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
