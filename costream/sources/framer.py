"""Conversion of decoded frames to VideoFrame records."""

from __future__ import annotations

from fractions import Fraction

from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from costream.records import VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.picture import LazyImage, Orientation, display_size, side_data
from costream.sources.media.video_decoder import DecodedFrame


class Framer:
    """Builds the VideoFrame items of one source according to its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._scaler, self._drawing_scaler = VideoReformatter(), VideoReformatter()

    def prepare(self, stream: VideoStream) -> None:
        """Configure the decoder of a stream, before its first packet."""
        stream.codec_context.thread_count = 1
        if self._options.motion_vectors:
            # Takes effect only here; av.open ignores it.
            stream.codec_context.options = {"flags2": "+export_mvs"}

    def frame(
        self,
        i: int,
        decoded: DecodedFrame,
        pixel_aspect: Fraction | None,
        arrived_s: float | None = None,
    ) -> VideoFrame:
        """Return frame ``i``; its pixels are converted on first access."""
        picture = decoded.picture
        motion = drawing = None
        if self._options.drawing is not None:
            drawing = LazyImage(picture, self._drawing_scaler, self._options.drawing, pixel_aspect)
        if self._options.motion_vectors:
            vectors = side_data(picture, "MOTION_VECTORS")
            # A copy: the vectors would keep the whole frame in memory.
            motion = None if vectors is None else vectors.to_ndarray().copy()
        return VideoFrame(
            i=i,
            time_s=decoded.time_s,
            pts=decoded.pts,
            convert=LazyImage(picture, self._scaler, self._options.box, pixel_aspect),
            motion=motion,
            estimated=decoded.estimated,
            corrupt=picture.is_corrupt,
            drawing=drawing,
            arrived_s=arrived_s,
            size=Orientation.of(picture).turn(display_size(picture, pixel_aspect)),
        )
