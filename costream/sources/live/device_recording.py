"""One session of an input device, until it is closed or the device is lost."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from costream.core.errors import SourceError
from costream.core.records import AudioFormat
from costream.sources.live.devices import (
    WHERE,
    AbsentDeviceError,
    InputDevice,
    portaudio,
)

# Maximum length of PortAudio's buffers, of which a block is a multiple. Shorter ones cost more (at
# half the length a tenth of the total time of listening), longer ones arrive later (through a sound
# server by up to one length).
PIECE_S = 0.25
# A chunk is cut short if the next piece is so late that something may be missing in between.
APART_S = 3 * PIECE_S
# A device with more channels is a sound server, which downmixes itself on request.
MAX_CHANNELS = 8
SAMPLE_BYTES = 4
CLOSE_S = 0.5  # maximum wait for the next callback of a working stream


@dataclass(frozen=True)
class DeviceLoss:
    """A device was lost or is missing."""

    reason: str
    final: bool = False  # no more retries


@dataclass(frozen=True)
class AudioChunk:
    """Sound of the length of a block, in one or a fewest pieces; less before a pause."""

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
        # Stopping waits for the next piece, forever if none arrives. Aborting cancels PortAudio's
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
    fewest = 1 if channel is None else channel
    most = device.channels if device.channels <= MAX_CHANNELS else fewest
    for rate_hz in dict.fromkeys((sound.rate_hz, device.rate_hz)):
        for channels in dict.fromkeys((most, fewest) if channel is None else (fewest, most)):
            yield rate_hz, channels
