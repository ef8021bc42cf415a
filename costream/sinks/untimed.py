"""Records without the times that differ from run to run: the same input, the same bytes."""

from __future__ import annotations

import math
from dataclasses import replace

from costream.records import Compute, Header, Picture, Record, StageTimes, Summary
from costream.sinks.base import PictureSink, Sink

_UNKNOWN = StageTimes(math.nan, math.nan, math.nan, math.nan)


def untimed(sink: Sink) -> Sink:
    """Give a sink that hands all on to ``sink``, with clock times made null."""
    return _UntimedPictures(sink) if isinstance(sink, PictureSink) else _Untimed(sink)


class _Untimed:
    """Compute records lose ``ms``, the summary ``wall_s`` and ``x_realtime``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def open(self, header: Header) -> None:
        """Hand the header on."""
        self._sink.open(header)

    def write(self, record: Record) -> None:
        """Hand a record on."""
        if isinstance(record, Compute):
            record = replace(record, ms=_UNKNOWN)
        self._sink.write(record)

    def close(self, summary: Summary) -> None:
        """Hand the summary on."""
        self._sink.close(replace(summary, wall_s=math.nan, x_realtime=None))


class _UntimedPictures(_Untimed):
    """For a sink that also draws."""

    def __init__(self, sink: PictureSink) -> None:
        super().__init__(sink)
        self._drawing = sink

    def draw(self, picture: Picture) -> None:
        """Hand a picture on; it has no clock time."""
        self._drawing.draw(picture)
