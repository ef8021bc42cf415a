"""Online exponential smoothing of scores."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]


class Smoother:
    """The exponential average of scores with a time constant of ``smooth_s`` seconds.

    After scores p_k [C] at times t_k it is s_k [C], with s_0 = p_0 and

        s_k = s_(k-1) + (1 - exp(-(t_k - t_(k-1)) / smooth_s)) (p_k - s_(k-1)),

    simple exponential smoothing (Brown, 1956) for steps of any length. Probabilities stay
    probabilities. With 0 s the scores pass through unchanged, bit for bit.

    ``time_s`` and ``scores``: those of the newest step, None before the first.
    """

    def __init__(self, smooth_s: float) -> None:
        self.smooth_s = smooth_s
        self.time_s: float | None = None
        self.scores: Scores | None = None

    def push(self, time_s: float, scores: Scores) -> Scores:
        """Take the finite scores [C] of a step and return the updated average."""
        if self.scores is not None and self.time_s is not None and self.smooth_s > 0:
            share = -math.expm1(-max(0.0, time_s - self.time_s) / self.smooth_s)
            scores = self.scores + share * (scores - self.scores)
        self.time_s, self.scores = time_s, scores
        return scores

    def reset(self) -> None:
        """Forget everything, as at a gap."""
        self.time_s = self.scores = None
