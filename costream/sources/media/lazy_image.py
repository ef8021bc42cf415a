"""Decoded frames as VideoFrame records, whose pixels are converted when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import SideDataContainer
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from costream.core.records import VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.video_decoder import DecodedFrame

FrameSize = tuple[int, int]  # width, height


@dataclass(frozen=True)
class Orientation:
    """Transform from stored pixels to an upright image: transpose first, then mirror."""

    transpose: bool = False
    flip_x: bool = False
    flip_y: bool = False

    @classmethod
    def of(cls, frame: av.VideoFrame) -> Orientation:
        """Return the display matrix of a frame, rounded to 90-degree rotations and mirrors.

        The matrix (a b . / c d . / . . .) maps x, y to a x + c y, b x + d y, y pointing down.
        """
        data: Any = side_data(frame, "DISPLAYMATRIX")
        if data is None:
            return cls()
        values = np.frombuffer(data, dtype=np.int32)
        a, b, c, d = (int(v) for v in values[[0, 1, 3, 4]])
        if abs(b) + abs(c) > abs(a) + abs(d):
            return cls(transpose=True, flip_x=c < 0, flip_y=b < 0)
        return cls(flip_x=a < 0, flip_y=d < 0)

    def apply(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an upright view of ``pixels`` [H, W, 3]."""
        if self.transpose:
            pixels = pixels.swapaxes(0, 1)
        return pixels[:: -1 if self.flip_y else 1, :: -1 if self.flip_x else 1]

    def turn(self, size: FrameSize) -> FrameSize:
        """Return the size after the transform; applying it twice returns the original size."""
        return (size[1], size[0]) if self.transpose else size


def side_data(frame: av.VideoFrame, kind: str) -> Any:
    """Return one kind of a frame's side data, or None.

    Not ``frame.side_data``, which creates a reference cycle: the frame and its pixels would stay
    in memory until the garbage collector runs.
    """
    return SideDataContainer(frame).get(kind)  # type: ignore[call-arg]


def display_size(frame: av.VideoFrame, pixel_aspect: Fraction | None) -> FrameSize:
    """Return the size with square pixels: the width is scaled by the sample aspect ratio."""
    if pixel_aspect is None or pixel_aspect <= 0 or pixel_aspect == 1:
        return frame.width, frame.height
    return max(1, round(frame.width * pixel_aspect)), frame.height


@lru_cache
def fit(size: FrameSize, box: FrameSize | None) -> FrameSize:
    """Return the largest size inside ``box`` with the aspect ratio of ``size``, at least 1 x 1."""
    if box is None:
        return size
    scale = min(Fraction(box[0], size[0]), Fraction(box[1], size[1]))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


class LazyImage:
    """Pixels of one frame. The decoder's memory is released once they are converted."""

    __slots__ = ("_aspect", "_box", "_frame", "_pixels", "_scaler")

    def __init__(
        self,
        frame: av.VideoFrame,
        scaler: VideoReformatter,
        box: FrameSize | None,
        pixel_aspect: Fraction | None,
    ) -> None:
        """``scaler`` is shared by the frames of a source, to reuse its tables."""
        self._frame: av.VideoFrame | None = frame
        self._scaler = scaler
        self._box = box
        self._aspect = pixel_aspect
        self._pixels: npt.NDArray[np.uint8] | None = None

    def __call__(self) -> npt.NDArray[np.uint8]:
        """Return uint8 [H, W, 3], upright, fitted into the box."""
        if self._pixels is None and self._frame is not None:
            self._pixels = self._convert(self._frame)
            self._frame = None
        assert self._pixels is not None
        return self._pixels

    def _convert(self, frame: av.VideoFrame) -> npt.NDArray[np.uint8]:
        orientation = Orientation.of(frame)
        upright = orientation.turn(display_size(frame, self._aspect))
        width, height = orientation.turn(fit(upright, self._box))
        # Scaled before it is rotated: fewer pixels to move. BILINEAR averages when shrinking.
        scaled = self._scaler.reformat(
            frame, width, height, "rgb24", interpolation="BILINEAR", threads=1
        )
        pixels: npt.NDArray[np.uint8] = np.asarray(scaled.to_ndarray(), np.uint8)
        # A copy: PyAV's array may be a view of the decoder's memory.
        return np.array(orientation.apply(pixels), np.uint8, order="C")


class Framer:
    """Builds the VideoFrame items of one source according to its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._scaler, self._drawing_scaler = VideoReformatter(), VideoReformatter()

    def prepare(self, stream: VideoStream) -> None:
        """Configure the decoder of a stream, before its first packet."""
        stream.codec_context.thread_count = 1
        options = {}
        if self._options.motion_vectors:
            options["flags2"] = "+export_mvs"
        if self._options.decoder == "fast":
            options["skip_loop_filter"] = "all"
        if options:
            stream.codec_context.options = options  # takes effect only here; av.open ignores it

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
            # A copy: the vectors would keep the frame in memory.
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
