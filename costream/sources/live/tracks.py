"""Base class of the tracks of a feed, over all its connections."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
from av.audio.stream import AudioStream
from av.packet import Packet
from av.video.stream import VideoStream

from costream.core.records import AudioFormat, Fault, Gap, Item
from costream.sources.base import SourceOptions
from costream.sources.live.clock import FeedClock
from costream.sources.live.connection import FeedConnection
from costream.sources.media.audio_decoder import JITTER_S, AudioDecoder, Discontinuity
from costream.sources.media.container import has_time_stamps
from costream.sources.media.frame_numbers import FrameNumbers
from costream.sources.media.packets import DAMAGED, LOST, UNDECODABLE, DecodeErrors, StreamDecoder
from costream.sources.media.picture import Framer
from costream.sources.media.resample import AudioBlockCutter
from costream.sources.media.video_decoder import DecodedFrame, VideoDecoder


class FeedTrack(ABC):
    """Converts the packets of successive connections to items on the clock of the feed."""

    def __init__(self, options: SourceOptions, where: str, began_s: float) -> None:
        """``where``: the feed, for messages. ``began_s``: ``time.monotonic()`` at 0 s."""
        self._options = options
        self._where = where
        self.began_s = began_s
        connecting = options.connecting
        self.begins_s = 0.0 if connecting is None else connecting.age_s()
        self.clock = FeedClock(self.begins_s)
        self.damage = _FeedDecodeErrors(self.clock)
        self.ended = False  # the requested end is reached
        self._decoder: StreamDecoder[Any] | None = None  # of the current connection

    @abstractmethod
    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield the items of a connection; first a Gap if ``reason`` is not empty."""

    @abstractmethod
    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the remaining items and the Gap up to now, at the end of the feed."""

    def close(self) -> None:
        """Close the decoder, before the connection is closed and in the same thread."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    @property
    def left_s(self) -> float:
        """Seconds of this machine's clock until the requested end."""
        return math.inf if self._options.end_s is None else self._options.end_s - self.now_s()

    @property
    def over(self) -> bool:
        """Whether the requested end is reached."""
        return self.ended or self.left_s <= 0

    def now_s(self) -> float:
        """Return the current time of the feed by this machine's clock."""
        return time.monotonic() - self.began_s

    def _place(
        self, link: FeedConnection, media_s: float, arrived_s: float, length_s: float = 0.0
    ) -> float | None:
        """Return the time of data of a connection; None if they are to be left out."""
        how = {"waited_s": link.waited_s, "sent_s": link.sent_s}
        return self.clock.place(media_s, arrived_s - self.began_s, length_s, **how)

    def _news(self, time_s: float) -> Iterator[Fault]:
        """Yield what the clock has found out about the stamps."""
        for message in self.clock.news():
            yield Fault(time_s, message)

    def due_s(self, time_s: float) -> float:
        """Return the ``time.monotonic()`` at which data of a time arrive without delay."""
        return self.began_s + time_s - self.clock.ahead_s


class _FeedDecodeErrors(DecodeErrors):
    """Counts errors at the feed's time, not at the stamps of a connection."""

    def __init__(self, clock: FeedClock) -> None:
        super().__init__()
        self._clock = clock
        self.pictures = 0  # of all errors

    def add(self, what: str, time_s: float) -> None:
        super().add(what, self._clock.last_s)
        self.pictures += what in (UNDECODABLE, DAMAGED, LOST)


# Video track of a feed, over all its connections.

log = logging.getLogger("costream")
AFTER = "frame(s) made from damaged or lost ones"
# Some streams have no keyframes, but refresh their pictures in parts.
MOST_AFTER = 600
MOST_LOST = 100  # frames at once; more are another stream


class _Losses:
    """Counts the frames of a connection that were lost, and those that are made from such ones."""

    def __init__(self, stream: VideoStream, damage: _FeedDecodeErrors) -> None:
        self._damage, self._known = damage, damage.pictures
        self._after = MOST_AFTER  # frames since the newest damage
        context = stream.codec_context
        self._numbers = FrameNumbers(context.extradata) if context.name == "h264" else None

    def read(self, packets: Iterator[Packet[Any] | None]) -> Iterator[Packet[Any] | None]:
        """Yield the packets; count the frames that are missing before each."""
        for packet in packets:
            if packet is not None and packet.size and self._numbers is not None:
                for _ in range(min(self._numbers.missing_before(packet), MOST_LOST)):
                    self._damage.add(LOST, 0.0)
            yield packet

    def show(self, picture: av.VideoFrame) -> None:
        """Count a decoded frame if it is made from others that are damaged."""
        known, self._known = self._known, self._damage.pictures
        if picture.key_frame and not picture.is_corrupt:
            self._after = MOST_AFTER
        elif self._known > known:
            self._after = 0
        elif self._after < MOST_AFTER:
            self._after += 1
            self._damage.add(AFTER, 0.0)


