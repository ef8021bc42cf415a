"""``costream train --suggest``: what to label next."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from costream.labels.copies import find_copies
from costream.training.suggestions import Suggestion, least_certain, rank
from kit import data_skeleton
from kit.runs import refused, run


def one(name: str, *scores: float) -> Suggestion:
    return Suggestion(name, 0.0, np.array(scores))


def test_the_least_certain_are_first_and_those_alike_last() -> None:
    sure, unsure = one("sure", 0.9, 0.05, 0.05), one("unsure", 0.5, 0.45, 0.05)
    same, other = one("same", 0.52, 0.43, 0.05), one("other", 0.1, 0.5, 0.4)
    found = rank([sure, same, other, unsure])
    assert [s.source for s in found] == ["unsure", "other", "sure", "same"]
    assert [round(s.margin, 2) for s in found] == [0.05, 0.1, 0.85, 0.09]


def test_the_time_is_that_of_the_closest_means() -> None:
    scores = np.tile([0.9, 0.1], (20, 1))
    scores[8:12] = [0.5, 0.5]
    found = least_certain("a", np.arange(20) / 4, scores, 4)
    assert found.time_s == 9 / 4
    assert found.scores.tolist() == [0.5, 0.5]
    assert least_certain("a", np.arange(2) / 4, scores[:2], 8).scores == pytest.approx([0.9, 0.1])


def test_copies_are_found_by_their_content(tmp_path: Path) -> None:
    names = {"a": b"one", "b": b"two", "c": b"one", "d": b"three"}
    for name, content in names.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in names]
    assert find_copies([*paths, str(tmp_path / "none")]) == [[paths[0], paths[2]]]


@pytest.mark.long
def test_unlabelled_clips_are_listed_after_the_training(tmp_path: Path) -> None:
    base = data_skeleton.write_tiny_weights(tmp_path / "tiny.safetensors")
    data = data_skeleton.write_folder(tmp_path / "data", 2)
    more = data_skeleton.write_folder(tmp_path / "more", 2, first_seed=50)
    (more / "notes.txt").write_text("not a recording", "utf-8")
    labelled = next(path for path in sorted(data.rglob("*.csv")))
    shutil.copy(labelled, more / "copy.csv")
    given = ("--data", data, "-o", tmp_path / "own.safetensors", "--steps", 2, "--validation", 0)
    told = run("train", base, *given, "--suggest", more).stdout.splitlines()
    at = told.index("label next (6 of 6 recordings):")
    listed = [line.split("  ")[1] for line in told[at + 1 : at + 7]]
    assert sorted(listed) == sorted(map(str, more.glob("*/*.csv")))
    assert told[-1].startswith("size: ")
    line = refused(2, "", "train", base, *given, "--suggest", tmp_path / "nowhere")
    assert "--suggest" in line
