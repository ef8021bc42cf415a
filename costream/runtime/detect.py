"""``costream detect``: plan the outputs, load the model once, run every input."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from costream.core.errors import CostreamError, ExitCode, SourceError, UsageError, display_name
from costream.core.formatting import clean, work_line
from costream.models.base import Model
from costream.models.catalogue import find_weights, more_to_fetch
from costream.options.options import Options
from costream.runtime.alerts.files import AlertRules
from costream.runtime.memory import settling
from costream.runtime.options import check_model_options, source_options
from costream.runtime.pipeline import run
from costream.runtime.setup import load, logging_to
from costream.runtime.stop import StopHandler
from costream.sinks.atomic import exists_error
from costream.sinks.base import Sink
from costream.sinks.registry import FORMATS, check_outputs, is_complete, make_sinks, paths_for
from costream.sinks.tables import MergedTimeline, SegmentColumns
from costream.sources.base import LiveSource, SourceOptions
from costream.sources.live.devices import silence_portaudio
from costream.sources.media.streams import media_streams
from costream.sources.uris import expand, is_pipe, name_of, open_source, sniff
from costream.ui.console import live_allowed, print_line, stderr_console, stdout_console
from costream.ui.plain import PlainLines
from costream.ui.run.view import LiveView
from costream.ui.timeline import FinalTimeline

log = logging.getLogger("costream")

_MOST_FILES = 4  # named in one line


@dataclass(frozen=True)
class _Plan:
    """The destination of the results, the same for all inputs."""

    formats: tuple[str, ...]
    directory: Path | None
    report: bool  # a readable timeline on stdout
    table: Path | None = None  # one table of all segments, instead of a folder

    @property
    def says_totals(self) -> bool:
        """Whether what goes to stdout ends with the totals of the run."""
        return self.report or (self.directory is None and "table" in self.formats)


def detect(options: Options, effective: Sequence[str] = ()) -> ExitCode:
    """Run the model over every source and return the overall exit code.

    Options and inputs are checked before the model is loaded. ``effective`` holds lines that
    say which settings are in force, shown with -v.
    """
    logged = logging_to(options.verbosity, options.color, options.log_file, effective)
    with StopHandler() as stop, logged:
        plan = _plan(options)
        inputs, failures = _inputs(options, plan)
        if not inputs:
            return _verdict(0, failures)
        model = load_checked(options)
        table = _table(plan, model, options)
        with ExitStack() as stack:
            stack.enter_context(silence_portaudio(inputs))
            if table is not None:
                stack.callback(table.finish)
            alerts = AlertRules.of(options, model) if options.on else None
            if alerts is not None:
                stack.callback(alerts.close)
            code = _all(inputs, failures, model, options, plan, table, stop, alerts)
        if table is not None:
            _say_written(options, [table.path])
        _say_more(options, model)
        return code


def _all(
    inputs: Sequence[str],
    failures: list[ExitCode],
    model: Model,
    options: Options,
    plan: _Plan,
    table: MergedTimeline | None,
    stop: StopHandler,
    alerts: AlertRules | None,
) -> ExitCode:
    """Run every input, and return the overall exit code; ``failures``: those so far."""
    done = 0
    for uri in inputs:
        try:
            named = display_name(uri) if len(inputs) > 1 else None
            code = _one(uri, model, options, plan, table, stop, alerts, named)
        except BrokenPipeError:
            return ExitCode.OK  # the reader closed the pipe; files are finalised
        except (SourceError, OSError) as error:
            if stop.exit_code is not None:  # interrupted while waiting for data
                return stop.exit_code
            failures.append(_failed(error, uri, model))
            continue
        if stop.exit_code is not None:
            return stop.exit_code
        if code is ExitCode.OK:
            done += 1
        else:
            failures.append(code)
    return _verdict(done, failures)


def _plan(options: Options) -> _Plan:
    on_terminal = sys.stdout.isatty()
    if options.output is not None and options.output != "-":
        path = Path(options.output)
        if path.suffix.lower() == ".csv" and not path.is_dir():
            if options.formats not in ((), ("csv",)):
                hint = "name a folder with -o"
                raise UsageError("a single file takes the format csv", where="-f", hint=hint)
            return _Plan((), None, on_terminal, path)
        if (format := path.suffix.lower().lstrip(".")) in FORMATS and not path.is_dir():
            hint = f"name a folder: -f {format} -o FOLDER"
            raise UsageError("only a .csv of all segments is a file", where=f"-o {path}", hint=hint)
        return _Plan(options.formats or ("jsonl",), path, on_terminal)
    if options.formats or options.output == "-":
        formats = options.formats or ("jsonl",)
    else:  # what people read, on a terminal or not
        formats = ("table",) if options.by is None else ("lines",)
    if formats == ("table",) and options.output is None and on_terminal:
        return _Plan((), None, report=True)
    check_outputs(formats, None, "", overwrite=False)
    return _Plan(formats, None, report=False)


def _inputs(options: Options, plan: _Plan) -> tuple[list[str], list[ExitCode]]:
    """Return the inputs to run, and the exit codes of those that cannot be."""
    inputs: list[str] = []
    failures: list[ExitCode] = []
    outputs: dict[str, str] = {}
    joints = not (options.layout or options.columns)  # or an input that may have some
    if options.skip_existing and not any(FORMATS[f].has_summary for f in plan.formats):
        hint = "name a folder, and jsonl too: -f csv,jsonl -o FOLDER"
        what = "these results do not say which of them are complete"
        raise UsageError(what, where="--skip-existing", hint=hint)
    if plan.table is not None:
        check_outputs((), plan.table.parent, "", overwrite=True)
        if plan.table.exists() and not options.overwrite:
            raise exists_error(plan.table)
    for argument in options.sources:
        try:
            uris = expand(argument)
            for uri in uris:
                kind = sniff(uri, SourceOptions(text=options.by, layout=options.layout))
                joints = joints or kind == "skeleton" or is_pipe(uri)
        except SourceError as error:
            failures.append(_failed(error, argument))
            continue
        for uri in uris:
            if plan.table is not None:
                inputs.append(uri)
                continue
            name = name_of(uri)
            if plan.directory is not None and name in outputs:
                raise UsageError(
                    f"would write the same files as {outputs[name]}",
                    where=uri,
                    hint="run them into different folders",
                )
            outputs[name] = uri
            if (
                options.skip_existing
                and plan.directory is not None
                and is_complete(plan.formats, plan.directory, name)
            ):
                log.warning("%s: results exist already, skipped", uri)
                continue
            overwrite = options.overwrite or options.skip_existing
            check_outputs(plan.formats, plan.directory, name, overwrite=overwrite)
            inputs.append(uri)
    alone = [f for f in plan.formats if plan.directory is None and not FORMATS[f].joins]
    if alone and len(inputs) > 1:
        what = f"results of {len(inputs)} sources make no single file"
        hint = "name a folder with -o, or use -f jsonl"
        raise UsageError(what, where=f"-f {alone[0]}", hint=hint)
    if not joints and not failures:
        where = "--layout" if options.layout else "--columns"
        raise UsageError("no input has joints", where=where, hint="leave it out")
    return inputs, failures


def load_checked(options: Options, *, shares: bool = False) -> Model:
    """Load the model. UsageError, as ``check_options``, for an option that does not apply to it."""
    with settling():
        model = load(options)
        check_model_options(options, model, shares=shares)
    log.info("%s: weights %s", model.info.card.name, model.info.weights_sha256[:12])
    return model


def _table(plan: _Plan, model: Model, options: Options) -> MergedTimeline | None:
    """Open the table of all segments, if one is written."""
    if plan.table is None:
        return None
    columns = SegmentColumns(
        heads=len(model.info.heads) > 1,
        persons=model.info.follows,
        counts=model.info.card.finds_objects,
    )
    return MergedTimeline(plan.table, columns, overwrite=options.overwrite)


def _one(
    uri: str,
    model: Model,
    options: Options,
    plan: _Plan,
    table: MergedTimeline | None,
    stop: StopHandler,
    alerts: AlertRules | None,
    named: str | None,
) -> ExitCode:
    name = name_of(uri)
    sinks: list[Sink] = [] if table is None else [table]
    sinks += make_sinks(
        plan.formats,
        plan.directory,
        name,
        stream=sys.stdout,
        named=None if named is None else clean(named),
        overwrite=options.overwrite or options.skip_existing,
    )
    source = open_source(uri, source_options(options, model, plan.formats, stepped=True))
    views = _views(options, plan, name, live=isinstance(source, LiveSource))
    summary = run(
        source,
        model,
        [*sinks, *views],
        options=options,
        stop=stop,
        follow_persons=True,
        listener=None if alerts is None else partial(alerts.listener, name),
    )
    log.info("%s: %s", name, work_line(summary))
    if plan.directory is not None:
        objects = model.info.card.finds_objects
        paths = [
            p for f in plan.formats for p in paths_for(f, plan.directory, name, objects=objects)
        ]
        _say_written(options, paths)
    return ExitCode(summary.exit)


def _say_written(options: Options, paths: Sequence[Path]) -> None:
    """Print the names of finished files, unless -q is given."""
    if options.verbosity >= 0 and paths:
        more = len(paths) - _MOST_FILES
        names = ", ".join(display_name(str(path)) for path in paths[:_MOST_FILES])
        line = f"wrote {names}" + (f" and {more} more" if more > 0 else "")
        print_line(stderr_console(options.color), clean(line))


def _say_more(options: Options, model: Model) -> None:
    """Print once on a terminal what knows more than shipped weights, unless -q is given."""
    if options.verbosity < 0 or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    if "," in options.model:  # several models
        return
    line = more_to_fetch(model.info.card, find_weights(options.model, options.weights))
    if line:
        print_line(stderr_console(options.color), line, "dim")


def _views(options: Options, plan: _Plan, name: str, *, live: bool) -> list[Sink]:
    views: list[Sink] = []
    console = stderr_console(options.color)
    if live_allowed(
        sys.stderr,
        quiet=options.verbosity < 0,
        no_live=not options.live,
        flag=options.color,
        data_on_terminal=plan.directory is None and bool(plan.formats) and sys.stdout.isatty(),
    ):
        views.append(LiveView(console, name, live=live))
    elif options.verbosity >= 0:
        views.append(PlainLines(console, name, last=not plan.says_totals))
    if plan.report:
        views.append(FinalTimeline(stdout_console(options.color), name))
    return views


def _failed(error: Exception, uri: str, model: Model | None = None) -> ExitCode:
    """Log why an input failed, and the command that takes it, and return the exit code."""
    shown = error if isinstance(error, CostreamError) else SourceError(str(error), where=uri)
    command = None if model is None else _other_command(uri, model)
    log.error("%s%s", shown, f"; try: {command}" if command else "")
    return shown.exit_code


def _other_command(uri: str, model: Model) -> str | None:
    """Return the command for a media file without what the model takes."""
    has_sound, has_video = media_streams(uri)
    name = shlex.quote(display_name(uri))
    alone = model.info.beside is None  # not with a model of sound
    if model.info.box is not None and alone and has_sound and not has_video:
        return f"costream listen {name}"
    if model.info.sound is not None and has_video and not has_sound:
        return f"costream detect {name}"
    return None


def _verdict(done: int, failures: Sequence[ExitCode]) -> ExitCode:
    """Return the overall exit code: that of the failures if all failed alike, else PARTIAL."""
    if not failures:
        return ExitCode.OK
    if done == 0 and len(set(failures)) == 1:
        return failures[0]
    return ExitCode.PARTIAL
