"""Matching of results and recordings by name."""

from __future__ import annotations

import numpy as np
import pytest

from costream.evaluation.recordings import paired
from kit.recorded import recording, told


@pytest.mark.parametrize(
    ("source", "names", "found"),
    [
        ("a/clip.mp4", ["clip.mp4", "other.mp4"], "clip.mp4"),
        ("/data/a/clip.mp4", ["a/clip.mp4", "b/clip.mp4"], "a/clip.mp4"),
        ("clip", ["clip.mp4"], "clip.mp4"),
        ("video_4", ["f.pickle#video_4", "f.pickle#video_40"], "f.pickle#video_4"),
        ("/data/features.pickle#video_4", ["features.pickle#video_4"], "features.pickle#video_4"),
        ("C:\\films\\clip.avi", ["clip.avi"], "clip.avi"),
        ("clip.mp4", ["a/clip.mp4", "b/clip.mp4"], None),  # which one, nobody knows
        ("song.mp3", ["song.wav"], "song.wav"),
        ("one.mp4", ["two.mp4"], None),
    ],
)
def test_results_are_found_by_name(source, names, found, caplog):
    said = {name: told(np.zeros((k, 2))) for k, name in enumerate(names)}
    pairs = list(paired([recording(source)], said))
    if found is None:
        assert pairs == []
        assert f"no results of {source}: left out" in caplog.text
    else:
        assert [one for _, one in pairs] == [said[found]]
    assert ("no labels of" in caplog.text) == (len(names) > (found is not None))
