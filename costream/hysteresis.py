"""Label hysteresis: the rule by which a label opens, changes and closes.

Segments (``runtime.segments``) and the live view follow it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.records import Thresholds


class Hysteresis:
    """The label of a stream: one at a time, the background is none.

    A label opens when it is the best of those at or above their threshold. It closes when it falls
    below its lower threshold, or when a better label is at or above its own threshold.
    """

    def __init__(
        self,
        labels: Sequence[str],
        thresholds: Thresholds,
        background: str | None = None,
    ) -> None:
        self._thresholds = np.array([thresholds.threshold_of(label) for label in labels])
        self._lows = np.array([thresholds.low_of(label) for label in labels])
        if background is not None:
            self._thresholds[labels.index(background)] = np.inf

    def step(self, scores: npt.NDArray[np.float64], current: int | None) -> int | None:
        """Return the index of the label after a step with these scores [C], or None.

        ``current``: the label before it.
        """
        sure = (scores >= self._thresholds).nonzero()[0]
        if len(sure):
            best = int(sure[scores[sure].argmax()])
            if current is None or scores[best] > scores[current]:
                return best
        return current if current is not None and scores[current] >= self._lows[current] else None
