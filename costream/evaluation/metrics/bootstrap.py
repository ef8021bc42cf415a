"""Bootstrap confidence intervals of metrics.

Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3. Recordings (or
groups of them) are resampled, not frames: the frames of one recording are correlated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

FEWEST_GROUPS = 6  # least number of groups for an interval
Multiplicities = npt.NDArray[np.int64]  # how often each group was drawn
Interval = tuple[float, float]


def intervals(
    metrics: Callable[[Multiplicities], Sequence[float]],
    groups: int,
    seed: int = 0,
    draws: int = 500,
) -> list[Interval | None]:
    """Return the 95 % bootstrap interval over groups of each metric.

    ``metrics`` takes the multiplicity of each group. Draws for which a metric is NaN do not
    count. None if there are too few groups, or no draw has a value.
    """
    if groups < FEWEST_GROUPS:
        return [None] * len(metrics(np.ones(groups, np.int64)))
    drawn = _draws(groups, seed, draws)
    values = np.array([metrics(np.bincount(each, minlength=groups)) for each in drawn])
    return [_middle(column[~np.isnan(column)]) for column in values.T]


def bootstrap(
    metric: Callable[[Sequence[int]], float], groups: int, seed: int = 0, draws: int = 500
) -> Interval:
    """Return the 95 % bootstrap interval of a metric over any number of groups.

    ``metric`` takes the indices of the groups drawn. Draws for which it is NaN do not count; NaN
    if no draw has a value.
    """
    values = np.array([metric(each.tolist()) for each in _draws(groups, seed, draws)])
    return _middle(values[~np.isnan(values)]) or (float("nan"), float("nan"))


def _draws(groups: int, seed: int, draws: int) -> list[npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(groups, size=groups) for _ in range(draws)]


def _middle(values: npt.NDArray[np.float64]) -> Interval | None:
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
