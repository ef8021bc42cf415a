"""Skipping of frames that are neither shown at a tick nor referred to by other frames."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import av
from av.packet import Packet
from av.video.stream import VideoStream

from costream.core.clock import TOLERANCE_S
from costream.sources.media.packet_decoder import PacketReader

# Packets that are read before one is decoded. H.264 and HEVC reorder at most 16 frames: by then the
# next frame in display order has been read.
LOOK_AHEAD = 17
_ROUNDING = 1e-6  # of a tick


@dataclass(frozen=True)
class SkippedFrame:
    """Placeholder for a frame that was not decoded; ``picture`` is the newest decoded one."""

    pts: int
    dts: int
    picture: av.VideoFrame


class FrameSkipper:
    """Reads and decodes packets, without the frames that are neither shown nor referred to.

    A frame is shown if there is a tick from its time to that of the next frame, see
    ``clock.Ticker``. The decoder knows which frames others refer to (for the codecs of
    ``can_skip``), so decoded frames do not change. Nothing is skipped before ``begin``, near
    packets without increasing time stamps, and at the end.
    """

    def __init__(
        self,
        read: PacketReader,
        stream: VideoStream,
        seconds: Callable[[int], float],
        rate_hz: float,
    ) -> None:
        """``rate_hz``: ticks per second. ``seconds``: returns the time of a stamp."""
        self._source, self._stream, self._seconds = read, stream, seconds
        self._rate_hz = rate_hz
        self._slack_s = min(TOLERANCE_S, 0.1 / rate_hz)
        self._first_s: float | None = None
        self._waiting: deque[Packet[Any]] = deque()
        self._last_dts: int | None = None  # of the newest
        self._doubtful = 0  # waiting packets up to the newest one with missing or decreasing stamps
        self._sent: list[tuple[int, int, bool]] = []  # heap of pts, dts and whether it is needed
        self._picture: av.VideoFrame | None = None

    def begin(self, first_s: float) -> None:
        """Skip frames from now on; ``first_s``: time of the first tick."""
        self._first_s = first_s

    def read(self) -> Iterator[Packet[Any] | None]:
        """Yield the packets in order, each when LOOK_AHEAD more have been read."""
        for packet in self._source():
            if packet is None or packet.size == 0:  # the end: the decoder is emptied
                yield from self._next(0)
                yield packet
                continue
            self._waiting.append(packet)
            dts, last = packet.dts, self._last_dts
            if packet.pts is None or dts is None or last is None or dts <= last:
                self._doubtful = len(self._waiting)
            self._last_dts = dts
            yield from self._next(LOOK_AHEAD)
        yield from self._next(0)

    def _next(self, left: int) -> Iterator[Packet[Any]]:
        """Yield the packets before the last ``left``."""
        while len(self._waiting) > left:
            self._doubtful = max(0, self._doubtful - 1)
            yield self._waiting.popleft()

    def decode(self, packet: Packet[Any] | None) -> list[av.VideoFrame | SkippedFrame]:
        """Return the frames that a packet completes, in the order in which they are shown."""
        needed = packet is None or self._needed(packet)
        self._stream.codec_context.skip_frame = "DEFAULT" if needed else "NONREF"
        if packet is not None and packet.pts is not None and packet.dts is not None:
            heapq.heappush(self._sent, (packet.pts, packet.dts, needed))
        out: list[av.VideoFrame | SkippedFrame] = []
        for frame in self._stream.decode(packet):
            if frame.pts is not None:
                out += self._skipped(frame.pts)
            self._picture = frame
            out.append(frame)
        if packet is None or packet.size == 0:
            out += self._skipped(None)
        return out

    def _skipped(self, pts: int | None) -> Iterator[SkippedFrame]:
        """Yield the frames skipped before stamp ``pts``; None: all skipped frames."""
        while self._sent and (pts is None or self._sent[0][0] <= pts):
            stamp, dts, needed = heapq.heappop(self._sent)
            if stamp != pts and not needed and self._picture is not None:
                yield SkippedFrame(stamp, dts, self._picture)

    def _needed(self, packet: Packet[Any]) -> bool:
        if self._first_s is None or packet.pts is None or packet.is_corrupt:
            return True
        if len(self._waiting) < LOOK_AHEAD or packet.dts is None or self._doubtful:
            return True
        after = [p.pts for p in self._waiting if p.pts is not None and p.pts > packet.pts]
        sent = [stamp for stamp, _, _ in self._sent if stamp > packet.pts]
        after_s = self._seconds(min([*after, *sent], default=packet.pts))
        return self._shown(self._seconds(packet.pts), after_s)

    def _shown(self, time_s: float, after_s: float) -> bool:
        """Return whether there is a tick at a frame before the next one, or may be."""
        if not 0 < after_s - time_s < 1 / self._rate_hz:
            return True
        first_s = self._first_s or 0.0
        low = (time_s - self._slack_s - first_s) * self._rate_hz
        high = (max(after_s - self._slack_s, time_s + self._slack_s) - first_s) * self._rate_hz
        return math.floor(high + _ROUNDING) >= math.ceil(low - _ROUNDING)


def can_skip(stream: VideoStream) -> bool:
    """Return whether the decoder can tell which frames others refer to.

    HEVC: if there is one temporal layer, which MP4 and Matroska state.
    """
    name, extra = stream.codec_context.name, stream.codec_context.extradata
    if name == "hevc":
        return extra is not None and len(extra) > 21 and extra[0] == 1 and extra[21] >> 3 & 7 == 1
    return name in ("h264", "mpeg2video", "mpeg4")
