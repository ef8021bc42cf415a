"""What a container says about its times: units, where they begin, when it should end."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.clock import parse_time
from costream.errors import UsageError
from costream.sources.opening import ARBITRARY_CLOCK

Stream: TypeAlias = VideoStream | AudioStream

# Bytes of a packet of a transport stream: ISO/IEC 13818-1; with a time stamp (Blu-ray, AVCHD); with
# error correction.
_PACKET_BYTES = (188, 192, 204)

# Formats that are frames of a codec in a row and nothing else.
HEADERLESS = {"aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "loas", "mlp", "truehd"}


def time_base(stream: Stream) -> Fraction:
    """Give the seconds of one unit of a stream's time stamps."""
    return stream.time_base or Fraction(1, 1000)


def clock_is_arbitrary(container: InputContainer) -> bool:
    """True for transport and program streams, whose clock starts anywhere and may jump."""
    return bool(container.format.flags & ARBITRARY_CLOCK)


def origin(container: InputContainer, stream: Stream) -> Fraction:
    """Give what counts as 0 s on the container's clock.

    The clock of an MP3 begins with what its encoder put in front of the sound.
    """
    if container.format.name == "mp3":
        return (stream.start_time or 0) * time_base(stream)
    if not clock_is_arbitrary(container) or container.start_time is None:
        return Fraction(0)
    start = Fraction(container.start_time, av.time_base)
    if stream.start_time is not None:
        own = stream.start_time * time_base(stream)
        if abs(own - start) < Fraction(1, av.time_base):  # the same, without the rounding
            return own
    return start


def end_s(container: InputContainer, stream: Stream) -> float | None:
    """Give when the stream ends on the clock of its pictures; None when that is not known."""
    zero = origin(container, stream)
    if stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream) - zero)
    if container.duration:
        # The duration of Matroska counts from 0, not from the first picture.
        start = 0 if "matroska" in container.format.name else container.start_time or 0
        return float(Fraction(start + container.duration, av.time_base) - zero)
    return None


def length_is_guessed(container: InputContainer, stream: Stream) -> bool:
    """True where FFmpeg takes the length from the bit rate, which may be wrong by far."""
    # An MP3 with LAME's header states its padding there and its length.
    return container.format.name in HEADERLESS or (
        container.format.name == "mp3" and not stream.start_time
    )


def stated_end_s(container: InputContainer, stream: Stream) -> float | None:
    """Give the end that the header states for this very stream, where it can be trusted."""
    if clock_is_arbitrary(container) or length_is_guessed(container, stream):
        return None  # estimated from the time stamps in the file
    if stream.duration or len(container.streams) == 1:
        return end_s(container, stream)
    try:  # Matroska as most programs write it
        return parse_time(stream.metadata.get("DURATION", ""))
    except UsageError:
        return None


def ends_in_a_packet(container: InputContainer) -> bool:
    """True for the file of a transport stream that was cut off in the middle of a packet.

    The demuxer drops what there is of that packet without a word.
    """
    if container.format.name != "mpegts" or container.size <= 0:  # a pipe or feed has no size
        return False
    return all(container.size % size for size in _PACKET_BYTES)
