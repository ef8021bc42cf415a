"""Why data cannot be read as media."""

from __future__ import annotations

import os
from collections.abc import Iterator

from costream.core.errors import SourceError, display_name
from costream.sources.media.samples import find_samples

_SHOWN = 40  # characters of a text
_FEWEST = 4  # are a text


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
    if begin := _text(head):
        return SourceError(
            f"this is text, not {wanted} (it begins with {begin!r})",
            where=where,
            hint="joints are in tables or JSON: costream help skeletons; labels are for costream "
            "train and evaluate",
        )
    samples = find_samples(path) if is_file else None
    if samples is not None and samples.stated is None:
        return SourceError(
            "its header does not say how long it is: the recording was not finished",
            where=where,
            hint="read the samples themselves, with their format: --raw s16le:48000:2",
        )
    unspecific = error is None or isinstance(error, ValueError)
    reason = "" if unspecific else f" ({getattr(error, 'strerror', None) or error})"
    return SourceError(
        f"this is not {wanted} that can be read{reason}",
        where=where,
        hint="if players can play it, try: ffmpeg -i IN -c copy OUT.mkv",
    )


def _text(head: bytes) -> str:
    """Return the beginning of a text; "" for other data."""
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return ""
        text = head[: error.start].decode("utf-8-sig")
    line = text.strip().partition("\n")[0].strip()
    return line[:_SHOWN] if len(line) >= _FEWEST and line.isprintable() else ""


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
