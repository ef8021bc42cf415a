"""Annotations of published data sets."""

from __future__ import annotations

import json
import tarfile
from collections import Counter

import numpy as np
import pytest

from costream.core.label_sets import THUMOS14
from costream.labels.reading import read_recordings
from costream.labels.recording import frame_labels, frame_targets
from kit.data_packs import packs


@pytest.fixture
def pack(tmp_path):
    """Unpack what is needed of a pack."""

    def unpack(name, *members):
        with tarfile.open(packs(f"{name}.tar") / f"{name}.tar") as archive:
            for member in members:
                archive.extract(member, tmp_path, filter="data")
        return tmp_path

    return unpack


def test_thumos14(pack):
    folder = pack("thumos14_annotations", "thumos14_annotations/gt.json") / "thumos14_annotations"
    test = read_recordings(None, folder / "gt.json#test")
    train = read_recordings(None, folder / "gt.json#training")
    assert (len(train), len(test)) == (200, 210)
    assert [sum(len(r.labels) for r in part) for part in (train, test)] == [3007, 3311]
    counts = Counter(label.label for r in (*train, *test) for label in r.labels)
    assert set(counts) == set(THUMOS14.names[1:-1])
    assert (counts["CliffDiving"], counts["Diving"]) == (360, 887)
    (dives,) = [r for r in test if r.source == "video_test_0000173"]
    times = np.arange(0.0, 120.0, 0.25)
    rows = frame_targets(dives, times, THUMOS14.names, "Background")
    both = rows[:, [THUMOS14.names.index(n) for n in ("CliffDiving", "Diving")]]
    assert both[:, 0].any()
    assert (both[:, 0] <= both[:, 1]).all()
    assert (rows.sum(1) >= 1).all()


def test_multithumos(pack):
    name = "thumos14_annotations/multithumos.json"
    path = pack("thumos14_annotations", name) / name
    recordings = read_recordings(None, path)
    raw = json.loads(path.read_text("utf-8"))
    assert len(recordings) == len(raw) == 413
    empty = sum(start == end for v in raw.values() for _, start, end in v["actions"])
    assert sum(len(r.labels) for r in recordings) == 38_690 - empty
    labels = {label.label for r in recordings for label in r.labels}
    assert labels == {*THUMOS14.names[1:-1], *(str(k) for k in range(21, 66))}
    assert sum(r.duration_s for r in recordings) / 3600 == pytest.approx(24.4, abs=0.05)


def test_classes_of_frames(pack):
    path = pack("fir_action", "fir_action/labels.json") / "fir_action" / "labels.json"
    raw = json.loads(path.read_text("utf-8"))
    recordings = read_recordings(None, path)
    assert [r.source for r in recordings] == [video["video"] for video in raw["videos"]]
    for recording, video in zip(recordings, raw["videos"], strict=True):
        times = np.arange(len(video["labels"])) / raw["fps"]
        told = frame_labels(recording, times, raw["classes"], None)
        assert told.tolist() == video["labels"]


def test_signs(pack):
    names = ["samples/video/asl-gestures-8-signs.json", "samples/video/asl-gestures-8-signs.mp4"]
    folder = pack("samples", *names) / "samples" / "video"
    (recording,) = read_recordings(folder, folder)
    assert recording.source == str(folder / "asl-gestures-8-signs.mp4")
    assert [label.label for label in recording.labels][:3] == ["again", "bird", "book"]
    assert not list(recording.unlabelled())
