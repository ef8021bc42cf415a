"""Timeline so far as a row of time slices, in constant memory for a run of any length."""

from __future__ import annotations

_SLICES = 256


class Strip:
    """Number of steps of each label, for each slice of time.

    ``length_s``: the whole length if it is known. Otherwise the slices double in length
    whenever the run exceeds them.
    """

    def __init__(self, start_s: float, length_s: float | None, step_s: float) -> None:
        self._start_s = start_s
        self._slice_s = max(step_s, (length_s or 0.0) / _SLICES)
        self._slices: list[dict[str | None, int]] = []

    def add(self, time_s: float, label: str | None) -> None:
        """Count a step; ``label`` None: no event."""
        k = max(0, int((time_s - self._start_s) / self._slice_s + 1e-9))
        while k >= _SLICES:
            pairs = range(0, len(self._slices), 2)
            self._slices = [_merged(self._slices[i : i + 2]) for i in pairs]
            self._slice_s *= 2
            k //= 2
        while len(self._slices) <= k:
            self._slices.append({})
        counts = self._slices[k]
        counts[label] = counts.get(label, 0) + 1

    def cells(self, width: int, length_s: float | None) -> list[tuple[str | None, bool]]:
        """Return ``width`` cells over ``length_s`` (None: over the time so far).

        A cell is the label with the most steps and whether there was any step.
        """
        total = self._total(length_s)
        return [self._cell(k * total / width, (k + 1) * total / width) for k in range(width)]

    def counts(self, width: int, length_s: float | None) -> list[dict[str | None, int]]:
        """Return the counts of each of ``width`` cells, divided as in ``cells``."""
        total = self._total(length_s)
        return [self._counts(k * total / width, (k + 1) * total / width) for k in range(width)]

    def _total(self, length_s: float | None) -> float:
        return len(self._slices) if length_s is None else max(1.0, length_s / self._slice_s)

    def _counts(self, begin: float, end: float) -> dict[str | None, int]:
        slices = self._slices[int(begin) : max(int(begin) + 1, int(end))]
        return slices[0] if len(slices) == 1 else _merged(slices)

    def _cell(self, begin: float, end: float) -> tuple[str | None, bool]:
        counts = self._counts(begin, end)
        if not counts:
            return None, False
        if len(counts) == 1:
            return next(iter(counts)), True
        return max(counts, key=lambda label: (counts[label], label is not None)), True


def _merged(slices: list[dict[str | None, int]]) -> dict[str | None, int]:
    out: dict[str | None, int] = {}
    for counts in slices:
        for label, count in counts.items():
            out[label] = out.get(label, 0) + count
    return out
