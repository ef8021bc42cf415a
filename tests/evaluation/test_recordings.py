"""Metrics of whole recordings, against counting one by one and cases worked out by hand."""

from __future__ import annotations

import json
import math
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from costream.core.errors import UsageError
from costream.evaluation.protocols import PROTOCOLS
from costream.evaluation.stored_results import paired
from costream.labels.reading import read_recordings
from costream.labels.recording import Label
from kit.data_packs import packs
from kit.recorded import NAMES, RATE_HZ, recording, scored, told


def sure(*best, width=3):
    """Rows that say these labels."""
    return np.eye(width)[list(best)] * 0.7 + 0.1


def test_labels_of_frames_are_those_in_the_middle_of_what_they_cover():
    # Four rows a second: row 2 covers 0.5 to 0.75 s, of which most is walk.
    truth = recording("a", (0.6, 1.2, "walk"))
    frames = scored([(truth, told(sure(0, 0, 1, 1, 1, 0)))])["frames"]
    assert frames["accuracy"] == 1
    assert frames["confusion"] == [[3, 0, 0], [0, 3, 0], [0, 0, 0]]


def test_a_delay_shifts_what_is_true():
    truth = recording("a", (0.5, 1.0, "walk"))
    late = told(sure(0, 0, 0, 0, 1, 1, 0, 0), delay_s=0.5)
    frames = scored([(truth, late)])["frames"]
    # The first two rows would be of the time before the recording.
    assert frames["frames"] == 6
    assert frames["accuracy"] == 1


