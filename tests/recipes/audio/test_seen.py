"""What a user sees of sounds, counted for the tables of the manual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from weights.recipes.audio.data import EVENTS, SoundClip
from weights.recipes.audio.seen import (
    KINDS,
    Labels,
    background,
    is_background,
    mixed,
    seen,
    seen_of_two,
)
from weights.recipes.audio.thresholds import is_first

LABELS = ("cat", "cow", "rain")


class Told:
    """A listener that shows the same labels of all clips."""

    def __init__(self, *shown: str) -> None:
        self._found = np.array([name in shown for name in LABELS])

    def shown(self, clips: Sequence[SoundClip]) -> list[Labels]:
        return [self._found] * len(clips)

    def judge(self, label: str) -> tuple[Labels, Labels]:
        right = np.array([name == label for name in LABELS])
        return right, ~right


def clip(label: str, level: int = 1000) -> SoundClip:
    return SoundClip(
        np.tile(np.array([level, -level], np.int16), 4000), label, "", "", "test", False
    )


CLIPS = [clip("cat"), clip("cow")]


@pytest.mark.parametrize(
    ("shown", "shares", "of_two"),
    [
        ((), (0, 0, 1), (0, 0, 0)),
        (("cat",), (0.5, 0.5, 0), (0, 1, 0)),
        (("cat", "cow"), (1, 1, 0), (1, 0, 0)),
        (("cow", "rain"), (0.5, 1, 0), (0, 1, 1)),
    ],
)
def test_right_and_wrong_labels_are_counted_by_clip(
    shown: tuple[str, ...], shares: tuple[float, ...], of_two: tuple[float, ...]
) -> None:
    assert tuple(seen(Told(*shown), CLIPS)) == shares
    assert tuple(seen_of_two(Told(*shown), [(CLIPS[0], CLIPS[1])], 5)) == of_two


def test_the_second_sound_of_a_mixture_is_less_loud_by_the_given_level() -> None:
    silent = clip("cow", 0)
    loud = mixed(clip("cat", 100), silent, 10).astype(float)
    faint = mixed(silent, clip("cat", 100), 10).astype(float)
    assert 20 * np.log10(loud.std() / faint.std()) == pytest.approx(10, abs=0.01)


def test_a_label_belongs_to_one_kind() -> None:
    labels = [label for kind in KINDS.values() for label in kind]
    assert len(set(labels)) == len(labels)
    # Those that only UrbanSound8K has.
    missing = {"air conditioner", "drilling", "gun shot", "jackhammer", "music"}
    assert set(EVENTS) - set(labels) == missing


def test_background_has_no_sound_that_alarms_people() -> None:
    ambience, held = (
        clip(""),
        [replace(clip("drilling"), set="UrbanSound8K", group=str(k)) for k in range(9)],
    )
    siren, learnt = replace(held[0], label="siren"), [replace(c, part="train") for c in held]
    used = [c for c in (*held, siren, *learnt, ambience, clip("cat")) if is_background(c)]
    assert [*map(id, used)] == [id(c) for c in (*held, ambience) if not c.set or not is_first(c)]
    assert 1 < len(used) < 9


def test_ten_minutes_of_background_are_of_all_kinds_of_clips() -> None:
    tones = [np.sin(np.arange(16_000) * f / 16_000 * 2 * np.pi) for f in (500, 3000)]
    clips = [
        SoundClip((20_000 * tone).astype(np.int16), "", name, "", "test", False)
        for name, tone in zip(("UrbanSound8K", ""), tones, strict=True)
    ]
    made = background(clips, np.random.default_rng(0)).samples
    assert len(made) == 600 * 16_000
    minutes = np.abs(np.fft.rfft(made.reshape(10, -1).astype(float)))
    heard = minutes[:, [500 * 60, 3000 * 60]] / minutes.max(1, keepdims=True)
    assert (heard.max(0) > 0.5).all()
    level = 20 * np.log10(np.sqrt(np.mean((made / 32768) ** 2)))
    assert -45 < level < -15
