"""MiniROAD against the equations of a gated recurrent unit, and step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.models.oad.miniroad import MiniRoad


def small() -> MiniRoad:
    torch.manual_seed(0)
    return MiniRoad(5, 3, embed_dim=12, hidden=8).double().eval()


def offline(net: MiniRoad, x: Tensor) -> Tensor:
    """The published modules over a whole clip: a Sequential, a GRU from zeros, a Sequential."""
    front = nn.Sequential(net.input_projection, net.norm, nn.ReLU())
    gru = nn.GRU(12, 8, batch_first=True).double()
    gru.load_state_dict(net.gru.state_dict())
    rows, _ = gru(front(x), x.new_zeros(1, len(x), 8))
    return nn.Sequential(nn.ReLU(), net.head)(rows)


def written_out(net: MiniRoad, x: Tensor) -> Tensor:
    """The same by Cho et al. (2014), as torch.nn.GRU documents it."""
    h, out = x.new_zeros(len(x), 8), []
    w = net.gru.state_dict()
    for row in x.unbind(1):
        row = nn.functional.relu(net.norm(net.input_projection(row)))
        given = (row @ w["weight_ih_l0"].t() + w["bias_ih_l0"]).chunk(3, -1)
        kept = (h @ w["weight_hh_l0"].t() + w["bias_hh_l0"]).chunk(3, -1)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(given[:2], kept[:2], strict=True))
        h = (1 - update) * torch.tanh(given[2] + reset * kept[2]) + update * h
        out.append(net.head(torch.relu(h)))
    return torch.stack(out, 1)


@torch.no_grad()
@settings(max_examples=25)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 4))
def test_steps_chunks_and_clip_agree(lengths: list[int], batch: int) -> None:
    net = small()
    x = torch.randn(batch, sum(max(1, n) for n in lengths), 5, dtype=torch.float64)
    state, parts, at = net.init_state(batch), [], 0
    for length in lengths:
        if length:
            parts.append(net.forward_steps(x[:, at : at + length], state).logits)
        else:
            parts.append(net.forward_step(x[:, at], state).logits[:, None])
        at += max(1, length)
    clip = net(x).logits
    torch.testing.assert_close(torch.cat(parts, 1), clip, rtol=0, atol=1e-12)
    torch.testing.assert_close(offline(net, x), clip, rtol=0, atol=1e-12)
    torch.testing.assert_close(written_out(net, x), clip, rtol=0, atol=1e-12)
    torch.testing.assert_close(net(x, 5, 1).logits, clip[:, -1:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_it_stays_exact() -> None:
    net = small()
    x = torch.randn(1, 3000, 5, dtype=torch.float64) * 16
    state = net.init_state()
    steps = torch.cat([net.forward_step(row, state).logits for row in x.unbind(1)])
    torch.testing.assert_close(steps, offline(net, x)[0], rtol=0, atol=1e-12)


def test_published_size() -> None:
    with torch.device("meta"):
        net = MiniRoad(3072, 22)
    assert sum(p.numel() for p in net.parameters()) == 15_763_478
    assert net.count_macs() == net.dense_macs == 3072 * 2048 + 3 * 1024 * 3072 + 1024 * 22


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_weights_may_be_narrow(dtype: torch.dtype) -> None:
    net = small()
    x = torch.randn(2, 5, dtype=torch.float64)
    expected = net.forward_step(x, net.init_state(2)).logits
    net.to(dtype)
    out = net.forward_step(x.to(dtype), net.init_state(2)).logits
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.03)
