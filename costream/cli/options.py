"""Option types and decorators shared by several commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from costream.clock import parse_time
from costream.errors import UsageError
from costream.settings import load_config

F = TypeVar("F", bound=Callable[..., Any])


def seconds(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    """Parse ``62``, ``5s``, ``1:02`` or ``HH:MM:SS.mmm`` as seconds."""
    if value is None:
        return None
    try:
        return parse_time(str(value))
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def option(*names: str, **kwargs: Any) -> Callable[[F], F]:
    """Return a ``click.option`` that can also be set by ``COSTREAM_<LONG NAME>``."""
    long = next(n for n in names if n.startswith("--")).split("/")[0]
    variable = "COSTREAM_" + long.removeprefix("--").removeprefix("no-").replace("-", "_").upper()
    kwargs.setdefault("envvar", variable)
    kwargs.setdefault("show_default", kwargs.get("default") is not None)
    return click.option(*names, **kwargs)


def config_option() -> Callable[[F], F]:
    """Return ``-c/--config``, which reads the configuration files before the other options."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        options = {
            name.removeprefix("--").replace("-", "_"): p
            for p in ctx.command.params
            if isinstance(p, click.Option)
            for name in p.opts
            if name.startswith("--")
        }
        found = load_config(str(ctx.info_name), options, value)
        ctx.default_map = {
            str(options[key].name): [v] if options[key].multiple and isinstance(v, str) else v
            for key, v in found.items()
        }
        return value

    return click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False),
        metavar="FILE.toml",
        envvar="COSTREAM_CONFIG",
        callback=read,
        is_eager=True,
        expose_value=False,
        help="Read settings from this file instead of ./costream.toml.",
    )


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Raise BadParameter for zero, negative and non-finite numbers."""
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a positive number", ctx, param)
    return value


# Printing of tables and JSON.


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in aligned columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
