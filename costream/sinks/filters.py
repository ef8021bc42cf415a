"""Sink filter by kind of model: files for runs with or without objects only."""

from __future__ import annotations

from costream.records import Header, Picture, Record, Summary
from costream.sinks.base import PictureSink, Sink, finds_objects


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
