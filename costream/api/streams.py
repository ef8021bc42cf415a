"""Loaded models, and streams: pass a frame, get its records."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from costream.api.keywords import checked_path, make_options
from costream.core.errors import ExitCode, UsageError
from costream.core.records import Header, Item, Record, SourceKind, Summary
from costream.models.auto import model_for
from costream.models.base import Model, ModelInfo
from costream.models.persons import PersonsModel
from costream.options.options import Options
from costream.runtime.options import check_model_options, source_options
from costream.runtime.pipeline import StreamRunner
from costream.runtime.recorder import StreamRecorder
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sources.array_values import as_array
from costream.sources.values import ItemConverter, check_rate, make_converter
from costream.weights_io.card import Card
from costream.weights_io.licences import AllowedLicence

if TYPE_CHECKING:
    from costream.api.state import SavedStream

T = TypeVar("T")
Self = TypeVar("Self", bound="RecordIterator[Any]")
_ENDED = object()
_LATEST_S = 1e11  # of times: three thousand years; milliseconds since 1970 are more

# Options of ``detect`` that ``stream`` does not have, because they concern files.
_OF_FILES = {"start", "end", "duration", "output", "format", "overwrite", "model", "weights"}
# Options of ``load_model``
_LOADING = ("weights", "device", "dtype", "threads", "licence", "pose", "provider")
_OF_FILES |= {"on", "run", "post", "append", "notify"}  # of text


class RecordQueue:
    """A sink that holds the records of a run until they are taken."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.summary: Summary | None = None
        self.records: deque[Record] = deque()

    def open(self, header: Header) -> None:
        """Take the header."""
        self.header = header

    def write(self, record: Record) -> None:
        """Add a record."""
        self.records.append(record)

    def close(self, summary: Summary) -> None:
        """Take the summary."""
        self.summary = summary

    def take(self) -> list[Record]:
        """Return the records so far, and forget them."""
        records = list(self.records)
        self.records.clear()
        return records


