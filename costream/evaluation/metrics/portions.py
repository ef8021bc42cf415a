"""Average precision of the parts of actions: how early they are recognised. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from costream.evaluation.metrics import Integers, Mask
from costream.evaluation.metrics.frames import Ranking
from costream.evaluation.truth import EvaluatedRecording

PARTS = 10  # tenths of an action


def portion_scores(
    recordings: Sequence[EvaluatedRecording], names: Sequence[str], background: str | None
) -> list[dict[str, float | None]]:
    """Return plain and calibrated mAP of each tenth of the actions; None without an action.

    The positives are the frames in that tenth of an action, the negatives all frames without the
    class; other frames of the class are left out (De Geest et al., "Online Action Detection", ECCV
    2016). An action of n frames is cut as in the released code of LSTR (Xu et al., NeurIPS 2021):
    tenth p begins at frame (n - 1) p // 10 and has one frame at least.
    """
    found = [(r.predictions.probabilities, r.positive, r.labels >= 0) for r in recordings]
    values: list[list[tuple[float, float]]] = [[] for _ in range(PARTS)]
    for k, name in enumerate(names):
        if name == background:
            continue
        scores = [probabilities[scored, k] for probabilities, _, scored in found]
        positive = [true[scored, k] for _, true, scored in found]
        if not any(rows.any() for rows in positive):
            continue
        every, negative = np.concatenate(scores), ~np.concatenate(positive)
        for p, tenth in enumerate(_tenths(positive)):
            ranked = negative | tenth
            values[p].append(Ranking(every[ranked], tenth[ranked]).precisions(None))
    return [_mean(part) for part in values]


def _tenths(positive: Sequence[Mask]) -> Iterator[Mask]:
    """Yield for each tenth which frames, of all recordings, are in it."""
    firsts, lengths, before = list[Integers](), list[Integers](), 0
    for rows in positive:
        edges = np.flatnonzero(np.diff(np.concatenate(([False], rows, [False]))))
        firsts.append(edges[::2] + before)
        lengths.append(edges[1::2] - edges[::2])
        before += len(rows)
    first, last = np.concatenate(firsts), np.concatenate(lengths) - 1
    for p in range(PARTS):
        begin = first + last * p // PARTS
        end = np.maximum(begin + 1, first + last * (p + 1) // PARTS)
        changes = np.zeros(before + 1, np.int64)
        np.add.at(changes, begin, 1)
        np.add.at(changes, end, -1)
        inside: npt.NDArray[np.bool_] = np.cumsum(changes)[:-1] > 0
        yield inside


def _mean(values: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    plain, calibrated = np.mean(values, 0).tolist() if values else (None, None)
    return {"mAP": plain, "calibrated_mAP": calibrated}
