"""The protocol of THUMOS14 on its published annotations, against counting row by row."""

from __future__ import annotations

import json
import math
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from costream.evaluation.protocols import PROTOCOLS
from costream.labels.reading import read_recordings
from costream.labels.recording import Label
from kit.data_packs import packs
from kit.recorded import RATE_HZ, scored, told

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
