"""``costream detect``: plan the outputs, load the model once, run every input."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costream.errors import CostreamError, ExitCode, SourceError, UsageError
from costream.models.base import GatedModel, Model
from costream.records import OBJECT_DETECTION
from costream.runtime.options import check_options, run_options, source_options
from costream.runtime.pipeline import run
from costream.runtime.setup import logging_to
from costream.runtime.stop import StopHandler
from costream.settings import DetectSettings
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


def detect(settings: DetectSettings, effective: Sequence[str] = ()) -> ExitCode:
    """Run the model over every source and return the overall exit code.

    Options and inputs are checked before the model is loaded. ``effective`` holds lines that
    say which settings are in force, shown with -v.
    """
    with StopHandler() as stop, logging_to(settings.verbosity, settings.color, settings.log_file):
        for line in effective:
            log.info("%s", line)
        plan = _plan(settings)
        inputs, failures = _inputs(settings, plan)
        if not inputs:
            return _verdict(0, failures)
        model = load(settings)
        done = 0
        for uri in inputs:
            try:
                code = _one(uri, model, settings, plan, stop)
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


def _plan(settings: DetectSettings) -> _Plan:
    if settings.output is not None and settings.output != "-":
        return _Plan(settings.formats or ("jsonl",), Path(settings.output), sys.stdout.isatty())
    if settings.output is None and not settings.formats and sys.stdout.isatty():
        return _Plan((), None, report=True)
    formats = settings.formats or ("jsonl",)
    check_outputs(formats, None, "", overwrite=False)
    return _Plan(formats, None, report=False)


def _inputs(settings: DetectSettings, plan: _Plan) -> tuple[list[str], list[ExitCode]]:
    """Return the inputs to run, and the exit codes of those that cannot be."""
    inputs: list[str] = []
    failures: list[ExitCode] = []
    outputs: dict[str, str] = {}
    for argument in settings.sources:
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
                settings.skip_existing
                and plan.directory is not None
                and is_complete(plan.formats, plan.directory, name)
            ):
                log.warning("%s: results exist already, skipped", uri)
                continue
            overwrite = settings.overwrite or settings.skip_existing
            check_outputs(plan.formats, plan.directory, name, overwrite=overwrite)
            inputs.append(uri)
    return inputs, failures


def load(settings: DetectSettings) -> Model:
    """Set up torch and load the model. Raises ModelError, and UsageError as ``check_options``."""
    from costream.models.registry import load_model
    from costream.runtime.setup import prepare_torch

    prepare_torch(settings.threads)
    model = load_model(
        settings.model, weights=settings.weights, device=settings.device, dtype=settings.dtype
    )
    found, gated = model.card.task == OBJECT_DETECTION, isinstance(model, GatedModel)
    check_options(settings, found=found, gated=gated)
    log.info("%s: weights %s", model.card.name, model.weights_sha256[:12])
    return model


def _one(
    uri: str, model: Model, settings: DetectSettings, plan: _Plan, stop: StopHandler
) -> ExitCode:
    sinks: list[Sink] = make_sinks(
        plan.formats,
        plan.directory,
        name_of(uri),
        stream=sys.stdout,
        overwrite=settings.overwrite or settings.skip_existing,
    )
    summary = run(
        open_source(uri, source_options(settings, model, plan.formats)),
        model,
        [*sinks, *_views(settings, plan, name_of(uri))],
        options=run_options(settings, model),
        stop=stop,
    )
    return ExitCode(summary.exit)


def _views(settings: DetectSettings, plan: _Plan, name: str) -> list[Sink]:
    views: list[Sink] = []
    console = stderr_console(settings.color)
    if live_allowed(
        sys.stderr,
        quiet=settings.verbosity < 0,
        no_live=not settings.live,
        flag=settings.color,
        data_on_terminal=plan.directory is None and bool(plan.formats) and sys.stdout.isatty(),
    ):
        views.append(LiveView(console, name))
    elif settings.verbosity >= 0:
        views.append(PlainLines(console, name, last=not plan.report))
    if plan.report:
        views.append(FinalTimeline(stdout_console(settings.color), name))
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
