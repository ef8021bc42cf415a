"""Keyword arguments of the Python API: the options of the command line, under their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from costream.cli.options import checked
from costream.core.errors import UsageError
from costream.core.formatting import suggest_names
from costream.options.options import Options

# Options of the terminal and of the process, which a program decides for itself.
_TERMINAL = {"mic", "live", "color", "log_file", "verbose", "quiet", "skip_existing"}


def make_options(command: str, given: Mapping[str, Any], **fixed: Any) -> Options:
    """Return the options of a command, given as keyword arguments.

    The names are those of the command line: ``top_k=5`` is ``--top-k 5``, ``start="1:30"`` is
    ``--start 1:30``, ``fps=4`` is ``--fps 4``. ``fixed``: values of fields. Raises UsageError for
    an unknown name, a wrong value, or options that exclude each other.
    """
    known = {
        _name_of(each.metadata["flag"].names): (each.name, each.metadata["flag"])
        for each in fields(Options)
        if "flag" in each.metadata
        and command in each.metadata["flag"].commands
        and each.name not in _TERMINAL
    }
    values = dict(fixed)
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"there is no option {name!r}", where=command, hint=suggest_names(name, known)
            )
        field, flag = known[name]
        if value is not None:
            values[field] = _parsed(name, flag, value)
    return checked(Options(**values), command)


def checked_path(path: Any, where: str) -> Path:
    """Return the path of a file. Raises UsageError for what is none."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"the name of a file, not {type(path).__name__} {path!r}", where=where)
    return Path(path)


def _name_of(names: tuple[str, ...]) -> str:
    """Return the keyword for an option's names: ``top_k`` for ``--top-k``."""
    long = next(name for name in names if name.startswith("--"))
    return long.split("/")[0].removeprefix("--").replace("-", "_")


def _parsed(name: str, flag: Any, value: Any) -> Any:
    """Return a value as the command line would have read it."""
    option = click.Option(flag.names, **{**flag.click, "required": False})
    context = click.Context(click.Command("python"), resilient_parsing=False)
    try:
        parsed = option.process_value(context, _as_given(option, value))
    except click.BadParameter as error:
        raise UsageError(error.message.rstrip("."), where=name) from error
    except TypeError as error:
        raise UsageError(f"{value!r} is not a valid value", where=name) from error
    return flag.parse(parsed) if flag.parse is not None else parsed


def _as_given(option: click.Option, value: Any) -> Any:
    """Return a value in the form in which click takes it: texts, or a list of them."""
    if isinstance(value, bool):
        return value
    if option.multiple:
        return [value] if isinstance(value, str) else [str(each) for each in value]
    return str(value)
