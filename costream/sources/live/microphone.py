"""Microphone source: live audio through PortAudio."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from fractions import Fraction
from queue import Empty

import av
import numpy as np

from costream.core.errors import SourceError, UsageError, display_name
from costream.core.records import Fault, Gap, Item, SourceInfo
from costream.sources.base import Connection, SourceOptions, source
from costream.sources.live.device_clock import SILENT, TOO_SLOW, DeviceClock
from costream.sources.live.device_recording import AudioChunk, DeviceLoss
from costream.sources.live.devices import WHERE
from costream.sources.live.microphone_recorder import MicrophoneRecorder
from costream.sources.media.block_cutter import AudioBlockCutter
from costream.sources.media.sound_clock import Discontinuity
from costream.sources.waiting import take

log = logging.getLogger("costream")

# Maximum lateness of the sound before the requested end.
END_S = 0.5


@source("microphone", kind="audio", address="(?is:mic(:.*)?)")
class MicrophoneSource:
    """Live audio from a microphone in blocks of one model step.

    Time is 0 s at the first sample, with ``options.connecting`` at ``open``, or ``zero_s``; from
    the first on the samples are counted. Where some are missing, because the device was silent or
    unplugged, or they were not read in time, there is a Gap, and time continues by the wall clock.
    A lost device is reported by a Fault and awaited until ``stop`` or for ``retries`` attempts;
    with ``options.connecting`` also a device that is missing at the start.
    """

    def __init__(self, uri: str, options: SourceOptions | None = None) -> None:
        """``uri``: "mic" (the default device), "mic:INDEX" or "mic:NAME", any part of a name.

        Raises UsageError without ``options.sound``: a microphone provides nothing else.
        """
        self._uri = display_name(uri)
        self._wanted = uri.partition(":")[2]
        self._options = options or SourceOptions()
        if self._options.sound is None:
            what = "a microphone needs a model that takes sound"
            hint = "name one, as in -m cosounds; costream listen has one"
            if self._options.extra_audio is not None:
                what, hint = "a microphone has no pictures", "leave out the model that takes them"
            raise UsageError(what, where=self._uri, hint=hint)
        self._sound = self._options.sound
        self._clock = DeviceClock()
        self._cutter: AudioBlockCutter | None = None
        self._dropped_s = 0.0
        self._stopped = False
        self._recorder: MicrophoneRecorder | None = None
        self._opened_s = 0.0  # time.monotonic() at 0 s, before the first sample
        self._absent = ""  # why the device was missing at the start

    @staticmethod
    def name_of(uri: str) -> str:
        """Return the base name of its output files."""
        return "".join(c if c.isalnum() or c in " .-" else "_" for c in uri)

    @property
    def connection(self) -> Connection:
        """State of the connection."""
        recorder = self._recorder
        if recorder is None:
            return Connection("ended" if self._stopped else "connecting")
        if self._stopped:
            return Connection("ended", "", recorder.reconnects)
        if recorder.given_up:
            return Connection("lost", recorder.lost, recorder.reconnects)
        if recorder.lost:
            return Connection("waiting", recorder.lost, recorder.reconnects)
        return Connection("connecting" if self._cutter is None else "live", "", recorder.reconnects)

    @property
    def dropped(self) -> int:
        """Number of blocks dropped because they were not consumed in time."""
        return math.ceil(self._dropped_s * self._sound.rate_hz / self._sound.block)

    @property
    def drift_ppm(self) -> float | None:
        """Drift of its clock against this machine's in ppm; None in the first minute."""
        return self._clock.delays.drift_ppm

    def open(self) -> SourceInfo:
        """Start recording. Raises SourceError on failure, with installation help."""
        connecting = self._options.connecting
        age_s = 0.0 if connecting is None else connecting.age_s()
        self._opened_s, self._clock = time.monotonic() - age_s, DeviceClock(Fraction(age_s))
        retries = -1 if connecting is None else connecting.retries
        recorder = self._recorder = MicrophoneRecorder(
            self._wanted,
            self._sound,
            self._options.channel,
            waits=connecting is not None and retries != 0,
            retries=retries,
        )
        if self._stopped:
            recorder.stop()
        recorder.start()
        error = take(recorder.opened)
        if error is not None or self._stopped:
            raise error or SourceError("stopped before any sound came", where=self._uri)
        return SourceInfo(
            name="mic",
            uri=self._uri,
            kind="audio",
            duration_s=None,
            rate_hz=self._sound.rate_hz / self._sound.block,
            live=True,
            began_s=time.time() - (time.monotonic() - self._opened_s),
        )

    def items(self) -> Iterator[Item]:
        """Yield AudioBlock, Gap and Fault items, until the requested end, if any."""
        for item in self._items():
            if self._recorder is None:
                return
            if isinstance(item, Gap):
                self._report(item)
            yield item

    def stop(self) -> None:
        """End ``open`` or ``items`` at once, even while they wait; safe in a signal handler."""
        self._stopped = True
        if self._recorder is not None:
            self._recorder.stop()

    def close(self) -> None:
        """Close the microphone."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
            recorder.join()

    def _items(self) -> Iterator[Item]:
        while self._recorder is not None and not self._stopped:
            try:
                chunk = take(self._recorder.queue, self._patience_s())
            except Empty:
                yield from self._end()
                return
            if chunk is None:
                continue
            if isinstance(chunk, DeviceLoss):
                yield from self._lose(chunk)
                if chunk.final:
                    return
                continue
            if self._options.connecting is not None and self._cutter is None:
                yield from self._begin(chunk)
            for placed, jump in self._clock.take(self._newest(chunk)):
                yield from self._cut(placed, jump)
                if self._cutter is not None and self._cutter.ended:
                    yield from self._cutter.finish()
                    return
        if self._recorder is not None and self._recorder.lost:
            yield Gap(self._clock.next_s, self._now_s, self._recorder.lost)

    def _begin(self, first: AudioChunk) -> Iterator[Item]:
        """Set the clock to the time since ``open`` or ``zero_s``; yield the gap before it."""
        opened_s = self._clock.next_s
        begins_s = first.arrived_s - first.frames / first.rate_hz - self._opened_s
        begins_s = max(begins_s, opened_s)
        self._clock = DeviceClock(Fraction(begins_s))
        if self._absent:
            yield Gap(opened_s, begins_s, self._absent)
            self._absent = ""

    def _lose(self, loss: DeviceLoss) -> Iterator[Item]:
        """Yield the Fault of a device that was lost, or is not there."""
        if math.isinf(self._clock.delays.usual_s) and self._options.connecting is not None:
            self._absent = self._absent or loss.reason
        if loss.final:
            yield Gap(self._clock.next_s, self._now_s, loss.reason)
        yield Fault(self._now_s, loss.reason, fatal=loss.final)

    @property
    def _now_s(self) -> float:
        """The current time on the clock of the sound, or since ``open`` before the first sample."""
        usual_s = self._clock.delays.usual_s
        return time.monotonic() - (usual_s if math.isfinite(usual_s) else self._opened_s)

    def _end(self) -> Iterator[Item]:
        """Yield the gap up to the requested end, as no sound was received."""
        if self._cutter is not None and self._options.end_s is not None:
            yield from self._cutter.continue_at(Fraction(self._options.end_s), SILENT)

    def _patience_s(self) -> float:
        """Return how long to wait for sound: until the sound of the requested end is overdue.

        The end counts from the first sample.
        """
        if self._options.end_s is None or self._cutter is None:
            return math.inf
        due_s = self._options.end_s + self._clock.delays.usual_s
        return max(0.0, due_s + END_S - time.monotonic())

    def _newest(self, chunk: AudioChunk) -> AudioChunk:
        """Return this chunk, or about the newest one if chunks before it were dropped.

        This makes one gap instead of many small ones.
        """
        if self._recorder is None or self._clock.follows(chunk):
            return chunk
        queue = self._recorder.queue
        for _ in range(queue.qsize() - 1):
            newer = queue.get_nowait()
            if isinstance(newer, AudioChunk):
                chunk = newer
            else:
                queue.put(newer)
        return chunk

    def _cut(self, chunk: AudioChunk, jump: Discontinuity | None) -> Iterator[Item]:
        samples = np.frombuffer(chunk.data, np.float32)[None]
        frame = av.AudioFrame.from_ndarray(samples, "flt", f"{chunk.channels}c")
        frame.sample_rate = chunk.rate_hz
        if self._cutter is None:
            begins_s = self._clock.begins_s
            self._cutter = AudioBlockCutter(
                frame,
                self._sound,
                self._options,
                self._uri,
                live=True,
                time_s=begins_s,
                origin_s=begins_s,
            )
        yield from self._cutter.take(frame, jump, chunk.arrived_s)

    def _report(self, gap: Gap) -> None:
        lost_s = gap.end_s - gap.start_s
        if gap.reason == TOO_SLOW:
            self._dropped_s += lost_s
        if not (self._stopped or (self._recorder is not None and self._recorder.given_up)):
            log.warning("%s: sound is back after %.1f s: %s", WHERE, lost_s, gap.reason)
