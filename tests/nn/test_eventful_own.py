"""Gated linear layers around a network's own attention, and policies within a budget."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costream.nn as co

EVERY = co.TopTokens(1 << 20)


class ShiftedBlock(nn.Module):
    """Attention in shifted windows with a bias for relative positions, norms after the branches."""

    def __init__(self, d: int, shift: int) -> None:
        super().__init__()
        self.shift, self.qkv, self.out = shift, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.bias = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:  # [B, 4, 4, d]
        batch, rolled = len(x), torch.roll(x, (self.shift, self.shift), (1, 2))
        rows = rolled.view(batch, 2, 2, 2, 2, -1).transpose(2, 3).reshape(4 * batch, 4, -1)
        q, k, v = self.qkv(rows).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        rows = F.scaled_dot_product_attention(q, k, v, self.bias).transpose(1, 2).flatten(2)
        rows = self.out(rows).view(batch, 2, 2, 2, 2, -1).transpose(2, 3).reshape(x.shape)
        x = x + self.norm1(torch.roll(rows, (-self.shift, -self.shift), (1, 2)))
        return x + self.norm2(self.down(F.gelu(self.up(x))))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, 8)
        self.blocks = nn.Sequential(ShiftedBlock(16, 0), ShiftedBlock(16, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patch(x).permute(0, 2, 3, 1)).mean((1, 2)))


def frames(count: int = 4, batch: int = 2) -> Tensor:
    """Return frames of which the upper quarter changes."""
    torch.manual_seed(1)
    out = torch.randn(count, batch, 3, 32, 32)
    out[1:, :, :, 8:] = out[0, :, :, 8:]
    return out


def test_windows_and_relative_positions():
    torch.manual_seed(0)
    model, given = Shifted().eval(), frames()
    with pytest.raises(co.ConversionError, match="attention='own' gates"):
        co.to_eventful(model)
    with pytest.raises(ValueError, match="'other' is neither 'exact' nor 'own'"):
        co.to_eventful(model, attention="other")
    net = co.to_eventful(model, EVERY, attention="own")
    state = net.init_state(2, given[0])
    assert len(state.calls) == 8  # the head sees no tokens
    for frame in given:
        torch.testing.assert_close(net.forward_step(frame, state), model(frame))
    assert net.operations.total == 2 * net.count_macs(16)
    state = net.init_state(2, given[0])
    outs = [net.forward_step(frame, state, co.TopTokens(10)) for frame in given]
    torch.testing.assert_close(outs[0], model(given[0]))
    assert net.operations.total == 2 * net.count_macs(10) < 2 * net.count_macs(16)
    error = (outs[-1] - model(given[-1])).norm()
    assert error < 0.5 * (model(given[0]) - model(given[-1])).norm()
    # What does not change is not computed: a still picture, and a threshold.
    still = [net.forward_step(given[-1], state, co.AboveThreshold(1e-4)) for _ in range(9)][-1]
    assert net.operations.linear == 0
    torch.testing.assert_close(still, model(given[-1]), rtol=0, atol=2e-3)
    alone = net.forward_step(given[0, 1:], state.take([1]), EVERY)
    torch.testing.assert_close(alone, model(given[0, 1:]))
    torch.testing.assert_close(net(given[2]), model(given[2]))


@pytest.mark.parametrize("attention", ["exact", "own"])
def test_a_policy_within_a_budget(attention):
    torch.manual_seed(0)
    model: Any = Shifted().eval() if attention == "own" else Vit().eval()
    net, given = co.to_eventful(model, EVERY, attention=attention), frames(2, 1)
    with pytest.raises(ValueError, match="set when a stream begins"):
        co.policy_within(net, 1_000_000)
    state = net.init_state(1, given[0])
    net.forward_step(given[0], state)
    for tokens in (1, 3, 9):
        budget = net.count_macs(tokens)
        assert co.policy_within(net, budget) == co.TopTokens(tokens)
        assert co.policy_within(net, budget - 1) == co.TopTokens(max(1, tokens - 1))
    net.forward_step(given[1], state, co.policy_within(net, net.count_macs(3)))
    assert net.operations.total <= net.count_macs(3)
    assert co.policy_within(net, 10 * net.count_macs()).count >= 16


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(3, 16, 8, 8), nn.ModuleList([Plain(), Plain()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = 2, nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


KINDS = {
    "Swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    "Beit": {"use_relative_position_bias": True, "patch_size": 8},
    "VitDet": {
        "patch_size": 8,
        "window_size": 2,
        "window_block_indices": [0],
        "use_relative_position_embeddings": True,
        "pretrain_image_size": 32,
    },
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"patch_size": 4} if kind == "Swin" else {**SIZES, "intermediate_size": 32}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **KINDS[kind]}, image_size=32)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    given = frames(3, 1)
    net = co.to_eventful(model, EVERY, attention="own")
    state = net.init_state(1, given[0])
    for frame in given:
        out = net.forward_step(frame, state).last_hidden_state
        torch.testing.assert_close(out, model(frame).last_hidden_state, rtol=0, atol=1e-5)
    net.forward_step(given[0], state, co.TopShare(0.25))
    assert net.operations.linear < 0.3 * net.count_macs()


def test_rows_that_have_not_changed_are_kept_exactly(monkeypatch):
    monkeypatch.setattr("costream.nn.eventful.own_attention.SMALL", 0)
    model, given = Shifted().eval(), frames(5)
    net = co.to_eventful(model, attention="own")
    state = net.init_state(2, given[0])
    totals = []
    for k in (0, 1, 1, 1, 2, 2, 0):
        torch.testing.assert_close(net.forward_step(given[k], state), model(given[k]))
        totals.append(net.operations.linear)
    assert totals[3] == 0 < totals[1] <= totals[0]
    given[0, :, :, :8, :8] += 1  # one patch, and so one window of the first block
    torch.testing.assert_close(net.forward_step(given[0], state), model(given[0]))
    assert 0 < net.operations.linear < totals[0]


def test_a_network_without_linear_layers_is_refused():
    with pytest.raises(co.ConversionError, match="no linear layers over tokens"):
        co.to_eventful(nn.Conv2d(3, 3, 1), attention="own")
    net = co.to_eventful(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), attention="own")
    with pytest.raises(co.ConversionError, match="no linear layers over tokens"):
        net.init_state(1, torch.zeros(1, 3, 2, 2))


@pytest.mark.parametrize("attention", ["exact", "own"])
def test_what_does_not_fit_is_refused(attention):
    model, given = Vit().eval(), frames(2, 1)
    net = co.to_eventful(model, attention=attention)
    with pytest.raises(co.ConversionError, match="cannot be stored as int8"):
        co.to_int8(net, least=1)
    state = net.init_state(1, given[0])
    for wrong in (given[0].expand(2, -1, -1, -1), given[0, :, :, :16]):
        with pytest.raises(ValueError, match="does not fit the state for"):
            net.forward_step(wrong, state)
    out = net.forward_step(given[0], state)  # the state has not begun
    torch.testing.assert_close(out, model(given[0]))
    assert net.count_macs(10**6) == net.count_macs(16)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: co.TopTokens(-1), lambda: co.TopTokens(1.5), lambda: co.TopShare(1.5)),  # type: ignore[arg-type]
        *(lambda: co.TopShare(math.nan), lambda: co.AboveThreshold(-1.0)),
        lambda: co.AboveThreshold(math.nan),
    ],
)
def test_policies_that_make_no_sense(make):
    with pytest.raises(ValueError, match=r"tokens: |threshold of|of the tokens"):
        make()


def test_a_frame_of_which_all_changes_is_computed_by_the_layers_themselves():
    torch.manual_seed(0)
    model = Vit().eval()
    net, moving = co.to_eventful(model), torch.randn(5, 2, 3, 32, 32)
    state = net.init_state(2, moving[0])
    for frame in moving:
        assert torch.equal(net.forward_step(frame, state), model(frame))
        assert net.operations.total == 2 * net.count_macs()
    some = moving[4].clone()
    some[1] += 1  # one of the streams
    torch.testing.assert_close(net.forward_step(some, state), model(some))
    net.forward_step(some, state)
    torch.testing.assert_close(net.forward_step(some, state), model(some))
    assert net.operations.total == 0
