"""Click commands and options, made from the declarations of ``costream.options.options``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from costream.core.errors import ExitCode, UsageError, display_name, printable, say
from costream.core.settings import load_config
from costream.core.urls import HIDDEN, path_of

if TYPE_CHECKING:  # only commands of a run import options, so that the others start faster
    from click.shell_completion import CompletionItem

    from costream.options.options import Options

_MOST = 1e15  # in settings
_ORIGINS = "costream.origins"  # in the meta data of a context: file of each value of a file
F = TypeVar("F", bound=Callable[..., Any])
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def option(*names: str, **kwargs: Any) -> Callable[[F], F]:
    """Return a ``click.option`` that can also be set by ``COSTREAM_<LONG NAME>``."""
    return click.option(*names, **_with_variable(names, kwargs))


def _with_variable(names: Sequence[str], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    long = next(n for n in names if n.startswith("--")).split("/")[0]
    variable = "COSTREAM_" + long.removeprefix("--").removeprefix("no-").replace("-", "_").upper()
    shown = kwargs.get("default") is not None
    completing = None if "type" in kwargs else completer(names, kwargs.get("metavar") or "")
    given = {"envvar": variable, "show_default": shown, "shell_complete": completing, **kwargs}
    return {**given, "callback": _bounded(kwargs.get("callback"))}


def _bounded(callback: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a callback that refuses numbers, also in texts, that no setting can have."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        # NaN is not below any number.
        if isinstance(value, (int, float)) and not abs(value) <= _MOST:
            raise click.BadParameter(f"{str(value)[:20]} is out of range", ctx, param)
        with _reading(ctx, param, value):
            return value if callback is None else callback(ctx, param, value)

    return check


@contextmanager
def _reading(ctx: click.Context, param: click.Parameter, value: Any) -> Iterator[None]:
    """Make a usage error of what parsers raise, as for numbers of thousands of digits."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{display_name(str(value))[:80]!r} is not valid", ctx, param
        ) from error


