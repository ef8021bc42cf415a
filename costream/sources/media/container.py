"""Opening of media containers and streams, with one-line error messages."""

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
