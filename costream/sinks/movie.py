"""Video files of pictures that are drawn one after another, with the sound of another file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, cast

import av
from av.audio.stream import AudioStream
from av.video.stream import VideoStream

from costream.core.pyav import open_input
from costream.draw.canvas import Canvas
from costream.draw.panels import empty_page

log = logging.getLogger("costream")

_TIME_BASE = Fraction(1, 90_000)
_ARBITRARY_CLOCK = 0x200  # AVFMT_TS_DISCONT: the clock of the file does not start at 0
_BIT_RATE = 128_000


class Movie:
    """H.264 in MP4 (MPEG-4 Part 2 if PyAV has no x264), with a time stamp for each frame.

    ``sound``: the media file whose sound accompanies the pictures, if it has any; their times are
    on its clock.
    """

    def __init__(self, width: int, height: int, rate_hz: float, sound: Path | None = None) -> None:
        width, height = width + width % 2, height + height % 2  # the codecs require even sizes
        self._empty: Canvas = empty_page(width, height)
        self._canvas: Canvas = self._empty.copy()
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._sound = None if sound is None else SoundTrack.open(sound)
        self._began_s: float | None = None
        self._ticks = -1

    def page(self) -> Canvas:
        """Return the empty canvas of the next frame."""
        self._canvas[:] = self._empty
        return self._canvas

    def open(self, file: BinaryIO) -> None:
        """Open the container and the encoders."""
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
        if self._sound is not None:
            rate_hz, layout = self._sound.format
            self._voice = self._container.add_stream("aac", rate=rate_hz)
            self._voice.layout, self._voice.bit_rate = layout, _BIT_RATE

    def add(self, time_s: float) -> None:
        """Encode the canvas as the frame at ``time_s``."""
        self._began_s = time_s if self._began_s is None else self._began_s
        frame = av.VideoFrame.from_ndarray(self._canvas, format="rgb24")
        ticks = round((time_s - self._began_s) / _TIME_BASE)
        self._ticks = frame.pts = max(ticks, self._ticks + 1)
        frame.time_base = _TIME_BASE
        self._container.mux(self._stream.encode(frame))
        self._add_sound(time_s)

    def finish(self) -> None:
        """Flush the encoders, and write the index."""
        if self._began_s is not None:  # the last picture is shown for a while
            shown_s = float(self._ticks * _TIME_BASE + 1 / self._rate)
            self._add_sound(self._began_s + shown_s)
        self._container.mux(self._stream.encode(None))
        if self._sound is not None:
            self._container.mux(self._voice.encode(None))
            self._sound.close()
        self._container.close()

    def _add_sound(self, end_s: float) -> None:
        """Encode the sound up to ``end_s``."""
        if self._sound is not None and self._began_s is not None:
            for frame in self._sound.frames(self._began_s, end_s):
                self._container.mux(self._voice.encode(frame))


class SoundTrack:
    """The sound of a media file, read in step with pictures that are made of it."""

    def __init__(self, container: av.container.InputContainer, stream: AudioStream) -> None:
        self._container, self._stream = container, stream
        arbitrary = container.format.flags & _ARBITRARY_CLOCK
        self._origin_s = (container.start_time or 0) / av.time_base if arbitrary else 0.0
        self._frames: Iterator[av.AudioFrame] | None = None
        self._read_s = float("-inf")  # time up to which it was read

    @classmethod
    def open(cls, path: Path) -> SoundTrack | None:
        """Open a file; None if it has no sound that can be decoded."""
        try:
            container = open_input(f"file:{path}")
        except (av.FFmpegError, OSError, ValueError):
            return None
        stream = next((s for s in container.streams.audio if s.codec_context is not None), None)
        if stream is None or not stream.rate:
            container.close()
            return None
        return cls(container, stream)

    @property
    def format(self) -> tuple[int, str]:
        """Sample rate, and the layout of channels: that of the file, at most stereo."""
        return self._stream.rate, "mono" if self._stream.channels == 1 else "stereo"

    def frames(self, began_s: float, end_s: float) -> Iterator[av.AudioFrame]:
        """Yield what comes next up to ``end_s``, with time stamps that count from ``began_s``."""
        try:
            if self._frames is None:
                if began_s > 1.0:
                    self._container.seek(int((began_s + self._origin_s) * av.time_base))
                self._frames = self._container.decode(self._stream)
            while self._read_s < end_s:
                frame = next(self._frames, None)
                if frame is None:
                    self._read_s = float("inf")
                    return
                if frame.time is None:
                    continue
                time_s = frame.time - self._origin_s
                self._read_s = time_s + frame.samples / frame.sample_rate
                if time_s >= began_s:
                    frame.time_base = Fraction(1, frame.sample_rate)
                    frame.pts = round((time_s - began_s) * frame.sample_rate)
                    yield frame
        except (av.FFmpegError, ValueError) as error:
            log.warning("the annotated video has sound up to %.1f s only: %s", self._read_s, error)
            self._read_s = float("inf")

    def close(self) -> None:
        """Close the file."""
        self._container.close()
