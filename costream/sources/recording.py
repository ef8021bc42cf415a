"""One opening of a microphone: what comes, until it is closed or the device is gone."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from costream.errors import SourceError
from costream.sources.base import Sound
from costream.sources.devices import WHERE, InputDevice, portaudio

# PortAudio gives pieces of at most this length, a whole number to a block. Shorter ones cost more
# (half of it a tenth of all that listening takes), longer ones come later: through a sound server,
# up to one length later.
PIECE_S = 0.25
# A piece is a chunk of its own when the next is so late that something may be missing between.
APART_S = 3 * PIECE_S
# What has more channels is a sound server, which mixes them itself when it is asked for one.
MAX_CHANNELS = 8
SAMPLE_BYTES = 4
CLOSE_S = 0.5  # a stream that still gives something has given it after so long


@dataclass(frozen=True)
class Chunk:
    """As much as a block, in one piece or a few; less before a pause."""

    recording: int  # which; another number each time the device is opened
    rate_hz: int
    channels: int
    first: int  # index of its first frame in the recording
    frames: int
    data: bytes  # float32 [frames, channels]
    arrived_s: float  # time.monotonic()

    @property
    def end(self) -> int:
        """Index of the frame after its last one."""
        return self.first + self.frames


class Recording:
    """Records from the moment it is made. ``lively``: something came, the last at ``heard_s``.

    PortAudio's overflow flags are not looked at: they do not fire where frames are lost (ALSA on
    PulseAudio). Whoever takes the chunks sees it by their times.
    """

    def __init__(
        self,
        number: int,
        device: InputDevice,
        sound: Sound,
        channel: int | None,
        give: Callable[[Chunk], None],
        wake: Callable[[], None],
    ) -> None:
        """Open the device at the rate of ``sound``, or else at its own.

        ``channel``: the one needed, from 1; None: all. ``give`` takes what comes, in PortAudio's
        thread, and so is ``wake`` called when the recording is over. SourceError when it cannot be
        opened.
        """
        self._number, self._give, self._wake = number, give, wake
        self._parts = math.ceil(sound.block / sound.rate_hz / PIECE_S)  # pieces of a chunk
        self._pieces: list[bytes] = []
        self._frames = 0  # given
        self._closing = False
        self._over = threading.Event()
        self.lively = False
        self.heard_s = time.monotonic()  # when something came, or it began
        self._stream = self._open(device, sound, channel)

    @property
    def over(self) -> bool:
        """True when nothing more will come."""
        return self._over.is_set()

    def close(self) -> None:
        """Let go of the device. Waits for the end of the piece that is under way."""
        self._closing = True
        # Stopping waits for the next piece, for ever if none comes. Aborting cancels PortAudio's
        # thread, which must not happen while it runs Python.
        if self._over.wait(max(0.0, self.heard_s + CLOSE_S - time.monotonic())):
            self._stream.stop()
        else:
            self._stream.abort()
        self._stream.close()

    def _open(self, device: InputDevice, sound: Sound, channel: int | None) -> Any:
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
        raise SourceError(
            f"{device.name!r} cannot be opened ({failure})",
            where=WHERE,
            hint="is it plugged in, and no other program using it?",
        ) from failure

    def _take(self, data: Any, _frames: int, _time: Any, _status: Any) -> None:
        if self._closing:
            raise portaudio().CallbackStop
        now_s = time.monotonic()
        if self._pieces and now_s - self.heard_s > APART_S:
            self._give_chunk()
        self._pieces.append(bytes(data))
        self.heard_s, self.lively = now_s, True
        if len(self._pieces) == self._parts:
            self._give_chunk()

    def _give_chunk(self) -> None:
        data = b"".join(self._pieces)
        frames = len(data) // (SAMPLE_BYTES * self._channels)
        self._give(
            Chunk(
                recording=self._number,
                rate_hz=self._rate_hz,
                channels=self._channels,
                first=self._frames,
                frames=frames,
                data=data,
                arrived_s=self.heard_s,
            )
        )
        self._frames += frames
        self._pieces.clear()

    def _finished(self) -> None:
        self._over.set()
        self._wake()


def _ways(device: InputDevice, sound: Sound, channel: int | None) -> Iterator[tuple[int, int]]:
    """Yield the rates and numbers of channels to try, best first."""
    few = 1 if channel is None else channel
    most = device.channels if device.channels <= MAX_CHANNELS else few
    for rate_hz in dict.fromkeys((sound.rate_hz, device.rate_hz)):
        for channels in dict.fromkeys((most, few) if channel is None else (few, most)):
            yield rate_hz, channels
