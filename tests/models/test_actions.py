"""Token-gated action recognition: equality with the network by hand, and the views of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError
from costream.core.records import VideoFrame
from costream.models.base import StepResult
from costream.models.eventful.classifier import ActionModel
from costream.models.images import Crops, temporal_views
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from kit.action_nets import LABELS, SIDE, action_card, small_model, small_vivit

TOKENS, WINDOW = 10, 5


def video(count: int, size: tuple[int, int] = (20, 12)) -> np.ndarray:
    """Noise that moves slowly, uint8 [T, h, w, 3]."""
    random = np.random.default_rng(0)
    x, out = random.uniform(0, 255, (size[1], size[0], 3)), []
    for _ in range(count):
        moves = random.random((size[1], size[0], 1)) < 0.1
        x = np.where(moves, random.uniform(0, 255, x.shape), x)
        out.append(x.astype(np.uint8))
    return np.stack(out)


def frames(pictures: np.ndarray) -> list[VideoFrame]:
    return [VideoFrame(k, k / 10, k, p.copy) for k, p in enumerate(pictures)]


def comparable(results: list[StepResult]) -> list[Any]:
    """All that does not depend on the clock."""
    return [
        (None if r.probabilities is None else r.probabilities.tolist(), r.macs, r.tokens, r.warmup)
        for r in results
    ]


@torch.no_grad()
def test_it_gives_what_the_network_gives_by_hand() -> None:
    model, network, crops = small_model(), small_vivit(), Crops(SIDE)
    state, memory, pictures = model.init_state(), network.init_state(1), video(16)
    state.tokens = 4
    results = model.steps(frames(pictures), state)  # type: ignore[arg-type]
    for k, result in enumerate(results):
        assert result.warmup == (k < 2 * WINDOW - 1,)
        if k % 2 == 0:
            assert (result.probabilities, result.tokens) == (None, None)
            assert (result.macs, result.dense_macs) == (0, 0)
            continue
        pair = torch.from_numpy(pictures[k - 1 : k + 1].transpose(0, 3, 1, 2))
        spent = Operations()
        logits = network.forward_step(crops(pair), memory, TopTokens(4), spent)
        expected = logits.softmax(-1).numpy()
        assert np.allclose(result.probabilities, expected, rtol=0, atol=1e-6)
        assert result.macs == spent.total
        assert result.tokens == (4 if k > 1 else TOKENS,)
        assert result.dense_macs == network.dense_macs > result.macs


def test_what_a_step_costs_is_foreseen() -> None:
    model = small_model(variant="token-wise")
    state, pictures = model.init_state(), frames(video(16))
    assert model.token_count(state) is None
    for k, picture in enumerate(pictures):
        state.tokens = k
        result = model.step([picture], state)
        if k > 2 * WINDOW and k % 2:
            assert result.macs == model.step_macs(state, k)
    assert model.token_count(state) == TOKENS
    costs = [model.step_macs(state, count) for count in range(1, TOKENS + 3)]
    assert costs == sorted(costs)
    assert costs[-1] == costs[TOKENS - 1]


@torch.no_grad()
@pytest.mark.parametrize("tokens", [None, 3])
def test_a_video_in_the_views_of_the_paper(tokens: int | None) -> None:
    model, network, crops = small_model(), small_vivit(), Crops(SIDE)
    pictures, spent, logits = video(30), Operations(), []
    given = model.classify(pictures, tokens, stride=2, operations=spent)
    total = 0
    for chosen in temporal_views(30, 2 * WINDOW, 2, 4):
        view = crops(torch.from_numpy(pictures[chosen].transpose(0, 3, 1, 2)), 3)
        for clip in view.split(1):
            operations = Operations()
            policy = TopTokens(TOKENS if tokens is None else tokens)
            logits.append(network.forward_clip(clip, policy, operations))
            total += operations.total
            if tokens is None:
                assert torch.allclose(logits[-1], network(clip), rtol=0, atol=1e-5)
    expected = torch.cat(logits).mean(0).softmax(-1).numpy()
    assert len(logits) == 12
    assert np.allclose(given, expected, rtol=0, atol=1e-6)
    assert spent.total == total


def test_bfloat16_gives_nearly_the_same() -> None:
    pictures = frames(video(10))
    model, other = small_model(), small_model("bfloat16")
    mine, theirs = (m.steps(pictures, m.init_state())[-1] for m in (model, other))  # type: ignore
    assert np.abs(mine.probabilities - theirs.probabilities).max() < 0.05  # type: ignore[operator]


def test_mismatches_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot be computed in float16"):
        small_model("float16")
    with pytest.raises(ModelError, match="does not name the frontend crops"):
        ActionModel(action_card(), small_vivit(), None)
    with pytest.raises(ModelError, match="crops of 16 pixels"):
        ActionModel(action_card(), small_vivit(), Crops(16))
    with pytest.raises(ModelError, match="3 labels for 4 classes"):
        ActionModel(action_card(), small_vivit(num_classes=len(LABELS) + 1), Crops(SIDE))
