"""Timeline as a readable table: what a terminal shows, for scripts, logs and notebooks."""

from __future__ import annotations

from costream.core.formatting import clean, closing_lines, named, nothing_found, short_time
from costream.core.readable import ReadableRows
from costream.core.records import Header, Record, Segment, Summary, finds_objects
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file
from costream.sinks.labels import source_name
from costream.sinks.stored_timelines import Timelines

_LONG_S = 36_000.0  # ten hours: for the width of times if the length is not known
_MOST = "at once"  # heading of the largest number at the same time
_WIDEST = 40  # of labels; longer ones move the score of their row


@output_file("txt", format="table", about="timeline as a readable table", joins=True, order=5)
class TextTable(TextSink):
    """The timeline that ends a run on a terminal, as plain text without escape sequences.

    Rows are written as they arrive. Rows of several heads, of objects and of persons are stored
    until the end, so that they are in order, unless the source is live. A piece of music gets one
    label.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._header: Header  # from ``open`` on
        self._has_heads = self._of_objects = self._persons = self._any = False
        self._widths: list[int] = []
        self._longest = len("label")  # of the labels that are stored
        self._waiting: Timelines | None = None
        self._rows = ReadableRows()

    def open(self, header: Header) -> None:
        """Write the name of the source; the columns follow with the first segment."""
        super().open(header)
        self._rows = ReadableRows(header)
        self._header, self._has_heads = header, header.heads is not None
        self._of_objects, self._persons = finds_objects(header), header.persons is not None
        if header.began is None and (self._has_heads or self._of_objects or self._persons):
            self._waiting = Timelines(by_label=self._of_objects)
        end_s = header.options.get("end_s") or header.duration_s
        time = len(short_time(_LONG_S if end_s is None else end_s, 2))
        length = len(f"{1e3 if end_s is None else end_s:.2f} s")
        models = [clean(head.model) for head in header.heads or ()]
        label = max((len(clean(label)) for label in header.labels), default=0)
        self._widths = [time, time, length, *([max(map(len, models))] if models else [])]
        self._widths.append(min(label, _WIDEST))
        self._out.write(f"{clean(source_name(header))}\n", flush=True)

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if isinstance(record, Segment):
            self._add(self._rows.add(record))

    def close(self, summary: Summary) -> None:
        """Write stored segments, or that nothing was found, and the cost."""
        self._add(self._rows.rest())
        if self._waiting is not None:
            self._widths[-1] = min(self._longest, _WIDEST)
            for segment in self._waiting.merged():
                self._segment(segment)
            self._waiting.close()
        if not self._any:
            header = self._header
            empty = nothing_found(header.kind, header.task, persons=summary.persons)
            self._out.write(f"{empty if summary.steps else 'Nothing was read.'}\n")
        for line in closing_lines(self._header, summary):
            self._out.write(f"{line}\n")
        super().close(summary)

    def _add(self, segments: list[Segment]) -> None:
        for segment in segments:
            if self._waiting is None:
                self._segment(segment)
            else:
                self._longest = max(self._longest, len(clean(named(segment))))
                self._waiting.add(segment)

    def _segment(self, segment: Segment) -> None:
        if not self._any:
            self._any = True
            self._row("start", "end", "length", "model", "label", _MOST, "score")
        times = (short_time(segment.start_s, 2), short_time(segment.end_s, 2))
        length = f"{segment.end_s - segment.start_s:.2f} s"
        model, label = clean(segment.model or ""), clean(named(segment))
        most, score = str(segment.count or ""), f"{segment.score:.2f}"
        self._row(*times, length, model, label, most, score)

    def _row(self, *cells: str) -> None:
        start, end, length, model, label, most, score = cells
        shown = [start, end, length, *([model] if self._has_heads else []), label]
        aligned = [
            cell.rjust(width) if k < 3 else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(shown, self._widths, strict=True))
        ]
        aligned += [most.rjust(len(_MOST))] if self._of_objects else []
        aligned.append(score.rjust(5))
        self._out.write("  ".join(aligned).rstrip() + "\n", flush=True)
