"""Songs: all clips of a group as one, where each group is of one label."""

from __future__ import annotations

import numpy as np
import pytest

from costream.evaluation.clips import group_scores


def rows(*best, sure=0.9):
    """Return steps [T, 3] that say these classes."""
    return np.stack(
        [np.full(3, (1 - sure) / 2) + (sure - (1 - sure) / 2) * np.eye(3)[k] for k in best]
    )


def test_clips_of_a_song_are_fused():
    told = [rows(0, 0), rows(1), rows(2, 2, 0), rows(2)]
    result = group_scores(told, np.array([0, 0, 2, 2]), ["a", "a", "b", "b"])
    # Song a: two steps of class 0, one of 1. Song b: three of 2, one of 0.
    assert result == {"groups": 2, "top1": 1.0, "top5": 1.0, "top1_vote": 1.0}


def test_mean_and_vote_may_differ():
    told = [rows(1, sure=0.99), rows(0, 0, sure=0.4)]
    result = group_scores(told, np.array([0, 0]), ["a", "a"])
    assert (result["top1"], result["top1_vote"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "groups", [["a", "a", "a"], ["a", "b", "c"]], ids=["of several labels", "of one clip each"]
)
def test_groups_that_are_no_songs_have_no_accuracy(groups):
    assert group_scores([rows(0), rows(1), rows(1)], np.array([0, 1, 1]), groups) is None
