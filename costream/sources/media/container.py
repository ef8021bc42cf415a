"""Opening of media containers and streams, with one-line error messages."""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from fractions import Fraction
from os.path import splitext
from typing import Protocol, TypeAlias

import av
from av.audio.stream import AudioStream
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.core.clock import parse_time
from costream.core.errors import SourceError, UsageError, display_name
from costream.core.pyav import open_input
from costream.sources.media.remote import MEDIA_SUFFIXES, is_remote, open_remote
from costream.sources.media.samples import find_samples, mp3_goes_on

# Flags from FFmpeg's headers.
ATTACHED_PICTURE = 0x400  # AV_DISPOSITION_ATTACHED_PIC: the cover of a song
DEFAULT_STREAM = 0x1  # AV_DISPOSITION_DEFAULT: what players show
NO_TIME_STAMPS = 0x80  # AVFMT_NOTIMESTAMPS: a raw video stream
_PICTURES = ("image2", "ico", "fits")  # formats of still pictures; others end in _pipe
_FASTEST_HZ = 1000  # no rate that a stream states is higher
_LINE_BYTES = 1024  # more than the first line of YUV4MPEG2
_Y4M_RATE = re.compile(rb" F0*[1-9]\d*:0*[1-9]")
ARBITRARY_CLOCK = 0x200  # AVFMT_TS_DISCONT: transport and program streams
# Formats that their first bytes tell for sure, beside the usual ones of MEDIA_SUFFIXES.
_SIGNED = {
    *("ac4", "ape", "av1", "dhav", "dss", "dts", "dtshd", "eac3", "epaf", "ircam", "jpegxl_anim"),
    *("mjpeg", "mjpeg_2000", "mlp", "moflex", "mpc", "mpjpeg", "nistsphere", "obu", "oma", "pvf"),
    *("qoa", "shn", "smjpeg", "tak", "truehd", "tta", "usm", "vc1", "vvc"),
}
# Formats that FFmpeg takes for some pattern in their bytes.
_UNSIGNED = ("aac", "ac3", "dts", "eac3", "loas", "mp3")
# For pipes: read WAV in small pieces; larger ones would delay live sound.
_PIPED = {"max_size": "2048"}


class Readable(Protocol):
    """Input of a container that is not a named file."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102


def check_file(path: str) -> None:
    """Raise SourceError unless ``path`` is a readable, non-empty file or pipe."""
    where = display_name(path)
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb"):
                pass
    except FileNotFoundError:
        raise SourceError("no such file", where=where) from None
    except PermissionError:
        raise SourceError("no permission to read it", where=where) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read ({error})", where=where) from error
    if stat.S_ISDIR(status.st_mode):
        folder = where.rstrip("/") or "/"
        all_of_it = f"all of it: costream batch {shlex.quote(folder)} -o OUT"
        hint = f"name the files: {folder.rstrip('/')}/*; {all_of_it}"
        raise SourceError("this is a folder", where=where, hint=hint)
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        raise SourceError("the file is empty", where=where)


def read_head(path: str, size: int) -> bytes:
    """Return the first bytes of a file, at most ``size``; raises as ``check_file``."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:  # a device, or a file that has just gone
        reason = f"cannot be read ({error.strerror})"
        raise SourceError(reason, where=display_name(path)) from error


def open_container(
    path: str,
    file: Readable | None = None,
    head: bytes = b"",
    *,
    wanted: str = "a video",
    hardware: HWAccel | None = None,
    end: int | None = None,
    tls_verify: bool = False,
) -> InputContainer:
    """Open the file or URL ``path``, or ``file`` under that name, as media.

    ``head``: the first bytes of ``file`` if it is a pipe. ``hardware`` decodes video. ``end``: of a
    file, in bytes, what follows is not looked at. ``tls_verify``: as in SourceOptions.
    Raises SourceError with the reason and a hint; ``wanted`` names the expected content.
    """
    if file is None and is_remote(path) and not os.path.exists(path):
        return open_remote(path, hardware, tls_verify=tls_verify)
    if file is None:
        head = read_head(path, 16)
    # "file:" keeps names such as "a:b.mp4" or "-x.mp4" from being misinterpreted.
    part = "" if end is None else f"subfile,,start,0,end,{end},,:"
    try:
        container = open_input(
            file or f"{part}file:{path}",
            options=_PIPED if head and file is not None else {},
            hwaccel=hardware,
        )
    except (av.FFmpegError, OSError) as error:
        raise not_media(path, file is None, head, error, wanted) from error
    if container.format.name == "tty":  # FFmpeg plays text files as terminal recordings
        container.close()
        raise not_media(path, file is None, head, None, wanted)
    if refusal := _not_stated(path, container):
        container.close()
        raise refusal
    return container


def _not_stated(path: str, container: InputContainer) -> SourceError | None:
    """Return an error if nothing but a guess says what the format is, or its rate."""
    form, where = container.format, display_name(path)
    if f"pcm_{form.name}" in av.codecs_available:
        return SourceError(
            "these are samples without a header: nothing says their rate",
            where=where,
            hint=f"give it: --raw {form.name}:48000, or with two channels {form.name}:48000:2",
        )
    suffix, known = splitext(path)[1].lower().removeprefix("."), form.extensions
    if not known or suffix in known or form.name in _SIGNED:
        return None
    if any(f".{each}" in MEDIA_SUFFIXES for each in known):
        return None
    return SourceError(
        f"it may be {form.long_name} ({form.name}), but only some bytes of it look so",
        where=where,
        hint=f"if it is that, call it NAME.{min(known)}; samples without a header need their "
        "format: --raw s16le:48000:2",
    )


