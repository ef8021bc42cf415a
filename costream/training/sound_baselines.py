"""Linear baseline for custom sounds, without a temporal model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F

from costream.training.audio.examples import EncodedAudio
from costream.training.logistic import logistic_regression

PENALTY = 1e-2  # L2 penalty


def linear(
    heard: Sequence[EncodedAudio], checks: Sequence[EncodedAudio], labels: Sequence[str]
) -> list[npt.NDArray[Any]]:
    """Return the probabilities [1, K] of a linear classifier for each check's mean token.

    It is fitted to the mean tokens of the examples ``heard`` and of their variants.
    """
    rows = torch.stack([tokens.mean(0) for h in heard for tokens in h.tokens])
    target = torch.tensor([labels.index(h.label) for h in heard for _ in h.tokens])
    centre, spread = rows.mean(0), rows.std(0) + 1e-6
    weight, bias = logistic_regression(
        (rows - centre) / spread, len(labels), lambda y: F.cross_entropy(y, target), PENALTY
    )
    means = torch.stack([h.tokens[0].mean(0) for h in checks])
    told = F.linear((means - centre) / spread, weight, bias).softmax(-1)
    return [row[None].numpy() for row in told]
