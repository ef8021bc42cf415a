"""Training loops of the action recipe: they learn and are deterministic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.training.optim import Schedule
from costream.training.training_loop import TrainingRun
from weights.recipes.action.data import Sampler
from weights.recipes.action.loop import (
    drift,
    future,
    majority,
    predict,
    reminded,
    score,
    token_bank,
    train,
    train_frontend,
    train_head,
)
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.common import soft_cross_entropy


def small(seed=0):
    torch.manual_seed(seed)
    frontend = TemporalDifferenceNet((32, 24), (4, 8, 16, 16), 4, (1, 4), blocks=1)
    head = CoOadTR(32, 7, embed_dim=32, depth=1, num_heads=4, feedforward=32, window=16)
    return frontend, head


def learn(clips, steps, seed=0):
    frontend, head = small(seed)
    samplers = [Sampler(clips, 7, 24, 8.0)]
    linear = nn.Linear(32, 7)
    train_frontend(frontend, linear, samplers, Schedule(steps, batch=32), TrainingRun(seed))
    train(frontend, [head, linear], samplers, Schedule(steps // 2, batch=4), seed, "")
    return frontend, head, linear


@pytest.mark.long
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


@pytest.mark.long
def test_tokens_of_kept_clips_hardly_change(clips):
    known, other = (Sampler([clip], 7, 24, 8.0) for clip in clips)
    schedule, changes = Schedule(20, batch=8, rate=3e-3), []
    frames = torch.from_numpy(clips[0].frames[None, ::5])
    for kept in (0, 1):
        frontend, _ = small()
        before = frontend.eval()(frames)[0].detach()
        torch.manual_seed(1)
        train_frontend(
            *(frontend, nn.Linear(32, 7), [known, other], schedule, TrainingRun()),
            settled=0.0,
            kept=kept,
        )
        changes.append(float(drift(frontend(frames)[0].detach(), before)))
    assert changes[1] < 0.5 * changes[0]
    assert drift(before, before) == 0
    spread = before.var(0).mean().sqrt()
    assert float(drift(before + spread, before)) == pytest.approx(1.0, rel=1e-4)


def test_known_clips_are_half_taught_by_the_models():
    heads = nn.Linear(4, 3), nn.Linear(4, 3)
    bank = (torch.randn(2, 5, 4), torch.eye(3)[None, [0, 1, 2, 1, 0]])
    targets = bank[1].repeat(2, 1, 1)
    targets[1, 2] = 0
    taught = reminded(heads, (bank[0], targets), torch.tensor([False, True]))
    assert torch.equal(taught[0], targets[0])
    said = torch.stack([head(bank[0][1, 0]).softmax(-1) for head in heads]).mean(0)
    assert torch.allclose(2 * taught[1, 0] - targets[1, 0], said)
    assert torch.equal(taught[1, 2], torch.zeros(3))


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


@pytest.mark.long
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
