"""Classification of inputs that cannot be opened: damaged, or not for this model."""

from __future__ import annotations

import os

import av

from costream.errors import CostreamError, SourceError
from costream.models.base import Model
from costream.sources.base import SourceInfo, SourceKind, SourceOptions
from costream.sources.features.arrays import split_video
from costream.sources.media.container import ATTACHED_PICTURE
from costream.sources.registry import sniff

# File extensions of media: such a file that cannot be read is damaged.
_ENDINGS = tuple(
    f".{ending}"
    for line in (
        "3g2 3gp asf avi divx dv f4v flv gif h264 h265 hevc m1v m2p m2t m2ts m2v m4v mj2 mkv mov",
        "mp4 mpe mpeg mpg mts mxf nut ogm ogv rm rmvb ts vob webm wmv y4m",
        "aac ac3 aif aiff amr flac m4a mka mp3 oga ogg opus wav wma",
        "npy npz pickle pkl skeleton",
    )
    for ending in line.split()
)
_TABLES = (".csv", ".tsv")
_HEAD_BYTES = 16
_STILL = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"BM", b"II*\0", b"MM\0*")


class MisfitError(SourceError):
    """The input is valid, but of a kind that the model does not take."""


def is_still(path: str) -> bool:
    """Return whether a file is a single image; FFmpeg would read it as a one-frame video."""
    head = _head(path)
    return head.startswith(_STILL) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def why_skipped(uri: str, model: Model, options: SourceOptions) -> str | None:
    """Return why an input that could not be opened is not for this model.

    None when it should have been readable, which makes it a failure. Decided by its content; by
    its name only when the content is not recognised.
    """
    path = split_video(uri)[0]
    if not os.path.isfile(path):
        return None
    hears, shows = _streams(path)
    if hears and not shows and model.sound is None:
        return f"only sound, and {model.card.name} takes no sound"
    if shows and not hears and model.sound is not None:
        return f"no sound in it, and {model.card.name} takes only sound"
    try:
        kind = sniff(path, options)
    except (SourceError, OSError):
        kind = None
    ending = os.path.splitext(path)[1].lower()
    claims = ending in _ENDINGS or _has_media_head(path)
    if ending in _TABLES:  # most tables do not hold joints
        claims = kind == "skeleton" and takes(model, kind)
    if not claims:
        return "not a media file"
    if kind is not None and not takes(model, kind):
        return f"{kind}, which {model.card.name} does not take"
    return None


def takes(model: Model, kind: SourceKind) -> bool:
    """Return whether a model takes sources of this kind at all."""
    try:
        model.check(SourceInfo(name="", uri="", kind=kind, duration_s=None, rate_hz=None))
    except CostreamError:
        return False
    return True


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _has_media_head(path: str) -> bool:
    head = _head(path)
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"FORM") and head[8:12] in (b"WAVE", b"AIFF"):
        return True
    return head[4:8] == b"ftyp" or head.startswith(
        (
            b"\x1aE\xdf\xa3",  # Matroska, WebM
            b"FLV",
            b"OggS",
            b"fLaC",
            b"\0\0\1\xba",  # MPEG program stream
            b"0&\xb2u\x8ef\xcf\x11",  # ASF, WMV
        )
    )


def _streams(path: str) -> tuple[bool, bool]:
    """Return whether a file has audio streams, and whether it has video streams."""
    try:
        with av.open(f"file:{path}", mode="r", metadata_errors="replace") as container:
            pictures = [s for s in container.streams.video if not s.disposition & ATTACHED_PICTURE]
            text = container.format.name == "tty"  # FFmpeg plays it as a terminal recording
            return bool(container.streams.audio), bool(pictures) and not text
    except (av.FFmpegError, OSError):
        return False, False
