"""Timeline in ELAN's annotation format: EAF 3.0 (XML).

Times are milliseconds in separate slots, which precede the tiers in order. So segments are
stored in a temporary file, and everything after the head is written when the run ends.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from pathlib import Path

from costream.core.records import Header, Segment
from costream.sinks.base import output_file
from costream.sinks.stored_timelines import Timelines, TimelineSink

_ROOT = (
    # A date is required; a constant one makes the output reproducible.
    '<ANNOTATION_DOCUMENT AUTHOR="costream" DATE="1970-01-01T00:00:00Z" FORMAT="3.0" VERSION="3.0"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    ' xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">'
)
_TYPE = "default-lt"

# MIME types of the media that ELAN knows; it inspects others itself.
_MIME_TYPES = {
    **dict.fromkeys((".wav", ".wave"), "audio/x-wav"),
    **dict.fromkeys((".mp4", ".m4v"), "video/mp4"),
    **dict.fromkeys((".mpg", ".mpeg"), "video/mpeg"),
    ".mov": "video/quicktime",
}

# Not allowed in XML 1.0, escaped or not.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


@output_file("eaf", about="timeline as ELAN annotations", order=9)
class Elan(TimelineSink):
    """EAF with one tier per head, or person; an annotation per segment has its label.

    Where labels may overlap there is one tier per label: annotations of a tier must not overlap.
    """

    def open(self, header: Header) -> None:
        """Write the head."""
        super().open(header)
        media = _media(header, self._out.path)
        lines = ('<?xml version="1.0" encoding="UTF-8"?>', _ROOT, *media, "<TIME_ORDER>")
        self._out.write("\n".join(lines) + "\n", flush=True)

    def _write_timelines(self, timelines: Timelines) -> None:
        firsts, number = {}, 1  # head -> number of its first annotation
        for head in timelines.heads:
            firsts[head] = number
            number += timelines.count(head)
        slots = (_slots(timelines.of(head), first) for head, first in firsts.items())
        for ms, slot in heapq.merge(*slots):
            self._out.write(f'<TIME_SLOT TIME_SLOT_ID="ts{slot}" TIME_VALUE="{ms}"/>\n')
        self._out.write("</TIME_ORDER>\n")
        for head, first in firsts.items():
            name = _text(head or self._header.model)
            self._out.write(f'<TIER LINGUISTIC_TYPE_REF="{_TYPE}" TIER_ID="{name}">\n')
            for k, segment in enumerate(timelines.of(head), first):
                self._out.write(_annotation(k, segment.label))
            self._out.write("</TIER>\n")
        about = f'LINGUISTIC_TYPE_ID="{_TYPE}" TIME_ALIGNABLE="true"'
        last = f'<LINGUISTIC_TYPE GRAPHIC_REFERENCES="false" {about}/>'
        self._out.write(f"{last}\n</ANNOTATION_DOCUMENT>\n")


def _slots(segments: Iterator[Segment], first: int) -> Iterator[tuple[int, int]]:
    """Yield milliseconds and number of the two slots of each annotation."""
    for k, segment in enumerate(segments, first):
        start_ms = max(0, round(1000 * segment.start_s))
        yield start_ms, 2 * k - 1
        yield max(round(1000 * segment.end_s), start_ms + 1), 2 * k


def _annotation(number: int, label: str) -> str:
    slots = f'TIME_SLOT_REF1="ts{2 * number - 1}" TIME_SLOT_REF2="ts{2 * number}"'
    return (
        f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a{number}" {slots}>'
        f"<ANNOTATION_VALUE>{_text(label)}</ANNOTATION_VALUE>"
        "</ALIGNABLE_ANNOTATION></ANNOTATION>\n"
    )


def _media(header: Header, result: Path | None) -> list[str]:
    """Return the HEADER, with the path of a source file also relative to ``result``."""
    head = '<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"'
    if header.kind not in ("audio", "video") or not os.path.isfile(header.source):
        return [f"{head}/>"]
    path = Path(header.source)
    # ELAN expects paths in URLs without %-escapes.
    full_path = path.absolute().as_posix()
    attributes = {
        "MEDIA_URL": f"file://{full_path}" if full_path.startswith("/") else f"file:///{full_path}",
        "MIME_TYPE": _MIME_TYPES.get(path.suffix.lower(), f"{header.kind}/*"),
    }
    near = relative_path(path, result)
    if near is not None:
        attributes["RELATIVE_MEDIA_URL"] = near if near.startswith("../") else f"./{near}"
    words = " ".join(f'{key}="{_valid(value)}"' for key, value in attributes.items())
    return [f"{head}>", f"<MEDIA_DESCRIPTOR {words}/>", "</HEADER>"]


def relative_path(path: Path, result: Path | None) -> str | None:
    """Return the path of a file relative to the folder of ``result``, with "/"; None if impossible.

    ``result`` None: relative to the current folder.
    """
    with suppress(ValueError):  # Windows has no relative path between drives
        return Path(os.path.relpath(path, None if result is None else result.parent)).as_posix()
    return None


def _text(text: str) -> str:
    return _valid(" ".join(text.split()))


def _valid(text: str) -> str:
    return escape(_CONTROL.sub("\ufffd", text))
