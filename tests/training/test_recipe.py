"""The recipe, small: it learns, repeats itself, and writes weights that load."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from costream.checkpoints.card import Timeline
from costream.checkpoints.file import read_card, read_weights
from costream.frontends.tdn import TemporalDifferenceNet
from costream.models.oad.cooadtr import CoOadTR
from costream.models.verify import verify
from costream.training.calibration import StreamPredictions, count_segments, segments, true_segments
from costream.training.optim import Schedule, soft_cross_entropy
from weights.recipes.action import train as action
from weights.recipes.action.data import Sampler
from weights.recipes.action.loop import majority, predict, score, train, train_frontend
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.train import future, token_bank, train_head


def small(seed=0):
    torch.manual_seed(seed)
    frontend = TemporalDifferenceNet((32, 24), (4, 8, 16, 16), 4, (1, 4), blocks=1)
    head = CoOadTR(32, 7, embed_dim=32, depth=1, num_heads=4, feedforward=32, window=16)
    return frontend, head


def learn(clips, steps, seed=0):
    frontend, head = small(seed)
    samplers = [Sampler(clips, 7, 24, 8.0)]
    linear = nn.Linear(32, 7)
    train_frontend(frontend, linear, samplers, Schedule(steps, batch=32), seed, "")
    train(frontend, [head, linear], samplers, Schedule(steps // 2, batch=4), seed, "")
    return frontend, head, linear


def test_training_learns_and_repeats(clips):
    frontend, head, linear = learn(clips, 60)
    first, second = predict(frontend, [head, linear], clips)
    result = score(first, clips, LABELS, 8.0)
    guess = score(majority(clips, clips, 7), clips, LABELS, 8.0)
    assert result["mAP"] > guess["mAP"] + 0.2
    assert result["frames"] == sum(int((c.labels >= 0).sum()) for c in clips)
    assert not frontend.training
    assert np.isfinite(np.concatenate(second)).all()
    a, b = learn(clips, 4), learn(clips, 4)
    for one, two in zip(a, b, strict=True):
        for x, y in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(x, y)


def test_unscored_frames_do_not_count():
    scores = torch.tensor([[5.0, 0.0], [0.0, 9.0]])
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert soft_cross_entropy(scores, target, 0.0) == pytest.approx(np.log1p(np.exp(-5.0)))
    assert soft_cross_entropy(scores, torch.zeros(2, 2), 0.0) == 0


def test_future_targets():
    ahead = future(torch.eye(40)[None, :38], 16, 4)
    assert ahead.shape == (1, 16, 4, 40)
    assert ahead[0, 0].argmax(-1).tolist() == [22 + k for k in (1, 2, 3, 4)]
    assert ahead[0, -2].sum(-1).tolist() == [1, 0, 0, 0]
    assert ahead[0, -1].sum() == 0


def test_heads_learn_on_a_finished_frontend(clips):
    frontend, head = small()
    bank = token_bank(frontend, [Sampler(clips, 7, 24, 8.0)], 4, 4, 0)
    assert bank[0].shape == (16, 24, 32)
    before = [p.clone() for p in frontend.parameters()]

    def loss():
        with torch.no_grad():
            return float(soft_cross_entropy(head(bank[0]).logits, bank[1], 0.03))

    start = loss()
    train_head(head, bank, Schedule(250, 4, rate=3e-3), 0, "")
    train_head(head, bank, Schedule(250, 4, rate=3e-3), 0, "", last=8)
    assert loss() < start - 0.2
    assert all(torch.equal(a, b) for a, b in zip(before, frontend.parameters(), strict=True))


def test_segments_of_streams():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, -1, 2, 0, 6], 32)
    sure = np.eye(7)[np.maximum(labels, 0)] * 0.9 + 0.1 / 7
    noisy = 0.5 * sure + 0.5 * rng.dirichlet(np.ones(7), 192)
    assert [(s.start_s, s.end_s, s.label) for s in true_segments(labels, LABELS, 8.0)] == [
        (4, 8, "walk"), (12, 16, "sit down"), (20, 24, "lie")]  # fmt: skip
    assert count_segments([StreamPredictions(sure, labels)], Timeline(), LABELS, 8.0, 0.5).f1 == 1
    unsure = [StreamPredictions(noisy, labels)]
    assert count_segments(unsure, Timeline(0.9), LABELS, 8.0, 0.3).f1 == 0
    assert count_segments(unsure, Timeline(0.3), LABELS, 8.0, 0.3).f1 > 0.8
    assert len(segments(noisy, Timeline(0.3), LABELS, 8.0)) < 8


@pytest.mark.slow
def test_whole_recipe(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(action, "ROUNDS", 1)
    videos = ("20200626_154313", "20200628_145326", "20200626_175151")
    size = action.ActionRecipeSize(
        steps=2,
        joint_steps=1,
        head_steps=2,
        bank=2,
        last_bank=2,
        scenes=1,
        movements=3,
        moving=1,
        check_scenes=1,
        only=videos,
        trees=2,
    )
    video = action.load(pack, size, 0)
    for part in fields(video):
        clips = [
            replace(c, frames=c.frames[::8], labels=c.labels[::8])
            for c in getattr(video, part.name)
        ]
        video = replace(video, **{part.name: clips})
    written = action.make(video, size, 0, tmp_path)
    assert [p.name for p in written] == [
        "cooadtr.safetensors", "cooadtr-b2.safetensors", "oadtr.safetensors"]  # fmt: skip
    for path in written:
        verify(path)
        card = read_card(path)
        assert path.stat().st_size < 6_000_000
        assert card.labels == LABELS
        assert set(card.metrics["test"]) >= {
            card.name,
            "majority",
            "per-frame classifier",
            "tree ensemble",
        }
        text = path.with_suffix(".md").read_text("utf-8")
        assert card.licence in text
        assert "| majority |" in text
    before = read_weights(written[0]).tensors
    assert action.recalibrate(video, size, 1, tmp_path, heads=True) == written
    after = read_weights(written[0])
    changed = [name for name, t in after.tensors.items() if not torch.equal(t, before[name])]
    assert {name.partition(".")[0] for name in changed} == {"network"}
    assert "tree ensemble" in after.card.metrics["test"]


def test_missing_pack_is_one_line(tmp_path, capsys):
    assert action.main(["--pack", str(tmp_path / "none.tar")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--pack" in err
