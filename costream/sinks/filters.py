"""Sink filter by kind of model: files for runs with or without objects only."""

from __future__ import annotations

import math
from dataclasses import replace

from costream.records import Compute, Header, Picture, Record, StageTimes, Summary, finds_objects
from costream.sinks.base import PictureSink, Sink


def run_filter(sink: Sink, *, objects: bool) -> Sink:
    """Return ``sink`` limited to runs of models that find objects, or to all other runs.

    It writes no file for other runs.
    """
    if isinstance(sink, PictureSink):
        return _DrawingRunFilter(sink, objects=objects)
    return _RunFilter(sink, objects=objects)


class _RunFilter:
    """A sink that forwards the records of matching runs."""

    def __init__(self, sink: Sink, *, objects: bool) -> None:
        self._given, self._objects = sink, objects
        self._sink: Sink | None = None

    def open(self, header: Header) -> None:
        """Forward the header if the run matches."""
        if finds_objects(header) == self._objects:
            self._sink = self._given
            self._sink.open(header)

    def write(self, record: Record) -> None:
        """Forward a record."""
        if self._sink is not None:
            self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Forward the summary."""
        if self._sink is not None:
            self._sink.close(summary)


class _DrawingRunFilter(_RunFilter):
    """The filter for a sink that also draws."""

    def __init__(self, sink: PictureSink, *, objects: bool) -> None:
        super().__init__(sink, objects=objects)
        self._drawing = sink

    def draw(self, picture: Picture) -> None:
        """Forward a picture."""
        if self._sink is not None:
            self._drawing.draw(picture)


# Deterministic output: records without the wall-clock times that differ between runs.


_UNKNOWN = StageTimes(math.nan, math.nan, math.nan, math.nan)


def deterministic_sink(sink: Sink) -> Sink:
    """Return a sink that forwards everything to ``sink``, with wall-clock times set to null."""
    return (
        _DeterministicDrawingSink(sink)
        if isinstance(sink, PictureSink)
        else _DeterministicSink(sink)
    )


class _DeterministicSink:
    """A sink that removes ``ms`` of compute records, ``wall_s`` and ``x_realtime`` of summaries."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def open(self, header: Header) -> None:
        """Forward the header."""
        self._sink.open(header)

    def write(self, record: Record) -> None:
        """Forward a record."""
        if isinstance(record, Compute):
            record = replace(record, ms=_UNKNOWN)
        self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Forward the summary."""
        self._sink.close(replace(summary, wall_s=math.nan, x_realtime=None))


class _DeterministicDrawingSink(_DeterministicSink):
    """The same for a sink that also draws."""

    def __init__(self, sink: PictureSink) -> None:
        super().__init__(sink)
        self._drawing = sink

    def draw(self, picture: Picture) -> None:
        """Forward a picture; it has no wall-clock time."""
        self._drawing.draw(picture)
