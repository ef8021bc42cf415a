"""``costream detect``: plan the outputs, load the model once, run every input."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costream.errors import CostreamError, ExitCode, SourceError, UsageError
from costream.models.base import Model
from costream.options import Options
from costream.runtime.options import check_model_options, source_options
from costream.runtime.pipeline import run
from costream.runtime.setup import load, logging_to
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sinks.registry import check_outputs, is_complete, make_sinks
from costream.sources.registry import expand, name_of, open_source, sniff
from costream.ui.console import live_allowed, stderr_console, stdout_console
from costream.ui.plain import PlainLines
from costream.ui.run.view import LiveView
from costream.ui.timeline import FinalTimeline

log = logging.getLogger("costream")


@dataclass(frozen=True)
class _Plan:
    """The destination of the results, the same for all inputs."""

    formats: tuple[str, ...]
    directory: Path | None
    report: bool  # a readable timeline on stdout


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
        done = 0
        for uri in inputs:
            try:
                code = _one(uri, model, options, plan, stop)
            except BrokenPipeError:
                return ExitCode.OK  # the reader closed the pipe; files are finalised
            except (SourceError, OSError) as error:
                if stop.exit_code is not None:  # interrupted while waiting for data
                    return stop.exit_code
                failures.append(_failed(error, uri))
                continue
            if stop.exit_code is not None:
                return stop.exit_code
            if code is ExitCode.OK:
                done += 1
            else:
                failures.append(code)
        return _verdict(done, failures)


def _plan(options: Options) -> _Plan:
    if options.output is not None and options.output != "-":
        return _Plan(options.formats or ("jsonl",), Path(options.output), sys.stdout.isatty())
    if options.output is None and not options.formats and sys.stdout.isatty():
        return _Plan((), None, report=True)
    formats = options.formats or ("jsonl",)
    check_outputs(formats, None, "", overwrite=False)
    return _Plan(formats, None, report=False)


def _inputs(options: Options, plan: _Plan) -> tuple[list[str], list[ExitCode]]:
    """Return the inputs to run, and the exit codes of those that cannot be."""
    inputs: list[str] = []
    failures: list[ExitCode] = []
    outputs: dict[str, str] = {}
    for argument in options.sources:
        try:
            uris = expand(argument)
            for uri in uris:
                sniff(uri)
        except SourceError as error:
            failures.append(_failed(error, argument))
            continue
        for uri in uris:
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
    return inputs, failures


def load_checked(options: Options, *, shares: bool = False) -> Model:
    """Load the model. UsageError, as ``check_options``, for an option that does not apply to it."""
    model = load(options)
    check_model_options(options, model, shares=shares)
    log.info("%s: weights %s", model.info.card.name, model.info.weights_sha256[:12])
    return model


def _one(uri: str, model: Model, options: Options, plan: _Plan, stop: StopHandler) -> ExitCode:
    sinks: list[Sink] = make_sinks(
        plan.formats,
        plan.directory,
        name_of(uri),
        stream=sys.stdout,
        overwrite=options.overwrite or options.skip_existing,
    )
    summary = run(
        open_source(uri, source_options(options, model, plan.formats)),
        model,
        [*sinks, *_views(options, plan, name_of(uri))],
        options=options,
        stop=stop,
    )
    return ExitCode(summary.exit)


def _views(options: Options, plan: _Plan, name: str) -> list[Sink]:
    views: list[Sink] = []
    console = stderr_console(options.color)
    if live_allowed(
        sys.stderr,
        quiet=options.verbosity < 0,
        no_live=not options.live,
        flag=options.color,
        data_on_terminal=plan.directory is None and bool(plan.formats) and sys.stdout.isatty(),
    ):
        views.append(LiveView(console, name))
    elif options.verbosity >= 0:
        views.append(PlainLines(console, name, last=not plan.report))
    if plan.report:
        views.append(FinalTimeline(stdout_console(options.color), name))
    return views


def _failed(error: Exception, uri: str) -> ExitCode:
    shown = error if isinstance(error, CostreamError) else SourceError(str(error), where=uri)
    log.error("%s", shown)
    return shown.exit_code


def _verdict(done: int, failures: Sequence[ExitCode]) -> ExitCode:
    """Return the overall exit code: that of the failures if all failed alike, else PARTIAL."""
    if not failures:
        return ExitCode.OK
    if done == 0 and len(set(failures)) == 1:
        return failures[0]
    return ExitCode.PARTIAL