def config_option() -> Callable[[F], F]:
    """Return ``-c/--config``, which reads the configuration files before the other options."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if ctx.resilient_parsing:  # completing: a bad file is no news now
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
        help="Read settings from this file instead of ./costream.toml.",
    )


# Commands of a run: their options are the fields of ``Options``.


def run_command(
    name: str, argument: str, kind: type[Options] | None = None, **changes: dict[str, Any]
) -> Callable[[Callable[[Any, list[str]], ExitCode]], click.Command]:
    """Return a decorator that makes a command of a function of options and settings in force.

    The command has the options that the fields of ``kind`` declare for ``name``, in their order.
    ``argument``: shown for its sources; optional in brackets. ``kind``: by default ``Options``.
    ``changes``: for a field, other arguments of ``click.Option``; "after" names the field whose
    option it follows.
    """
    from costream.options.options import Options

    of_kind = kind or Options
    required = not argument.startswith("[")
    sources = click.Argument(
        [argument.strip("[.]").lower() + "s"],
        nargs=-1,
        required=required,
        metavar=argument,
        shell_complete=file_names,
    )
    params: dict[str, click.Parameter] = {"sources": sources}
    parsers: dict[str, Callable[[Any], Any]] = {}
    for field in fields(of_kind):
        flag = field.metadata.get("flag")
        if flag is None or name not in flag.commands:
            continue
        arguments = {**flag.click, **changes.get(field.name, {})}
        arguments.pop("after", None)
        if arguments.get("required"):
            arguments.pop("default", None)  # even None would count as given
        params[field.name] = click.Option(flag.names, **_with_variable(flag.names, arguments))
        if flag.parse is not None:
            parsers[field.name] = flag.parse
    order = list(params)
    for field_name, change in changes.items():
        if "after" in change:
            order.remove(field_name)
            order.insert(order.index(change["after"]) + 1, field_name)

    def decorate(function: Callable[[Any, list[str]], ExitCode]) -> click.Command:
        @click.command(
            params=[params[each] for each in order],
            no_args_is_help=required,
            help=function.__doc__,
        )
        @config_option()
        @click.pass_context
        def command(ctx: click.Context, /, **_: Any) -> int:
            values = {each: ctx.params[str(param.name)] for each, param in params.items()}
            for each, parse in parsers.items():
                if values[each] is not None:
                    with _reading(ctx, params[each], values[each]):
                        values[each] = parse(values[each])
            for pair in _EXCLUSIVE:
                if (overridden := _weaker(ctx, pair, params, values)) is not None:
                    values[overridden] = of_kind.__dataclass_fields__[overridden].default
            options = checked(of_kind(**values), name)
            unknown = unknown_variables(ctx, quiet=options.quiet)
            return int(function(options, [*effective(ctx), *unknown]))

        return command

    return decorate


_ORIGIN_ORDER = ("COMMANDLINE", "PROMPT", "ENVIRONMENT", "DEFAULT_MAP", "DEFAULT")
# Fields of options that exclude each other.
_EXCLUSIVE = (
    *(("end_s", "duration_s"), ("quiet", "verbose")),
    *(("overwrite", "skip_existing"), ("tokens", "budget")),
)


def _weaker(
    ctx: click.Context,
    pair: tuple[str, str],
    params: Mapping[str, click.Parameter],
    values: Mapping[str, Any],
) -> str | None:
    """Return which of two fields that are both given the other overrides by its origin, or None.

    A flag overrides the environment, and that the configuration.
    """
    if not all(values.get(each) not in (None, False, 0) for each in pair):
        return None
    ranks = [ctx.get_parameter_source(str(params[each].name)) for each in pair]
    order = [_ORIGIN_ORDER.index(rank.name) if rank is not None else 0 for rank in ranks]
    return None if order[0] == order[1] else pair[order[0] < order[1]]


def effective(ctx: click.Context) -> list[str]:
    """Return a line for each setting that is not a default: its value and its origin."""
    lines = []
    for name, value in ctx.params.items():
        origin = ctx.get_parameter_source(name)
        if origin is not None and origin.name != "DEFAULT":
            file = ctx.meta[_ORIGINS].get(name) if origin.name == "DEFAULT_MAP" else None
            lines.append(f"{name} = {_shown(name, value)} ({file or origin.name.lower()})")
    return lines


_VARIABLES = {"CONFIG", "WEIGHTS", "OFFLINE", "MQTT_USER", "MQTT_PASSWORD"}
_ALIKE = 0.75  # similarity of names of which one may be meant by the other


def unknown_variables(ctx: click.Context, *, quiet: bool) -> list[str]:
    """Return a line for each variable COSTREAM_... of the environment that is not a setting.

    Those with a name like that of a setting are told, unless ``quiet``; others may be the user's
    own, for lists of feeds and programs of alerts.
    """
    start = "COSTREAM_"
    given = {name.removeprefix(start) for name in os.environ if name.startswith(start)}
    given -= _VARIABLES | _settings_of(ctx.command)
    if not given:
        return []
    from costream.cli import COMMANDS, cli

    commands = [cli.get_command(ctx, name) for name in COMMANDS]
    known = _VARIABLES.union(*(_settings_of(command) for command in commands))
    lines = []
    for name in sorted(given - known):
        meant = get_close_matches(name, known, 1, _ALIKE)
        what = f"{start}{name}: no setting has this name"
        if meant and not quiet:
            say(f"costream: warning: {what}; did you mean {start}{meant[0]}?")
        elif not meant:
            lines.append(f"{what} (environment)")
    return lines


def _settings_of(command: click.Command | None) -> set[str]:
    """Return the names of a command's variables, without what they begin with."""
    variables = (getattr(param, "envvar", None) for param in getattr(command, "params", ()))
    return {v.removeprefix("COSTREAM_") for v in variables if isinstance(v, str)}


def _shown(name: str, value: Any) -> Any:
    """Return a value without secrets: of the address of a web service, the path is one, too."""
    if isinstance(value, (list, tuple)):
        return tuple(_shown(name, each) for each in value)
    if not isinstance(value, str):
        return value
    shown, path = display_name(value), path_of(value)
    if name == "post" and len(path) > 1:
        return f"{shown.partition(path)[0]}/{HIDDEN}"
    return shown


def checked(options: Options, command: str) -> Options:
    """Check the combination of a command's options, before anything is loaded.

    Return them with --mic as a source, --duration as the end, and a batch's output as a path.
    """
    if command == "listen":
        options = replace(options, sources=_with_microphone(options))
    if command == "batch":
        options = replace(options, output=_batch_folder(options))
    start_s, end_s = options.start_s, options.end_s
    if options.duration_s is not None:
        if end_s is not None:
            raise UsageError("--end and --duration exclude each other")
        end_s = start_s + options.duration_s
        options = replace(options, end_s=end_s)
    if end_s is not None and end_s <= start_s:
        raise UsageError(f"the end ({end_s:g} s) is not after the start ({start_s:g} s)")
    if options.columns is not None:
        from costream.sources.skeletons.columns import parse_columns

        parse_columns(options.columns)
    if options.layout is not None:
        from costream.core.layouts import find_layout

        find_layout(options.layout)
    if options.overwrite and options.skip_existing and command != "batch":
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if options.budget is not None and options.tokens is not None:
        raise UsageError("--tokens and --budget exclude each other")
    if "coco" in options.formats and start_s > 0:
        hint = "omit --start"
        raise UsageError("needs the frames of the whole video", where="--format coco", hint=hint)
    _check_quiet(options.quiet, options.verbose)
    budget = options.budget
    if command == "batch" and budget is not None and getattr(budget, "kind", None) != "macs":
        hint = "give it in operations (2GMAC), or use: costream detect"
        raise UsageError("is not reproducible", where="--budget", hint=hint)
    if options.clips is not None and options.output in (None, "-"):
        raise UsageError("clips need a folder", where="--clips", hint="name one with -o")
    return options


