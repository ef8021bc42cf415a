"""``costream evaluate`` on sound, against the network over whole clips and whole streams."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from costream.evaluation.clips import measure
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.metric_tables import to_text
from costream.labels.examples import to_examples
from costream.labels.reading import read_recordings
from costream.models.catalogue import load_model
from costream.runtime.stop import StopHandler
from kit import data_audio
from kit.runs import run

EACH = 3
SONGS = {0: "one", 1: "one", 2: "two"}  # of the clips of a kind


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return data_audio.write_tiny_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of three clips of a kind, of two songs, whose labels are spelt otherwise."""
    folder = data_audio.write_folder(tmp_path_factory.mktemp("sounds"), EACH)
    lines = [
        f"{kind}/{kind}{i}.wav,{kind.upper()},{kind} {SONGS[i]},{i}"
        for kind in data_audio.KINDS
        for i in range(EACH)
    ]
    path = folder / "labels.csv"
    path.write_text("\n".join(["file,label,song,fold", *lines]) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def result(weights, table):
    done = run(
        *("evaluate", "-m", weights, "--data", table, "--group", "song", "--joined", 4, "--json")
    )
    assert "unused column 'fold'" in done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def clips():
    """The nine clips as the files hold them, float32 [16 blocks of samples], and their labels."""
    kinds = [(k, 100 * k + i) for k in range(3) for i in range(EACH)]
    whole = [
        (data_audio.sound(data_audio.KINDS[k], seed) * 32767).astype("<i2") for k, seed in kinds
    ]
    return [x / np.float32(32768) for x in whole], np.array([1 + k for k, _ in kinds])


def told(weights, samples):
    """Probabilities [T, K] of the network over all samples at once."""
    model = load_model(str(weights), device="cpu")
    with torch.inference_mode():
        tokens = model.frontend(torch.from_numpy(samples)[None])
        return model.network(tokens).logits[0].softmax(-1).double().numpy()


def test_examples_and_songs_are_scored_as_the_whole_clips_say(result, weights, clips):
    metrics = pytest.importorskip("sklearn.metrics")
    rows = [told(weights, x)[:, 1:] for x in clips[0]]
    rows = [r / r.sum(1, keepdims=True) for r in rows]
    labels = clips[1] - 1
    mean = np.stack([r.mean(0) for r in rows])
    votes = np.stack([np.bincount(r.argmax(1), minlength=3) + 0.5 * r.mean(0) for r in rows])
    scores = result["sequences"]
    assert result["examples"] == 9
    assert scores["top1"] == pytest.approx((mean.argmax(1) == labels).mean(), abs=1e-6)
    assert scores["top1_vote"] == pytest.approx((votes.argmax(1) == labels).mean(), abs=1e-6)
    last = np.stack([r[-1] for r in rows])
    assert scores["top1_last"] == pytest.approx((last.argmax(1) == labels).mean(), abs=1e-6)
    precision = [metrics.average_precision_score(labels == k, mean[:, k]) for k in range(3)]
    assert scores["sequence_mAP"] == pytest.approx(np.mean(precision), abs=1e-6)
    counts = metrics.confusion_matrix(labels + 1, mean.argmax(1) + 1, labels=range(4))
    assert scores["confusion"] == counts.tolist()

    songs = [
        (k, [3 * k + i for i in SONGS if SONGS[i] == song])
        for k in range(3)
        for song in ("one", "two")
    ]
    pooled = [np.concatenate([rows[i] for i in members]) for _, members in songs]
    right = [p.mean(0).argmax() == k for (k, _), p in zip(songs, pooled, strict=True)]
    assert result["groups"]["groups"] == 6
    assert result["groups"]["top1"] == pytest.approx(np.mean(right), abs=1e-6)
    assert scores["top1_95_over"] == "groups"


def test_streams_are_one_sound_after_another(result, weights, clips):
    metrics = pytest.importorskip("sklearn.metrics")
    order = np.random.default_rng(0).permutation(9)
    rows, labels = [], []
    for begin in (0, 4, 8):
        some = order[begin : begin + 4]
        rows.append(told(weights, np.concatenate([clips[0][k] for k in some])))
        labels += [clips[1][k] for k in some for _ in range(8)]
    rows, labels = np.concatenate(rows), np.array(labels)
    streams = result["streams"]
    assert (streams["streams"], streams["frames"]) == (3, 72)
    assert streams["accuracy"] == pytest.approx((rows.argmax(1) == labels).mean(), abs=1e-6)
    for k, kind in enumerate(data_audio.KINDS, 1):
        expected = metrics.average_precision_score(labels == k, rows[:, k])
        assert streams["average_precision"][kind] == pytest.approx(expected, abs=1e-4)


def test_a_text_shows_votes_songs_and_what_is_taken_for_what(result):
    text = to_text(result)
    for words in ("majority vote of its steps", "mean of its group", "6 groups", "Confusion"):
        assert words in text


def test_several_heads_and_a_rate_are_refused(weights, table):
    with pytest.raises(UsageError, match="tiny,other names several models; name one of them"):
        EvaluateSettings("tiny,other", None, table).check()
    examples = to_examples(read_recordings(table, None), None)
    settings = EvaluateSettings("m", None, table, rate_hz=8.0)
    with pytest.raises(UsageError, match="--fps: the steps of tiny are blocks of audio"):
        measure(load_model(str(weights), device="cpu"), examples, settings, StopHandler())
