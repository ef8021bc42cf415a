"""The run loop: steps one model over one source and writes to sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costream.core.clock import ItemClock, Resampler, Tick, TickItem
from costream.core.errors import CostreamError, ExitCode, SourceError
from costream.core.records import AudioBlock, Data, Gap, Item, SourceInfo, Summary, VideoFrame
from costream.models.base import GatedModel, Model
from costream.models.persons import PersonsModel, looks_of
from costream.options.options import Options
from costream.runtime.budget import Controller, LookController, TokenController, controller
from costream.runtime.masks import MaskPainter
from costream.runtime.persons import PersonScores, person_rows
from costream.runtime.recorder import StreamRecorder
from costream.runtime.stop import StopHandler
from costream.sinks.base import Sink
from costream.sources.base import LiveSource, Source

if TYPE_CHECKING:
    from torch import Tensor

# Takes the time and the scores of a step; see ``StreamRecorder.step``.
StepListener = Callable[[float, PersonScores], None]


def run(
    source: Source,
    model: Model,
    sinks: Sequence[Sink] = (),
    *,
    options: Options | None = None,
    stop: StopHandler | None = None,
    follow_persons: bool = False,
    listener: Callable[[StreamRecorder], StepListener] | None = None,
) -> Summary:
    """Step ``model`` over ``source`` until it ends or ``stop`` is set, and return the summary.

    ``follow_persons``: as for ``StreamRecorder``; if False, a model for one person sees the person
    who has been there longest. ``listener`` returns, for a recorder, a function to call after each
    step.
    Every opened sink is closed with that summary, whatever happens. Raises SourceError
    when the source cannot be opened or holds no data, OutputError when a sink cannot write,
    BrokenPipeError when the reader of a sink's stream has closed it.
    """
    chosen, handler = options or Options(), stop or StopHandler()
    running = SourceRun(
        source, model, sinks, chosen, handler, follow_persons=follow_persons, listener=listener
    )
    for _ in running.steps():
        pass
    return running.summary


class StreamRunner:
    """Steps one stream of a model: items of a source go in, records go to the sinks.

    Call ``push`` with each item and ``finish`` after the last one.
    """

    def __init__(
        self,
        model: Model,
        recorder: StreamRecorder,
        info: SourceInfo,
        *,
        eager: bool = False,
        live: LiveSource | None = None,
        listener: StepListener | None = None,
    ) -> None:
        """``recorder`` is open. ``eager``: as for ``clock.Ticker``.

        ``live``: the source, if it may drop items. ``listener`` is called after each step.
        """
        self._model, self._recorder, self._live = model, recorder, live
        self._listener = listener
        rate_hz, card = recorder.rate_hz, model.info.card
        self.clock: ItemClock | Resampler = (
            ItemClock()
            if info.kind in ("audio", "text")
            else Resampler(rate_hz, card.gap_tolerance_s, model.info.frames, eager=eager)
        )
        self._chunk = 1 if info.live else model.info.chunk
        self._ticks: list[Tick] = []  # to be run together
        # Since the start or the newest gap: the newest step, and whether there was an output.
        self._newest: Tick | None = None
        self._answered = False
        self.state = model.init_state(1)
        self.persons = person_rows(model, recorder.options) if recorder.follows else None
        self._painter = MaskPainter(recorder.options.mask)
        self._controller = self._controlled()
        if self.persons is not None and isinstance(self._controller, LookController):
            self.persons.govern(self._controller.may)
        if self._controller is not None and self._controller.decides:
            self._chunk = 1
        # Time spent waiting for a live source does not count.
        self._now_s = time.thread_time if info.live else time.perf_counter
        self.begin()

    def begin(self) -> None:
        """Measure the time that the next step waits for its data from now on."""
        self._waiting_since = self._now_s()

    def resume(self, tensors: dict[str, Tensor], persons: Mapping[str, Any] | None) -> None:
        """Continue from a saved state of the network; call it before the first item.

        ``persons``: the position of ``PersonRows``, if the tensors belong to persons.
        """
        if persons is not None and self.persons is not None:
            self.persons.resume(persons, tensors)
        else:
            self.state.load_tensors(tensors)
        self._answered = True  # as far as can be known

    def push(self, item: Item) -> None:
        """Run the steps that an item completes. Raises like ``Sink.write``."""
        self._take(self.clock.push(self._painter.paint(item) if self._painter.masks else item))

    def finish(self) -> None:
        """Run the last steps, and end the open segments."""
        self._take(self.clock.finish())
        self._run()
        last_s = self._recorder.counters.last_s
        late = self._newest is not None and not self._answered
        if late:
            self._complete()
        self._recorder.flush(late=late, last_s=last_s)

    def _complete(self) -> None:
        """Repeat the newest picture, row or pose, or add silence, until the network has an output.

        Data that are shorter than its delay would have none.
        """
        newest = self._newest
        if newest is None or self._recorder.options.wait:
            return
        item = newest.item
        if isinstance(item, AudioBlock):
            item = replace(item, samples=np.zeros_like(item.samples))
        for k in range(1, self._model.info.delay + 1):
            time_s = newest.time_s + k / self._recorder.rate_hz
            self._ticks = [Tick(newest.i + k, time_s, item, False)]
            self._run()
            if self._answered:
                break

    def _take(self, events: Iterable[TickItem]) -> None:
        for event in events:
            if isinstance(event, Tick):
                _convert(event.item)
                self._ticks.append(event)
                if len(self._ticks) >= self._chunk:
                    self._run()
                continue
            self._run()
            if isinstance(event, Gap):
                self._recorder.gap(event)
                self._newest, self._answered = None, False
                self.state.reset([0])
                if self.persons is not None:
                    self.persons.reset()
            else:
                self._recorder.fault(event)

    def _run(self) -> None:
        """Run the ticks that were collected."""
        ticks, self._ticks = self._ticks, []
        if not ticks:
            return
        decode_s = (self._now_s() - self._waiting_since) / len(ticks)
        if self._controller is not None:
            self._controller.before(self.state)
        items, persons = [tick.item for tick in ticks], self.persons
        if persons is None or isinstance(self._model, PersonsModel):
            results = self._model.steps(items, self.state)
            if isinstance(self._controller, TokenController):  # its budget is that of the detector
                self._controller.after(results[-1])
            if persons is not None:
                pairs = zip(items, results, strict=True)
                results = [persons.step(*pair, looks_of(self._model, self.state)) for pair in pairs]
        else:
            results = [persons.step(item) for item in items]
        if isinstance(self._controller, LookController):
            for result in results:
                self._controller.after(result)
        self._newest = ticks[-1]
        budget = None if self._controller is None else self._controller.step_budget
        dropped = 0 if self._live is None else self._live.dropped
        for tick, result in zip(ticks, results, strict=True):
            scores = self._recorder.step(tick, result, decode_s, dropped=dropped, budget=budget)
            self._answered |= bool(scores)
            if self._listener is not None:
                self._listener(tick.time_s, scores)
        self.begin()

    def _controlled(self) -> Controller | None:
        """Set the stream's token count; return its controller if there is a budget."""
        options = self._recorder.options
        if isinstance(self._model, GatedModel):
            self.state.tokens, self.state.masks = options.tokens, self._painter.masks
            self.state.choice = options.policy
        elif self._model.info.by_place:
            self.state.tokens = options.tokens
        return controller(self._model, options.budget, self._recorder.rate_hz)


