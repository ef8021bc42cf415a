"""Concatenation of several sources into one stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costream.records import Data, Fault, Gap, Item
from costream.sources.base import Source, SourceInfo


class ConcatenatedSource:
    """Concatenated sources: each begins a step after the last item of the previous one.

    ``starts``: start times of the parts read so far, seconds.
    """

    def __init__(self, parts: Sequence[Source], step_s: float) -> None:
        self._parts, self._step_s = list(parts), step_s
        self.starts: list[float] = []

    def open(self) -> SourceInfo:
        """Open the first source, whose properties apply to all."""
        return replace(self._parts[0].open(), name="joined", uri="joined", duration_s=None)

    def items(self) -> Iterator[Item]:
        """Yield the items of all parts on one clock."""
        now, number = 0.0, 0
        for k, part in enumerate(self._parts):
            if k:
                part.open()
            shift: float | None = None
            for item in part.items():
                if isinstance(item, Fault):
                    yield item
                    continue
                begin = item.start_s if isinstance(item, Gap) else item.time_s
                if shift is None:
                    shift = now - begin
                    self.starts.append(now)
                moved = _moved(item, shift, number)
                yield moved
                last = moved.end_s if isinstance(moved, Gap) else moved.time_s
                number, now = number + 1, last + self._step_s
            part.close()

    def stop(self) -> None:
        """Request all sources to end."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close all sources."""
        for part in self._parts:
            part.close()


def _moved(item: Data | Gap, shift: float, number: int) -> Data | Gap:
    if isinstance(item, Gap):
        return replace(item, start_s=item.start_s + shift, end_s=item.end_s + shift)
    return replace(item, time_s=item.time_s + shift, i=number)
