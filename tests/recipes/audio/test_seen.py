"""What a user sees of sounds, counted for the tables of the manual."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from weights.recipes.audio.data import EVENTS, SoundClip
from weights.recipes.audio.seen import KINDS, Labels, mixed, seen, seen_of_two

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