class RecordIterator(Iterator[T]):
    """Takes the records that a run in steps has put into a queue, and goes on when it is empty.

    A loop that ends early, or ``close``, ends the run; files are finished in any case.
    """

    def __init__(
        self, records: deque[T], steps: Generator[None, None, None], stop: StopHandler
    ) -> None:
        """``steps``: the run, which adds to ``records``; ``stop``: its stop event."""
        self._records, self._steps, self._stop = records, steps, stop

    def __next__(self) -> T:
        while not self._records:
            ended = next(self._steps, _ENDED) is _ENDED
            if ended and not self._records:  # the end of a run has its last records
                raise StopIteration
        return self._records.popleft()

    def stop(self) -> None:
        """End the run soon, from another thread or a signal handler."""
        self._stop.request()

    def close(self) -> None:
        """End the run now, and finish its files."""
        self._steps.close()
        self._records.clear()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoadedModel:
    """A model with its weights, from ``costream.load_model``; it may run any number of streams.

    ``network`` is the model itself (``costream.models.base.Model``), for batches of streams and
    for access to its layers.
    """

    def __init__(self, network: Model) -> None:
        self.network = network

    @property
    def info(self) -> ModelInfo:
        """Properties: card, input sizes, heads."""
        return self.network.info

    @property
    def card(self) -> Card:
        """The model card: labels, rate, limits, licence."""
        return self.network.info.card

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the scores."""
        return self.card.labels

    def stream(
        self,
        *,
        rate_hz: float | None = None,
        name: str = "stream",
        sinks: Sequence[Sink] = (),
        **options: Any,
    ) -> ModelStream:
        """Return a new stream, which takes one frame after another.

        ``rate_hz``: frames per second, or samples per second of audio; None: a frame has the time
        of its call of ``step``. ``sinks``: also get the records. ``options``: as for ``detect``,
        those about files excepted. Raises UsageError for wrong ones.
        """
        unfit = sorted(_OF_FILES & set(options))
        if unfit:
            raise UsageError("does not apply to a stream", where=unfit[0])
        loaded(self, options)
        command = "listen" if self.info.sound else "read" if self.info.text else "detect"
        chosen = make_options(command, options, sources=(name,))
        return ModelStream(self, chosen, rate_hz=rate_hz, name=name, sinks=sinks)

    def __repr__(self) -> str:
        return f"<model {self.card.name}: {len(self.labels)} labels, {self.card.rate_hz:g} steps/s>"


class ModelStream:
    """One stream of a model: ``step`` takes a frame and returns the records it completes.

    A frame is uint8 [H, W, 3] of any size, joints [V, 3] or [M, V, 3], feature values [C], or for
    models of sound a piece of any length, float or int16 [N], of text a line. As a context manager
    it ends at the end of the block, which finishes its sinks.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: Options,
        *,
        rate_hz: float | None = None,
        name: str = "stream",
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._model, self._options, self._rate_hz, self._name = (
            model.network,
            options,
            rate_hz,
            name,
        )
        check_model_options(options, model.network)
        check_rate(rate_hz)
        self._sinks = checked(sinks)
        self._begin()

    def _begin(self) -> None:
        self._saved: SavedStream | None = None
        self._queue = RecordQueue()
        sinks = [self._queue, *self._sinks]
        self._recorder = StreamRecorder(self._model, self._options, sinks, follow_persons=True)
        self._converter: ItemConverter | None = None
        self._runner: StreamRunner | None = None
        self._newest_s = float("-inf")
        self._finished = False
        self._began = time.perf_counter()

    @property
    def header(self) -> Header | None:
        """The header of the records; None before the first frame."""
        return self._queue.header

    @property
    def summary(self) -> Summary | None:
        """The summary; None before the end."""
        return self._queue.summary

    def step(self, frame: Any, time_s: float | None = None) -> list[Record]:
        """Take the next frame and return the records that it completes, maybe none.

        The model steps at its rate; of frames that come faster some are not used.
        ``time_s``: time of the frame in seconds, not before the previous one; None: by
        ``rate_hz``, or the time of this call. Raises UsageError for a frame of another shape or
        type, or after ``finish``; SourceError if the model does not take such frames.
        """
        if self._finished:
            raise UsageError("the stream is finished", where="step", hint="use reset() first")
        value = as_array(frame)
        if time_s is not None:
            _check_time(time_s, self._newest_s)
        converter, runner = self._converter, self._runner
        if converter is None or runner is None:
            converter, runner = self._open(value)
        if time_s is not None:
            self._newest_s = time_s
        runner.begin()
        for item in converter.items(value, time_s):
            runner.push(item)
        return self._queue.take()

    def finish(self) -> list[Record]:
        """End the stream; return its last records, such as segments that were open."""
        return self._finish(complete=True)

    def _finish(self, *, complete: bool) -> list[Record]:
        if self._finished:
            return []
        self._finished = True
        if self._runner is not None and self._converter is not None:
            items: list[Item] = list(self._converter.finish())
            for item in items:
                self._runner.push(item)
            self._runner.finish()
            wall_s = time.perf_counter() - self._began
            self._recorder.close(self._recorder.summary(ExitCode.OK, wall_s, complete=complete))
        return self._queue.take()

    def reset(self) -> None:
        """Start again without any frame, open segment or time. The sinks get a new run."""
        self.finish()
        self._begin()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of the stream to a file, from which ``load`` continues.

        The file holds the memory of the network, the clock, the smoothed scores, the open segments
        and the audio samples that wait for their step. The results are those of an uninterrupted
        stream, except for a few samples where audio is resampled.

        Raises:
            UsageError: before the first frame, or for persons in the frames of another model.
            OutputError: if the file cannot be written.
        """
        from costream.api.state import save_stream

        if self._runner is None or self._converter is None:
            raise UsageError("nothing to save before the first frame", where="save")
        if isinstance(self._model, PersonsModel):
            hint = "save streams of its models one by one"
            raise UsageError(
                "persons within another model's stream cannot be saved", where="save", hint=hint
            )
        times = self._newest_s, self._rate_hz
        save_stream(_file(path, "save"), self._recorder, self._runner, self._converter, *times)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, with the same weights, at the next frame.

        Times of ``step`` continue from the earlier ones. Raises SourceError if the file cannot be
        read or belongs to another model, UsageError after the first frame, and for sound of
        another rate.
        """
        from costream.api.state import load_stream

        if self._runner is not None:
            raise UsageError("load a state before the first frame", where="load")
        saved = load_stream(_file(path, "load"), self._model)
        rate_hz = saved.position.get("rate_hz")  # none in older states
        if self._model.info.sound and rate_hz not in (None, self._rate_hz):
            hint = f"pass rate_hz={rate_hz:g}"
            raise UsageError(f"sound of {rate_hz:g} samples per second", where="load", hint=hint)
        self._saved = saved
        self._newest_s = self._saved.position.get("newest_s", self._newest_s)

    def __enter__(self) -> ModelStream:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._finish(complete=error is None)

    def _open(self, value: Any) -> tuple[ItemConverter, StreamRunner]:
        converter = make_converter(
            value,
            source_options(self._options, self._model, ()),
            rate_hz=self._rate_hz,
            name=self._name,
            live=True,
        )
        self._recorder.open(converter.info)
        runner = StreamRunner(self._model, self._recorder, converter.info, eager=True)
        if self._saved is not None:
            self._saved.restore(self._recorder, runner, converter)
            self._saved = None
        self._converter, self._runner = converter, runner
        return converter, runner