class VideoTrack(FeedTrack):
    """Video frames of a feed; their size may change."""

    def __init__(self, options: SourceOptions, where: str, began_s: float) -> None:
        """Take the arguments of the base class."""
        super().__init__(options, where, began_s)
        self._framer = Framer(options)
        self._count = 0
        self._size: tuple[int, int] | None = None

    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield VideoFrame, Gap and Fault items."""
        stream = link.stream
        assert isinstance(stream, VideoStream)
        self._framer.prepare(stream)
        self.clock.restart()
        losses = _Losses(stream, self.damage)
        decoder = VideoDecoder(
            *(link.container, stream, self.damage, -math.inf),
            lambda: losses.read(link.packets()),
        )
        self._decoder, epoch, arrived_s = decoder, 0, None
        # Raw streams, such as JPEGs over HTTP, have no stamps: FFmpeg counts 25 frames a second.
        stamped = has_time_stamps(link.container)
        for decoded in decoder.frames:
            if link.recent.had(decoded.pts):  # no new data
                continue
            if decoder.clock.epoch != epoch:
                epoch = decoder.clock.epoch
                self.clock.join()
            before_s = self.clock.last_s
            # The first one was held until the second confirmed its stamp.
            arrived_s = link.came_s(decoded.pts) if arrived_s is None else link.arrived_s
            time_s = self._place(link, decoded.time_s if stamped else arrived_s, arrived_s)
            if time_s is not None:
                link.place(decoded.pts, time_s)
            losses.show(decoded.picture)
            yield from self._news(self.clock.last_s)
            end_s = self._options.end_s
            self.ended = end_s is not None and time_s is not None and time_s >= end_s
            if self.ended:
                return
            if time_s is not None and time_s >= self._options.start_s:
                if reason:
                    yield Gap(before_s, time_s, reason)
                    reason = ""
                yield from self._frame(replace(decoded, time_s=time_s), stream)
            link.mark_alive()
        yield from self.damage.flush()

    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the Gap from the last frame until now."""
        yield Gap(self.clock.last_s, self.now_s() + min(0.0, self.left_s), reason)

    def _frame(self, decoded: DecodedFrame, stream: VideoStream) -> Iterator[Item]:
        picture = decoded.picture
        size = (picture.width, picture.height)
        if self._size not in (None, size):
            log.warning("%s: the frame size is now %dx%d", self._where, *size)
        self._size = size
        yield from self.damage.report(decoded.time_s, not picture.is_corrupt)
        aspect = stream.sample_aspect_ratio
        yield self._framer.frame(self._count, decoded, aspect, self.due_s(decoded.time_s))
        self._count += 1


# Audio track of a feed, over all its connections.

LEFT_OUT = "left out: too much arrived at once"


class AudioTrack(FeedTrack):
    """Sound of a feed, mono, in blocks of one model step."""

    def __init__(
        self, options: SourceOptions, where: str, began_s: float, sound: AudioFormat
    ) -> None:
        """Take the arguments of the base class; ``sound`` sets rate and block length."""
        super().__init__(options, where, began_s)
        self._sound = sound
        self._cutter: AudioBlockCutter | None = None
        self._next_s = Fraction(0)  # start of the next frame on the cutter's clock

    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield AudioBlock, Gap and Fault items; raises SourceError for an unusable format."""
        stream = link.stream
        assert isinstance(stream, AudioStream)
        stream.codec_context.thread_count = 1
        self.clock.restart()
        decoder = AudioDecoder(link.container, stream, self.damage, -math.inf, None, link.packets)
        self._decoder, joined, arrived_s = decoder, False, None
        for frame, jump in decoder.frames:
            if link.recent.had(frame.pts):
                arrived_s = link.arrived_s
                continue
            length_s = frame.samples / frame.sample_rate
            # The first one was held until the second confirmed its stamp.
            arrived_s = link.begun_s if arrived_s is None else link.arrived_s
            time_s = self._place(link, decoder.clock.next_s, arrived_s, length_s)
            yield from self._news(self.clock.last_s)
            if time_s is None:
                joined, reason = False, reason or LEFT_OUT
            else:
                link.place(frame.pts, time_s - length_s)
                yield from self._take(frame, time_s, jump, joined, reason)
                joined, reason = True, ""
                yield from self.damage.report(time_s, True)
                self.ended = self._cutter is not None and self._cutter.ended
                if self.ended and self._cutter is not None:
                    yield from self._cutter.finish()
                    return
            link.mark_alive()
        yield from self.damage.flush()

    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the rest of the sound and the Gap until now."""
        if self._cutter is None:
            yield Gap(self.begins_s, self.now_s() + min(0.0, self.left_s), reason)
        else:
            yield from self._cutter.go_on(Fraction(self.now_s()), reason)

    def _take(
        self,
        frame: av.AudioFrame,
        end_s: float,
        jump: Discontinuity | None,
        joined: bool,
        reason: str,
    ) -> Iterator[Item]:
        """Cut a frame that ends at ``end_s``. ``joined``: contiguous with the previous one."""
        rate_hz = frame.sample_rate
        length_s = Fraction(frame.samples, rate_hz)
        begins_s = Fraction(end_s) - length_s
        if self._cutter is None:
            begins_s = max(begins_s, Fraction(self.begins_s))
            self._cutter = AudioBlockCutter(
                frame, self._sound, self._options, self._where, live=True, time_s=begins_s
            )
            if reason:
                yield Gap(self.begins_s, float(begins_s), reason)
            placed = None
        else:
            silence = 0 if jump is None else jump.silence
            expected_s = self._next_s + Fraction(silence, rate_hz)
            # Whole samples: the remainder is carried over to a later frame.
            off_s = Fraction(round((begins_s - expected_s) * rate_hz), rate_hz)
            if not joined or abs(off_s) > JITTER_S:
                placed = Discontinuity(begins_s=begins_s, reason=reason or None)
            else:
                placed = Discontinuity(silence=silence, shift_s=off_s)
                begins_s = expected_s + off_s
        yield from self._cutter.take(frame, placed, self.due_s(end_s))
        self._next_s = begins_s + length_s
