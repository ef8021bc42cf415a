"""Looks at a network while it learns: how far it is, when to stop, which weights were best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from costream.training.partial import Remembered

LOSS = "validation_loss"  # what a look goes by; smaller is better


class Watch:
    """Takes a look every so many steps, and at the last one.

    ``look`` gives figures of the validation examples, among them ``LOSS``; nothing where there are
    none. ``weights`` gives what is to be kept when they were the best so far.
    """

    def __init__(
        self,
        look: Callable[[], dict[str, float]],
        weights: Callable[[], Mapping[str, Tensor]],
        steps: int,
        every: int,
        patience: int,
    ) -> None:
        self._look, self._weights = look, weights
        self._steps, self._every, self._patience = steps, every, patience
        self._total, self._count = 0.0, 0  # of the losses since the last look
        self._since = 0  # looks without gain
        # Of each look: step, mean loss since the last one, figures.
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}  # empty while there was nothing to go by

    def begin(self) -> None:
        """Take a look before the first step: the weights that there are may stay the best."""
        figures = self._look()
        if LOSS in figures:
            self.history.append({"step": 0.0, **figures})
            self.best = {k: v.detach().clone() for k, v in self._weights().items()}

    def enough(self, steps: int, loss: float) -> bool:
        """Take the loss of a step, the how manieth it was; say whether to stop after it."""
        self._total, self._count = self._total + loss, self._count + 1
        if steps % self._every and steps < self._steps:
            return False
        figures = self._look()
        least = min((row[LOSS] for row in self.history if LOSS in row), default=float("inf"))
        row = {"step": float(steps), "loss": self._total / self._count, **figures}
        self.history.append(row)
        self._total, self._count = 0.0, 0
        if LOSS not in figures:
            return False
        self._since += 1
        if figures[LOSS] < least:
            self._since = 0
            self.best = {k: v.detach().clone() for k, v in self._weights().items()}
        return self._since == self._patience

    def remembered(self) -> Remembered:
        """Give what was seen so far, to go on another time."""
        return self.best, [self._total, self._count, self._since, self.history]

    def recall(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Have seen what ``remembered`` gave."""
        self._total, self._count, self._since, self.history = value
        self.best = dict(tensors)