def _file(path: str | os.PathLike[str], where: str) -> Path:
    """Return the path of a state. Raises UsageError for one that is or names no file."""
    found = checked_path(path, where)
    if found.exists() and not found.is_file():  # a folder, or a device, which a file would replace
        raise UsageError("not a file", where=found)
    return found


def checked(sinks: Iterable[Sink]) -> list[Sink]:
    """Return the sinks as a list. Raises UsageError if one is none."""
    checked = list(sinks) if isinstance(sinks, Iterable) else None
    methods = ("open", "write", "close")
    if checked is None or not all(hasattr(sink, name) for sink in checked for name in methods):
        hint = "a sink has open(header), write(record) and close(summary)"
        raise UsageError(f"a list of sinks, not {sinks!r}", where="sinks", hint=hint)
    return checked


def _check_time(time_s: float, newest_s: float) -> None:
    """Raise UsageError unless this is a time in seconds, and not before the newest one."""
    if not isinstance(time_s, Real) or not abs(time_s) <= _LATEST_S:
        hint = "pass seconds as a number: frame_number / 25, or time.time()"
        raise UsageError(f"time_s={time_s!r} is not a time in seconds", where="step", hint=hint)
    if time_s < newest_s:
        raise UsageError(f"time_s={time_s:g} is before {newest_s:g}", where="step")


def load_model(
    name: str | os.PathLike[str] = "cooadtr",
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "float32",
    *,
    threads: int | None = 1,
    licence: AllowedLicence | None = None,
    pose: Literal["lite", "full", "movenet"] | None = None,
    provider: str | None = None,
) -> LoadedModel:
    """Load a model by its name, or a weight file by its path.

    Several names, separated by commas, are models with the same frontend, which then run
    together. ``device``: auto, cpu, cuda, cuda:N or mps. ``dtype``: float32, float64, bfloat16,
    float16, or fast: bfloat16 for models of pictures where the processor is faster in it.
    ``threads``: sets the number of threads of torch, for this process; more than one
    make most steps slower. None: leave it. ``licence``: "free" or "non-commercial" refuses weights
    that may not be used so; None or "any" does not. ``pose``: the network that finds joints in
    video, for models of skeletons. ``provider``: where ONNX Runtime computes a step in ONNX (cpu,
    cuda:N, openvino:GPU, ...). Raises ModelError if there are no such weights, or they or the
    device cannot be used; UsageError for arguments of another type, and for weights that
    ``licence`` refuses.
    """
    from costream.models import catalogue as registry
    from costream.runtime.torch_setup import prepare_torch

    for path in (name, name if weights is None else weights):
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"a name or a path, not {path!r}", where="load_model")
    prepare_torch(threads)
    if licence not in (None, *get_args(AllowedLicence)):
        hint = f"known: {', '.join(get_args(AllowedLicence))}"
        raise UsageError(f"licence={licence!r}", where="load_model", hint=hint)
    model = registry.load_model(os.fspath(name), weights, device, dtype, licence, provider)
    if pose is not None:
        from costream.models.pose.choice import find_joints_with

        find_joints_with(model, pose)
    return LoadedModel(model)


def loaded(
    model: str | os.PathLike[str] | LoadedModel,
    options: Mapping[str, Any],
    kind: SourceKind | None = None,
) -> LoadedModel:
    """Return the model of a name, or a loaded model unchanged; ``kind``: of the source."""
    if isinstance(model, LoadedModel):
        unfit = sorted({*_LOADING} & set(options))
        if unfit:
            hint = "pass it to load_model"
            raise UsageError("the model is loaded already", where=unfit[0], hint=hint)
        return model
    given = {key: options[key] for key in _LOADING if key in options}
    name = model if kind is None else model_for(os.fspath(model), kind, given.get("licence"))
    return load_model(name, **given)
