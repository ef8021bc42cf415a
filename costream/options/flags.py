"""Declarations of flags: how a field of a group of options describes its command-line option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_type_hints

from costream.options.values import positive_seconds, seconds

# The commands that have an option.
LISTEN, READ, WATCH, BATCH = ("listen",), ("read",), ("watch",), ("batch",)
FILES = ("detect", "listen", "read", "batch")
RUNS = (*FILES, "watch")
VIDEO = ("detect", "batch", "watch")
EVERY = (*RUNS, "features")
OFFLINE = (*FILES, "features")

# Whether an option identifies the results of a batch. "if set": options that were added later,
# so that folders of earlier versions can be resumed.
Identity = Literal["always", "if set", "never"]


@dataclass(frozen=True)
class Flag:
    """The command-line option of a field. The field's type decides which values it takes."""

    names: tuple[str, ...]  # "-o", "--output"; of a switch also "--live/--no-live"
    help: str
    commands: tuple[str, ...]  # that have it; (): those of the group
    default: Any  # of the command line
    identity: Identity = "always"
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None  # of the text; raises UsageError
    minimum: int | None = None
    path: Literal["file", "folder"] | None = None  # an existing path must be of this kind
    variable: bool = True  # whether COSTREAM_<NAME> sets it
    bare: str | None = None  # value of the option without one
    counted: bool = False  # the value is how often the option occurs


@dataclass(frozen=True)
class Group:
    """Base of the groups of options: frozen dataclasses of fields made by ``flag``."""

    heading: ClassVar[str]  # in help
    commands: ClassVar[tuple[str, ...]]  # that have the options which do not name their commands


@dataclass(frozen=True)
class Declared:
    """A field with a flag, as a command needs it."""

    name: str
    flag: Flag
    hint: Any  # type of the field
    heading: str
    commands: tuple[str, ...]


def declared_flags(options: type[Group]) -> Iterator[Declared]:
    """Yield the flags of a class of options, group by group in the order of its bases."""
    for group in options.__mro__:
        if not issubclass(group, Group) or "heading" not in vars(group):
            continue
        hints = get_type_hints(group)
        for each in fields(group):
            flag = each.metadata["flag"]
            commands = flag.commands or group.commands
            yield Declared(each.name, flag, hints[each.name], group.heading, commands)


def flag(
    names: str,
    help: str,
    *,
    default: Any = None,
    cli_default: Any = None,
    on: tuple[str, ...] = (),
    **arguments: Any,
) -> Any:
    """Return a field with the declaration of its flag.

    ``on``: the commands that have it, if not all of the group. ``cli_default``: the default of the
    command line where it differs from the field's. ``arguments``: other fields of ``Flag``.
    """
    shown = default if cli_default is None else cli_default
    declaration = Flag(tuple(names.split()), help, on, shown, **arguments)
    return field(default=default, metadata={"flag": declaration})


def time_flag(names: str, help: str, *, default: float | None = None, **arguments: Any) -> Any:
    """Return a field in seconds; the option also takes times such as 1:30 and 5min."""
    shown = None if default is None else f"{default:g}"
    arguments = {"metavar": "TIME", "parse": seconds, **arguments}
    return flag(names, help, default=default, cli_default=shown, **arguments)


def limit_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field in seconds above 0."""
    return time_flag(names, help, parse=positive_seconds, **arguments)


def texts_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field whose option may be repeated."""
    return flag(names, help, default=(), **arguments)


def switch_flag(names: str, help: str, **arguments: Any) -> Any:
    """Return a field that is off by default."""
    return flag(names, help, default=False, **arguments)
