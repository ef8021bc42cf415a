"""Columns of the tables of predictions, of one run and of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PREDICTION_COLUMNS = ("i", "time_s", "frame", "pts", "warmup", "fresh", "label", "score")
Pairs = Iterable[Iterable[Any]]  # label, score


class PredictionColumns:
    """Columns of a prediction table, determined by its first prediction.

    ``labels``: of the header. ``heads``: labels of each head by its name; None for a single head,
    without a column ``model``. A label of two heads has one column. ``top``, ``future`` and
    ``scores``: of the first prediction. ``persons``: add a column for the number of the person.
    """

    def __init__(
        self,
        labels: Sequence[str],
        heads: Mapping[str, Sequence[str]] | None,
        top: Sequence[Any] = (),
        future: Sequence[Any] = (),
        scores: Sequence[float] = (),
        *,
        persons: bool = False,
    ) -> None:
        self._named = ["model"] * (heads is not None) + ["person"] * persons
        self._ranks, self._ahead = max(1, len(top)), len(future)
        self._scored: tuple[str, ...] = ()
        self._places: dict[str | None, list[int]] = {}
        if heads is not None and scores:
            self._scored = tuple(dict.fromkeys(labels))
            for head, head_labels in heads.items():
                self._places[head] = [self._scored.index(label) for label in head_labels]
        elif heads is None:
            self._scored = tuple(labels[: len(scores)])
            self._places[None] = list(range(len(self._scored)))

    def names(self) -> list[str]:
        """Return the names of the columns."""
        ranks, ahead = range(2, self._ranks + 1), range(1, self._ahead + 1)
        return [
            *self._named,
            *PREDICTION_COLUMNS,
            *(f"{name}_{k}" for k in ranks for name in ("label", "score")),
            *(f"ahead_{k}_{name}" for k in ahead for name in ("label", "score")),
            *(f"p({label})" for label in self._scored),
        ]

    def row(
        self,
        fixed: Sequence[Any],
        top: Pairs,
        future: Pairs,
        scores: Sequence[float],
        model: str | None,
        person: int | None,
    ) -> list[Any]:
        """Return the row of a prediction; ``fixed`` are its values up to ``fresh``."""
        probabilities: list[Any] = [None] * len(self._scored)
        for place, score in zip(self._places.get(model, ()), scores, strict=False):
            probabilities[place] = score
        best, later = _flat(top, self._ranks), _flat(future, self._ahead)
        named = [{"model": model, "person": person}[name] for name in self._named]
        return [*named, *fixed, *best, *later, *probabilities]


def _flat(pairs: Pairs, count: int) -> list[Any]:
    """Return label, score, label, score, ... of exactly ``count`` pairs; missing ones are None."""
    flat = [value for pair in pairs for value in pair]
    return (flat + [None] * (2 * count))[: 2 * count]
