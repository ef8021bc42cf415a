"""Timeline as a table, printed on a terminal at the end of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costream.core.formatting import clean, closing_lines, nothing_found, short_time
from costream.core.readable import ReadableRows
from costream.core.records import (
    Header,
    Record,
    Segment,
    Summary,
    finds_objects,
    has_overlaps,
)
from costream.core.shared_rows import SEPARATOR, share_rows
from costream.draw.palette import Palette
from costream.ui.console import is_unicode, print_line

_MOST = 1000  # rows, so that a run of days does not fill the memory

_ROOM = 60  # least width of a table with lengths


class FinalTimeline:
    """Sink that prints the segments and the cost of one run at the end: music by pieces."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = clean(name)
        self._header: Header  # from ``open`` on
        self._has_heads = self._of_objects = self._overlaps = False
        self._palette = Palette()
        self._segments: deque[Segment] = deque(maxlen=_MOST)
        self._count = 0
        self._rows = ReadableRows()

    def open(self, header: Header) -> None:
        """Store the kind of source and the kind of model."""
        self._header, self._has_heads = header, header.heads is not None
        self._of_objects, self._overlaps = finds_objects(header), has_overlaps(header)
        self._palette = Palette.of(header)
        self._rows = ReadableRows(header)

    def write(self, record: Record) -> None:
        """Store a segment; other records are ignored."""
        if isinstance(record, Segment):
            self._add(self._rows.add(record))

    def close(self, summary: Summary) -> None:
        """Print the table, or that nothing was found, and the cost."""
        self._add(self._rows.rest())
        print_line(self._console, self._name, "bold")
        if self._segments:
            self._console.print(self._table())
        else:
            header = self._header
            empty = nothing_found(header.kind, header.task, persons=summary.persons)
            print_line(self._console, empty if summary.steps else "Nothing was read.")
        if self._count > _MOST:
            line = f"The first {self._count - _MOST} segments are left out; -o writes them all."
            print_line(self._console, line)
        for line in closing_lines(self._header, summary):
            print_line(self._console, line, "dim")

    def _add(self, segments: list[Segment]) -> None:
        self._segments.extend(segments)
        self._count += len(segments)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        has_room = self._console.width >= _ROOM
        for name in ("start", "end", "length")[: 3 if has_room else 2]:
            table.add_column(name, justify="right", no_wrap=True)
        if self._has_heads:
            table.add_column("model", no_wrap=True)
        several = len({segment.person for segment in self._segments}) > 1
        if several:
            table.add_column("person", justify="right", no_wrap=True)
        table.add_column("label", overflow="fold")
        if self._of_objects:
            table.add_column("at once", justify="right", no_wrap=True)
        table.add_column("score", justify="right", no_wrap=True)
        mark = "● " if is_unicode(self._console) else "* "
        segments: Iterable[Segment] = self._segments
        if self._has_heads or self._overlaps or several:  # segments may arrive out of order
            segments = sorted(share_rows(segments), key=lambda s: s.start_s)
        for s in segments:
            start, end = short_time(s.start_s, 2), short_time(s.end_s, 2)
            length = [f"{s.end_s - s.start_s:.2f} s"] if has_room else []
            model = [Text(clean(s.model or ""))] if self._has_heads else []
            most = [str(s.count or "")] if self._of_objects else []
            style = self._palette.paint(s.label.partition(SEPARATOR)[0]).style
            label = Text.assemble((mark, style), clean(s.label))
            person = [str(s.person or "")] if several else []
            first = [start, end, *length]
            table.add_row(*first, *model, *person, label, *most, f"{s.score:.2f}")
        return table
