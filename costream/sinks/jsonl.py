"""JSON Lines: one record per line, written as it arrives."""

from __future__ import annotations

from costream.core.records import (
    AnyRecord,
    Compute,
    Header,
    Level,
    Objects,
    Prediction,
    Record,
    Summary,
    dumps,
    to_json,
)
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file


@output_file("jsonl", about="every record as it happens", has_summary=True, joins=True, order=1)
class JsonLines(TextSink):
    """The stream of records: ``header`` first, ``summary`` last.

    ``feed``: name put into every line if several feeds share an output.
    """

    def __init__(self, out: TextOutput, feed: str | None = None) -> None:
        super().__init__(out)
        self._feed = {} if feed is None else {"feed": feed}

    def open(self, header: Header) -> None:
        """Write the header line."""
        super().open(header)
        self._line(header)

    def write(self, record: Record) -> None:
        """Write one line; events (segments, gaps, errors) are flushed at once."""
        self._line(record)

    def close(self, summary: Summary) -> None:
        """Write the summary line and finish."""
        self._line(summary)
        super().close(summary)

    def _line(self, record: AnyRecord) -> None:
        event = not isinstance(record, (Prediction, Objects, Compute, Level))
        self._out.write(dumps({**to_json(record), **self._feed}) + "\n", flush=event)
