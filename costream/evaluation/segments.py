"""Scoring of timelines: which true segments were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costream.records import Segment


@dataclass(frozen=True)
class Counts:
    """How many segments were found, made up, and missed; counts of several videos add up."""

    found: int = 0
    false: int = 0
    missed: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Give the sum over two videos."""
        return Counts(
            self.found + other.found, self.false + other.false, self.missed + other.missed
        )

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1 when there was nothing to find or make up."""
        total = 2 * self.found + self.false + self.missed
        return 2 * self.found / total if total else 1.0


def overlap(one: Segment, other: Segment) -> float:
    """Give intersection over union of two stretches of time, 0..1."""
    shared = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    union = max(one.end_s, other.end_s) - min(one.start_s, other.start_s)
    return max(0.0, shared) / union if union > 0 else 0.0


def match(
    predicted: Sequence[Segment], truth: Sequence[Segment], least: float
) -> list[Segment | None]:
    """Give, for every true segment, the predicted one of its label that overlaps it most.

    None where none does by ``least`` (intersection over union). Best pairs first; each is used
    once.
    """
    pairs = sorted(
        (
            (-overlap(p, t), i, j)
            for i, t in enumerate(truth)
            for j, p in enumerate(predicted)
            if p.label == t.label and overlap(p, t) >= least and overlap(p, t) > 0
        ),
    )
    out: list[Segment | None] = [None] * len(truth)
    used: set[int] = set()
    for _, i, j in pairs:
        if out[i] is None and j not in used:
            out[i] = predicted[j]
            used.add(j)
    return out


def count(predicted: Sequence[Segment], truth: Sequence[Segment], least: float) -> Counts:
    """Give how well a timeline matches the true one; see ``match``."""
    found = sum(m is not None for m in match(predicted, truth, least))
    return Counts(found, len(predicted) - found, len(truth) - found)
