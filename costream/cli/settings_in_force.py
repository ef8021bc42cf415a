"""Settings that are in force: configuration files, variables, and where each value is from."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from costream.core.errors import display_name, say
from costream.core.settings import load_config
from costream.core.urls import HIDDEN, path_of
from costream.options.click_options import check_quiet, shared

F = TypeVar("F", bound=Callable[..., Any])
_ORIGINS = "costream.origins"  # key of a context's meta data: the file of each value from a file
_PREFIX = "COSTREAM_"
_OTHER_VARIABLES = {"CONFIG", "WEIGHTS", "OFFLINE", "MQTT_USER", "MQTT_PASSWORD"}
_MIN_SIMILARITY = 0.75  # of a misspelt name and a setting


def config_option() -> Callable[[F], F]:
    """Return ``-c/--config``, which reads the configuration files before the other options."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if ctx.resilient_parsing:  # completion works with a damaged file, too
            return value
        options = {
            name.removeprefix("--").replace("-", "_"): p
            for p in ctx.command.params
            if isinstance(p, click.Option)
            for name in p.opts
            if name.startswith("--")
        }
        switches = {key for key, p in options.items() if p.is_flag or p.count}
        origins: dict[str, Path] = {}
        command = str(ctx.info_name)
        found = load_config(command, options, value, switches=switches, origins=origins)
        ctx.meta[_ORIGINS] = {str(options[key].name): path for key, path in origins.items()}
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
        help="Read settings from this file, not from ./costream.toml.",
    )


def origin_of(ctx: click.Context, name: str) -> str:
    """Return where the value of a parameter is from: "commandline", "default", or the file."""
    origin = ctx.get_parameter_source(name)
    if origin is None:
        return "default"
    if origin.name == "DEFAULT_MAP":
        return str(ctx.meta.get(_ORIGINS, {}).get(name, "a configuration file"))
    return origin.name.lower()


def effective(ctx: click.Context) -> list[str]:
    """Return a line for each setting that is not a default: its value and its origin."""
    lines = []
    for name, value in ctx.params.items():
        origin = origin_of(ctx, name)
        if origin != "default":
            lines.append(f"{name} = {_without_secrets(name, value)} ({origin})")
    return lines


def _without_secrets(name: str, value: Any) -> Any:
    """Return a value for display. The path in the address of a web service is a secret, too."""
    if isinstance(value, (list, tuple)):
        return tuple(_without_secrets(name, each) for each in value)
    if not isinstance(value, str):
        return value if isinstance(value, (int, float, type(None))) else str(value)
    shown, path = display_name(value), path_of(value)
    if name == "notify":
        return f"{value.partition('://')[0]}://{HIDDEN}"
    if name == "post" and len(path) > 1:
        return f"{shown.partition(path)[0]}/{HIDDEN}"
    return shown


def warn_of_unknown_variables(ctx: click.Context, *, quiet: bool) -> list[str]:
    """Warn of variables COSTREAM_... that look like a misspelt setting; return lines on others.

    Other names may be variables of the user, for lists of feeds and programs of alerts.
    """
    in_environment = {name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)}
    in_environment -= _OTHER_VARIABLES | _variables_of(ctx.command)
    if not in_environment:
        return []
    from costream.cli import COMMANDS, cli

    commands = [cli.get_command(ctx, name) for name in COMMANDS]
    settings = _OTHER_VARIABLES.union(*(_variables_of(command) for command in commands))
    lines = []
    for name in sorted(in_environment - settings):
        similar = get_close_matches(name, settings, 1, _MIN_SIMILARITY)
        what = f"{_PREFIX}{name}: no setting has this name"
        if similar and not quiet:
            say(f"costream: warning: {what}; did you mean {_PREFIX}{similar[0]}?")
        elif not similar:
            lines.append(f"{what} (environment)")
    return lines


def _variables_of(command: click.Command | None) -> set[str]:
    """Return the names of a command's environment variables, without COSTREAM_."""
    variables = (getattr(param, "envvar", None) for param in getattr(command, "params", ()))
    return {v.removeprefix(_PREFIX) for v in variables if isinstance(v, str)}


def verbosity_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add -v and -q to a command, which takes them as ``verbosity``: -1 quiet, 1 and 2 more."""

    @wraps(function)
    def call(*args: Any, verbose: int, quiet: bool, **values: Any) -> int:
        check_quiet(quiet, verbose)
        warn_of_unknown_variables(click.get_current_context(), quiet=quiet)
        return function(*args, verbosity=-1 if quiet else verbose, **values)

    return shared("verbose", "quiet")(call)
