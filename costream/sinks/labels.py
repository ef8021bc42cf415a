"""The timeline as labels for annotation tools: Audacity's label track."""

from __future__ import annotations

from costream.records import Header, Record, Segment, Summary
from costream.sinks.atomic import Output


class Audacity:
    """Tab-separated start, end (seconds) and label, as File > Import > Labels reads them."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def open(self, header: Header) -> None:
        """Begin; the format has no header."""
        self._out.open()

    def write(self, record: Record) -> None:
        """Write a segment; other records have no place here."""
        if isinstance(record, Segment):
            label = " ".join(record.label.split())
            line = f"{record.start_s:.6f}\t{record.end_s:.6f}\t{label}\n"
            self._out.write(line, flush=True)

    def close(self, summary: Summary) -> None:
        """Finish; the format has no summary."""
        self._out.finish()
