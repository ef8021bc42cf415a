"""``costream evaluate`` as users run it, against the same scores computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.models.catalogue import load_model
from costream.training.skeleton.motions import single
from kit import data_skeleton
from kit.program import costream
from kit.runs import evaluate, run


@pytest.fixture(scope="module")
def result(weights, motions):
    return evaluate("-m", weights, "--data", motions, "--joined", 4)


@pytest.fixture(scope="module")
def by_hand(weights):
    """Probabilities of the nine motions from the network over the whole clip, and labels."""
    model = load_model(str(weights))
    rows, labels = [], []
    with torch.inference_mode():
        for k, label in enumerate(data_skeleton.ACTS):
            for i in range(3):
                # The table holds four decimals.
                places = np.round(data_skeleton.act(label, 100 * k + i).astype(np.float64), 4)
                tokens = model.frontend(torch.from_numpy(single(places))[None])
                rows.append(model.network(tokens)[0].softmax(-1).double().numpy())
                labels.append(model.info.card.labels.index(label))
    return rows, np.array(labels)


@pytest.mark.long
def test_metrics_are_those_of_scikit_learn(result, by_hand):
    metrics = pytest.importorskip("sklearn.metrics")
    rows, labels = by_hand
    actions = [r[:, 1:] / r[:, 1:].sum(1, keepdims=True) for r in rows]
    mean = np.stack([r.mean(0) for r in actions])
    votes = [np.bincount(r.argmax(1), minlength=3) + 0.5 * r.mean(0) for r in actions]
    found = result["sequences"]
    for key, scores in (
        ("top1", mean),
        ("top1_last", np.stack([r[-1] for r in actions])),
        ("top1_vote", np.stack(votes)),
    ):
        expected = metrics.top_k_accuracy_score(labels - 1, scores, k=1, labels=range(3))
        assert found[key] == pytest.approx(expected, abs=1e-6)
    assert found["top5"] == 1.0
    each = [metrics.average_precision_score(labels - 1 == k, mean[:, k]) for k in range(3)]
    told = [found["classes"][name]["average_precision"] for name in data_skeleton.ACTS]
    assert told == pytest.approx(each, abs=5e-5)
    assert found["sequence_mAP"] == pytest.approx(np.mean(each), abs=1e-6)
    whole = np.stack([r.mean(0) for r in rows])
    assert found["top1_own"] == pytest.approx((whole[:, 1:].argmax(1) == labels - 1).mean())
    assert found["top1_all"] == pytest.approx(found["top1"])
    assert found["top1_background"] == pytest.approx((whole.argmax(1) == labels).mean())
    told = result["timeline"]
    assert told["longest"] <= told["right"] <= 1 - told["nothing"]
    counts = np.array(found["confusion"])
    assert counts.shape == (4, 4)
    assert counts.sum(1).tolist() == [0, 3, 3, 3]
    assert sum(n for _, _, n in found["confused"]) == counts.sum() - np.trace(counts)


@pytest.mark.long
def test_streams_hold_every_step_of_every_example(result):
    # Nine motions of 36 frames in streams of 4, 4 and 1; an output every other step.
    assert result["streams"]["streams"] == 3
    assert result["streams"]["frames"] == 9 * 36 / 2
    assert 0 < result["streams"]["mAP"] <= 1


def test_text_names_model_classes_and_figures(weights, motions):
    done = run("evaluate", "-m", weights, "--data", motions, "--joined", 0)
    assert "What the timeline shows" in done.stdout
    assert "with the background competing" in done.stdout
    for word in ("tiny", "9 examples", "top-1", "vote", "recall", "Confusion", *data_skeleton.ACTS):
        assert word in done.stdout
    assert "streams" not in done.stdout


def test_unknown_labels_are_reported_before_anything_runs(weights, tmp_path):
    data_skeleton.write_act(tmp_path / "jump" / "a.csv", "step", 0)
    done = costream("evaluate", "-m", weights, "--data", tmp_path)
    assert done.returncode == 2
    assert "the model has no label 'jump'" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [("a.csv,2,1,step", 2, "line 2: the end (1 s)"), ("a.csv,50,60,step", 4, "line 2")],
)
def test_an_example_that_is_wrong_or_holds_nothing_is_named(weights, tmp_path, line, code, told):
    data_skeleton.write_act(tmp_path / "a.csv", "step", 0)
    (tmp_path / "t.csv").write_text(f"file,start,end,label\n{line}\n", "utf-8")
    done = costream("evaluate", "-m", weights, "--data", tmp_path / "t.csv")
    assert done.returncode == code
    assert told in done.stderr
    assert str(tmp_path / "t.csv") in done.stderr
    assert done.stderr.count("\n") == 1


def test_examples_that_cannot_be_read_are_left_out_and_counted(weights, tmp_path):
    data_skeleton.write_act(tmp_path / "data" / "step" / "0.csv", "step", 0)
    for name in "12":
        (tmp_path / "data" / "step" / f"{name}.csv").write_text("time,hips_x\n0,nonsense\n")
    call = ("evaluate", "-m", weights, "--data", tmp_path / "data", "--joined", 0)
    done = run(*call, code=3)
    assert all(f"{name}.csv" in done.stderr for name in "12")
    assert "1 example (2 more cannot be read)" in done.stdout
    (tmp_path / "data" / "step" / "0.csv").unlink()
    last = run(*call, code=4).stderr.splitlines()[-1]
    assert last == f"costream: {tmp_path / 'data'}: no example can be read"
