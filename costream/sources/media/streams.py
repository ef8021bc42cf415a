"""Choice of the streams of a container."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.core.errors import SourceError, display_name
from costream.core.pyav import open_input
from costream.sources.media.timing import is_picture

# Flags from FFmpeg's headers.
ATTACHED_PICTURE = 0x400  # AV_DISPOSITION_ATTACHED_PIC: the cover of a song
DEFAULT_STREAM = 0x1  # AV_DISPOSITION_DEFAULT: what players show
_FASTEST_HZ = 1000  # no rate that a stream states is higher


def stated_rate(stream: VideoStream) -> Fraction | None:
    """Return the frame rate that a stream without time stamps states; None if it does not."""
    rate = stream.codec_context.framerate
    return rate if rate is not None and 0 < rate <= _FASTEST_HZ else None


def video_streams(container: InputContainer) -> list[VideoStream]:
    """Return the video streams that can be decoded, what players show first, then the largest.

    Cover images of audio files are left out.
    """
    streams = [
        stream
        for stream in container.streams.video
        # Without a decoder there is no context, despite the annotation.
        if stream.codec_context is not None and not stream.disposition & ATTACHED_PICTURE
    ]
    streams.sort(key=lambda s: (not s.disposition & DEFAULT_STREAM, -s.width * s.height))
    return streams


def choice_remark(container: InputContainer) -> str:
    """Return a line on which of several video streams is read; "" if there is only one."""
    chosen, *others = _named(video_streams(container)) or [""]
    if not others:
        return ""
    count, rest = len(others) + 1, ", ".join(others)
    return f"of {count} video streams {chosen} is read, not {rest}; choose with --stream"


def _named(streams: Sequence[VideoStream]) -> list[str]:
    """Return number (in the order of the container) and size of each stream, for messages."""
    numbers = {s.index: k for k, s in enumerate(sorted(streams, key=lambda s: s.index), 1)}
    return [f"{numbers[s.index]} ({s.width}x{s.height})" for s in streams]


def video_stream(container: InputContainer, where: str, chosen: str | None = None) -> VideoStream:
    """Return the first of ``video_streams``, or the one with number (from 1) or size ``chosen``."""
    streams = video_streams(container)
    named = dict(zip(_named(streams), streams, strict=True))
    for name, stream in named.items():
        if chosen is None or chosen in name.strip(")").split(" ("):
            return stream
    if streams:
        there = ", ".join(sorted(named, key=lambda name: named[name].index))
        raise SourceError(
            f"there is no video stream {chosen}, only {there}", where=display_name(where)
        )
    streams = [s for s in container.streams.video if not s.disposition & ATTACHED_PICTURE]
    if streams:
        raise SourceError("there is no decoder for its video", where=display_name(where))
    if container.streams.audio:
        cover = " and a cover picture" if container.streams.video else ""
        raise SourceError(f"there is no video stream, only sound{cover}", where=display_name(where))
    raise SourceError("there is no video stream", where=display_name(where))


def audio_stream(container: InputContainer, where: str) -> AudioStream:
    """Return the first audio stream that can be decoded."""
    for stream in container.streams.audio:
        if stream.codec_context is not None:
            return stream
    if container.streams.audio:
        raise SourceError("there is no decoder for its sound", where=display_name(where))
    only = ", only a picture" if is_picture(container) else ", only video"
    shown = only if container.streams.video else ""
    raise SourceError(f"there is no sound in it{shown}", where=display_name(where))


def media_streams(path: str) -> tuple[bool, bool]:
    """Return whether a file has audio, and whether it has video that can be decoded."""
    try:
        with open_input(f"file:{path}") as container:
            pictures = [
                s
                for s in container.streams.video
                if s.codec_context is not None and not s.disposition & ATTACHED_PICTURE
            ]
            text = container.format.name == "tty"  # FFmpeg plays it as a terminal recording
            return bool(container.streams.audio), bool(pictures) and not text
    except (av.FFmpegError, OSError):
        return False, False
