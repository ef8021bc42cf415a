"""Commands of a run, whose options are the groups of ``Options``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.settings_in_force import config_option, effective, warn_of_unknown_variables
from costream.core.errors import ExitCode
from costream.options.checks import check_combinations
from costream.options.click_options import Option, declared_option
from costream.options.completers import file_names
from costream.options.flags import declared_flags
from costream.options.options import Options

# From strong to weak.
_ORIGINS = ("COMMANDLINE", "PROMPT", "ENVIRONMENT", "DEFAULT_MAP", "DEFAULT")
_JSON = "Write JSON, one document: -f json."
# Fields of options that exclude each other.
_EXCLUSIVE = (
    ("end_s", "duration_s"),
    ("quiet", "verbose"),
    ("overwrite", "skip_existing"),
    ("tokens", "budget"),
)


def run_command(
    name: str, argument: str, kind: type[Options] = Options, **changes: dict[str, Any]
) -> Callable[[Callable[[Any, list[str]], ExitCode]], click.Command]:
    """Return a decorator that makes a command of a function of options and settings in force.

    The command has the options that the groups of ``kind`` declare for ``name``. ``argument``:
    shown for its sources; optional in brackets. ``changes``: for a field, other arguments of
    ``Option``.
    """
    required = not argument.startswith("[")
    sources = click.Argument(
        [argument.strip("[.]").lower() + "s"],
        nargs=-1,
        required=required,
        metavar=argument,
        shell_complete=file_names,
    )
    params: dict[str, click.Parameter] = {"sources": sources}
    for declared in declared_flags(kind):
        if name in declared.commands:
            field = declared.name
            params[field] = declared_option(declared, **changes.get(field, {}))

    shown = list(params.values())
    if "formats" in params:
        place = shown.index(params["formats"]) + 1
        shown.insert(
            place, Option(["--json", "as_json"], is_flag=True, heading="Output", help=_JSON)
        )

    def decorate(function: Callable[[Any, list[str]], ExitCode]) -> click.Command:
        @click.command(
            cls=Command,
            params=shown,
            no_args_is_help=required,
            help=function.__doc__,
        )
        @config_option()
        @click.pass_context
        def command(ctx: click.Context, /, **_: Any) -> int:
            values = {field: ctx.params[str(param.name)] for field, param in params.items()}
            if ctx.params.get("as_json"):
                values["formats"] = _with_json(ctx, values["formats"])
            for pair in _EXCLUSIVE:
                if (overridden := _weaker(ctx, pair, params, values)) is not None:
                    values[overridden] = kind.__dataclass_fields__[overridden].default
            options = check_combinations(kind(**values), name)
            unknown = warn_of_unknown_variables(ctx, quiet=options.quiet)
            return int(function(options, [*effective(ctx), *unknown]))

        return command

    return decorate


def _with_json(ctx: click.Context, formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the formats of -f, and JSON; those of the environment and of settings do not count."""
    source = ctx.get_parameter_source("formats")
    named = formats if source is not None and source.name == "COMMANDLINE" else ()
    return tuple(dict.fromkeys((*named, "json")))


def _weaker(
    ctx: click.Context,
    pair: tuple[str, str],
    params: Mapping[str, click.Parameter],
    values: Mapping[str, Any],
) -> str | None:
    """Return which of two fields the other overrides by its origin, or None.

    If both have values, a flag overrides the environment, and that the configuration.
    """
    if not all(values.get(field) not in (None, False, 0) for field in pair):
        return None
    origins = [ctx.get_parameter_source(str(params[field].name)) for field in pair]
    ranks = [_ORIGINS.index(origin.name) if origin is not None else 0 for origin in origins]
    return None if ranks[0] == ranks[1] else pair[ranks[0] < ranks[1]]
