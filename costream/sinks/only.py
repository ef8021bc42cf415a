"""Files that only runs of some models have."""

from __future__ import annotations

from costream.records import Header, Picture, Record, Summary
from costream.sinks.base import PictureSink, Sink, finds_objects


def only_for(sink: Sink, *, objects: bool) -> Sink:
    """Give a sink for the runs of models that find objects, or for those of all others.

    Of other runs it makes no file.
    """
    if isinstance(sink, PictureSink):
        return _OnlyPicturesFor(sink, objects=objects)
    return _OnlyFor(sink, objects=objects)


class _OnlyFor:
    """Hands on what comes from such a run."""

    def __init__(self, sink: Sink, *, objects: bool) -> None:
        self._given, self._objects = sink, objects
        self._sink: Sink | None = None

    def open(self, header: Header) -> None:
        """Hand the header on if this is such a run."""
        if finds_objects(header) == self._objects:
            self._sink = self._given
            self._sink.open(header)

    def write(self, record: Record) -> None:
        """Hand a record on."""
        if self._sink is not None:
            self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Hand the summary on."""
        if self._sink is not None:
            self._sink.close(summary)


class _OnlyPicturesFor(_OnlyFor):
    """For a sink that also draws."""

    def __init__(self, sink: PictureSink, *, objects: bool) -> None:
        super().__init__(sink, objects=objects)
        self._drawing = sink

    def draw(self, picture: Picture) -> None:
        """Hand a picture on."""
        if self._sink is not None:
            self._drawing.draw(picture)