def _with_microphone(options: Options) -> tuple[str, ...]:
    """Return the sources of ``listen``."""
    mic, sources = options.mic, options.sources
    if mic is None and not sources:
        raise UsageError("nothing to listen to", hint="name a file, or give --mic")
    if mic is None:
        return sources
    if sources:
        raise UsageError(
            "--mic and files exclude each other",
            hint="a name after --mic is the name of a microphone",
        )
    return (f"mic:{mic}" if mic else "mic",)


def _batch_folder(options: Options) -> str:
    """Return the output folder of a batch."""
    from costream.runtime.batch.stores import is_url, local_path

    if options.output == "-":
        raise UsageError("must be a folder, not stdout", where="-o -")
    output = local_path(str(options.output))
    if is_url(output):
        raise UsageError(
            "must be a local or mounted folder, not a URL",
            where=f"-o {output}",
            hint="mount the store, or copy the folder there afterwards",
        )
    if options.ray_address and options.engine != "ray":
        raise UsageError("--ray-address needs --engine ray")
    return output


# What other commands share.


def shared(*names: str, **changes: Any) -> Callable[[F], F]:
    """Return a decorator that adds options of these fields of ``Options``, named like the fields.

    ``changes``: other arguments of ``click.Option``.
    """

    def decorate(function: F) -> F:
        from costream.options.options import Options

        for name in reversed(names):
            flag = Options.__dataclass_fields__[name].metadata["flag"]
            function = option(*flag.names, name, **{**flag.click, **changes})(function)
        return function

    return decorate


def verbosity_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add -v and -q to a command, which takes them as ``verbosity``: -1 quiet, 1 and 2 more."""

    @wraps(function)
    def call(*args: Any, verbose: int, quiet: bool, **values: Any) -> int:
        _check_quiet(quiet, verbose)
        unknown_variables(click.get_current_context(), quiet=quiet)
        return function(*args, verbosity=-1 if quiet else verbose, **values)

    return shared("verbose", "quiet")(call)


def _check_quiet(quiet: bool, verbose: int) -> None:
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other")


def check_weight_file(target: Path) -> None:
    """Raise UsageError for a file of weights that cannot be written; before the work for it."""
    from costream.sinks.atomic import check_folder
    from costream.weights_io.file import SUFFIX

    if target.suffix != SUFFIX:
        raise UsageError(f"the name must end in {SUFFIX}", where=f"-o {target}")
    check_folder(target.parent)


def json_option(function: F) -> F:
    """Add --json to a command, which takes it as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


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


# Completers of values: of options by their names and metavars, of arguments where declared.


def completer(names: Sequence[str], metavar: str) -> Completer | None:
    """Return the completer of an option; None if its values cannot be listed."""
    if "--model" in names:
        return model_names
    if "--format" in names:
        return format_names
    if "--layout" in names:
        return layout_names
    kinds = metavar.strip("[]").split("|")
    if any(kind.startswith(("FILE", "PATH")) for kind in kinds):
        return file_names
    return folder_names if "FOLDER" in kinds else None


def file_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete files, by the shell."""
    return [_item(word, type="file")]


def folder_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete folders, by the shell."""
    return [_item(word, type="dir")]


def model_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete the models that have weights here, one or a list; else weight files."""
    from costream.models.catalogue import list_models

    models = {e.name: e.summary for e in list_models() if e.path is not None}
    return in_list(models, word) or file_names(ctx, param, word)


def published_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete the checkpoints that can be fetched."""
    from costream.weights_io.store import published

    return in_list({name: entry.source for name, entry in published().items()}, word)


def format_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete output formats, one or a list."""
    from costream.sinks.registry import FORMATS

    return in_list({name: FORMATS[name].about for name in FORMATS}, word)


def layout_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete layouts of joints; else files."""
    from costream.core.layouts import LAYOUTS, marker_sets

    return in_list(dict.fromkeys((*LAYOUTS, *marker_sets()), ""), word) or file_names(
        ctx, param, word
    )


def in_list(values: dict[str, str], word: str) -> list[CompletionItem[str]]:
    """Return the values for the last item of a comma-separated list, with their help."""
    head, comma, last = word.rpartition(",")
    named = head.split(",")
    return [
        _item(head + comma + value, help=text)
        for value, text in values.items()
        if value.startswith(last) and value not in named
    ]


def _item(word: str, **about: Any) -> CompletionItem[str]:
    from click.shell_completion import CompletionItem  # needed while somebody types, and then only

    return CompletionItem(word, **about)
