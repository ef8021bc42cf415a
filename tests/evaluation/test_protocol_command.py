"""``costream evaluate --protocol`` on feature files, and collected predictions."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from costream.core.label_sets import THUMOS14
from costream.core.records import Header, Prediction, Segment, Summary
from costream.evaluation.predictions import PredictionCollector
from costream.models.build import save_model
from costream.models.oad.cooadtr import CoOadTR
from costream.weights_io.card import Card
from kit.runs import run

ROWS = {"video_test_0000004": 90, "video_test_0000006": 120}
ARGUMENTS = {
    "input_width": 6,
    "num_classes": 22,
    "embed_dim": 8,
    "num_heads": 2,
    "feedforward": 8,
    "window": 8,
}
STRETCHES = [(16.0, 18.0, "Diving"), (16.5, 17.0, "CliffDiving"), (19.0, 19.5, "Ambiguous")]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return CoOadTR(**ARGUMENTS).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, network):
    """Weights, features as a pickle of two videos, and their labels as published."""
    folder = tmp_path_factory.mktemp("thumos14")
    told = ("mine", "online action detection", "cooadtr", ARGUMENTS, THUMOS14.names, 4.0)
    save_model(folder / "mine.safetensors", Card(*told, background="Background"), network, None)
    rng = np.random.default_rng(0)
    features = {
        name: {"rgb": rng.normal(size=(count, 6)).astype(np.float32)}
        for name, count in ROWS.items()
    }
    (folder / "features.pickle").write_bytes(pickle.dumps(features))
    marks = [{"segment": [str(a), str(b)], "label": label} for a, b, label in STRETCHES]
    database = {name: {"subset": "test", "annotations": marks} for name in ROWS}
    (folder / "gt.json").write_text(json.dumps({"database": database}), "utf-8")
    return folder


def test_scores_of_a_network_on_features(folder, network):
    done = run(
        *("evaluate", "-m", "mine.safetensors", "--data", "features.pickle"),
        *("--labels", "gt.json", "--protocol", "thumos14", "--json"),
        cwd=folder,
    )
    frames = json.loads(done.stdout)["frames"]
    features = pickle.loads((folder / "features.pickle").read_bytes())
    scores, truth = [], []
    for name, count in ROWS.items():
        with torch.no_grad():
            logits = network(torch.from_numpy(features[name]["rgb"])[None]).logits[0]
        for k in range(63, count - 9):
            true = {label for a, b, label in STRETCHES if a <= (k + 0.5) / 4 < b}
            if "Ambiguous" not in true:
                scores.append(logits[k, :21].double().softmax(-1).numpy())
                truth.append([label in true for label in THUMOS14.names[:21]])
    scores, truth = np.array(scores), np.array(truth)
    there = [k for k in range(1, 21) if truth[:, k].any()]
    assert [THUMOS14.names[k] for k in there] == ["CliffDiving", "Diving"]
    each = [average_precision_score(truth[:, k], scores[:, k]) for k in there]
    assert frames["frames"] == len(scores)
    assert frames["mAP"] == pytest.approx(np.mean(each), abs=1e-6)


def heard(*predictions):
    listener = PredictionCollector()
    labels = ("background", "walk")
    header = Header("1", "m", "", labels, labels[0], 8.0, 0.25, "a", "video", None, {})
    listener.open(header)
    for step, scores in predictions:
        listener.write(Prediction(step, step / 8, step, None, (), scores))
    listener.close(Summary(20, 0, 0, 0, 0.0, 0.0, None, 0, 0, True, 0))
    return listener.predictions()


def test_the_scores_of_a_run_are_collected():
    told = heard((3, (0.2, 0.8)), (5, (0.5, math.nan)), (9, (0.1, 0.9)))
    assert told.steps.tolist() == [3, 5, 9]
    assert told.probabilities.tolist() == [[0.2, 0.8], [0.5, 0.0], [0.1, 0.9]]
    assert (told.step_s, told.delay_s, told.rows) == (0.25, 0.25, 20)
    assert told.middles().tolist() == [3 / 8 - 0.125, 5 / 8 - 0.125, 9 / 8 - 0.125]
    # Without all scores there is nothing to score frames by.
    assert len(heard((3, None)).times) == 0


def test_the_header_says_which_part_was_processed():
    listener = PredictionCollector()
    for options, part in (({}, (0.0, math.inf)), ({"start_s": 2, "end_s": 9.5}, (2.0, 9.5))):
        listener.open(Header("1", "m", "", ("a",), None, 8.0, 0.0, "a", "video", None, options))
        assert listener.predictions().part == part


def test_of_several_persons_the_one_who_is_there_longest_counts():
    listener = PredictionCollector()
    listener.open(Header("1", "m", "", ("a", "b"), None, 8.0, 0.0, "a", "skeleton", None, {}))
    for step, person in ((0, 1), (0, 2), (2, 2), (4, 1), (4, 2)):
        scores = (0.1, 0.9) if person == 2 else (0.9, 0.1)
        listener.write(Prediction(step, step / 8, step, None, (), scores, person=person))
        listener.write(Segment(step / 8, 1.0, f"of {person}", 0.9, person=person))
    told = listener.predictions()
    assert told.steps.tolist() == [0, 2, 4]
    assert told.step_s == 0.25
    assert told.probabilities[:, 1].tolist() == [0.9, 0.9, 0.9]
    assert {s.label for s in told.segments} == {"of 2"}
