"""Opening of media containers, with one-line error messages."""

from __future__ import annotations

import os
from os.path import splitext

import av
from av.codec.hwaccel import HWAccel
from av.container import InputContainer

from costream.core.errors import SourceError, display_name
from costream.core.pyav import open_input
from costream.sources.media.input_file import Readable, read_head
from costream.sources.media.remote import MEDIA_SUFFIXES, is_remote, open_remote
from costream.sources.media.unreadable import not_media

# Formats with a reliable signature, in addition to those of MEDIA_SUFFIXES.
_SIGNED = {
    *("ac4", "ape", "av1", "dhav", "dss", "dts", "dtshd", "eac3", "epaf", "ircam", "jpegxl_anim"),
    *("mjpeg", "mjpeg_2000", "mlp", "moflex", "mpc", "mpjpeg", "nistsphere", "obu", "oma", "pvf"),
    *("qoa", "shn", "smjpeg", "tak", "truehd", "tta", "usm", "vc1", "vvc"),
}
# Formats that FFmpeg recognises only by a pattern in the data.
_UNSIGNED = ("aac", "ac3", "dts", "eac3", "loas", "mp3")
# For pipes: read WAV in small pieces; larger ones would delay live sound.
_PIPED = {"max_size": "2048"}


def open_container(
    path: str,
    file: Readable | None = None,
    head: bytes = b"",
    *,
    wanted: str = "a video",
    hardware: HWAccel | None = None,
    part: tuple[int, int] | None = None,
    tls_verify: bool = False,
) -> InputContainer:
    """Open the file or URL ``path``, or ``file`` under that name, as media.

    ``head``: first bytes of ``file`` if it is a pipe. ``hardware``: decodes video. ``part``: first
    and last byte of the file to read; 0 as the second is its end. ``tls_verify``: as in
    SourceOptions. ``wanted``: the expected content, for messages. Raises SourceError with the
    reason and a hint.
    """
    if file is None and is_remote(path) and not os.path.exists(path):
        return open_remote(path, hardware, tls_verify=tls_verify)
    if file is None:
        head = read_head(path, 64)
    # "file:" keeps names such as "a:b.mp4" or "-x.mp4" from being misinterpreted.
    bounds = "" if part is None else f"subfile,,start,{part[0]},end,{part[1]},,:"
    try:
        container = open_input(
            file or f"{bounds}file:{path}",
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
    """Return an error if FFmpeg has only guessed the format, or its sample rate."""
    form, where = container.format, display_name(path)
    if f"pcm_{form.name}" in av.codecs_available:
        return SourceError(
            "these are samples without a header: their rate is unknown",
            where=where,
            hint=f"give it: --raw {form.name}:48000, or with two channels {form.name}:48000:2",
        )
    suffix, extensions = splitext(path)[1].lower().removeprefix("."), form.extensions
    if not extensions or suffix in extensions or form.name in _SIGNED:
        return None
    if any(f".{extension}" in MEDIA_SUFFIXES for extension in extensions):
        return None
    return SourceError(
        f"it may be {form.long_name} ({form.name}), but it has no signature of that format",
        where=where,
        hint=f"if it is, rename it to NAME.{min(extensions)}; samples without a header need their "
        "format: --raw s16le:48000:2",
    )


def guessed_by_content(path: str, container: InputContainer) -> tuple[str, ...]:
    """Return a remark if the format was guessed from the content and the suffix differs."""
    name, suffix = container.format.name, splitext(path)[1].lower().removeprefix(".")
    if name not in _UNSIGNED or suffix in container.format.extensions or suffix == name:
        return ()
    return (f"read as {name} because of its content, despite its suffix",)
