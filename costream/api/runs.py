"""Runs over a source as iterators of records."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from costream.api.keywords import make_options
from costream.api.results import REPLACE, Results
from costream.api.streams import LoadedModel, RecordIterator, RecordQueue, checked, loaded
from costream.core.errors import SourceError, UsageError
from costream.core.records import Header, Record, SourceKind, Summary
from costream.core.settings import AUTO
from costream.models.auto import SOUND
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime import pipeline
from costream.runtime.alerts.files import AlertRules
from costream.runtime.model_loading import kind_of
from costream.runtime.options import check_model_options, source_options
from costream.runtime.pipeline import SourceRun
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sinks.registry import check_outputs, make_sinks
from costream.sources.array_values import as_array
from costream.sources.base import ConnectionOptions, Source, SourceOptions
from costream.sources.media.remote import is_remote_file
from costream.sources.memory_source import MemorySource
from costream.sources.uris import expand, fitted, name_of, open_source
from costream.sources.values import check_rate, kind_of_value

# A path, URL or microphone; the number of a camera; an array, or an iterable of arrays; a source.
AnySource: TypeAlias = "str | os.PathLike[str] | int | Iterable[Any] | Source"


class RecordStream(RecordIterator[Record]):
    """The records of one run, computed as they are asked for.

    ``header`` is set at once, ``summary`` at the end. A loop that ends early, or ``close``, ends
    the run; files are finished in any case.
    """

    def __init__(
        self, run: SourceRun, queue: RecordQueue, alerts: AlertRules | None = None
    ) -> None:
        """``queue``: a sink of the run. Opens the source; raises like ``Source.open``.

        ``alerts``: are finished at its end.
        """
        steps = run.steps() if alerts is None else _closing(run.steps(), alerts)
        super().__init__(queue.records, steps, run.stop)
        self._queue = queue
        next(self._steps)
        assert queue.header is not None
        self.header: Header = queue.header

    @property
    def summary(self) -> Summary | None:
        """The summary of the run; None before its end."""
        return self._queue.summary

    def collect(self) -> Results:
        """Run to the end and return all records that were not taken yet."""
        records = tuple(self)
        summary = self.summary
        assert summary is not None
        return Results(self.header, records, summary)

    if not TYPE_CHECKING:  # the attributes are declared

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with a hint where the attributes of results are."""
            if hasattr(Results, name):
                hint = f"result = ...collect(), then result.{name}"
                raise AttributeError(f"{name} is available when the run has ended: {hint}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def detect(
    source: AnySource,
    model: str | os.PathLike[str] | LoadedModel = AUTO,
    *,
    rate_hz: float | None = None,
    sinks: Sequence[Sink] = (),
    **options: Any,
) -> RecordStream:
    """Detect actions or objects in video, skeletons or features; iterate over the records.

    ``source``: a path, a URL, the number of a camera, an array [T, ...], or an iterable of frames
    uint8 [H, W, 3], joints [V, 3] or [M, V, 3], or feature rows [C]; a generator is live.
    ``rate_hz``: frames per second of arrays and iterables; a generator without it has the times
    at which its frames come. ``model``: a name, a weight file, or a loaded model. ``sinks``: also
    get the records. ``options``: the options of ``costream detect``, without dashes:
    ``threshold=0.4``, ``start="1:30"``, ``top_k=5``, ``output="out"``, ``format="csv"``.

    Raises UsageError for wrong arguments, SourceError if nothing can be read, ModelError if the
    model cannot be used, OutputError if results cannot be written.
    """
    return _run("detect", source, model, rate_hz, sinks, options)


def listen(
    source: AnySource = "mic",
    model: str | os.PathLike[str] | LoadedModel = SOUND,
    *,
    rate_hz: float | None = None,
    sinks: Sequence[Sink] = (),
    **options: Any,
) -> RecordStream:
    """Recognise sounds and music; iterate over the records.

    ``source``: a path, ``"mic"`` or ``"mic:NAME"``, or samples as float (-1 to 1) or int16, [N] or
    [N, channels], or an iterable of such pieces of any length, at ``rate_hz`` samples per second.
    The rest, and what it raises, is as for ``detect``.
    """
    return _run("listen", source, model, rate_hz, sinks, options)


def read(
    source: AnySource,
    model: str | os.PathLike[str] | LoadedModel,
    *,
    sinks: Sequence[Sink] = (),
    **options: Any,
) -> RecordStream:
    """Label the lines of a text; iterate over the records.

    ``source``: a path, ``tcp://HOST:PORT``, or an iterable of strings, each a line; a generator
    is live. ``model``: a weight file that has learnt labels, or a loaded model. ``options``: those
    of ``costream read``, without dashes: ``by="word"``, ``arrival=True``, ``on=["error>=0.9"]``,
    which adds alerts to the records. The rest, and what it raises, is as for ``detect``.
    """
    return _run("read", source, model, None, sinks, {"by": "line", **options})


