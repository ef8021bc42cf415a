"""Sources in memory: iterables of frames, audio samples, skeletons, feature rows or lines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from costream.core.errors import UsageError
from costream.core.records import Item, SourceInfo
from costream.sources.array_values import Values, as_array
from costream.sources.base import SourceOptions
from costream.sources.values import ItemConverter, make_converter

_PIECE_S = 1.0  # an array of audio is taken in pieces of this length


class MemorySource:
    """A source over an array, or an iterable of arrays or of lines of text.

    The first axis of an array, or the order of an iterable, is time. An iterator, such as a
    generator, is a live source: no step waits for later values.
    """

    def __init__(
        self,
        values: Iterable[Any],
        options: SourceOptions,
        *,
        rate_hz: float | None = None,
        name: str = "memory",
    ) -> None:
        """``rate_hz``: values per second, or samples per second of audio.

        Raises UsageError if it is missing for values that are not live.
        """
        live = iter(values) is values
        if rate_hz is None and not live and options.text is None:
            hint = "give the frames (or audio samples) per second: rate_hz=25"
            raise UsageError("the values have no times", where=name, hint=hint)
        self._options, self._rate_hz, self._name = options, rate_hz, name
        self._live, self._size = live, None if live else _length(values)
        if options.sound is not None and hasattr(values, "shape"):
            self._values: Iterator[Any] = _pieces(as_array(values), rate_hz)
        else:
            self._values = iter(values)
            self._size = None if options.sound is not None else self._size
        self._converter: ItemConverter | None = None
        self._stopped = False

    def open(self) -> SourceInfo:
        """Take the first value. Raises UsageError if there is none or its shape is wrong."""
        first = next(self._values, None)
        if first is None:
            raise UsageError("there are no values", where=self._name)
        value = as_array(first)
        self._values = itertools.chain([value], self._values)
        self._converter = make_converter(
            value,
            self._options,
            rate_hz=self._rate_hz,
            name=self._name,
            live=self._live,
            size=self._size,
        )
        return self._converter.info

    def items(self) -> Iterator[Item]:
        """Yield the items of the requested range."""
        if self._converter is None:
            return
        sound = self._options.sound is not None  # its converter cuts at the start and the end
        end_s = float("inf") if self._options.end_s is None else self._options.end_s
        for value in self._values:
            if self._stopped:
                return
            for item in self._converter.items(as_array(value), None):
                at_s = getattr(item, "time_s", 0.0)
                if not sound and at_s >= end_s:
                    return
                if sound or at_s >= self._options.start_s:
                    yield item
        yield from self._converter.finish()

    def stop(self) -> None:
        """End ``items`` after the next value."""
        self._stopped = True

    def close(self) -> None:
        """Do nothing: the values belong to the caller."""


def _pieces(samples: Values, rate_hz: float | None) -> Iterator[Values]:
    step = max(1, int(_PIECE_S * (rate_hz or 1)))
    return (samples[k : k + step] for k in range(0, len(samples), step))


def _length(values: Iterable[Any]) -> int | None:
    return len(values) if isinstance(values, Sized) else None
