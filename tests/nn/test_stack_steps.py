"""Compiled blocks of stacks: as PyTorch in float64, for any sizes; when they are used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.nn import fast
from costream.nn.adapters.adapting import adapt
from kit.choices import taking
from kit.encoders import build_encoder


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    fast.compile_blocks()


def steps(encoder: Any, x: Tensor, state: Any) -> Tensor:
    return torch.stack([encoder.forward_step(row[None], state)[0] for row in x])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("width", "heads", "window"), [(16, 2, 4), (23, 1, 9), (42, 6, 33)])
def test_both_blocks_are_those_of_float64(
    width: int, heads: int, window: int, activation: str
) -> None:
    from costream.nn.encoder_kernels import StackStep

    torch.manual_seed(width)
    sizes: Any = {"embed_dim": width, "heads": heads, "window": window, "feedforward": 30}
    encoder = build_encoder(depth=2, activation=activation, **sizes)
    first, last = encoder.layers
    weights = [block.compiled_weights() for block in (first, last)]
    eps = [(block.norm1.eps, block.norm2.eps) for block in (first, last)]
    step = StackStep(*weights, heads, activation == "relu", eps)
    x, attended = torch.randn(1, window, width), torch.randn(1, width, window).mT
    one, two = copy.deepcopy(encoder).double().layers
    truth = one.after_attention(x.double(), one.self_attn.out_proj(attended.double()))
    torch.testing.assert_close(step.rows(x, attended).double(), truth, atol=3e-5, rtol=1e-4)
    for slot in (0, window - 1):
        newest = two.self_attn.attend_changed(x.double(), x[:, slot].double())
        truth = two.after_attention(x[:, slot].double(), newest)
        torch.testing.assert_close(step.newest(x, slot).double(), truth, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("way", ["compiled", "torch"])
@pytest.mark.parametrize("depth", [2, 3])
def test_stacks_step_through_a_stream_and_continue_readable_steps(depth: int, way: str) -> None:
    torch.manual_seed(depth)
    encoder = build_encoder(depth=depth, heads=2, window=11)
    truth = copy.deepcopy(encoder).double().forward(x := torch.randn(1, 60, 16).double())[0]
    state, given = encoder.init_state(), []
    for k, row in enumerate(x[0].float()):
        with taking(way), fast.use_kernels(k // 13 % 2 == 0):
            given.append(encoder.forward_step(row[None], state)[0])
        state = state.clone() if k == 30 else state
    torch.testing.assert_close(torch.stack(given).double(), truth, atol=3e-5, rtol=1e-4)


def test_stacks_follow_weights_that_change_and_leave_out_adapters() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(depth=2, heads=2, window=11)
    state, x = encoder.init_state(), torch.randn(30, 16)
    steps(encoder, x, state)
    assert state.attention.compiled is not None
    encoder.layers[1].linear1.weight.mul_(-1)
    encoder.layers[0].norm2.weight = torch.nn.Parameter(torch.rand(16))
    other = state.clone()
    with fast.use_kernels(False):
        expected = steps(encoder, x, other)
    torch.testing.assert_close(steps(encoder, x, state), expected, atol=3e-5, rtol=1e-4)
    adapted = copy.deepcopy(encoder)
    adapt(adapted, "lora", 2)
    state = adapted.init_state()
    steps(adapted, x, state)
    assert state.attention.compiled is None
