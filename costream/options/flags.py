"""Declarations of options: how a field of ``Options`` says what its option is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import click

from costream.core.clock import parse_time
from costream.core.errors import UsageError
from costream.core.places import Kind, Place, parse_place
from costream.core.records import RawAudioFormat

# The commands that have an option.
LISTEN, READ, WATCH, BATCH = ("listen",), ("read",), ("watch",), ("batch",)
FILES = ("detect", "listen", "read", "batch")
RUNS = (*FILES, "watch")
VIDEO = ("detect", "batch", "watch")
EVERY = (*RUNS, "features")
OFFLINE = (*FILES, "features")
_FASTEST_HZ = 1000  # steps a second

_STREAM = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)?")
_RAW = re.compile(r"([a-z][a-z0-9]+):([0-9]+)(?::([0-9]+))?")


def seconds(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    """Parse ``62``, ``5s``, ``1h30m``, ``1:02`` or ``HH:MM:SS.mmm`` as seconds."""
    if value is None:
        return None
    try:
        return parse_time(str(value))
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Raise BadParameter for zero, negative and non-finite numbers."""
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a positive number", ctx, param)
    return value


def step_rate(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Raise BadParameter for what is no number of steps a second."""
    if value is not None and value > _FASTEST_HZ:
        raise click.BadParameter(f"{value:g} is more than {_FASTEST_HZ}", ctx, param)
    return positive(ctx, param, value)


def positive_seconds(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    """Parse a time above zero."""
    limit_s = seconds(ctx, param, value)
    if limit_s == 0:
        raise click.BadParameter("must be greater than 0", ctx, param)
    return limit_s


def raw_format(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> RawAudioFormat | None:
    """Parse FORMAT:RATE[:CHANNELS]."""
    if value is None:
        return None
    match = _RAW.fullmatch(value)
    if match is None or not int(match[2]) or match[3] == "0":
        raise click.BadParameter(f"{value!r} is not FORMAT:RATE[:CHANNELS]", ctx, param)
    return RawAudioFormat(match[1], int(match[2]), int(match[3] or 1))


def parse_stream(value: object, where: str = "--stream") -> str:
    """Return which video stream is meant: its number, from 1, or its size."""
    text = str(value).strip().lower()
    if not _STREAM.fullmatch(text):
        message = f"{value!r} is neither a number from 1 on nor a size such as 640x480"
        raise UsageError(message, where=where)
    return text


def job_count(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Parse a number of workers; None stands for auto."""
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither auto nor a positive integer", ctx, param)
    return int(value)


def parse_places(kind: Kind, texts: Iterable[str]) -> tuple[Place, ...]:
    """Return the places of an option, each NAME=X,Y X,Y ..."""
    return tuple(parse_place(text, kind, f"--{kind}") for text in texts)


@dataclass(frozen=True)
class Flag:
    """The declaration of a field's option."""

    names: tuple[str, ...]  # as for click.Option
    commands: tuple[str, ...]  # that have it
    identity: bool  # changes results, see Options.identity
    parse: Callable[[Any], Any] | None  # of the value that click read; raises UsageError
    click: dict[str, Any]  # further arguments of click.Option


def flag(
    names: str,
    help: str | None = None,
    *,
    default: Any = None,
    cli_default: Any = None,
    on: tuple[str, ...] = RUNS,
    identity: bool = True,
    parse: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> Any:
    """Return a field with the declaration of its option, for the commands ``on``.

    ``cli_default``: the default of the command line, where it differs from the field's.
    """
    shown = default if cli_default is None else cli_default
    if shown not in (None, ()):
        arguments["default"] = shown
    declaration = Flag(tuple(names.split()), on, identity, parse, {**arguments, "help": help})
    return field(default=default, metadata={"flag": declaration})


def time_flag(names: str, help: str, *, default: float | None = None, **arguments: Any) -> Any:
    """Return a field in seconds."""
    shown = None if default is None else f"{default:g}"
    time: dict[str, Any] = {"type": str, "callback": seconds, "metavar": "TIME"}
    return flag(names, help, default=default, cli_default=shown, **{**time, **arguments})


def limit_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field in seconds above 0."""
    return time_flag(names, help, callback=positive_seconds, **arguments)


def texts_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field whose option may be repeated."""
    return flag(names, help, default=(), multiple=True, **arguments)


def switch_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field that is off by default."""
    return flag(names, help, default=False, **arguments)
