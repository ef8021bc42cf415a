"""The run loop: steps one model over one source and writes to sinks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from costream.clock import Tick, TickItem, resample, tick_per_item
from costream.errors import CostreamError, ExitCode, SourceError
from costream.models.base import GatedModel, Model
from costream.options import Options
from costream.records import Fault, Gap, SourceInfo, Summary, VideoFrame
from costream.runtime.budget import TokenController
from costream.runtime.stop import StopHandler
from costream.runtime.writer import StreamRecorder
from costream.sinks.base import Sink
from costream.sources.base import LiveSource, Source


def run(
    source: Source,
    model: Model,
    sinks: Sequence[Sink] = (),
    *,
    options: Options | None = None,
    stop: StopHandler | None = None,
) -> Summary:
    """Step ``model`` over ``source`` until it ends or ``stop`` is set, and return the summary.

    Every opened sink is closed with that summary, whatever happens. Raises SourceError
    when the source cannot be opened or holds no data, OutputError when a sink cannot write,
    BrokenPipeError when the reader of a sink's stream has closed it.
    """
    return _Run(source, model, sinks, options or Options(), stop or StopHandler()).go()


class _Run:
    def __init__(
        self,
        source: Source,
        model: Model,
        sinks: Sequence[Sink],
        options: Options,
        stop: StopHandler,
    ) -> None:
        self.source, self.model, self.stop = source, model, stop
        self._live = source if isinstance(source, LiveSource) else None
        self.recorder = StreamRecorder(model, options, sinks)

    def go(self) -> Summary:
        began = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self.source.close)
            stack.enter_context(self.stop.while_running(self.source.stop))
            info = self.source.open()
            exit_code = ExitCode.BUG
            try:
                self.recorder.open(info)
                self._loop(info)
                exit_code = self._exit_code()
            except CostreamError as error:
                exit_code = error.exit_code
                raise
            except BrokenPipeError:
                exit_code = ExitCode.OK
                raise
            except KeyboardInterrupt:
                exit_code = ExitCode.SIGINT
                raise
            finally:
                summary = self._summary(exit_code, time.perf_counter() - began)
                self.recorder.close(summary)
        if self.recorder.steps == 0 and not self.stop.requested:
            raise SourceError(
                "nothing could be read", where=info.uri, hint="it is damaged, or the range is empty"
            )
        return summary

    def _loop(self, info: SourceInfo) -> None:
        state = self.model.init_state(1)
        controller = self._controller(state)
        mark = time.perf_counter()
        for events in self._events(info):
            if self.stop.requested:
                break
            ticks = [event for event in events if isinstance(event, Tick)]
            if ticks:
                for tick in ticks:
                    if isinstance(tick.item, VideoFrame):
                        for frame in (*tick.item.earlier, tick.item):
                            _ = frame.rgb  # convert and resize here: it counts as decoding
                decode_s = (time.perf_counter() - mark) / len(ticks)
                if controller is not None:
                    controller.before(state)
                    self.recorder.budget = controller.step_budget
                results = self.model.steps([tick.item for tick in ticks], state)
                if controller is not None:
                    controller.after(results[-1])
                if self._live is not None:
                    self.recorder.dropped = self._live.dropped
                for tick, result in zip(ticks, results, strict=True):
                    self.recorder.step(tick, result, decode_s)
            for event in events:
                if isinstance(event, Gap):
                    self.recorder.gap(event)
                    state.reset([0])
                elif isinstance(event, Fault):
                    self.recorder.fault(event)
            mark = time.perf_counter()
        self.recorder.flush()

    def _controller(self, state: Any) -> TokenController | None:
        """Set the stream's token count; return its controller if there is a budget."""
        options = self.recorder.options
        if not isinstance(self.model, GatedModel):
            return None
        state.tokens = options.tokens
        if options.budget is None:
            return None
        return TokenController(self.model, options.budget, self.recorder.rate_hz)

    def _events(self, info: SourceInfo) -> Iterator[list[TickItem]]:
        """Yield lists of events: ticks of one chunk together, everything else alone."""
        items = self.source.items()
        if info.kind == "audio":
            events = tick_per_item(items)
        else:
            tolerance_s = self.model.info.card.gap_tolerance_s
            events = resample(items, self.recorder.rate_hz, tolerance_s, self.model.info.frames)
        size = 1 if info.live else self.model.info.chunk
        together: list[TickItem] = []
        for event in events:
            if isinstance(event, Tick):
                together.append(event)
                if len(together) < size:
                    continue
            elif together:
                yield together
                together = [event]
            else:
                together = [event]
            yield together
            together = []
        if together:
            yield together

    def _exit_code(self) -> ExitCode:
        if self.stop.exit_code is not None:
            return self.stop.exit_code
        if self.recorder.steps == 0:
            return ExitCode.INPUT
        return ExitCode.PARTIAL if self.recorder.fatal else ExitCode.OK

    def _summary(self, exit_code: ExitCode, wall_s: float) -> Summary:
        live = self._live
        if live is not None:
            self.recorder.dropped = live.dropped
        complete = exit_code is ExitCode.OK and not self.stop.requested
        drift_ppm = None if live is None else live.drift_ppm
        return self.recorder.summary(exit_code, wall_s, complete=complete, drift_ppm=drift_ppm)
