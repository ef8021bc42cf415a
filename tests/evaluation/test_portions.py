"""Average precision of tenths of actions, against the published rule, frame by frame."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from costream.core.records import Segment
from costream.evaluation.metrics.portions import PARTS, portion_scores
from costream.evaluation.predictions import ModelPredictions
from costream.evaluation.truth import EvaluatedRecording

NAMES = ("background", "dig", "jump")


def recording(rng: np.random.Generator, frames: int) -> EvaluatedRecording:
    """Two actions, some of a single frame, and frames that are not scored."""
    labels = np.repeat(rng.integers(0, 3, frames), rng.integers(1, 25, frames))[:frames]
    labels[rng.random(frames) < 0.05] = -1
    positive = labels[:, None] == np.arange(3)
    scores = rng.dirichlet(np.ones(3), frames) + 0.3 * positive
    times = np.arange(frames) / 4
    found = ModelPredictions(times, scores, np.arange(frames), (), 0.25, 0.0, frames)
    segments: tuple[Segment, ...] = ()
    return EvaluatedRecording("a", "a", found, labels, positive, segments, ())


def tenth_of(true: np.ndarray, part: int) -> np.ndarray:
    """Return which scored frames are in that tenth of their action."""
    inside, at = np.zeros(len(true), bool), 0
    while at < len(true):
        end = at
        while end < len(true) and true[end]:
            end += 1
        if end > at:
            begin = at + (end - at - 1) * part // PARTS
            inside[begin : max(begin + 1, at + (end - at - 1) * (part + 1) // PARTS)] = True
        at = max(end, at + 1)
    return inside


def calibrated(true: np.ndarray, score: np.ndarray) -> float:
    order = np.argsort(-score)
    true = true[order]
    weight = (~true).sum() / true.sum()
    hits, misses = np.cumsum(true), np.cumsum(~true)
    return float((weight * hits / (weight * hits + misses))[true].mean())


@pytest.mark.parametrize("seed", range(4))
def test_portions_are_those_of_the_published_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    recordings = [recording(rng, int(rng.integers(60, 200))) for _ in range(3)]
    told = portion_scores(recordings, NAMES, "background")
    assert len(told) == PARTS
    for part, figures in enumerate(told):
        plain, balanced = [], []
        for k in (1, 2):
            true, score, kept = [], [], []
            for one in recordings:
                scored = one.labels >= 0
                inside = tenth_of(one.positive[scored, k], part)
                true.append(inside)
                kept.append(inside | ~one.positive[scored, k])
                score.append(one.predictions.probabilities[scored, k])
            chosen = np.concatenate(kept)
            right, rows = np.concatenate(true)[chosen], np.concatenate(score)[chosen]
            plain.append(average_precision_score(right, rows))
            balanced.append(calibrated(right, rows))
        assert figures["mAP"] == pytest.approx(np.mean(plain))
        assert figures["calibrated_mAP"] == pytest.approx(np.mean(balanced))


def test_without_an_action_there_are_no_figures() -> None:
    one = recording(np.random.default_rng(0), 40)
    one.labels[:] = 0
    one.positive[:] = [True, False, False]
    assert (
        portion_scores([one], NAMES, "background")
        == [{"mAP": None, "calibrated_mAP": None}] * PARTS
    )
