"""Running one input of a batch: write its results, return its outcome.

Both engines run this, in local processes or on a Ray cluster.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from typing import Any

from costream.core.errors import (
    CostreamError,
    ExitCode,
    ModelError,
    OutputError,
    SourceError,
    UsageError,
    display_name,
    reason_of,
)
from costream.core.records import (
    Compute,
    Fault,
    Header,
    Record,
    SourceInfo,
    SourceKind,
    Summary,
    to_json,
)
from costream.core.settings import AUTO
from costream.core.urls import is_store_url
from costream.core.user_code import run_code
from costream.models.base import Model
from costream.runtime.batch.folders import Outcome, Status, failure
from costream.runtime.batch.job import RECORDS, BatchJob, Task, copy_folder, discard, result_paths
from costream.runtime.batch.sniffing import MisfitError, is_still, why_skipped
from costream.runtime.batch.stores import fetched
from costream.runtime.model_loading import kind_of
from costream.runtime.model_loading import load as load_model
from costream.runtime.options import source_options
from costream.runtime.pipeline import run
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sinks.filters import DeterministicSink
from costream.sinks.registry import make_sinks
from costream.sources.base import Source
from costream.sources.uris import open_source

log = logging.getLogger("costream")
_REPORT_S = 0.5
# Error numbers that will affect every other file too.
_FOR_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def load(work: BatchJob, path: str | None = None) -> Model:
    """Return the model of a batch for an input, loaded once per process.

    Raises ModelError as ``load_model``, MisfitError for an input of a kind without a model.
    """
    kind: SourceKind | None = "video" if work.options.model == AUTO else None
    try:
        return _load(work, kind if path is None else kind_of(path, work.options))
    except UsageError as error:
        raise MisfitError(str(error)) from error


@lru_cache(maxsize=2)
def _load(work: BatchJob, kind: SourceKind | None) -> Model:
    from costream.models.compatibility import check_classifier

    os.environ["OMP_NUM_THREADS"] = str(work.options.threads)
    for path in work.code:
        run_code(path)
    model = load_model(work.options, kind)
    check_classifier(model.info.card)
    if not {*model.info.weights_sha256.split(",")} <= {*work.weights_sha256.split(",")}:
        raise ModelError(
            "the weights have changed since the batch began", where=work.options.weights
        )
    return model


def process(
    task: Task,
    work: BatchJob,
    stop: StopHandler | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Outcome:
    """Run the model over one input and return its outcome; never raises for bad input.

    ``on_progress`` is called with the media seconds so far. Results of a failed input are
    removed; results of an interrupted one are valid and have ``complete: false``.
    """
    stop, copies = stop or StopHandler(), copy_folder(work, task.name)
    try:
        with fetched(task.uri, copies, lambda: stop.requested) as path:
            return _process(task, path, work, stop, _OutcomeSink(on_progress))
    except OSError as error:
        if stop.requested:
            return Outcome(task.name, "interrupted")
        fatal = error.errno in _FOR_ALL
        code = int(ExitCode.PARTIAL if fatal else ExitCode.INPUT)
        return Outcome(task.name, "failed", error.strerror or str(error), code, fatal=fatal)


def _process(
    task: Task, path: str, work: BatchJob, stop: StopHandler, watch: _OutcomeSink
) -> Outcome:
    """Run the model over an input whose local copy or file is ``path``."""
    try:
        source = _source(path, work, None if path == task.uri else task.uri)
        sinks = [watch, *_sinks(work, task.name)]
        options, model = work.options, load(work, path)
        summary = run(source, model, sinks, options=options, stop=stop, follow_persons=True)
    except Exception as error:
        if stop.requested:
            discard(work, task.name)
            return Outcome(task.name, "interrupted")
        outcome = _explained(error, task.name, path, work)
        discard(work, task.name)
        return outcome
    return watch.outcome(task.name, summary, _sizes(work, task.name))


def preview(task: Task, work: BatchJob) -> Outcome | None:
    """Return the outcome of an input that cannot be run; None if it can.

    An input from a store is not fetched for it. ModelError as ``load``.
    """
    if is_store_url(task.uri):
        return None
    load(work)
    try:
        with closing(_source(task.uri, work, None)) as source:
            source.open()
    except Exception as error:
        return _explained(error, task.name, task.uri, work)
    return None


def _source(path: str, work: BatchJob, url: str | None) -> Source:
    """Return the source of an input. Raises MisfitError for an image; errors of ``open_source``."""
    if is_still(path):
        raise MisfitError("a single image")
    model = load(work, path)
    reading = source_options(work.options, model, work.formats, stepped=True)
    return _CheckedSource(open_source(path, reading), model, url)


def _sinks(work: BatchJob, name: str) -> list[Sink]:
    folder = work.folder
    sinks = make_sinks(work.formats, folder, name, overwrite=True)
    if "jsonl" not in work.formats:
        sinks += make_sinks(("jsonl",), folder / RECORDS, name, overwrite=True)
    return sinks if work.options.timings else [DeterministicSink(sink) for sink in sinks]


def _sizes(work: BatchJob, name: str) -> dict[str, int]:
    folder = work.folder
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in result_paths(work, name)
        if path.exists()
    }


def _explained(error: Exception, name: str, path: str, work: BatchJob) -> Outcome:
    """Return the outcome of an input that an exception ended."""
    if isinstance(error, MisfitError):
        return Outcome(name, "skipped", reason_of(error, path))
    if isinstance(error, (SourceError, OSError)) and not isinstance(error, OutputError):
        model = load(work)  # its kind is not known
        skipped = why_skipped(path, model, source_options(work.options, model, work.formats))
        if skipped is not None:
            return Outcome(name, "skipped", skipped)
        return failure(name, reason_of(error, path))
    if isinstance(error, CostreamError):
        number = getattr(error.__cause__, "errno", None)
        fatal = isinstance(error, ModelError) or number in _FOR_ALL
        return Outcome(name, "failed", reason_of(error, path), int(error.exit_code), fatal=fatal)
    log.debug("%s", path, exc_info=error)
    reason = f"internal error ({type(error).__name__}: {' '.join(str(error).split())})"
    return Outcome(name, "failed", reason, int(ExitCode.BUG))


class _CheckedSource:
    """A source wrapper that distinguishes inputs that do not fit the model from damaged ones.

    ``url``: of an input from a store: its name in the records of the local copy.
    """

    def __init__(self, source: Source, model: Model, url: str | None) -> None:
        self._source, self._model, self._url = source, model, url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def open(self) -> SourceInfo:
        """Open the input. MisfitError when the model does not take what it gives."""
        info = self._source.open()
        if self._url is not None:
            info = replace(info, uri=display_name(self._url))
        try:
            self._model.check(info)
        except CostreamError as error:
            raise MisfitError(str(error)) from error
        return info


class _OutcomeSink:
    """A sink that collects what the outcome needs from the records."""

    def __init__(self, on_progress: Callable[[float], None] | None) -> None:
        self._on_progress = on_progress
        self._reported_s = time.monotonic()
        self._first_s: float | None = None
        self._damage: Fault | None = None  # the first fault of the source, or the fatal one
        self._kind: str | None = None

    def open(self, header: Header) -> None:
        """Store the kind of the source."""
        self._kind = header.kind

    def write(self, record: Record) -> None:
        """Report progress, and store faults of the source."""
        if isinstance(record, Fault) and (record.count or record.fatal):
            self._damage = record if record.fatal else self._damage or record
        elif isinstance(record, Compute) and self._on_progress is not None:
            self._first_s = record.time_s if self._first_s is None else self._first_s
            now_s = time.monotonic()
            if now_s - self._reported_s >= _REPORT_S:
                self._reported_s = now_s
                self._on_progress(record.time_s - self._first_s)

    def close(self, summary: Summary) -> None:
        """Do nothing: the run returns its summary."""

    def outcome(self, name: str, summary: Summary, files: dict[str, int]) -> Outcome:
        """Return the outcome of the input."""
        values = to_json(summary)
        for key in ("type", "wall_s", "x_realtime"):
            del values[key]
        ends: dict[int, Status] = {ExitCode.OK: "done", ExitCode.PARTIAL: "partial"}
        status = ends.get(summary.exit, "interrupted")
        damage = "" if self._damage is None else self._damage.message
        rest = 0 if self._damage is None else summary.errors - self._damage.count
        damage += f", and {rest} more" if rest else ""
        return Outcome(name, status, damage, summary.exit, self._kind, values, files)
