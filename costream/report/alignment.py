"""Alignment of two runs in time, independent of their rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Stretch(Generic[T]):
    """A value that holds from start to end."""

    start_s: float
    end_s: float
    value: T


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The values of two runs from start to end; None if a run has no value."""

    start_s: float
    end_s: float
    a: Stretch[T] | None
    b: Stretch[T] | None


def held(
    points: Iterable[tuple[float, T]], step_s: Callable[[], float], most_s: float
) -> Iterator[Stretch[T]]:
    """Yield each value for the time until the next one, the last for ``step_s()`` seconds.

    A value holds for at most ``most_s`` seconds.
    """
    before: tuple[float, T] | None = None
    for time_s, value in points:
        if before is not None:
            yield Stretch(before[0], min(time_s, before[0] + most_s), before[1])
        before = (time_s, value)
    if before is not None:
        yield Stretch(before[0], before[0] + step_s(), before[1])


def align_runs(a: Iterable[Stretch[T]], b: Iterable[Stretch[T]]) -> Iterator[Pair[T]]:
    """Yield the intervals in which neither side changes and at least one has a value.

    Both sides are in order of time; of overlapping stretches, the earlier one counts.
    """
    left, right = _Side(a), _Side(b)
    now = min(left.start_s, right.start_s)
    while left.now is not None or right.now is not None:
        in_a = left.now if left.start_s <= now else None
        in_b = right.now if right.start_s <= now else None
        end = min(
            left.end_s if in_a is not None else left.start_s,
            right.end_s if in_b is not None else right.start_s,
        )
        if end > now and (in_a is not None or in_b is not None):
            yield Pair(now, end, in_a, in_b)
        now = max(now, end)
        left.skip_to(now)
        right.skip_to(now)


class _Side(Generic[T]):
    """The current stretch of one side."""

    def __init__(self, stretches: Iterable[Stretch[T]]) -> None:
        self._rest = iter(stretches)
        self.now: Stretch[T] | None = next(self._rest, None)

    @property
    def start_s(self) -> float:
        return self.now.start_s if self.now is not None else float("inf")

    @property
    def end_s(self) -> float:
        return self.now.end_s if self.now is not None else float("inf")

    def skip_to(self, time_s: float) -> None:
        """Skip the stretches that have ended."""
        while self.now is not None and self.now.end_s <= time_s:
            self.now = next(self._rest, None)
