"""Early stopping by the loss on validation examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from costream.training.checkpoint import SavedState

LOSS = "validation_loss"  # key of the criterion; smaller is better


class EarlyStopping:
    """Early stopping: validates every ``every`` steps and after the last one.

    ``validate`` returns the validation figures, among them ``LOSS``, or none without validation
    examples. ``weights`` returns the weights to keep if they are the best so far.
    """

    def __init__(
        self,
        validate: Callable[[], dict[str, float]],
        weights: Callable[[], Mapping[str, Tensor]],
        steps: int,
        every: int,
        patience: int,
    ) -> None:
        self._validate, self._weights = validate, weights
        self._steps, self._every, self._patience = steps, every, patience
        self._total, self._count = 0.0, 0  # of the losses since the last validation
        self._since = 0  # validations without improvement
        # Of each validation: step, mean loss since the last one, figures.
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}  # empty until a validation gave LOSS

    def begin(self) -> None:
        """Validate before the first step: the initial weights may remain the best."""
        figures = self._validate()
        if LOSS in figures:
            self.history.append({"step": 0.0, **figures})
            self.best = {k: v.detach().clone() for k, v in self._weights().items()}

    def update(self, steps: int, loss: float) -> bool:
        """Record the loss of step number ``steps``; return whether to stop after it."""
        self._total, self._count = self._total + loss, self._count + 1
        if steps % self._every and steps < self._steps:
            return False
        figures = self._validate()
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

    def state(self) -> SavedState:
        """Return the state for a checkpoint."""
        return self.best, [self._total, self._count, self._since, self.history]

    def restore(self, tensors: dict[str, Tensor], value: Any) -> None:
        """Restore a state that ``state`` returned."""
        self._total, self._count, self._since, self.history = value
        self.best = dict(tensors)


def is_best_untrained(history: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the weights before the first step had the least validation loss."""
    checked = [row for row in history if LOSS in row]
    return bool(checked) and min(checked, key=lambda row: row[LOSS])["step"] == 0


def kept_reason(history: Sequence[Mapping[str, float]], origin: str) -> str:
    """Return that what ``origin`` knew was kept, if its weights were the best ones; '' if not."""
    if not is_best_untrained(history):
        return ""
    return f"training made what {origin} knew of these labels no better, so it was kept"
