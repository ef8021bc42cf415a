"""Video track of a feed, over all its connections."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace

from av.video.stream import VideoStream

from costream.records import Gap, Item
from costream.sources.base import SourceOptions
from costream.sources.framer import Framer
from costream.sources.live.connection import FeedConnection
from costream.sources.live.tracks import FeedTrack
from costream.sources.media.video_decoder import DecodedFrame, VideoDecoder

log = logging.getLogger("costream")


class VideoTrack(FeedTrack):
    """Video frames of a feed; their size may change."""

    def __init__(self, options: SourceOptions, where: str, began_s: float) -> None:
        """Take the arguments of the base class."""
        super().__init__(options, where, began_s)
        self._framer = Framer(options)
        self._decoder: VideoDecoder | None = None
        self._count = 0
        self._size: tuple[int, int] | None = None

    def run(self, link: FeedConnection, reason: str) -> Iterator[Item]:
        """Yield VideoFrame, Gap and Fault items."""
        stream = link.stream
        assert isinstance(stream, VideoStream)
        self._framer.prepare(stream)
        self.clock.restart()
        decoder = VideoDecoder(link.container, stream, self.damage, -math.inf, link.packets)
        self._decoder, epoch, arrived_s = decoder, 0, None
        for decoded in decoder.pictures:
            if decoder.clock.epoch != epoch:
                epoch = decoder.clock.epoch
                self.clock.restart()
            before_s = self.clock.last_s
            # The first one was held until the second confirmed its stamp.
            arrived_s = link.begun_s if arrived_s is None else time.monotonic()
            time_s = self.clock.place(decoded.time_s, arrived_s - self.began_s)
            end_s = self._options.end_s
            self.ended = end_s is not None and time_s is not None and time_s >= end_s
            if self.ended:
                return
            if time_s is not None and time_s >= self._options.start_s:
                if reason:
                    yield Gap(before_s, time_s, reason)
                    reason = ""
                yield from self._give(replace(decoded, time_s=time_s), stream)
            link.alive()
        yield from filter(None, (self.damage.flush(),))

    def leave(self, reason: str) -> Iterator[Item]:
        """Yield the Gap from the last frame until now."""
        yield Gap(self.clock.last_s, self.now_s() + min(0.0, self.left_s), reason)

    def close(self) -> None:
        """Close the decoder."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def _give(self, decoded: DecodedFrame, stream: VideoStream) -> Iterator[Item]:
        picture = decoded.picture
        size = (picture.width, picture.height)
        if self._size not in (None, size):
            log.warning("%s: the frame size is now %dx%d", self._where, *size)
        self._size = size
        yield from filter(None, (self.damage.report(decoded.time_s, not picture.is_corrupt),))
        aspect = stream.sample_aspect_ratio
        yield self._framer.frame(self._count, decoded, aspect, self.due_s(decoded.time_s))
        self._count += 1
