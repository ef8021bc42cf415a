"""Timing metadata of containers: time base, origin and stated end."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.clock import parse_time
from costream.errors import UsageError
from costream.sources.media.container import ARBITRARY_CLOCK

MediaStream: TypeAlias = VideoStream | AudioStream

# Bytes of a packet of a transport stream: ISO/IEC 13818-1; with a time stamp (Blu-ray, AVCHD); with
# error correction.
_PACKET_BYTES = (188, 192, 204)

# Formats that are a plain sequence of codec frames.
HEADERLESS = {"aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "loas", "mlp", "truehd"}


def time_base(stream: MediaStream) -> Fraction:
    """Return the seconds of one unit of a stream's time stamps."""
    return stream.time_base or Fraction(1, 1000)


def clock_is_arbitrary(container: InputContainer) -> bool:
    """Return whether the clock starts anywhere and may jump: transport and program streams."""
    return bool(container.format.flags & ARBITRARY_CLOCK)


def origin(container: InputContainer, stream: MediaStream) -> Fraction:
    """Return the time on the container's clock that counts as 0 s.

    The clock of an MP3 starts with the encoder's padding before the sound.
    """
    if container.format.name == "mp3":
        return (stream.start_time or 0) * time_base(stream)
    if not clock_is_arbitrary(container) or container.start_time is None:
        return Fraction(0)
    start = Fraction(container.start_time, av.time_base)
    if stream.start_time is not None:
        own = stream.start_time * time_base(stream)
        if abs(own - start) < Fraction(1, av.time_base):  # equal, but without rounding
            return own
    return start


def end_s(container: InputContainer, stream: MediaStream) -> float | None:
    """Return the end of the stream in media time; None if unknown."""
    zero = origin(container, stream)
    if stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream) - zero)
    if container.duration:
        # The duration of Matroska counts from 0, not from the first frame.
        start = 0 if "matroska" in container.format.name else container.start_time or 0
        return float(Fraction(start + container.duration, av.time_base) - zero)
    return None


def length_is_guessed(container: InputContainer, stream: MediaStream) -> bool:
    """Return whether FFmpeg estimates the length from the bit rate, which may be far off."""
    # An MP3 with LAME's header states its padding there and its length.
    return container.format.name in HEADERLESS or (
        container.format.name == "mp3" and not stream.start_time
    )


def stated_end_s(container: InputContainer, stream: MediaStream) -> float | None:
    """Return the end that the header states for this stream, if it is reliable."""
    if clock_is_arbitrary(container) or length_is_guessed(container, stream):
        return None  # estimated from the time stamps in the file
    if stream.duration or len(container.streams) == 1:
        return end_s(container, stream)
    try:  # Matroska as most programs write it
        return parse_time(stream.metadata.get("DURATION", ""))
    except UsageError:
        return None


def ends_in_a_packet(container: InputContainer) -> bool:
    """Return whether a transport stream file is cut off in the middle of a packet.

    The demuxer drops the partial packet silently.
    """
    if container.format.name != "mpegts" or container.size <= 0:  # a pipe or feed has no size
        return False
    return all(container.size % size for size in _PACKET_BYTES)
