"""Timelines of several heads or persons, stored until a run ends, in constant memory."""

from __future__ import annotations

import heapq
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from costream.core.records import (
    Header,
    Record,
    Segment,
    Summary,
    dumps,
    has_overlaps,
    plain,
)
from costream.sinks.atomic import Spool, TextOutput
from costream.sinks.base import TextSink


class Timelines:
    """One timeline per head or person. Its segments arrive in order and never overlap.

    ``heads``: names that are listed even without a segment. ``by_label``: segments of different
    labels may overlap, so each label has a timeline instead of each head.
    """

    def __init__(self, heads: Iterable[str | None] = (), *, by_label: bool = False) -> None:
        self._by_label = by_label
        self._spools = {head: Spool() for head in heads}
        self._counts = dict.fromkeys(self._spools, 0)

    @property
    def heads(self) -> tuple[str | None, ...]:
        """The names of the heads, in the order of ``heads``."""
        return tuple(self._spools)

    def add(self, segment: Segment) -> None:
        """Store a segment."""
        head = segment.label if self._by_label else segment.model
        if segment.person is not None:
            head = " ".join(filter(None, (head, f"person {segment.person}")))
        if head not in self._spools:
            self._spools[head] = Spool()
        times = (segment.start_s, segment.end_s)
        row = (*times, segment.label, segment.score, segment.model, segment.count)
        self._spools[head].add(dumps(plain((*row, segment.person))) + "\n")
        self._counts[head] = self.count(head) + 1

    def count(self, head: str | None) -> int:
        """Return the number of segments of a head."""
        return self._counts.get(head, 0)

    def of(self, head: str | None) -> Iterator[Segment]:
        """Yield the segments of a head; not while ``merged`` is being read."""
        for line in self._spools[head].lines():
            start_s, end_s, label, score, *rest = json.loads(line)
            yield Segment(start_s, end_s, label, math.nan if score is None else score, *rest)

    def merged(self) -> Iterator[Segment]:
        """Yield the segments of all heads in order of their starts."""
        return heapq.merge(*map(self.of, self._spools), key=lambda segment: segment.start_s)

    def close(self) -> None:
        """Discard the segments."""
        for spool in self._spools.values():
            spool.close()


class TimelineSink(TextSink, ABC):
    """Base of sinks that write the timelines of a run when it ends, in ``_write_timelines``.

    There is one timeline for each head or person, or for each label where these may overlap.
    """

    _header: Header

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._timelines = Timelines()

    def open(self, header: Header) -> None:
        """Open the output and the timelines."""
        self._header = header
        by_label = has_overlaps(header)
        heads = [h.model for h in header.heads] if header.heads else [None]
        heads = heads if header.persons is None else []
        self._timelines = Timelines(header.labels if by_label else heads, by_label=by_label)
        super().open(header)

    def write(self, record: Record) -> None:
        """Store a segment; other records are ignored."""
        if isinstance(record, Segment):
            self._timelines.add(record)

    def close(self, summary: Summary) -> None:
        """Write the timelines, and finish."""
        timelines, self._timelines = self._timelines, Timelines()
        self._write_timelines(timelines)
        timelines.close()
        super().close(summary)

    @abstractmethod
    def _write_timelines(self, timelines: Timelines) -> None:
        """Write the segments, and what follows them."""
