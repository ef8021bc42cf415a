"""What own classes can be told by without learning: the nearest mean of the same features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CENTROID = "nearest centroid of mean tokens"
SHARPNESS = 10.0  # from cosines to probabilities; which is the greatest does not depend on it


def nearest_centroid(
    rows: npt.NDArray[np.floating[Any]],
    labels: Sequence[int],
    checks: npt.NDArray[np.floating[Any]],
    classes: int,
) -> list[npt.NDArray[Any]]:
    """Give probabilities [1, K] for each row of ``checks`` [M, D], a softmax of cosines.

    ``rows`` [N, D] with their ``labels`` are the examples: features, mean over time. Of each class
    the mean is taken. A class without examples gets nothing.
    """
    known = sorted(set(labels))
    where = np.asarray(labels)
    centres = np.stack([rows[where == label].mean(0) for label in known])
    cosines = _unit(checks) @ _unit(centres).T
    weights = np.exp(SHARPNESS * (cosines - cosines.max(1, keepdims=True)))
    told = np.zeros((len(checks), classes))
    told[:, known] = weights / weights.sum(1, keepdims=True)
    return [row[None] for row in told]


def _unit(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    out: npt.NDArray[np.floating[Any]] = rows / np.maximum(lengths, 1e-9)
    return out
