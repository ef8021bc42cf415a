"""Microphone recorder thread that reopens the device when it is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from costream.core.errors import SourceError
from costream.core.records import AudioFormat
from costream.sources.live.devices import (
    WHERE,
    AbsentDeviceError,
    InputDevice,
    choose_device,
    input_devices,
    portaudio,
    rescan_devices,
    silence_portaudio,
)

log = logging.getLogger("costream")
BACKLOG_S = 4.0  # maximum sound in the queue; older sound is dropped
STALL_S = 2.0  # a device without data for this long is reopened
FIRST_S = 4.0  # an idle PulseAudio source takes 2 s to start
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # before each attempt to reopen
JOIN_S = 1.0  # maximum wait for a sound server that hangs


class MicrophoneRecorder:
    """Records until ``stop``, reopening the device as needed.

    ``opened`` receives None once the device is open or waited for, or the error of the first
    attempt. ``queue`` receives the chunks, of which the oldest are dropped if they are not
    consumed, and each loss of the device. After ``stop`` both receive None. ``lost`` is the reason
    while a device is waited for, ``given_up`` says that it no longer is, and ``reconnects`` is the
    number of times it came back. The device is opened, watched and closed by a thread, because a
    sound server that hangs blocks its callers for half a minute.
    """

    def __init__(
        self, wanted: str, sound: AudioFormat, channel: int | None, *, waits: bool, retries: int
    ) -> None:
        """``wanted`` as in ``choose_device``; ``channel`` from 1; None: all.

        ``waits``: also for a device that is not there at the start. ``retries``: attempts to
        reopen it before giving up; -1: no limit.
        """
        self.queue: SimpleQueue[AudioChunk | DeviceLoss | None] = SimpleQueue()
        self.opened: SimpleQueue[SourceError | None] = SimpleQueue()
        self.lost = ""
        self.given_up = False
        self.reconnects = 0
        self._waits, self._retries, self._heard = waits, retries, False
        self._wanted, self._sound, self._channel = wanted, sound, channel
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=WHERE, daemon=True)

    def start(self) -> None:
        """Start opening the device."""
        self._thread.start()

    def stop(self) -> None:
        """Stop soon. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self._stopped = True
        for queue in (self._wakes, self.opened, self.queue):
            queue.put(None)

    def join(self) -> None:
        """Wait until the device is closed, after ``stop``."""
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        with silence_portaudio():
            try:
                recording = self._open(0)
            except SourceError as error:
                if not (self._waits and isinstance(error, AbsentDeviceError)):
                    self.opened.put(error)
                    return
                recording = None
                self.lost = str(error).removeprefix(f"{WHERE}: ").partition("; ")[0]
            self.opened.put(None)
            self._record(recording)

    def _record(self, recording: DeviceRecording | None) -> None:
        """Record for ever. None: the device is not there."""
        attempts = 0
        for number in itertools.count(1):
            if recording is not None:
                self.lost = self._watch(recording)
                recording.close()
                attempts = 0 if recording.lively else attempts
            if attempts == 0 and not self._stopped:
                self.queue.put(DeviceLoss(f"{self.lost}; waiting for it"))
            if attempts == self._retries:
                self.given_up = True
                self.queue.put(DeviceLoss(f"{self.lost}; gave up", final=True))
                return
            self._pause(PAUSES_S[min(attempts, len(PAUSES_S) - 1)])
            if self._stopped:
                return
            attempts += 1
            recording = self._open_again(number)

    def _open(self, number: int) -> DeviceRecording:
        device = choose_device(input_devices(), self._wanted)
        recording = DeviceRecording(
            number, device, self._sound, self._channel, self._deliver, self._wake
        )
        if self._wanted:
            self._wanted = device.name  # its index may differ next time
        return recording

    def _open_again(self, number: int) -> DeviceRecording | None:
        try:
            rescan_devices()
            return self._open(number)
        except SourceError as error:
            log.debug("%s", error)
            return None

    def _watch(self, recording: DeviceRecording) -> str:
        """Wait until the recording is over or stalls, and return the reason; "" after ``stop``."""
        while not self._stopped:
            if recording.over:
                return "the device is gone"
            patience_s = STALL_S if recording.lively else FIRST_S
            left_s = recording.arrived_s + patience_s - time.monotonic()
            if left_s <= 0:
                return "no sound received"
            self._wait(left_s)
        return ""

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopped and (left_s := until - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._wakes.get(timeout=seconds)

    def _wake(self) -> None:
        self._wakes.put(None)

    def _deliver(self, chunk: AudioChunk) -> None:
        if self.lost:
            self.lost = ""
            self.reconnects += self._heard
        self._heard = True
        if self.queue.qsize() * self._sound.block >= BACKLOG_S * self._sound.rate_hz:
            with contextlib.suppress(Empty):
                oldest = self.queue.get_nowait()
                if isinstance(oldest, DeviceLoss):
                    self.queue.put(oldest)
        self.queue.put(chunk)


# One session of an input device, until it is closed or the device is lost.

# Maximum length of PortAudio's buffers; a whole number of them makes a block. Shorter ones cost
# more (at half the length, a tenth of all that listening takes), longer ones arrive later: through
# a sound server, by up to one length.
PIECE_S = 0.25
# A chunk is cut short if the next piece is so late that something may be missing in between.
APART_S = 3 * PIECE_S
# A device with more channels is a sound server, which downmixes itself on request.
MAX_CHANNELS = 8
SAMPLE_BYTES = 4
CLOSE_S = 0.5  # maximum wait for the next callback of a working stream


@dataclass(frozen=True)
class DeviceLoss:
    """A device was lost, or is not there."""

    reason: str
    final: bool = False  # given up


@dataclass(frozen=True)
class AudioChunk:
    """Sound of the length of a block, in one or a few pieces; less before a pause."""

    recording: int  # number of the session; changes each time the device is opened
    rate_hz: int
    channels: int
    first: int  # index of its first frame in the recording
    frames: int
    data: bytes  # float32 [frames, channels]
    arrived_s: float  # time.monotonic()

    @property
    def end(self) -> int:
        """Index of the frame after the last one."""
        return self.first + self.frames


class DeviceRecording:
    """Records from its creation on. ``lively``: data arrived, most recently at ``arrived_s``.

    PortAudio's overflow flags are ignored: they do not report lost frames (ALSA on PulseAudio).
    The consumer of the chunks detects losses by their times.
    """

    def __init__(
        self,
        number: int,
        device: InputDevice,
        sound: AudioFormat,
        channel: int | None,
        deliver: Callable[[AudioChunk], None],
        wake: Callable[[], None],
    ) -> None:
        """Open the device at the rate of ``sound``, or else at its native rate.

        ``channel``: the required one, from 1; None: all. ``deliver`` receives the chunks, and
        ``wake`` is called at the end of the recording, both in PortAudio's thread. Raises
        SourceError if the device cannot be opened.
        """
        self._number, self._deliver, self._wake = number, deliver, wake
        self._parts = math.ceil(sound.block / sound.rate_hz / PIECE_S)  # pieces per chunk
        self._pieces: list[bytes] = []
        self._frames = 0  # delivered
        self._closing = False
        self._over = threading.Event()
        self.lively = False
        self.arrived_s = time.monotonic()  # last arrival of data, or the start
        self._stream = self._open(device, sound, channel)

    @property
    def over(self) -> bool:
        """Whether no more data will arrive."""
        return self._over.is_set()

    def close(self) -> None:
        """Close the device, after waiting for the end of the current piece."""
        self._closing = True
        # Stopping waits for the next piece, for ever if none arrives. Aborting cancels PortAudio's
        # thread, which must not happen while it runs Python code.
        if self._over.wait(max(0.0, self.arrived_s + CLOSE_S - time.monotonic())):
            self._stream.stop()
        else:
            self._stream.abort()
        self._stream.close()

    def _open(self, device: InputDevice, sound: AudioFormat, channel: int | None) -> Any:
        sd = portaudio()
        if channel is not None and not 1 <= channel <= device.channels:
            raise SourceError(
                f"{device.name!r} has no channel {channel}, only {device.channels}", where=WHERE
            )
        failure = None
        for self._rate_hz, self._channels in _ways(device, sound, channel):
            try:
                stream = sd.RawInputStream(
                    samplerate=self._rate_hz,
                    blocksize=round(sound.block / self._parts * self._rate_hz / sound.rate_hz),
                    device=device.index,
                    channels=self._channels,
                    dtype="float32",
                    latency="high",
                    callback=self._take,
                    finished_callback=self._finished,
                )
            except sd.PortAudioError as error:
                failure = error
                continue
            try:
                stream.start()
            except sd.PortAudioError as error:
                failure = error
                stream.close()
                continue
            return stream
        raise AbsentDeviceError(
            f"{device.name!r} cannot be opened ({failure})",
            where=WHERE,
            hint="is it plugged in, and no other program using it?",
        ) from failure

    def _take(self, data: Any, _frames: int, _time: Any, _status: Any) -> None:
        if self._closing:
            raise portaudio().CallbackStop
        now_s = time.monotonic()
        if self._pieces and now_s - self.arrived_s > APART_S:
            self._deliver_chunk()
        self._pieces.append(bytes(data))
        self.arrived_s, self.lively = now_s, True
        if len(self._pieces) == self._parts:
            self._deliver_chunk()

    def _deliver_chunk(self) -> None:
        data = b"".join(self._pieces)
        frames = len(data) // (SAMPLE_BYTES * self._channels)
        self._deliver(
            AudioChunk(
                recording=self._number,
                rate_hz=self._rate_hz,
                channels=self._channels,
                first=self._frames,
                frames=frames,
                data=data,
                arrived_s=self.arrived_s,
            )
        )
        self._frames += frames
        self._pieces.clear()

    def _finished(self) -> None:
        self._over.set()
        self._wake()


def _ways(
    device: InputDevice, sound: AudioFormat, channel: int | None
) -> Iterator[tuple[int, int]]:
    """Yield the sample rates and channel counts to try, best first."""
    few = 1 if channel is None else channel
    most = device.channels if device.channels <= MAX_CHANNELS else few
    for rate_hz in dict.fromkeys((sound.rate_hz, device.rate_hz)):
        for channels in dict.fromkeys((most, few) if channel is None else (few, most)):
            yield rate_hz, channels
