"""Whether an input is of a kind that a model takes, by its content and its name."""

from __future__ import annotations

import os

from costream.core.errors import (
    CostreamError,
    SourceError,
)
from costream.core.records import (
    SourceInfo,
    SourceKind,
)
from costream.models.base import SHIPPED, Model
from costream.sources.base import SourceOptions
from costream.sources.features.feature_arrays import split_video
from costream.sources.media.remote import MEDIA_SUFFIXES
from costream.sources.media.streams import media_streams
from costream.sources.uris import sniff

# A file with such a name that cannot be read is damaged.
_ENDINGS = (*MEDIA_SUFFIXES, ".npy", ".npz", ".pickle", ".pkl", ".skeleton")
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
    name = model.info.card.name
    hears, shows = media_streams(path)
    if hears and not shows and model.info.sound is None:
        return f"only sound, and {name} takes no sound; try -m {SHIPPED['audio']}"
    if shows and not hears and model.info.sound is not None:
        return f"no sound in it, and {name} takes only sound; try -m {SHIPPED['video']}"
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
        other = f"; try -m {SHIPPED[kind]}" if kind in SHIPPED else ""
        return f"{kind}, which {name} does not take{other}"
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
