"""Video of a feed, over all its connections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import av
from av.packet import Packet
from av.video.stream import VideoStream

from costream.core.records import Fault, Gap, Item
from costream.sources.base import SourceOptions
from costream.sources.live.connection import FeedConnection
from costream.sources.live.feed_track import FeedDecodeErrors, FeedTrack
from costream.sources.media.decode_errors import LOST
from costream.sources.media.frame_numbers import FrameNumbers
from costream.sources.media.lazy_image import Framer
from costream.sources.media.timing import has_time_stamps
from costream.sources.media.video_decoder import OTHER_SIZE, DecodedFrame, VideoDecoder

AFTER = "frame(s) predicted from damaged or lost ones"
# Frames counted after a loss: streams that refresh in parts have no keyframes.
MOST_AFTER = 600
MOST_LOST = 100  # frames at once; more are another stream


class _Losses:
    """Counts lost frames of a connection, and frames predicted from lost or damaged ones."""

    def __init__(self, stream: VideoStream, damage: FeedDecodeErrors) -> None:
        self._damage, self._counted = damage, damage.pictures
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
        """Count a decoded frame if it is predicted from damaged frames."""
        before, self._counted = self._counted, self._damage.pictures
        if picture.key_frame and not picture.is_corrupt:
            self._after = MOST_AFTER
        elif self._counted > before:
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
        self._newest: tuple[int, int] | None = None  # size of the newest picture
        self._sizes: set[tuple[int, int]] = set()  # told in this connection

    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield VideoFrame, Gap and Fault items."""
        stream = link.stream
        assert isinstance(stream, VideoStream)
        self._framer.prepare(stream)
        self._sizes = set() if self._newest is None else {self._newest}
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
            if link.recent.had(decoded.pts):  # repeated data
                continue
            if decoder.clock.epoch != epoch:
                epoch = decoder.clock.epoch
                self.clock.join()
            before_s = self.clock.last_s
            # The first frame was held until the second confirmed its stamp.
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
        if size not in self._sizes:
            if self._sizes:  # once for each connection: some streams alternate
                yield Fault(decoded.time_s, OTHER_SIZE.format(*size), count=0)
            self._sizes.add(size)
        self._newest = size
        yield from self.damage.report(decoded.time_s, not picture.is_corrupt)
        aspect = stream.sample_aspect_ratio
        yield self._framer.frame(self._count, decoded, aspect, self.due_s(decoded.time_s))
        self._count += 1