def run(
    source: Source,
    model: Model | LoadedModel,
    sinks: Sequence[Sink] = (),
    *,
    options: Options | None = None,
) -> Summary:
    """Run over an unopened source to its end, and return the summary.

    For your own sources and sinks. The model decides what its source has to yield, see
    ``ModelInfo``. A file or pipe of ``open_source`` yields that by itself. Raises like ``detect``.
    """
    if not isinstance(source, Source):
        hint = "pass a path to costream.detect"
        raise UsageError(f"{type(source).__name__} is not a source", where="run", hint=hint)
    network = model if isinstance(model, Model) else loaded(model, {}).network
    source = fitted(source, source_options(options or Options(), network, stepped=True))
    return pipeline.run(source, network, checked(sinks), options=options)


def _run(
    command: Literal["detect", "listen", "read"],
    source: AnySource,
    model: str | os.PathLike[str] | LoadedModel,
    rate_hz: float | None,
    sinks: Sequence[Sink],
    keywords: dict[str, Any],
) -> RecordStream:
    name, sinks = _name_of(source), checked(sinks)
    check_rate(rate_hz)
    options = make_options(command, keywords, sources=(name,))
    output = None if options.output is None else Path(options.output)
    if output is not None and output.suffix == ".csv" and not output.is_dir():
        hint = f'use .collect().save("{output}")'
        raise UsageError("is a file, not a folder", where=f"output={output}", hint=hint)
    if output is not None:
        formats = options.formats or ("jsonl",)
        check_outputs(formats, output, name, overwrite=options.overwrite, hint=REPLACE)
    elif options.formats:
        raise UsageError("needs a folder for the files", where="format", hint="add output=FOLDER")
    else:
        formats = ()
    source, kind = _kind(command, source, model, options)
    network = loaded(model, keywords, kind).network
    check_model_options(options, network)
    opened = _opened(source, source_options(options, network, formats, stepped=True), rate_hz, name)
    queue = RecordQueue()
    files = make_sinks(formats, output, name, overwrite=options.overwrite)
    everything = [queue, *files, *sinks]
    handler = StopHandler()
    alerts = AlertRules.of(replace(options, quiet=True), network) if options.on else None
    run = SourceRun(
        opened,
        network,
        everything,
        options,
        handler,
        follow_persons=True,
        listener=None if alerts is None else partial(alerts.listener, name),
    )
    return RecordStream(run, queue, alerts)


def _closing(steps: Generator[None, None, None], alerts: AlertRules) -> Generator[None, None, None]:
    try:
        yield from steps
    finally:
        alerts.close()


def _name_of(source: AnySource) -> str:
    """Return the base name of a source's files."""
    if isinstance(source, (str, os.PathLike)):
        return name_of(os.fspath(source))
    if isinstance(source, int):
        return f"camera{source}"
    return "memory"


def _kind(
    command: str, source: AnySource, model: str | os.PathLike[str] | LoadedModel, options: Options
) -> tuple[AnySource, SourceKind | None]:
    """Return the source, and its kind if the model depends on it.

    The first value of an iterable is taken for it.
    """
    if model != AUTO:
        return source, None
    if command == "listen":
        return source, "audio"
    if isinstance(source, (int, Source)):
        return source, "video"
    if isinstance(source, (str, os.PathLike)):
        try:
            return source, kind_of(os.fspath(source), replace(options, model=AUTO))
        except UsageError:  # a feed or a camera
            return source, "video"
    if not hasattr(source, "__iter__") or isinstance(source, (dict, set, bytes, bytearray)):
        return source, "video"  # which is refused later
    first = next(iter(source), None)
    if first is None or isinstance(first, (str, bytes, bytearray, os.PathLike)):
        return source, "video"
    if iter(source) is source:
        source = itertools.chain([first], source)
    return source, kind_of_value(as_array(first))


def _opened(source: AnySource, options: SourceOptions, rate_hz: float | None, name: str) -> Source:
    if isinstance(source, (str, os.PathLike, int)):
        if rate_hz is not None:
            hint = "steps per second are fps="
            raise UsageError("is for arrays and iterables", where="rate_hz", hint=hint)
        return _by_name(source, options)
    if isinstance(source, Source):
        return source  # of the user
    first = next(iter(source), None) if isinstance(source, (list, tuple, set)) else source
    names = (bytes, bytearray, os.PathLike, *(() if options.text else (str,)))
    if isinstance(first, names) or isinstance(source, dict) or not hasattr(source, "__iter__"):
        of = f" of {type(first).__name__}" if first is not source else ""
        hint = "pass a path, a URL, the number of a camera, an array, or an iterable of arrays"
        if options.text is not None:
            hint = "pass a path, a URL, or an iterable of strings"
        raise UsageError(f"{type(source).__name__}{of} is not a source", hint=hint)
    return MemorySource(source, options, rate_hz=rate_hz, name=name)


def _by_name(source: str | os.PathLike[str] | int, options: SourceOptions) -> Source:
    """Return the source of a path, a URL or the number of a camera."""
    with suppress(SourceError):  # some cameras do not answer such a question
        if is_remote_file(str(source)):
            return open_source(str(source), options)
    connecting = replace(options, connecting=ConnectionOptions(retries=0))
    uris = expand(str(source) if isinstance(source, int) else os.fspath(source), connecting=True)
    if len(uris) > 1:
        names = ", ".join(uris[:3])
        raise SourceError(
            f"stands for {len(uris)} recordings", where=str(source), hint=f"name one: {names}, ..."
        )
    return open_source(uris[0], connecting)
