"""Timeline as a Praat TextGrid, in its long text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from costream.core.records import Segment
from costream.sinks.base import output_file
from costream.sinks.labels import one_line
from costream.sinks.stored_timelines import Timelines, TimelineSink

_SHORTEST_S = 1e-6  # of an interval; Praat refuses empty ones


@output_file("TextGrid", format="textgrid", about="timeline as a Praat TextGrid", order=9)
class TextGrid(TimelineSink):
    """An interval tier for each head or person; of labels that may overlap, one for each.

    The intervals of a tier cover its time completely: those without a label have an empty text.
    """

    def _write_timelines(self, timelines: Timelines) -> None:
        header, heads = self._header, timelines.heads
        ends = (end for head in heads for _, end, _ in _labelled(timelines.of(head)))
        media_s = float(header.options.get("start_s") or 0.0) + (header.duration_s or 0.0)
        end_s = max(_SHORTEST_S, media_s, *ends)
        size = f"xmin = 0\nxmax = {end_s:.6f}"
        start = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n{size}\ntiers? <exists>'
        self._out.write(f"{start}\nsize = {max(1, len(heads))}\nitem []:\n")
        for number, head in enumerate(heads, 1):
            self._tier(number, head, partial(timelines.of, head), end_s)
        if not heads:  # no person was seen, and Praat refuses a TextGrid without tiers
            self._tier(1, None, lambda: iter(()), end_s)

    def _tier(
        self, number: int, head: str | None, read: Callable[[], Iterator[Segment]], end_s: float
    ) -> None:
        """Write a tier, whose segments are read twice: to be counted, and to be written."""
        title, count = _quoted(head or self._header.model), sum(1 for _ in _cover(read(), end_s))
        self._out.write(
            f'    item [{number}]:\n        class = "IntervalTier"\n        name = {title}\n'
            f"        xmin = 0\n        xmax = {end_s:.6f}\n        intervals: size = {count}\n"
        )
        for k, (start, end, label) in enumerate(_cover(read(), end_s), 1):
            times = f"xmin = {start:.6f}\n            xmax = {end:.6f}"
            text = f"{times}\n            text = {_quoted(label)}"
            self._out.write(f"        intervals [{k}]:\n            {text}\n")


def _labelled(segments: Iterable[Segment]) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and label of each segment, so that none is empty and none overlap."""
    at = 0.0
    for segment in segments:
        start_s = max(at, round(segment.start_s, 6))
        at = max(start_s + _SHORTEST_S, round(segment.end_s, 6))
        yield start_s, at, segment.label


def _cover(segments: Iterable[Segment], end_s: float) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and label of each interval from 0 to ``end_s``."""
    at = 0.0
    for start, end, label in _labelled(segments):
        if start - at >= _SHORTEST_S / 2:
            yield at, start, ""
        yield start, end, label
        at = end
    if end_s - at >= _SHORTEST_S / 2:
        yield at, end_s, ""


def _quoted(text: str) -> str:
    doubled = one_line(text).replace('"', '""')
    return f'"{doubled}"'
