"""Verdict of a training in words: the network against its baselines on the validation examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.formatting import counted
from costream.training.baselines import CENTROID, PROTOTYPES

MAJORITY = "majority"
FEWEST = 8  # validation examples; with fewer no result is significant
SURE = 0.1  # largest probability of a better result by chance (one-sided sign test)
GOOD = 0.9  # share of right answers that needs no better baseline
TIED = 0.005  # difference of two figures that are called equal
COUNTED = 100  # below so many examples, shares are written as counts
_NAMES = {
    CENTROID: "the nearest class mean",
    PROTOTYPES: "the nearest class mean",
    MAJORITY: "guessing the most frequent class",
}


@dataclass(frozen=True)
class Held:
    """The validation examples in words, and what to do for a better result."""

    count: int
    noun: str  # "clip"
    groups: str  # " of 3 persons", or empty
    remedy: str  # "record more clips"

    def __str__(self) -> str:
        return counted(self.count, self.noun) + self.groups


def share_text(right: int, total: int) -> str:
    """Return a share, as a count if ``total`` is small: "4 of 4", "97.5 %"."""
    return f"{right} of {total}" if total < COUNTED else f"{100 * right / total:.1f} %"


def group_text(groups: Sequence[str], column: str | None) -> str:
    """Return the groups of examples in words; ``column``: where their names are from."""
    number = len(set(groups))
    if column:
        return f" of {counted(number, column.removesuffix('s'))}"
    return f" from {counted(number, 'file')}" if number < len(groups) else ""


def classification_verdict(
    right: npt.NDArray[np.bool_], baselines: Mapping[str, npt.NDArray[np.bool_]], held: Held
) -> str:
    """Return the verdict on a classifier; ``right``: which examples [N] it got right.

    It is compared with guessing, then with the best other baseline. A sign test on the examples
    that only one of the two got right estimates whether the difference may be chance.
    """
    too_few = _too_few(held, f", {share_text(int(right.sum()), len(right))} right")
    if too_few:
        return too_few
    others = {name: rows for name, rows in baselines.items() if name != MAJORITY}
    best = max(others, key=lambda name: int(others[name].sum()), default=MAJORITY)
    for name in dict.fromkeys((MAJORITY, best)):
        other, hits = baselines[name], (int(right.sum()), int(baselines[name].sum()))
        compared = f"{_NAMES.get(name, f'the baseline {name!r}')} ({_against(*hits, held)})"
        if hits[0] == hits[1] >= GOOD * held.count and name != MAJORITY:
            return f"as good as {compared}: the classes are easy to distinguish"
        if hits[0] <= hits[1]:
            return f"no better than {compared}: {held.remedy}"
        if chance_of(right, other) > SURE:
            return f"perhaps better than {compared}, but that may be chance: {held.remedy}"
    return f"better than {compared}"


def chance_of(right: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a classifier is ahead of another by chance: the sign test."""
    ahead, differing = int((right & ~other).sum()), int((right != other).sum())
    return float(sum(comb(differing, k) for k in range(ahead, differing + 1)) / 2**differing)


def score_verdict(
    measure: str,
    own: Mapping[str, Any],
    baselines: Mapping[str, Mapping[str, Any]],
    held: Held,
) -> str:
    """Return the verdict by a figure, AP50 or mAP, whose interval is ``MEASURE_95`` if known."""
    score = own.get(measure)
    too_few = _too_few(held, "")
    if too_few or score is None:
        return too_few or f"not validated: nothing is labelled in the validation {held.noun}s"
    scores = {name: s[measure] for name, s in baselines.items() if s[measure] is not None}
    if not scores:
        return f"{measure} {score:.2f} on {held}; there is no baseline to compare with"
    best = max(scores, key=lambda name: scores[name])
    name = _NAMES.get(best, best.replace(", before", " before this training"))
    compared = f"{name} ({measure} {score:.2f} against {scores[best]:.2f}, {held})"
    if abs(score - scores[best]) < TIED and score >= GOOD:
        return f"as good as {compared}: the classes are easy to distinguish"
    if score <= scores[best]:
        return f"no better than {compared}: {held.remedy}"
    if (own.get(f"{measure}_95") or [0.0])[0] <= scores[best]:
        return f"perhaps better than {compared}, but that may be chance: {held.remedy}"
    return f"better than {compared}"


def _too_few(held: Held, right: str) -> str:
    """Return the verdict for too few examples; empty if there are enough."""
    remedy = f"add {held.noun}s, or hold out more with --validation"
    if not held.count:
        return f"not validated, no {held.noun}s were held out: {remedy}"
    if held.count < FEWEST:
        return f"too few {held.noun}s for a significant result ({held.count}{right}): {remedy}"
    return ""


def _against(first: int, second: int, held: Held) -> str:
    if held.count < COUNTED:
        return f"{first} against {second} of {held}"
    return f"{first / held.count:.2f} against {second / held.count:.2f}, {held}"
