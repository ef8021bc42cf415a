"""Opening of media containers and streams, with one-line error messages."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Protocol

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from costream.errors import SourceError, UsageError
from costream.redact import redact
from costream.sources.base import RawAudioFormat

# Flags from FFmpeg's headers.
ATTACHED_PICTURE = 0x400  # AV_DISPOSITION_ATTACHED_PIC: the cover of a song
NO_TIME_STAMPS = 0x80  # AVFMT_NOTIMESTAMPS: a raw video stream
ARBITRARY_CLOCK = 0x200  # AVFMT_TS_DISCONT: transport and program streams
# For pipes: read WAV in small pieces; larger ones would delay live sound.
_PIPED = {"max_size": "2048"}


class Readable(Protocol):
    """Input of a container that is not a named file."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102


def display_name(path: str) -> str:
    """Return a path or URL for display and output: UTF-8, without credentials."""
    return redact(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


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
        raise SourceError("this is a folder", where=where, hint=f"name the files: {where}/*.mp4")
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        raise SourceError("the file is empty", where=where)


def open_container(
    path: str, file: Readable | None = None, head: bytes = b"", *, wanted: str = "a video"
) -> InputContainer:
    """Open the file ``path``, or ``file`` under that name, as media.

    ``head``: the first bytes of ``file`` if it is a pipe. Raises SourceError with the reason and
    a hint; ``wanted`` names the expected content.
    """
    if file is None:
        check_file(path)
        with open(path, "rb") as opened:
            head = opened.read(16)
    try:
        # "file:" keeps names such as "a:b.mp4" or "-x.mp4" from being misinterpreted.
        container = av.open(
            file or f"file:{path}",
            mode="r",
            metadata_errors="replace",
            options=_PIPED if head and file is not None else {},
        )
    except (av.FFmpegError, OSError) as error:
        raise not_media(path, file is None, head, error, wanted) from error
    if container.format.name == "tty":  # FFmpeg plays text files as terminal recordings
        container.close()
        raise not_media(path, file is None, head, None, wanted)
    return container


def video_stream(container: InputContainer, where: str) -> VideoStream:
    """Return the first video stream that is not the cover image of an audio file."""
    streams = [s for s in container.streams.video if not s.disposition & ATTACHED_PICTURE]
    for stream in streams:
        if stream.codec_context is not None:  # None: no decoder, whatever the annotation says
            return stream
    if streams:
        raise SourceError("there is no decoder for its video", where=display_name(where))
    if container.streams.audio:
        cover = " and a cover picture" if container.streams.video else ""
        raise SourceError(f"there is no video stream, only sound{cover}", where=display_name(where))
    raise SourceError("there is no video stream", where=display_name(where))


def open_raw(path: str, file: Readable, raw: RawAudioFormat) -> InputContainer:
    """Open ``file`` as headerless samples; raises UsageError for an unknown format."""
    if f"pcm_{raw.form}" not in av.codecs_available or raw.form not in av.formats_available:
        raise UsageError(
            f"unknown raw audio format {raw.form!r}",
            hint="FFmpeg's names are u8, s16le, s16be, s24le, s32le, f32le, mulaw, ...",
        )
    options = {"sample_rate": str(raw.rate_hz), "ch_layout": f"{raw.channels}c"}
    try:
        return av.open(file, mode="r", format=raw.form, options=options)
    except (av.FFmpegError, OSError) as error:
        raise SourceError(
            f"cannot be read as {raw.form} ({error})", where=display_name(path)
        ) from error


def audio_stream(container: InputContainer, where: str) -> AudioStream:
    """Return the first audio stream that can be decoded."""
    for stream in container.streams.audio:
        if stream.codec_context is not None:
            return stream
    if container.streams.audio:
        raise SourceError("there is no decoder for its sound", where=display_name(where))
    video = ", only video" if container.streams.video else ""
    raise SourceError(f"there is no sound in it{video}", where=display_name(where))


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
    reason = "" if error is None or isinstance(error, ValueError) else f" ({error})"
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