def test_several_labels_may_be_true_at_once():
    truth = recording("a", (0.0, 1.0, "walk"), (0.5, 1.0, "sit"))
    rows = np.array([[0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.1, 0.6, 0.3], [0.1, 0.4, 0.5]])
    frames = scored([(truth, told(rows))])["frames"]
    assert frames["accuracy"] == 1
    assert frames["classes"]["walk"]["average_precision"] == 1
    assert frames["classes"]["sit"]["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert frames["classes"]["sit"]["recall"] == 0.5


def test_only_the_part_that_was_processed_is_scored():
    truth = recording("a", (0.0, 1.5, "walk"), (1.5, 2.0, "sit"), (5.0, 9.0, "sit"))
    said = told(sure(0, 0, 0, 0, 1, 1, 2, 2), [(1.0, 1.5, "walk", 0.9), (1.5, 2.0, "sit", 0.9)])
    rows = slice(4, 8)  # from 1 s on
    said = replace(
        said,
        times=said.times[rows],
        probabilities=said.probabilities[rows],
        steps=said.steps[:4],
        part=(1.0, 2.0),
    )
    result = scored([(truth, said)])
    assert (result["frames"]["frames"], result["frames"]["accuracy"]) == (4, 1)
    assert (result["segments"]["segments"], result["segments"]["f1"]["0.7"]) == (2, 1)
    assert (result["starts"]["starts"], result["starts"]["mAP"]["1"]) == (2, 1)
    assert (result["latency"]["segments"], result["latency"]["median_s"]) == (2, 0)


def test_labels_that_the_model_lacks_are_not_scored(caplog):
    truth = recording("a", (0.0, 1.0, "jump"), (1.0, 1.5, "Sit"), (0.5, 0.75, "walk"))
    frames = scored([(truth, told(sure(0, 0, 1, 0, 2, 2, 0, 0)))])["frames"]
    assert "jump (1)" in caplog.text
    assert frames["frames"] == 5  # rows 0, 1 and 3 are of jump alone
    assert frames["accuracy"] == 1
    with pytest.raises(UsageError, match="none of the labels: 'jump'"):
        scored([(recording("a", (0.0, 1.0, "jump")), told(sure(0)))])


def test_only_labelled_time_of_a_recording_that_is_not_whole_is_scored():
    truth = recording("a", (0.5, 1.0, "walk"), whole=False)
    result = scored(
        [(truth, told(sure(2, 2, 1, 1, 2, 2), [(0.5, 1.0, "walk", 0.9), (1.0, 1.5, "sit", 0.9)]))]
    )
    assert (result["frames"]["frames"], result["frames"]["accuracy"]) == (2, 1)
    assert result["segments"]["predicted"] == 1  # nobody knows what was at 1 to 1.5 s
    assert result["segments"]["f1"]["0.7"] == 1


def test_tolerance_accepts_what_is_near_and_ranks_what_is_far_from_changes():
    truth = recording("a", (0.5, 1.0, "walk"))
    said = told(sure(0, 1, 1, 1, 1, 0, 0, 0))
    frames = scored([(truth, said), (recording("b"), said)], tolerance_s=0.25)["frames"]
    assert frames["accuracy"] == pytest.approx((6 + 4) / 16)
    assert frames["accuracy_tolerant"] == pytest.approx((8 + 4) / 16)
    # Of the first recording 0, 5, 6 and 7 are far from changes, and no walk.
    assert math.isnan(frames["mAP_tolerant"])


def test_recordings_without_any_action():
    result = scored([(recording("a"), told(sure(0, 0, 0)))])
    assert result["frames"]["accuracy"] == 1
    assert math.isnan(result["frames"]["mAP"])
    assert result["segments"]["f1"]["0.5"] == 1  # nothing to find, nothing made up
    assert math.isnan(result["segments"]["mAP"]["0.5"])
    assert result["latency"] == {
        "segments": 0,
        "found": None,
        "median_s": None,
        "p90_s": None,
        "classes": {},
    }


def test_without_a_background_unlabelled_time_is_not_scored():
    truth = recording("a", (0.0, 0.5, "walk"))
    frames = scored([(truth, told(sure(0, 0, 1, 1, width=2)))], ("walk", "sit"), None)["frames"]
    assert (frames["frames"], frames["accuracy"]) == (2, 1)


def test_means_leave_out_background_and_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    pairs = []
    for k in range(7):
        truth = recording(f"v{k}", (2, 5, "walk"), (7, 9, "sit"))
        pairs.append((truth, told(rng.dirichlet(np.ones(3), 60))))
    frames = scored(pairs)["frames"]
    rows = np.concatenate([said.probabilities for _, said in pairs])
    at = (np.arange(60) + 0.5) / RATE_HZ
    labels = np.tile(np.select([(at >= 2) & (at < 5), (at >= 7) & (at < 9)], [1, 2]), 7)
    each = [average_precision_score(labels == k, rows[:, k]) for k in range(3)]
    found = [frames["classes"][name]["average_precision"] for name in NAMES]
    assert found == pytest.approx(each, abs=1e-9)
    assert frames["mAP"] == pytest.approx(np.mean(each[1:]), abs=1e-9)
    low, high = frames["mAP_95"]
    assert low < frames["mAP"] < high
    low, high = frames["accuracy_95"]
    assert low < frames["accuracy"] < high


def test_few_recordings_give_no_interval():
    one = scored([(recording("a", (0, 1, "walk")), told(sure(0, 1, 1, 1)))])
    assert one["frames"]["mAP_95"] is None
    assert one["segments"]["f1_95"]["0.5"] is None


def test_protocol_leaves_out_the_rows_at_both_ends():
    names = PROTOCOLS["tvseries"].labels
    truth = recording("a", (0, 30, "Point"))
    rows = np.random.default_rng(0).dirichlet(np.ones(31), 100)
    frames = scored([(truth, told(rows))], names, names[0], protocol="tvseries")["frames"]
    assert frames["frames"] == 90 - 63 + 1  # rows 63 to 90 = T - 10
    # Results of --wait begin where the window is full: the rows keep their numbers.
    late = told(rows[50:], first=50)
    assert scored([(truth, late)], names, names[0], protocol="tvseries")["frames"]["frames"] == 28


def test_protocol_is_for_its_labels():
    with pytest.raises(UsageError, match="the labels of m differ from those of THUMOS14: it lacks"):
        scored([], NAMES, "background", protocol="thumos14")


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


EVERY = 8  # test videos of THUMOS14; all of them take a minute


@pytest.fixture(scope="module")
def annotations(tmp_path_factory):
    """The published file of labels."""
    path = tmp_path_factory.mktemp("thumos14") / "gt.json"
    with tarfile.open(packs("thumos14_annotations.tar") / "thumos14_annotations.tar") as archive:
        file = archive.extractfile("thumos14_annotations/gt.json")
        assert file is not None
        path.write_bytes(file.read())
    return path


def brute_force(videos, names):
    """AP and calibrated AP of classes 1 to 20, row by row; softmax over the first 21 logits."""
    pooled = []
    for stretches, logits in videos:
        rows = len(logits)
        for k in range(63, rows - 9):
            middle = (k + 0.5) / RATE_HZ
            true = {label for start, end, label in stretches if start <= middle < end}
            if "Ambiguous" in true:
                continue
            odds = [math.exp(v) for v in logits[k][:21]]
            pooled.append((true, [v / sum(odds) for v in odds]))
    plain, calibrated = [], []
    for number in range(1, 21):
        ranked = sorted(pooled, key=lambda row, n=number: -row[1][n])
        hits = [names[number] in true for true, _ in ranked]
        positives = sum(hits)
        if not positives:
            continue
        w = (len(hits) - positives) / positives
        found = total = weighted = 0.0
        for rank, hit in enumerate(hits, 1):
            if hit:
                found += 1
                total += found / rank
                weighted += w * found / (w * found + rank - found)
        plain.append(total / positives)
        calibrated.append(weighted / positives)
    assert len(plain) >= 15
    return sum(plain) / len(plain), sum(calibrated) / len(plain), len(pooled)


@pytest.mark.long
def test_thumos14_protocol_equals_brute_force(annotations):
    names = (*PROTOCOLS["thumos14"].labels, "Ambiguous")
    database = json.loads(annotations.read_text("utf-8"))["database"]
    recordings = read_recordings(None, annotations.with_name("gt.json#test"))[::EVERY]
    rng = np.random.default_rng(0)
    pairs, videos = [], []
    for k, truth in enumerate(recordings):
        marks = database[truth.source]["annotations"]
        stretches = [(*map(float, m["segment"]), m["label"]) for m in marks]
        last = max(end for _, end, _ in stretches)
        if k % 5 == 0:  # the published segments have no ambiguous ones
            stretches.append((0.3 * last, 0.4 * last, "Ambiguous"))
            more = Label(*stretches[-1], "here")
            truth = replace(truth, labels=(*truth.labels, more))
        logits = rng.normal(size=(int(RATE_HZ * last) + 21, 22))
        for start, end, label in stretches:
            logits[int(RATE_HZ * start) : int(RATE_HZ * end), names.index(label)] += 1.0
        odds = np.exp(logits)
        # One group: intervals are looked at elsewhere.
        pairs.append((replace(truth, group="all"), told(odds / odds.sum(1, keepdims=True))))
        videos.append((stretches, logits))
    result = scored(pairs, names, "Background", protocol="thumos14")
    plain, calibrated, count = brute_force(videos, names)
    assert result["frames"]["frames"] == count
    assert result["frames"]["mAP"] == pytest.approx(plain, abs=1e-9)
    assert result["frames"]["calibrated_mAP"] == pytest.approx(calibrated, abs=1e-9)
    assert result["protocol"] == "THUMOS14"
    assert "Ambiguous" not in result["labels"]
