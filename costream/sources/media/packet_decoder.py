"""Error-tolerant decoding of the packets of one stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import av
from av.packet import Packet

from costream.sources.media.decode_errors import UNDECODABLE, DecodeErrors

# Consecutive read failures after which the rest of a file counts as lost.
READ_ATTEMPTS = 16
# A file that ends this much before the length in its header was cut off.
CUT_OFF_S = 1.0
FrameT = TypeVar("FrameT")
ItemT = TypeVar("ItemT")
# Returns the packets of one stream, from the current position of its container.
PacketReader: TypeAlias = "Callable[[], Iterator[Packet[Any] | None]]"


class StampClock(Protocol):
    """Clock that maps the time stamps of a stream to times."""

    @property
    def next_s(self) -> float:
        """Time at which the next frame is due."""

    def seconds(self, pts: int) -> float:
        """Return the time of a stamp."""


class PacketDecoder(Generic[FrameT]):
    """Decoded frames of one stream from the current position to the end.

    Packets are decoded separately, so that a damaged one does not affect others. After the last
    frame, ``fatal`` is the reason why the rest is lost, or None if the stream ended normally.
    """

    def __init__(
        self,
        read: PacketReader,
        decode: Callable[..., list[FrameT]],
        clock: StampClock,
        damage: DecodeErrors,
        from_s: float,
    ) -> None:
        """``decode``: ``stream.decode``. ``from_s``: errors before this time are not counted."""
        self._read = read
        self._decode = decode
        self._clock = clock
        self._damage = damage
        self._from_s = from_s
        self._stopped = False
        self._read_to: int | None = None  # end of the newest packet, in the stream's time base
        self.fatal: str | None = None

    def stop(self) -> None:
        """End the frames soon; may be called from a signal handler."""
        self._stopped = True

    def count(self, what: str, time_s: float) -> None:
        """Count one error, unless it lies before the requested start."""
        if time_s >= self._from_s:
            self._damage.add(what, time_s)

    def run(self) -> Iterator[FrameT]:
        """Yield every decodable frame in decoder order; call once."""
        for packet in self._packets():
            try:
                yield from self._decode(packet)
            except av.EOFError:  # flushed already
                pass
            except av.FFmpegError:
                pts = None if packet is None else packet.pts
                time_s = self._clock.next_s if pts is None else self._clock.seconds(pts)
                self.count(UNDECODABLE, time_s)

    def check_end(self, stated_end_s: float | None) -> None:
        """Set ``fatal`` if the packets ended well before ``stated_end_s`` (None: unknown)."""
        if self._stopped or self.fatal is not None or stated_end_s is None:
            return
        read_to_s = 0.0 if self._read_to is None else self._clock.seconds(self._read_to)
        if stated_end_s - read_to_s > CUT_OFF_S:
            self.fatal = (
                f"the file is cut off: its header states {stated_end_s:.3f} s, it ends at "
                f"{read_to_s:.3f} s"
            )

    def _packets(self) -> Iterator[Packet[Any] | None]:
        """Yield packets, the last one empty or None, which flushes the decoder."""
        failures = 0
        while not self._stopped:
            try:
                for packet in self._read():
                    if failures:
                        self.count("section(s) that cannot be read", self._clock.next_s)
                        failures = 0
                    if self._stopped:
                        return
                    if packet is not None and packet.pts is not None:
                        end = packet.pts + (packet.duration or 0)
                        if self._read_to is None or end > self._read_to:
                            self._read_to = end
                    yield packet
                return
            except IndexError:
                # PyAV, at the end of a damaged transport stream in which new streams appeared.
                yield None
                return
            except (av.FFmpegError, OSError) as error:
                failures += 1
                if failures == READ_ATTEMPTS:
                    self.fatal = f"the rest is lost: it cannot be read ({error.strerror})"
                    yield None
                    return


class StreamDecoder(ABC, Generic[ItemT]):
    """Base of the decoders: items of one stream from the current position to the end.

    ``frames`` yields them in time order, once. After the last one, ``fatal`` is the reason why the
    rest is lost, or None if the stream ended normally.
    """

    def __init__(self, packets: PacketDecoder[Any]) -> None:
        self._packets = packets
        self.frames = self._run()

    @property
    def fatal(self) -> str | None:
        """Reason why the rest is lost."""
        return self._packets.fatal

    def close(self) -> None:
        """End the frames at once; call from the consuming thread, before closing the container."""
        self.frames.close()

    def stop(self) -> None:
        """End the frames soon; may be called from a signal handler."""
        self._packets.stop()

    @abstractmethod
    def _run(self) -> Generator[ItemT, None, None]:
        """Yield the items."""
