"""Thresholds of the model of sounds, from what its labels are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from costream.weights_io.card import Card, Timeline
from weights.recipes.audio.data import SoundClip
from weights.recipes.audio.pieces import cut
from weights.recipes.audio.thresholds import Heard, alarms, choose, count, labelled

LABELS = ("baby cry", "cat", "other", "speech")
CARD = Card(
    name="small",
    task="sound classification",
    architecture="cotrans",
    arguments={},
    labels=LABELS,
    rate_hz=4.0,
    timeline=Timeline(min_length_s=0.5, min_gap_s=0.75),
)


def heard(label: str, **scores: float) -> Heard:
    """A clip of two seconds whose steps all have these probabilities."""
    row = [scores.get(name.replace(" ", "_"), 0.0) for name in LABELS]
    samples = np.ones(32_000, np.int16)
    clip = SoundClip(samples, label, "set", label, "test", False)
    return Heard(clip, np.tile(np.array(row, np.float32), (8, 1)))


def shown(clips: Sequence[Heard], timeline: Timeline) -> list[set[str]]:
    return [clip.shown(CARD, timeline) for clip in clips]


@pytest.mark.parametrize(("false", "best"), [(0.65, 0.7), (0.75, 0.8), (0.5, 0.6)])
def test_the_threshold_is_above_the_scores_of_wrong_labels(false: float, best: float) -> None:
    wrong: dict[str, Any] = {"cat": false}
    clips = [*[heard("cat", cat=0.85)] * 5, *[heard("donkey", **wrong)] * 5, heard("speech")]
    timeline = choose([*clips, *[heard("cow", **wrong)] * 5], CARD)
    assert timeline.threshold == best
    assert timeline.low == 0.5
    assert timeline.thresholds == {"other": 1.0, "speech": 0.6}


def test_a_label_that_alarms_has_a_threshold_without_false_alarms() -> None:
    clips = [*[heard("baby cry", baby_cry=0.95)] * 5, *[heard("cat", cat=0.65)] * 40]
    assert choose([*clips, heard("donkey")], CARD).thresholds.keys() == {"other", "speech"}
    raised = choose([*clips, heard("donkey", baby_cry=0.78)], CARD)
    assert raised.threshold == 0.6
    assert raised.thresholds["baby cry"] == 0.8
    highest = choose([*clips, heard("donkey", baby_cry=0.97)], CARD)
    assert highest.thresholds["baby cry"] == 0.9


def test_what_a_user_sees_is_counted() -> None:
    clips = [heard("cat", cat=0.9), heard("cat"), heard("cow", cat=0.9), heard("donkey", cat=0.9)]
    found = shown(clips, Timeline(0.6, thresholds={"other": 1.0}))
    shares = count(clips, found)
    assert (shares.right, shares.wrong, shares.nothing) == pytest.approx((1 / 3,) * 3)
    assert shares.clips == 3
    by_label = count(clips, found, by_label=True)
    assert (by_label.right, by_label.wrong) == (0.25, 0.5)
    assert labelled(clips, found) == (1, 1)
    assert alarms(clips, found, "cat") == (1, 2, 2, 2)


def test_a_recording_is_cut_around_its_loudest_part() -> None:
    samples = np.zeros(16_000, np.int16)
    samples[9_000:9_800] = 1000
    part = cut(samples, 0.1)
    assert len(part) == 1600
    assert part.astype(bool).sum() == 800
    assert len(cut(samples, 2.0)) == 16_000