def _convert(item: Data) -> None:
    """Convert and resize a frame, as part of decoding; this frees the memory of the decoder."""
    if isinstance(item, VideoFrame):
        for frame in (*item.earlier, item):
            _ = frame.rgb


class SourceRun:
    """One run over one source; iterate ``steps`` to its end, or use ``run``."""

    def __init__(
        self,
        source: Source,
        model: Model,
        sinks: Sequence[Sink],
        options: Options,
        stop: StopHandler,
        *,
        follow_persons: bool = False,
        listener: Callable[[StreamRecorder], StepListener] | None = None,
    ) -> None:
        """The arguments of ``run``."""
        self.source, self.model, self.stop = source, model, stop
        self._live = source if isinstance(source, LiveSource) else None
        self.recorder = StreamRecorder(model, options, sinks, follow_persons=follow_persons)
        self._listener = None if listener is None else listener(self.recorder)
        self.summary: Summary

    def steps(self) -> Generator[None, None, None]:
        """Run to the end, pausing after each item of the source; ``summary`` is set at the end.

        Closing the iterator ends the run early; files are finished all the same.
        """
        began = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self.source.close)
            stack.enter_context(self.stop.while_running(self.source.stop))
            info = self.source.open()
            exit_code = ExitCode.BUG
            try:
                try:
                    self.recorder.open(info)
                except SourceError as error:  # the model does not take this source
                    raise SourceError(str(error), where=info.uri) from error
                runner = StreamRunner(
                    self.model, self.recorder, info, live=self._live, listener=self._listener
                )
                yield
                for item in self.source.items():
                    if self.stop.requested:
                        break
                    runner.push(item)
                    yield
                if self.stop.requested:
                    self.recorder.flush()
                else:
                    runner.finish()
                exit_code = self._exit_code()
            except CostreamError as error:
                exit_code = error.exit_code
                raise
            except BrokenPipeError:
                exit_code = ExitCode.OK
                raise
            except (KeyboardInterrupt, GeneratorExit):
                exit_code = ExitCode.SIGINT
                raise
            finally:
                self.summary = self._summary(exit_code, time.perf_counter() - began)
                self.recorder.close(self.summary)
        if self.recorder.counters.steps == 0 and not self.stop.requested:
            why = self.recorder.counters.fatal
            raise SourceError(
                f"nothing could be read{f' ({why})' if why else ''}",
                where=info.uri,
                hint=None if why else "it is damaged, shorter than a step, or the range is empty",
            )

    def _exit_code(self) -> ExitCode:
        if self.stop.exit_code is not None:
            return self.stop.exit_code
        if self.recorder.counters.steps == 0:
            return ExitCode.INPUT
        return ExitCode.PARTIAL if self.recorder.counters.fatal else ExitCode.OK

    def _summary(self, exit_code: ExitCode, wall_s: float) -> Summary:
        live = self._live
        return self.recorder.summary(
            exit_code,
            wall_s,
            complete=exit_code is ExitCode.OK and not self.stop.requested,
            dropped=0 if live is None else live.dropped,
            drift_ppm=None if live is None else live.drift_ppm,
        )
