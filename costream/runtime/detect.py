"""``costream detect``: plan the outputs, load the model once, run every input."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from costream.core.errors import ExitCode, SourceError, display_name
from costream.core.formatting import clean, work_line
from costream.core.records import Header, Record, Segment, SourceKind, Summary
from costream.core.settings import AUTO
from costream.models.auto import AUTO_MODELS, PERSON, video_models
from costream.models.base import Model
from costream.models.catalogue import find_weights, more_to_fetch
from costream.options.options import Options
from costream.runtime.alerts.files import AlertRules
from costream.runtime.detect_plan import OutputPlan, log_failure, plan_inputs, plan_outputs
from costream.runtime.logs import logging_to
from costream.runtime.model_loading import kind_of, load_checked
from costream.runtime.options import source_options
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sinks.registry import make_sinks, paths_for
from costream.sinks.tables import MergedTimeline, SegmentColumns
from costream.sources.base import LiveSource
from costream.sources.live.devices import silence_portaudio
from costream.sources.media.streams import media_streams
from costream.sources.uris import name_of, open_source
from costream.ui.console import live_allowed, print_line, stderr_console, stdout_console
from costream.ui.plain import PlainLines
from costream.ui.run.view import LiveView
from costream.ui.timeline import FinalTimeline
from costream.weights_io.store import INSTALL_RESEARCH

log = logging.getLogger("costream")

_MOST_FILES = 4  # named in one line


def detect(options: Options, effective: Sequence[str] = ()) -> ExitCode:
    """Run the model over every source and return the overall exit code.

    Options and inputs are checked before the model is loaded. ``effective``: lines about the
    settings in force, shown with -v.
    """
    logged = logging_to(options.verbosity, options.color, options.log_file, effective)
    with StopHandler() as stop, logged:
        plan = plan_outputs(options)
        inputs, failures = plan_inputs(options, plan)
        if not inputs:
            return _overall(0, failures)
        with ExitStack() as stack:
            models = _Models(options, stack, {uri: kind_of(uri, options) for uri in inputs})
            model, _ = models.of(inputs[0])
            table = None
            if plan.table is not None:
                table = _open_table(plan.table, model, options)
                stack.callback(table.finish)
            stack.enter_context(silence_portaudio(inputs))
            code = _Detection(options, plan, models, stop, table).run(inputs, failures)
        if plan.table is not None:
            _print_written(options, [plan.table])
        _print_larger_model(options, model)
        _print_actions(options, models.seen)
        return code


class _SeenPersons:
    """A sink that notes whether persons were seen whose actions nobody has looked at."""

    def __init__(self) -> None:
        self.any = False
        self._without_actions = False

    def open(self, header: Header) -> None:
        """Take the header of a run."""
        self._without_actions = header.persons is None

    def write(self, record: Record) -> None:
        """Take a record."""
        if isinstance(record, Segment) and record.label == PERSON and self._without_actions:
            self.any = True

    def close(self, summary: Summary) -> None:
        """Take the end of a run."""


@dataclass(frozen=True)
class _Models:
    """The model of each input, and the alert rules for it; each is loaded once."""

    options: Options
    stack: ExitStack  # closes the alert rules
    kinds: Mapping[str, SourceKind | None]  # of the inputs
    loaded: dict[SourceKind | None, tuple[Model, AlertRules | None]] = field(default_factory=dict)
    seen: _SeenPersons = field(default_factory=_SeenPersons)

    def of(self, uri: str) -> tuple[Model, AlertRules | None]:
        """Return them for an input. Raises ModelError or UsageError as ``load_checked``."""
        kind = self.kinds[uri]
        if kind not in self.loaded:
            model, alerts = load_checked(self.options, kind), None
            if self.options.on:
                alerts = AlertRules.of(self.options, model)
                self.stack.callback(alerts.close)
            self.loaded[kind] = model, alerts
        return self.loaded[kind]


@dataclass(frozen=True)
class _Detection:
    """A run over several inputs."""

    options: Options
    plan: OutputPlan
    models: _Models
    stop: StopHandler
    table: MergedTimeline | None

    def run(self, inputs: Sequence[str], failures: list[ExitCode]) -> ExitCode:
        """Run every input, and return the overall exit code; ``failures``: those so far."""
        done = 0
        for uri in inputs:
            try:
                code = self._run_input(uri, clean(display_name(uri)) if len(inputs) > 1 else None)
            except BrokenPipeError:
                return ExitCode.OK  # the reader closed the pipe; files are finalised
            except (SourceError, OSError) as error:
                if self.stop.exit_code is not None:  # interrupted while waiting for data
                    return self.stop.exit_code
                other = _other_command(uri, self.models.of(uri)[0])
                failures.append(log_failure(error, uri, other))
                continue
            if self.stop.exit_code is not None:
                return self.stop.exit_code
            if code is ExitCode.OK:
                done += 1
            else:
                failures.append(code)
        return _overall(done, failures)

    def _run_input(self, uri: str, shown_name: str | None) -> ExitCode:
        """Run one input; ``shown_name``: its name in readable lines, if there are several."""
        options, plan, name = self.options, self.plan, name_of(uri)
        model, alerts = self.models.of(uri)
        sinks: list[Sink] = [] if self.table is None else [self.table]
        sinks += make_sinks(
            plan.formats,
            plan.directory,
            name,
            stream=sys.stdout,
            named=shown_name,
            overwrite=options.overwrite or options.skip_existing,
        )
        source = open_source(uri, source_options(options, model, plan.formats, stepped=True))
        sinks += [self.models.seen, *self._views(name, live=isinstance(source, LiveSource))]
        summary = run(
            source,
            model,
            sinks,
            options=options,
            stop=self.stop,
            follow_persons=True,
            listener=None if alerts is None else partial(alerts.listener, name),
        )
        log.info("%s: %s", name, work_line(summary))
        if plan.directory is not None:
            objects = model.info.card.finds_objects
            written = [paths_for(f, plan.directory, name, objects=objects) for f in plan.formats]
            _print_written(options, [path for paths in written for path in paths])
        return ExitCode(summary.exit)

    def _views(self, name: str, *, live: bool) -> list[Sink]:
        """Return what shows the run on the terminal."""
        options, plan = self.options, self.plan
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
            views.append(PlainLines(console, name, last=not plan.ends_with_totals))
        if plan.report:
            views.append(FinalTimeline(stdout_console(options.color), name))
        return views


def _open_table(path: Path, model: Model, options: Options) -> MergedTimeline:
    """Open the table of the segments of all inputs."""
    columns = SegmentColumns(
        heads=len(model.info.heads) > 1 or options.model == AUTO,
        persons=model.info.follows,
        counts=model.info.card.finds_objects or options.model == AUTO,
    )
    return MergedTimeline(path, columns, overwrite=options.overwrite)


def _print_written(options: Options, paths: Sequence[Path]) -> None:
    """Print the names of finished files, unless -q is given."""
    if options.verbosity >= 0 and paths:
        more = len(paths) - _MOST_FILES
        names = ", ".join(display_name(str(path)) for path in paths[:_MOST_FILES])
        line = f"wrote {names}" + (f" and {more} more" if more > 0 else "")
        print_line(stderr_console(options.color), clean(line))


def _print_larger_model(options: Options, model: Model) -> None:
    """Print on a terminal which model has more classes than shipped weights, unless -q is given."""
    if options.verbosity < 0 or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    if options.model == AUTO or "," in options.model:
        return
    line = more_to_fetch(model.info.card, find_weights(options.model, options.weights))
    if line:
        print_line(stderr_console(options.color), line, "dim")


def _print_actions(options: Options, seen: _SeenPersons) -> None:
    """Print how to get what persons do that ``auto`` has seen, unless -q is given."""
    if options.verbosity < 0 or options.model != AUTO or not seen.any:
        return
    installed = len(video_models("any", options.weights)) > len(AUTO_MODELS)
    how = "" if installed else f" after {INSTALL_RESEARCH}"
    line = f"What each person does: --licence any{how}; its weights are for research."
    print_line(stderr_console(options.color), line, "dim")


def _other_command(uri: str, model: Model) -> str | None:
    """Return the command for a media file that lacks the video or sound which the model takes."""
    has_sound, has_video = media_streams(uri)
    name = shlex.quote(display_name(uri))
    if model.info.box is not None and model.info.beside is None and has_sound and not has_video:
        return f"costream listen {name}"
    if model.info.sound is not None and has_video and not has_sound:
        return f"costream detect {name}"
    return None


def _overall(done: int, failures: Sequence[ExitCode]) -> ExitCode:
    """Return the overall exit code: that of the failures if all failed alike, else PARTIAL."""
    if not failures:
        return ExitCode.OK
    if done == 0 and len(set(failures)) == 1:
        return failures[0]
    return ExitCode.PARTIAL
