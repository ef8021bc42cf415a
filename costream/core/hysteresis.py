"""The rules by which a label opens, changes, closes and counts: averages and hysteresis.

Segments (``runtime.segments``) and the live view follow them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from costream.core.audioset import is_kind, kinds_among
from costream.core.errors import UsageError
from costream.core.formatting import suggest_names
from costream.core.records import Thresholds
from costream.core.spelling import folded

PRESENT = 0.8  # presence that is always enough: the average of a stream never is 1


def finite(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return scores as float64, with 0 for NaN and infinity."""
    values = np.asarray(scores, np.float64)
    return np.where(np.isfinite(values), values, 0.0)


class Hysteresis:
    """The label of a stream: one at a time; the background is not one of them.

    A label opens when it is the best of those at or above their threshold. It closes when it falls
    below its lower threshold, or when a better label is at or above its own threshold.

    ``only``: the labels that may open and replace another one; None: all.
    """

    def __init__(
        self,
        labels: Sequence[str],
        thresholds: Thresholds,
        background: str | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self._thresholds = np.array([thresholds.threshold_of(label) for label in labels])
        self._lows = np.array([thresholds.low_of(label) for label in labels])
        closed = [label == background or not is_among(label, only) for label in labels]
        self._thresholds[closed] = np.inf

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


class Smoother:
    """The exponential average of scores with a time constant of ``smooth_s`` seconds.

    After scores p_k [C] at times t_k it is s_k [C], with s_0 = p_0 and

        s_k = s_(k-1) + (1 - exp(-(t_k - t_(k-1)) / smooth_s)) (p_k - s_(k-1)),

    simple exponential smoothing (Brown, 1956) for steps of any length. Probabilities stay
    probabilities. With 0 s the scores pass through unchanged, bit for bit.

    ``time_s`` and ``scores`` belong to the newest step; None before the first.
    """

    def __init__(self, smooth_s: float) -> None:
        self.smooth_s = smooth_s
        self.time_s: float | None = None
        self.scores: npt.NDArray[np.float64] | None = None

    def push(self, time_s: float, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Take the finite scores [C] of a step and return the updated average."""
        if self.scores is not None and self.time_s is not None and self.smooth_s > 0:
            share = -math.expm1(-max(0.0, time_s - self.time_s) / self.smooth_s)
            scores = self.scores + share * (scores - self.scores)
        self.time_s, self.scores = time_s, scores
        return scores

    def reset(self) -> None:
        """Forget everything, as at a gap."""
        self.time_s = self.scores = None


class LastingPresence:
    """Whether anything but the background has been there for a while.

    It has while the average of 1 less the probability of the background, by a ``Smoother`` of
    ``presence_s``, is at least the threshold, or ``PRESENT`` where that is less; always without
    ``presence_s`` or a background.

    ``now``: whether it would have if the newest step went on for ever.
    """

    def __init__(
        self, thresholds: Thresholds, labels: Sequence[str], background: str | None
    ) -> None:
        used = background is not None and thresholds.presence_s > 0
        self._column = labels.index(background) if used else None
        self._average = Smoother(thresholds.presence_s)
        self._least = min(thresholds.threshold, PRESENT)
        self.now = not used

    def push(self, time_s: float, scores: npt.NDArray[np.float64]) -> bool:
        """Take the scores [C] of a step and return whether the average is large enough."""
        if self._column is None:
            return True
        there = 1 - scores[self._column : self._column + 1]
        self.now = bool(there[0] >= self._least)
        return bool(self._average.push(time_s, there)[0] >= self._least)

    def reset(self) -> None:
        """Forget everything, as at a gap."""
        self._average.reset()

    def snapshot(self) -> list[float] | None:
        """Return the time and the average of the newest step, if any."""
        average = self._average
        if average.scores is None or average.time_s is None:
            return None
        return [average.time_s, float(average.scores[0])]

    def restore(self, snapshot: Sequence[float] | None) -> None:
        """Go on from a snapshot."""
        if snapshot is not None:
            self._average.time_s, self._average.scores = snapshot[0], np.array(snapshot[1:])


def is_among(label: str, only: Collection[str] | None) -> bool:
    """Return whether a label may open a segment; ``only``: the labels that may, None: all."""
    return only is None or label in only


def match_labels(names: Iterable[str], labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that match any of the names, in the order of ``labels``.

    Each name is a label, a glob pattern, complete words of labels, or several of these separated by
    commas; case does not matter. Words are searched only if no label has that name. Among labels of
    AudioSet, the name of a kind also selects the labels below it. Raises UsageError for a name
    that matches no label.
    """
    folded_labels = {folded(label) for label in labels}
    kinds = kinds_among(folded_labels)
    patterns: list[str] = []
    for name in names:
        text = folded(name.strip())
        patterns += [name] if text in folded_labels or text in kinds else name.split(",")
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UsageError("names no label", where="--only", hint=suggest_names("", labels))
    found: set[str] = set()
    for pattern in patterns:
        named = kinds.get(folded(pattern)) or _named(folded(pattern), folded_labels)
        if not named:
            hint = suggest_names(pattern, labels)
            if not kinds and is_kind(folded(pattern)):
                hint = "it is a kind of sounds, which needs a model with the labels of AudioSet"
            raise UsageError(f"there is no label {pattern!r}", where="--only", hint=hint)
        found |= named
    return tuple(label for label in labels if folded(label) in found)


def _named(pattern: str, labels: Collection[str]) -> set[str]:
    """Return the labels, of those in small letters, that a pattern or its words name."""
    exact = {label for label in labels if fnmatchcase(label, pattern)}
    words = re.escape(pattern)
    return exact or {label for label in labels if re.search(rf"(?<!\w){words}(?!\w)", label)}
