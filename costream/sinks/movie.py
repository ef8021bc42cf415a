"""Video file of frames that are drawn one after another."""

from __future__ import annotations

from fractions import Fraction
from typing import BinaryIO, cast

import av
import numpy as np
from av.video.stream import VideoStream

from costream.draw.canvas import DARK, Canvas

_TIME_BASE = Fraction(1, 90_000)


class Movie:
    """H.264 in MP4 (MPEG-4 Part 2 if PyAV has no x264), with a time stamp for each frame."""

    def __init__(self, width: int, height: int, rate_hz: float) -> None:
        width, height = width + width % 2, height + height % 2  # the codecs require even sizes
        self._empty: Canvas = np.full((height, width, 3), DARK, np.uint8)
        self._canvas: Canvas = self._empty.copy()
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._began_s: float | None = None
        self._ticks = -1

    def page(self) -> Canvas:
        """Return the empty canvas of the next frame."""
        self._canvas[:] = self._empty
        return self._canvas

    def open(self, file: BinaryIO) -> None:
        """Open the container and the encoder."""
        self._container = av.open(file, "w", format="mp4")
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream = cast(VideoStream, self._container.add_stream(codec, rate=self._rate))
        stream.height, stream.width = self._canvas.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = _TIME_BASE
        stream.codec_context.thread_count = 1
        if codec == "libx264":
            stream.options = {"preset": "veryfast", "crf": "23"}
        else:
            stream.bit_rate = 4_000_000
        self._stream = stream

    def add(self, time_s: float) -> None:
        """Encode the canvas as the frame at ``time_s``."""
        self._began_s = time_s if self._began_s is None else self._began_s
        frame = av.VideoFrame.from_ndarray(self._canvas, format="rgb24")
        ticks = round((time_s - self._began_s) / _TIME_BASE)
        self._ticks = frame.pts = max(ticks, self._ticks + 1)
        frame.time_base = _TIME_BASE
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Flush the encoder, and write the index."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
