"""Thumbnails of the source at chosen times, if it is still available."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

from costream.core.errors import SourceError
from costream.core.places import Place
from costream.core.records import Header
from costream.draw.box_overlay import draw_places
from costream.sinks.result_sources import source_file
from costream.sources.base import SAME_TIME_S
from costream.sources.media.container import open_container
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.lazy_image import LazyImage, Orientation, display_size
from costream.sources.media.streams import video_stream
from costream.sources.media.timing import end_s, has_time_stamps
from costream.sources.media.video_decoder import DecodedFrame, VideoDecoder

BOX = (240, 180)  # pixels; a card is about half as wide
_NEAR_S = 1.0  # a frame further away shows something else
_SOON_S = 2.0
_QUALITIES = (5, 12, 31)  # FFmpeg's scale, 2 is best; 5 gives about 4 kB
_MOST_BYTES = 15_000  # above this the next quality is tried


@dataclass(frozen=True)
class Thumbnails:
    """JPEG pictures by their time, and the reason if there are none or fewer than requested."""

    pictures: dict[float, str] = field(default_factory=dict)  # seconds -> "data:" URL
    note: str = ""


def find_media(header: Header | None, result: Path) -> Path | str:
    """Return the source video of results, or a sentence that explains why it is missing.

    It is searched by the name in the results, and in the folder of the results.
    """
    if header is None:
        return "The results do not say what they were made from, so there are no pictures."
    if header.kind != "video":
        return f"The source holds {header.kind or 'no pictures'}, so there are no pictures."
    if header.began is not None:
        return "The source is live, so there are no pictures."
    if (path := source_file(header, result)) is not None:
        return path
    return f"The source ({header.source}) no longer exists, so there are no pictures."


def take(
    media: Path,
    times: Iterable[float],
    places: Sequence[Place] = (),
    *,
    input_hz: float | None = None,
    stream: str | None = None,
) -> Thumbnails:
    """Return a picture of the video for each of the times, in ascending order, if available.

    ``places`` are drawn on each. ``input_hz``, ``stream``: as the run had them.
    """
    pictures: dict[float, str] = {}
    failed = 0
    try:
        with _Shots(os.fspath(media), input_hz, stream) as shots:
            for time_s in times:
                rgb = shots.at(time_s, places)
                if rgb is None:
                    failed += 1
                else:
                    encoded = base64.b64encode(_jpeg(rgb)).decode("ascii")
                    pictures[time_s] = f"data:image/jpeg;base64,{encoded}"
    except (SourceError, OSError) as error:
        return Thumbnails(note=f"There are no pictures: {error}.")
    note = f"{failed} pictures could not be read from the source." if failed else ""
    return Thumbnails(pictures, note)


class _Shots:
    """A video that is opened once and read at some times."""

    def __init__(self, path: str, input_hz: float | None, stream: str | None) -> None:
        self._container, self._input_hz = open_container(path), input_hz
        try:
            self._stream = video_stream(self._container, path, stream)
        except SourceError:
            self._container.close()
            raise
        end = end_s(self._container, self._stream)
        self._end_s = float("inf") if end is None else end
        # Non-reference frames are skipped: half the work, a frame or two late.
        self._stream.codec_context.skip_frame = "NONREF"
        self._seeks = has_time_stamps(self._container)
        self._scaler = VideoReformatter()
        self._decoder: VideoDecoder | None = None
        self._now: DecodedFrame | None = None

    def __enter__(self) -> _Shots:
        return self

    def __exit__(self, *_: object) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._container.close()

    def at(self, time_s: float, places: Sequence[Place]) -> npt.NDArray[np.uint8] | None:
        """Return the frame at a time, uint8 [H, W, 3] within BOX; None if it cannot be read."""
        if time_s > self._end_s + _NEAR_S:
            return None
        try:
            frame = self._find(time_s)
            if frame is None or abs(frame.time_s - time_s) > _NEAR_S:
                return None
            aspect = self._stream.sample_aspect_ratio
            rgb = LazyImage(frame.picture, self._scaler, BOX, aspect)()
            size = Orientation.of(frame.picture).turn(display_size(frame.picture, aspect))
            draw_places(rgb, places, size, (rgb.shape[1], rgb.shape[0]))
            return rgb
        except (av.FFmpegError, ValueError):
            return None

    def _find(self, time_s: float) -> DecodedFrame | None:
        """Decode up to the first frame that is not before the time; the last one at the end."""
        now = self._now
        if now is not None and time_s <= now.time_s <= time_s + _NEAR_S:
            return now
        decoder = self._decoder
        is_soon = now is not None and 0 <= time_s - now.time_s < _SOON_S  # faster than seeking
        if decoder is None or (self._seeks and not is_soon):
            if decoder is not None:
                decoder.close()
            decoder = self._decoder = VideoDecoder(
                self._container,
                self._stream,
                DecodeErrors(),
                float("inf"),
                input_hz=self._input_hz,
            )
            self._now = None
            if self._seeks:
                self._container.seek(decoder.clock.ticks(time_s), stream=self._stream)
        for decoded in decoder.frames:
            self._now = decoded
            if decoded.time_s >= time_s - SAME_TIME_S:
                break
        return self._now


def _jpeg(rgb: npt.NDArray[np.uint8]) -> bytes:
    """Encode a frame; detailed ones at lower quality, to limit the size of a page."""
    data = b""
    for quality in _QUALITIES:
        data = _encode(rgb, str(quality))
        if len(data) <= _MOST_BYTES:
            break
    return data


def _encode(rgb: npt.NDArray[np.uint8], quality: str) -> bytes:
    encoder = av.CodecContext.create("mjpeg", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.height, encoder.width = rgb.shape[:2]
    encoder.pix_fmt = "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"qmin": quality, "qmax": quality}
    frame = av.VideoFrame.from_ndarray(rgb, "rgb24")
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
