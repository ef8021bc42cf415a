"""Sinks that filter records for another sink: by the kind of a run, or without wall times."""

from __future__ import annotations

import math
from dataclasses import replace

from costream.core.records import Compute, Header, Record, StageTimes, Summary, finds_objects
from costream.sinks.base import PictureSink, Sink

_UNKNOWN = StageTimes(math.nan, math.nan, math.nan, math.nan)


class RunFilter:
    """Sink limited to runs of models that find objects, or to all others.

    For other runs ``sink`` is not opened. Pictures are passed on if ``sink`` takes them.
    """

    def __init__(self, sink: Sink, *, objects: bool) -> None:
        self._sink, self._objects = sink, objects
        self._matches = False
        if isinstance(sink, PictureSink):
            self.draw = lambda picture: sink.draw(picture) if self._matches else None

    def open(self, header: Header) -> None:
        """Forward the header if the run matches."""
        self._matches = finds_objects(header) == self._objects
        if self._matches:
            self._sink.open(header)

    def write(self, record: Record) -> None:
        """Forward a record."""
        if self._matches:
            self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Forward the summary."""
        if self._matches:
            self._sink.close(summary)


class DeterministicSink:
    """Sink that sets wall-clock times and energy in ``Compute`` and ``Summary`` to null.

    Pictures are passed on if ``sink`` takes them.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.open = sink.open
        if isinstance(sink, PictureSink):
            self.draw = sink.draw

    def write(self, record: Record) -> None:
        """Forward a record."""
        if isinstance(record, Compute):
            record = replace(record, ms=_UNKNOWN, joules=None)
        self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Forward the summary."""
        self._sink.close(replace(summary, wall_s=math.nan, x_realtime=None, joules=None))
