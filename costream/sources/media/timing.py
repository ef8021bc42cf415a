"""Timing metadata of containers: time base, origin and stated end."""

from __future__ import annotations

import io
import os
import re
from fractions import Fraction
from typing import TypeAlias

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.core.clock import parse_time
from costream.core.errors import UsageError
from costream.sources.media.input_file import Readable, read_head
from costream.sources.media.samples import mp3_goes_on

MediaStream: TypeAlias = VideoStream | AudioStream
# Bytes of a packet of a transport stream: ISO/IEC 13818-1; with a time stamp (Blu-ray, AVCHD); with
# error correction.
_PACKET_BYTES = (188, 192, 204)
# Formats that are a plain sequence of codec frames.
HEADERLESS = {"aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "loas", "mlp", "truehd"}
# Flags from FFmpeg's headers.
NO_TIME_STAMPS = 0x80  # AVFMT_NOTIMESTAMPS: a raw video stream
_PICTURES = ("image2", "ico", "fits")  # formats of still pictures; others end in _pipe
_LINE_BYTES = 1024  # more than the first line of YUV4MPEG2
_Y4M_RATE = re.compile(rb" F0*[1-9]\d*:0*[1-9]")
ARBITRARY_CLOCK = 0x200  # AVFMT_TS_DISCONT: transport and program streams


def is_picture(container: InputContainer) -> bool:
    """Return whether the format is of still pictures, such as PNG; a pipe may send several."""
    name = container.format.name
    return name in _PICTURES or "_pipe" in name


def has_time_stamps(container: InputContainer) -> bool:
    """Return whether the format stores time stamps; for others FFmpeg counts frames."""
    return not (container.format.flags & NO_TIME_STAMPS or is_picture(container))


def has_rate(path: str, file: Readable | None, head: bytes) -> bool:
    """Return False for YUV4MPEG2 data whose first line does not state a frame rate.

    FFmpeg assumes 25 frames per second for them.
    """
    if isinstance(file, io.BufferedReader):
        head = file.peek(_LINE_BYTES)
    elif file is None and os.path.isfile(path):
        head = read_head(path, _LINE_BYTES)
    line = head.split(b"\n", 1)[0]
    return not line.startswith(b"YUV4MPEG2") or bool(_Y4M_RATE.search(line))


def time_base(stream: MediaStream) -> Fraction:
    """Return the seconds of one unit of a stream's time stamps."""
    return stream.time_base or Fraction(1, 1000)


def clock_is_arbitrary(container: InputContainer) -> bool:
    """Return whether the clock starts anywhere and may jump: transport and program streams."""
    return bool(container.format.flags & ARBITRARY_CLOCK)


def origin(container: InputContainer, stream: MediaStream) -> Fraction:
    """Return the time on the clock of the container that counts as 0 s.

    The clock of an MP3 starts with the encoder's padding before the sound.
    """
    if container.format.name == "mp3":
        return (stream.start_time or 0) * time_base(stream)
    if not clock_is_arbitrary(container) or container.start_time is None:
        return Fraction(0)
    start = Fraction(container.start_time, av.time_base)
    if stream.start_time is not None:
        exact = stream.start_time * time_base(stream)
        if abs(exact - start) < Fraction(1, av.time_base):  # equal up to rounding
            return exact
    return start


def end_s(container: InputContainer, stream: MediaStream) -> float | None:
    """Return the end of the stream in media time; None if unknown."""
    zero = origin(container, stream)
    # The duration of Matroska counts from 0, not from the first frame. FFmpeg takes that of the
    # stream from the container, and changes the start of the stream while it decodes.
    from_zero = "matroska" in container.format.name
    if stream.duration:
        start = 0 if from_zero else stream.start_time or 0
        return float((start + stream.duration) * time_base(stream) - zero)
    if container.duration:
        start = 0 if from_zero else container.start_time or 0
        return float(Fraction(start + container.duration, av.time_base) - zero)
    return None


def length_is_guessed(container: InputContainer, stream: MediaStream) -> bool:
    """Return whether FFmpeg estimates the length from the bit rate, which may be far off."""
    # An MP3 with LAME's header states its padding there and its length.
    if container.format.name == "mp3":
        return not stream.start_time or mp3_goes_on(container.name.removeprefix("file:"))
    return container.format.name in HEADERLESS


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
    held = container.size or 0  # a pipe or feed has none: None, before PyAV 19 a negative number
    if container.format.name != "mpegts" or held <= 0:
        return False
    return all(held % size for size in _PACKET_BYTES)
