"""Label hysteresis: the rule by which a label opens, changes and closes.

Segments (``runtime.segments``) and the live view follow it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from costream.formatting import suggest_names
from costream.kinds import kinds_among
from costream.records import Thresholds


class Hysteresis:
    """The label of a stream: one at a time, the background is none.

    A label opens when it is the best of those at or above their threshold. It closes when it falls
    below its lower threshold, or when a better label is at or above its own threshold.

    ``only``: the labels that may open, and so take the place of another; None: all.
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


def is_among(label: str, only: Collection[str] | None) -> bool:
    """Return whether a label may open a segment; ``only``: the labels that may, None: all."""
    return only is None or label in only


def match_labels(names: Iterable[str], labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that match any of the names, in the order of ``labels``.

    Each name is a label, a glob pattern, whole words of labels, or several of them separated by
    commas; case does not matter. Words count only where no label has that name. Among labels of
    AudioSet, the name of a kind also names what is of it. Raises UsageError for a name that
    matches no label.
    """
    known = {label.casefold() for label in labels}
    kinds = kinds_among(known)
    patterns: list[str] = []
    for name in names:
        whole = name.strip().casefold()
        patterns += [name] if whole in known or whole in kinds else name.split(",")
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UsageError("names no label", where="--only", hint=suggest_names("", labels))
    found: set[str] = set()
    for pattern in patterns:
        named = kinds.get(pattern.casefold()) or _named(pattern.casefold(), known)
        if not named:
            hint = suggest_names(pattern, labels)
            raise UsageError(f"there is no label {pattern!r}", where="--only", hint=hint)
        found |= named
    return tuple(label for label in labels if label.casefold() in found)


def _named(pattern: str, known: Collection[str]) -> set[str]:
    """Return the labels, of those in small letters, that a pattern or its words name."""
    exact = {label for label in known if fnmatchcase(label, pattern)}
    words = re.escape(pattern)
    return exact or {label for label in known if re.search(rf"(?<!\w){words}(?!\w)", label)}
