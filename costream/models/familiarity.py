"""Familiarity: how much an input is like what a model has learnt, from its logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from costream.checkpoints.card import Card, Familiarity


def familiarity_of(
    card: Card,
) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None:
    """Return the function from logits [..., K] to how familiar the input is, 0 to 1 [...].

    None if the card does not say how to tell; see ``checkpoints.card.Familiarity``. It can be
    pickled.
    """
    known = card.familiarity
    if known is None:
        return None
    counted = np.isin(card.labels, [label for label in card.events if label != known.rest])
    return partial(_familiar, counted, known)


def _familiar(
    counted: npt.NDArray[np.bool_], known: Familiarity, logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    own = logits[..., counted].astype(np.float64)
    most = own.max(-1)
    energy = most + np.log(np.exp(own - most[..., None]).sum(-1))
    odds = np.clip((energy - known.centre) / known.scale, -30.0, 30.0)
    out: npt.NDArray[np.float32] = (1 / (1 + np.exp(-odds))).astype(np.float32)
    return out
