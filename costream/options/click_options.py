"""Options of commands: from declarations of flags, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import click

from costream.core.errors import UsageError, display_name
from costream.options.completers import completer

if TYPE_CHECKING:  # only commands of a run import the options of runs, so that others start faster
    from costream.options.flags import Declared

_MAX_NUMBER = 1e15  # of settings
F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option with the heading under which help lists it ("" for none) and a parser."""

    def __init__(
        self,
        *args: Any,
        heading: str = "",
        parse: Callable[[Any], Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(*args, **arguments)
        self.heading = heading
        self.parse = parse  # makes the value of what the user wrote; raises UsageError


def option(
    *names: str,
    parse: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> Callable[[F], F]:
    """Return a ``click.option`` that can also be set by ``COSTREAM_<LONG NAME>``.

    ``parse``: makes the value of what the user wrote; it raises UsageError. ``arguments``: those of
    ``Option``.
    """
    return click.option(*names, cls=Option, **_arguments(names, parse, arguments))


def _arguments(
    names: Sequence[str], parse: Callable[[Any], Any] | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    long = next(n for n in names if n.startswith("--")).split("/")[0]
    variable = "COSTREAM_" + long.removeprefix("--").removeprefix("no-").replace("-", "_").upper()
    completing = None if "type" in arguments else completer(names, arguments.get("metavar") or "")
    return {
        "envvar": variable,
        "show_default": arguments.get("default") is not None,
        "shell_complete": completing,
        **arguments,
        "parse": parse,
        "callback": _checked(parse),
    }


def _checked(parse: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """Return a callback that parses a value and rejects numbers that no setting can have."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        # NaN is not below any number.
        if isinstance(value, (int, float)) and not abs(value) <= _MAX_NUMBER:
            raise click.BadParameter(f"{str(value)[:20]} is out of range", ctx, param)
        if parse is None or value is None:
            return value
        try:
            return parse(value)
        except UsageError as error:
            name = max(param.opts, key=len)
            raise click.BadParameter(str(error).removeprefix(f"{name}: "), ctx, param) from error
        except (ValueError, OverflowError) as error:  # as for numbers of thousands of digits
            shown = display_name(str(value))[:80]
            raise click.BadParameter(f"{shown!r} is not valid", ctx, param) from error

    return check


def declared_option(declared: Declared, **changes: Any) -> Option:
    """Return the option of a field; ``changes``: other arguments of ``Option``."""
    return Option(declared.flag.names, **_declared_arguments(declared, changes))


def _declared_arguments(declared: Declared, changes: dict[str, Any]) -> dict[str, Any]:
    flag = declared.flag
    arguments: dict[str, Any] = {
        "help": flag.help,
        "metavar": flag.metavar,
        "heading": declared.heading,
    }
    arguments |= _of_type(declared)
    if flag.default not in (None, ()):
        is_number = isinstance(flag.default, float)
        arguments["default"] = f"{flag.default:g}" if is_number else flag.default
    if not flag.variable:
        arguments["envvar"] = None
    if flag.bare is not None:
        arguments |= {"is_flag": False, "flag_value": flag.bare}
    arguments |= changes
    if arguments.get("required"):
        arguments.pop("default", None)  # even None would count as a value
    return _arguments(flag.names, flag.parse, arguments)


def _of_type(declared: Declared) -> dict[str, Any]:
    """Return the arguments of an option that follow from the type of its field."""
    flag, hint = declared.flag, declared.hint
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return {"multiple": True}
    if flag.path is not None:
        is_file = flag.path == "file"
        return {"type": click.Path(dir_okay=not is_file, file_okay=is_file)}
    if flag.counted:
        return {"count": True}
    if hint is bool:
        return {"is_flag": True}
    if flag.parse is not None or hint is str:
        return {}
    if get_origin(hint) is Literal:
        return {"type": click.Choice(get_args(hint))}
    return {"type": click.IntRange(flag.minimum) if hint is int else hint}


def shared(*fields: str, **changes: Any) -> Callable[[F], F]:
    """Return a decorator that adds options of these fields of ``Options``, named like the fields.

    ``changes``: other arguments of ``Option``.
    """

    def decorate(function: F) -> F:
        from costream.options.flags import declared_flags
        from costream.options.options import Options

        declared = {each.name: each for each in declared_flags(Options)}
        for field in reversed(fields):
            names = (*declared[field].flag.names, field)
            arguments = _declared_arguments(declared[field], changes)
            function = click.option(*names, cls=Option, **arguments)(function)
        return function

    return decorate


def check_quiet(quiet: bool, verbose: int) -> None:
    """Raise UsageError if messages are both wanted and not."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other")


def json_option(function: F) -> F:
    """Add --json to a command, which takes it as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
