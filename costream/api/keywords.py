"""Keyword arguments of the Python API: the options of the command line, under their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from costream.core.errors import UsageError
from costream.core.formatting import suggest_names
from costream.options.checks import check_combinations
from costream.options.click_options import declared_option
from costream.options.flags import Declared, declared_flags
from costream.options.options import Options

# Options of the terminal and of the process; a Python program has its own.
_TERMINAL = {"mic", "live", "color", "log_file", "verbose", "quiet", "skip_existing"}


def make_options(command: str, keywords: Mapping[str, Any], **fixed: Any) -> Options:
    """Return the options of a command from keyword arguments.

    The names are those of the command line: ``top_k=5`` is ``--top-k 5``, ``start="1:30"`` is
    ``--start 1:30``, ``fps=4`` is ``--fps 4``. ``fixed``: values of fields. Raises UsageError for
    an unknown name, a wrong value, or options that exclude each other.
    """
    declared = {
        _name_of(each.flag.names): each
        for each in declared_flags(Options)
        if command in each.commands and each.name not in _TERMINAL
    }
    values = dict(fixed)
    for name, value in keywords.items():
        if name not in declared:
            raise UsageError(
                f"there is no option {name!r}", where=command, hint=suggest_names(name, declared)
            )
        if value is not None:
            values[declared[name].name] = _parsed(name, declared[name], value)
    return check_combinations(Options(**values), command)


def checked_path(path: Any, where: str) -> Path:
    """Return the path of a file. Raises UsageError if it is not a path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"the name of a file, not {type(path).__name__} {path!r}", where=where)
    return Path(path)


def _name_of(names: tuple[str, ...]) -> str:
    """Return the keyword for an option's names: ``top_k`` for ``--top-k``."""
    long = next(name for name in names if name.startswith("--"))
    return long.split("/")[0].removeprefix("--").replace("-", "_")


def _parsed(name: str, declared: Declared, value: Any) -> Any:
    """Return a value as the command line would have read it."""
    option = declared_option(declared)
    context = click.Context(click.Command("python"), resilient_parsing=False)
    try:
        return option.process_value(context, _as_text(option, value))
    except click.BadParameter as error:
        raise UsageError(error.message.rstrip("."), where=name) from error
    except TypeError as error:
        raise UsageError(f"{value!r} is not a valid value", where=name) from error


def _as_text(option: click.Option, value: Any) -> Any:
    """Return a value as click takes it: a text, or a list of texts."""
    if isinstance(value, bool):
        return value
    if option.multiple:
        return [value] if isinstance(value, str) else [str(each) for each in value]
    return str(value)
