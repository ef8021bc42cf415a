"""Verdicts on trainings, from made-up right and wrong answers on validation examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from costream.training.baselines import CENTROID, PROTOTYPES
from costream.training.verdict import (
    MAJORITY,
    Held,
    classification_verdict,
    group_text,
    score_verdict,
    share_text,
)

MORE = ", or hold out more with --validation"


def hits(right: int, count: int, first: int = 0) -> npt.NDArray[np.bool_]:
    """Answers of which so many are right, in a row from ``first``."""
    return np.roll(np.arange(count) < right, first)


@pytest.mark.parametrize(
    ("own", "centroid", "majority", "count", "verdict"),
    [
        (4, 4, 1, 4, f"too few clips for a significant result (4, 4 of 4 right): add clips{MORE}"),
        (0, 0, 0, 0, f"not validated, no clips were held out: add clips{MORE}"),
        (
            *(4, 8, 4, 16),
            "no better than guessing the most frequent class (4 against 4 of 16 clips): record"
            " more clips",
        ),
        (
            *(8, 8, 4, 16),
            "no better than the nearest class mean (8 against 8 of 16 clips): record more clips",
        ),
        (
            *(6, 8, 4, 16),
            "perhaps better than guessing the most frequent class (6 against 4 of 16 clips), but"
            " that may be chance: record more clips",
        ),
        (
            *(11, 9, 4, 16),
            "perhaps better than the nearest class mean (11 against 9 of 16 clips), but that may"
            " be chance: record more clips",
        ),
        (16, 9, 4, 16, "better than the nearest class mean (16 against 9 of 16 clips)"),
        (
            *(12, 12, 4, 12),
            "as good as the nearest class mean (12 against 12 of 12 clips): the classes are easy to"
            " distinguish",
        ),
        (184, 142, 60, 200, "better than the nearest class mean (0.92 against 0.71, 200 clips)"),
    ],
)
def test_a_classifier_against_its_baselines(
    own: int, centroid: int, majority: int, count: int, verdict: str
) -> None:
    others = {CENTROID: hits(centroid, count), MAJORITY: hits(majority, count)}
    held = Held(count, "clip", "", "record more clips")
    assert classification_verdict(hits(own, count), others, held) == verdict


def test_a_lead_on_few_differing_examples_may_be_chance() -> None:
    """Equal numbers, but once the baseline is right where the network is not."""
    held, own, guess = Held(16, "clip", "", "wait"), hits(14, 16), hits(2, 16)
    inside, apart = hits(10, 16), hits(10, 16, 6)
    told = [
        classification_verdict(own, {CENTROID: rows, MAJORITY: guess}, held)
        for rows in (inside, apart)
    ]
    assert told[0] == "better than the nearest class mean (14 against 10 of 16 clips)"
    assert told[1].endswith("but that may be chance: wait")


def test_examples_and_shares_in_words() -> None:
    assert str(Held(12, "clip", group_text([*"aaaabbbbcccc"], "person"), "")) == (
        "12 clips of 3 persons"
    )
    assert group_text([*"aabb"], None) == " from 2 files"
    assert group_text([*"abcd"], None) == ""
    assert (share_text(4, 4), share_text(195, 200)) == ("4 of 4", "97.5 %")


@pytest.mark.parametrize(
    ("own", "others", "count", "verdict"),
    [
        (
            {"AP50": 0.9},
            {PROTOTYPES: 0.1},
            3,
            f"too few images for a significant result (3): add images{MORE}",
        ),
        (
            {"AP50": 0.4},
            {PROTOTYPES: 0.1, "base, before": 0.45},
            12,
            "no better than base before this training (AP50 0.40 against 0.45, 12 images): wait",
        ),
        (
            {"AP50": 0.4, "AP50_95": [0.2, 0.6]},
            {PROTOTYPES: 0.3, "base, before": None},
            12,
            "perhaps better than the nearest class mean (AP50 0.40 against 0.30, 12 images), but"
            " that may be chance: wait",
        ),
        (
            {"AP50": 0.6, "AP50_95": [0.4, 0.8]},
            {PROTOTYPES: 0.3},
            12,
            "better than the nearest class mean (AP50 0.60 against 0.30, 12 images)",
        ),
        ({"AP50": 0.6}, {}, 12, "AP50 0.60 on 12 images; there is no baseline to compare with"),
        (
            {"AP50": None},
            {},
            12,
            "not validated: nothing is labelled in the validation images",
        ),
    ],
)
def test_a_detector_against_its_baselines(
    own: dict[str, Any], others: dict[str, float | None], count: int, verdict: str
) -> None:
    scores = {name: {"AP50": value} for name, value in others.items()}
    assert score_verdict("AP50", own, scores, Held(count, "image", "", "wait")) == verdict