def told_by_content(path: str, container: InputContainer) -> tuple[str, ...]:
    """Return a line on the format of a file whose name does not tell it, if it has no signature."""
    name, suffix = container.format.name, splitext(path)[1].lower().removeprefix(".")
    if name not in _UNSIGNED or suffix in container.format.extensions or suffix == name:
        return ()
    return (f"taken for {name} by its content; its name does not say so",)


def has_time_stamps(container: InputContainer) -> bool:
    """Return whether the format stores time stamps; FFmpeg counts those of the others itself."""
    name = container.format.name
    return not (container.format.flags & NO_TIME_STAMPS or name in _PICTURES or "_pipe" in name)


def has_rate(path: str, file: Readable | None, head: bytes) -> bool:
    """Return whether data are no YUV4MPEG2, or have their rate in the first line.

    FFmpeg takes others to be of 25 frames a second.
    """
    if isinstance(file, io.BufferedReader):
        head = file.peek(_LINE_BYTES)
    elif file is None and os.path.isfile(path):
        head = read_head(path, _LINE_BYTES)
    line = head.split(b"\n", 1)[0]
    return not line.startswith(b"YUV4MPEG2") or bool(_Y4M_RATE.search(line))


def stated_rate(stream: VideoStream) -> Fraction | None:
    """Return the frame rate that a stream without time stamps states; None if it does not."""
    rate = stream.codec_context.framerate
    return rate if rate is not None and 0 < rate <= _FASTEST_HZ else None


def video_streams(container: InputContainer) -> list[VideoStream]:
    """Return the video streams that can be decoded, what players show first, then the largest.

    Cover images of sounds are none.
    """
    streams = [
        stream
        for stream in container.streams.video
        # Without a decoder there is no context, whatever the annotation says.
        if stream.codec_context is not None and not stream.disposition & ATTACHED_PICTURE
    ]
    streams.sort(key=lambda s: (not s.disposition & DEFAULT_STREAM, -s.width * s.height))
    return streams


def told_choice(container: InputContainer) -> str:
    """Return which of several video streams is taken by itself; "" if there is only one."""
    taken, *others = _named(video_streams(container)) or [""]
    if not others:
        return ""
    count, rest = len(others) + 1, ", ".join(others)
    return f"of {count} video streams {taken} is taken, not {rest}: see --stream"


def _named(streams: Sequence[VideoStream]) -> list[str]:
    """Return the number, in the order of the container, and size of each stream."""
    numbers = {s.index: k for k, s in enumerate(sorted(streams, key=lambda s: s.index), 1)}
    return [f"{numbers[s.index]} ({s.width}x{s.height})" for s in streams]


def video_stream(container: InputContainer, where: str, chosen: str | None = None) -> VideoStream:
    """Return the first of ``video_streams``, or that of the number (from 1) or size ``chosen``."""
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
    video = ", only video" if container.streams.video else ""
    raise SourceError(f"there is no sound in it{video}", where=display_name(where))


def media_streams(path: str) -> tuple[bool, bool]:
    """Return whether a file has audio streams, and whether it has video that can be decoded."""
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


def not_media(
    path: str, is_file: bool, head: bytes, error: Exception | None, wanted: str = "a video"
) -> SourceError:
    """Return an error with the likely reason, judged by the first bytes of the file."""
    where = display_name(path)
    if head[4:8] == b"ftyp" and not is_file:
        return SourceError(
            "this MP4 cannot be read from a pipe (its index, moov, is at the end or missing)",
            where=where,
            hint="give the file itself, or write it with: ffmpeg -i IN -c copy -movflags "
            "+faststart OUT.mp4",
        )
    if head[4:8] == b"ftyp" and b"moov" not in set(_boxes(path)):
        return SourceError(
            "the index (moov) of this MP4 is missing: the recording or the copy was cut off",
            where=where,
            hint="copy it again, or rebuild the index with a repair tool such as untrunc and an "
            "intact file of the same camera",
        )
    samples = find_samples(path) if is_file else None
    if samples is not None and samples.stated is None:
        return SourceError(
            "its header does not say how long it is: the recording was not finished",
            where=where,
            hint="read the samples themselves, with their format: --raw s16le:48000:2",
        )
    known = error is None or isinstance(error, ValueError)
    reason = "" if known else f" ({getattr(error, 'strerror', None) or error})"
    return SourceError(
        f"this is not {wanted} that can be read{reason}",
        where=where,
        hint="if players can play it, try: ffmpeg -i IN -c copy OUT.mkv",
    )


def _boxes(path: str) -> Iterator[bytes]:
    """Yield the types of the outermost boxes of an MP4 file (ISO/IEC 14496-12, 4.2)."""
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while at + 8 <= end:
            file.seek(at)
            header = file.read(16)
            size = int.from_bytes(header[:4], "big")
            yield header[4:8]
            if size == 1:
                size = int.from_bytes(header[8:16], "big")
            if size < 8:  # 0: up to the end of the file
                return
            at += size


# Timing metadata of containers: time base, origin and stated end.

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
