"""Logits of the heads of a model -> probabilities, and how familiar the input is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.models.base import ModelHead
from costream.weights_io.card import Card, Familiarity

Rows: TypeAlias = npt.NDArray[np.float32]


class HeadScores:
    """Scores of the classifiers of a model, whose logits are concatenated."""

    def __init__(self, heads: Sequence[ModelHead]) -> None:
        self._heads = heads
        self._scales = [torch.tensor(head.card.temperature, device="cpu") for head in heads]
        self._familiar = [familiarity_of(head.card) for head in heads]

    def probabilities(self, logits: Tensor) -> Rows:
        """Return the softmax over the logits [..., K] of each head, at its temperature.

        Where labels are independent, it is the sigmoid of each logit.
        """
        parts, several = [], len(self._heads) > 1
        for head, scale in zip(self._heads, self._scales, strict=True):
            scaled = (logits[..., head.columns] if several else logits).float() / scale
            parts.append(scaled.sigmoid() if head.card.multilabel else scaled.softmax(-1))
        joined = torch.cat(parts, -1) if several else parts[0]
        return cast(Rows, joined.cpu().numpy())

    def familiarity(self, logits: Tensor) -> Rows | None:
        """Return how familiar the input is to each head, 0 to 1 [..., heads].

        NaN for heads whose card has no familiarity; None if no card has one.
        """
        if not any(self._familiar):
            return None
        rows = logits.float().cpu().numpy()
        if len(self._familiar) == 1 and self._familiar[0] is not None:
            return self._familiar[0](rows)[..., None]
        out = np.full((*rows.shape[:-1], len(self._familiar)), np.nan, np.float32)
        for k, (head, familiar) in enumerate(zip(self._heads, self._familiar, strict=True)):
            if familiar is not None:
                out[..., k] = familiar(rows[..., head.columns])
        return out


def rows_with_nan(probabilities: Rows) -> list[int]:
    """Return the numbers of the rows [C] with NaN: some value exceeded the type of the numbers.

    Such a value stays in the state for a window, in recurrent networks for ever, so the state of
    these streams has to be reset.
    """
    return [k for k, row in enumerate(np.isnan(probabilities)) if row.any()]


def familiarity_of(card: Card) -> Callable[[Rows], Rows] | None:
    """Return the function from logits [..., K] to how familiar the input is, 0 to 1 [...].

    None if the card has no familiarity, see ``weights_io.card.Familiarity``. The function can be
    pickled.
    """
    settings = card.familiarity
    if settings is None:
        return None
    counted = np.isin(card.labels, [label for label in card.events if label != settings.rest])
    return partial(_familiarity, np.flatnonzero(counted), settings)


def _familiarity(counted: npt.NDArray[np.intp], settings: Familiarity, logits: Rows) -> Rows:
    with np.errstate(invalid="ignore"):  # NaN among the logits
        energy = np.logaddexp.reduce(logits.take(counted, -1), -1, np.float64)
    half_odds = (energy - settings.centre) * (0.5 / settings.scale)
    return cast(Rows, (0.5 + 0.5 * np.tanh(half_odds)).astype(np.float32))
