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


def heard(label: str, length_s: float = 2.0, **scores: float) -> Heard:
    """A clip whose steps all have these probabilities."""
    row = [scores.get(name.replace(" ", "_"), 0.0) for name in LABELS]
    samples = np.ones(round(16_000 * length_s), np.int16)
    clip = SoundClip(samples, label, "set", label, "test", False)
    return Heard(clip, np.tile(np.array(row, np.float32), (round(4 * length_s), 1)))


def shown(clips: Sequence[Heard], timeline: Timeline) -> list[set[str]]:
    return [clip.shown(CARD, timeline) for clip in clips]


@pytest.mark.parametrize(("false", "best"), [(0.66, 0.7), (0.76, 0.8), (0.5, 0.6)])
def test_the_threshold_is_above_the_scores_of_wrong_labels(false: float, best: float) -> None:
    wrong: dict[str, Any] = {"cat": false}
    clips = [*[heard("cat", cat=0.85)] * 5, *[heard("donkey", **wrong)] * 5, heard("speech")]
    timeline = choose([*clips, *[heard("cow", **wrong)] * 5], CARD)
    assert timeline.threshold == best
    assert timeline.low == 0.5
    assert timeline.thresholds == {"other": 1.0, "speech": 0.6}


def test_a_share_of_mistakes_has_a_standard_error_to_spare() -> None:
    right, quiet = [heard("cat", cat=0.95)] * 50, heard("donkey")
    loud = heard("donkey", cat=0.72)
    assert choose([*right, *[loud] * 2, *[quiet] * 38], CARD).threshold == 0.6
    assert choose([*right, *[loud] * 3, *[quiet] * 15], CARD).threshold == 0.75


def test_a_label_that_alarms_has_a_threshold_well_above_false_alarms() -> None:
    clips = [*[heard("baby cry", baby_cry=0.95)] * 5, *[heard("cat", cat=0.65)] * 40]
    clips += [heard("donkey")] * 9
    assert choose(clips, CARD).thresholds.keys() == {"other", "speech"}
    for false, least in ((0.62, 0.75), (0.72, 0.85)):
        raised = choose([*clips, heard("donkey", baby_cry=false)], CARD)
        assert raised.threshold == 0.6
        assert raised.thresholds["baby cry"] == least
    highest = choose([*clips, heard("donkey", baby_cry=0.97)], CARD)
    assert highest.thresholds["baby cry"] == 0.9


def test_short_recordings_have_a_lower_threshold_with_few_mistakes() -> None:
    clips = [*[heard("cat", cat=0.95)] * 9, *[heard("donkey", cat=0.75)] * 9]
    short = [*[heard("cat", 0.5, cat=0.55)] * 19, heard("cow", 0.5, cat=0.45)]
    line = choose(clips, CARD, [*short, *[heard("donkey", 0.5, cat=0.35)] * 9])
    assert (line.threshold, line.short) == (0.8, 0.4)
    assert shown(short[:1], line) == [{"cat"}]
    assert shown([heard("cat", 1.0, cat=0.55)], line) == [set()]
    stricter = choose(clips, CARD, [*short, *[heard("donkey", 0.5, cat=0.55)] * 9])
    assert stricter.short == 0.6
    assert choose(clips, CARD, [*short, *[heard("donkey", 0.5, cat=0.75)] * 9]).short is None
    assert choose(clips, CARD).short is None


def test_what_a_user_sees_is_counted() -> None:
    clips = [heard("cat", cat=0.9), heard("cat"), heard("cow", cat=0.9), heard("donkey", cat=0.9)]
    found = shown(clips, Timeline(0.6, thresholds={"other": 1.0}))
    shares = count(clips, found)
    assert (shares.right, shares.wrong, shares.nothing) == pytest.approx((1 / 3,) * 3)
    assert shares.clips == 3
    assert labelled(clips, found) == (1, 1)
    assert alarms(clips, found, "cat") == (1, 2, 2, 2)


def test_a_recording_is_cut_around_its_loudest_part() -> None:
    samples = np.zeros(16_000, np.int16)
    samples[9_000:9_800] = 1000
    part = cut(samples, 0.1)
    assert len(part) == 1600
    assert part.astype(bool).sum() == 800
    assert len(cut(samples, 2.0)) == 16_000
