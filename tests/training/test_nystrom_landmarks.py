"""Fixed landmarks: centres, the two phases, and a whole training."""

from __future__ import annotations

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from costream.models.oad.conystrom import CoNystrom
from costream.training.optim import Schedule
from costream.training.tokens import landmarks
from costream.training.tokens.landmarks import LandmarkSchedule, centres
from costream.training.tokens.token_streams import TokenStream, TokenStreams
from costream.training.tokens.token_training import fit_streams
from costream.training.training_loop import TrainingRun
from costream.weights_io.file import read_weights
from kit import data_audio
from kit.runs import run

SIZES = {"embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 5, "num_landmarks": 3}


def network(depth: int) -> CoNystrom:
    torch.manual_seed(0)
    return CoNystrom(6, 2, depth=depth, landmarks="fixed", **SIZES)


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> TokenStreams:
    monkeypatch.setattr(landmarks, "TOKENS", 600)
    rng = np.random.default_rng(0)
    tokens = [torch.from_numpy(rng.normal(k, 1.0, (40, 6))).float() for k in (0, 2)]
    return TokenStreams([[TokenStream(x, np.full(40, k))] for k, x in enumerate(tokens)])


def test_centres_are_the_means_of_their_clusters() -> None:
    rng = np.random.default_rng(1)
    middles = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 18.0]])
    points = np.concatenate([rng.normal(m, 0.5, (200, 2)) for m in middles])
    heads = torch.from_numpy(np.stack([points, -points])).float()
    found = centres(heads, 3, rng)
    expected = torch.stack([heads[:, k * 200 : k * 200 + 200].mean(1) for k in range(3)], 1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[one.sum(1).argsort()], other[other.sum(1).argsort()])


def test_as_many_centres_as_there_are_points_may_be_the_same() -> None:
    found = centres(torch.ones(1, 5, 2), 3, np.random.default_rng(0))
    assert torch.equal(found, torch.ones(1, 3, 2))


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_are_fixed_one_after_another(depth: int, supply: TokenStreams) -> None:
    model, rng = network(depth), np.random.default_rng(0)
    before = [a.landmarks.clone() for a in model.encoder.attention]
    fixing, seen = LandmarkSchedule(model, Schedule(8, 2), supply, rng), []
    for step in range(8):
        fixing.begin(step, Mock())
        seen.append(sum(a.fixed for a in model.encoder.attention))
        assert fixing.over(step) == (seen[-1] == depth)
    assert seen == ([0] * 4 + [1] * 4 if depth == 1 else [0] * 4 + [1] * 2 + [2] * 2)
    for attention, old in zip(model.encoder.attention, before, strict=True):
        assert not torch.equal(attention.landmarks, old)
        again = attention.invert(attention.landmarks)  # rounding grows in an inverse
        torch.testing.assert_close(again, attention.inverse, rtol=1e-4, atol=1e-4)


def test_other_networks_have_one_phase(supply: TokenStreams) -> None:
    model = CoNystrom(6, 2, **SIZES)
    fixing = LandmarkSchedule(model, Schedule(4, 2), supply, np.random.default_rng(0))
    fixing.begin(2, Mock())
    assert fixing.over(0)
    assert not model.encoder.attention[0].fixed


@pytest.mark.long
def test_what_counts_as_best_has_fitted_landmarks(supply: TokenStreams) -> None:
    model, rng = network(1), np.random.default_rng(0)
    validation = [supply.draw(40, rng)]
    history = fit_streams(model, supply, Schedule(40, 4, rate=5e-3), TrainingRun(), validation)
    assert [row["step"] for row in history] == [40]
    assert model.encoder.attention[0].fixed
    assert history[-1]["validation_accuracy"] > 0.8


@pytest.mark.long
def test_own_sounds_with_fixed_landmarks(tmp_path) -> None:
    base = data_audio.write_tiny_weights(
        tmp_path / "tiny.safetensors",
        architecture="conystrom-audio",
        num_landmarks=4,
        landmarks="fixed",
    )
    data, out = data_audio.write_folder(tmp_path / "data", 4), tmp_path / "own.safetensors"
    run(*("train", base, "--data", data, "-o", out, "--scratch", "--steps", 60, "--no-cache"))
    stored = read_weights(out)
    assert stored.card.architecture == "conystrom-audio"
    landmarks = "network.encoder.layers.0.self_attn.landmarks"
    assert not torch.equal(stored.tensors[landmarks], read_weights(base).tensors[landmarks])
    new = data_audio.write_folder(tmp_path / "new", 4, first_seed=1000)
    judged = run("evaluate", "-m", out, "--data", new, "--json")
    assert json.loads(judged.stdout)["sequences"]["top1"] > 0.6  # a third is what guessing gives
