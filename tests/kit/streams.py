"""Both ends of a run: a source of given items, and a sink that keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from costream.core.records import AnyRecord, Header, Item, SourceInfo, Summary


class ItemSource:
    """A source of given items."""

    def __init__(self, info: SourceInfo, items: Iterable[Item]) -> None:
        self.info, self.given = info, list(items)
        self.closed = self._stopped = False

    def open(self) -> SourceInfo:
        return self.info

    def items(self) -> Iterator[Item]:
        for item in self.given:
            if self._stopped:
                return
            yield item

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self.closed = True


class RecordSink:
    """A sink that keeps the header, the records and the summary of a run."""

    header: Any = None
    summary: Any = None

    def __init__(self) -> None:
        self.records: list[Any] = []

    def open(self, header: Header) -> None:
        self.header = header

    def write(self, record: AnyRecord) -> None:
        self.records.append(record)

    def close(self, summary: Summary) -> None:
        assert self.summary is None, "closed twice"
        self.summary = summary

    def of(self, kind: type) -> list[Any]:
        """Return the records of a type."""
        return [record for record in self.records if isinstance(record, kind)]
