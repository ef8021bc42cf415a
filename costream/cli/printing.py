"""Output of commands on stdout, and the check of files that they write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from costream.core.errors import UsageError, printable


def check_weight_file(target: Path) -> None:
    """Raise UsageError for a weight file that cannot be written, before the work for it."""
    from costream.sinks.atomic import check_folder
    from costream.weights_io.file import SUFFIX

    if target.suffix != SUFFIX:
        raise UsageError(f"the name must end in {SUFFIX}", where=f"-o {target}")
    check_folder(target.parent)


def check_new_file(target: Path, *, overwrite: bool) -> None:
    """Raise UsageError for a file that exists, unless it may be replaced."""
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=target, hint="use -o or --overwrite")


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo(printable("  ".join(cells).rstrip()))


def print_json(value: Any) -> None:
    """Print a value as JSON, without control characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
