"""Timeline as subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

import html
from collections.abc import Callable

from costream.core.clock import format_time
from costream.core.formatting import named
from costream.core.records import Header, Record, Segment, Summary, has_overlaps
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file
from costream.sinks.stored_timelines import Timelines


class Subtitles(TextSink):
    """Subtitles with one cue per segment: its number, its times, then ``label (score %)``.

    ``decimal``: separator before the milliseconds. ``head``: start of the file. ``escape``:
    escapes the markup of the format in a label. Cues are written as they arrive; cues of
    several heads, and of objects, are stored until the end, because they must be in order.
    """

    def __init__(
        self, out: TextOutput, *, decimal: str, head: str, escape: Callable[[str], str]
    ) -> None:
        super().__init__(out)
        self._decimal = decimal
        self._head = head
        self._escape = escape
        self._cues = 0
        self._waiting: Timelines | None = None

    def open(self, header: Header) -> None:
        """Write the start of the file."""
        if header.heads is not None or header.persons is not None:
            self._waiting = Timelines()
        elif has_overlaps(header):
            self._waiting = Timelines(by_label=True)
        super().open(header)
        self._out.write(self._head, flush=True)

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if not isinstance(record, Segment):
            return
        if self._waiting is None:
            self._cue(record)
        else:
            self._waiting.add(record)

    def close(self, summary: Summary) -> None:
        """Write stored segments, and finish; subtitles have no summary."""
        if self._waiting is not None:
            for segment in self._waiting.merged():
                self._cue(segment)
            self._waiting.close()
        super().close(summary)

    def _cue(self, segment: Segment) -> None:
        self._cues += 1
        start_s = max(0.0, segment.start_s)
        end_s = max(segment.end_s, start_s + 1e-3)  # players refuse empty cues
        times = " --> ".join(format_time(s, self._decimal) for s in (start_s, end_s))
        label = self._escape(" ".join(named(segment).split()))
        text = f"{label} ({round(100 * segment.score)} %)"
        self._out.write(f"{self._cues}\n{times}\n{text}\n\n", flush=True)


def _without_markup(label: str) -> str:
    """Return ``label`` with arrows and tags replaced, as SubRip cannot escape them."""
    return label.replace("-->", "→").replace("<", "‹").replace(">", "›")


def _entities(label: str) -> str:
    return html.escape(label, quote=False)


@output_file("srt", about="timeline as SubRip subtitles", order=4)
def subrip(out: TextOutput) -> Subtitles:
    """Return a SubRip sink."""
    return Subtitles(out, decimal=",", head="", escape=_without_markup)


@output_file("vtt", about="timeline as WebVTT subtitles", order=5)
def webvtt(out: TextOutput) -> Subtitles:
    """Return a WebVTT sink."""
    return Subtitles(out, decimal=".", head="WEBVTT\n\n", escape=_entities)
