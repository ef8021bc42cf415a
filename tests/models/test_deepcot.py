"""DeepCoT: steps against clips, several rows per step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.deepcot import DeepCoT

SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 6}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def small(depth: int = 2, **options: Any) -> DeepCoT:
    return DeepCoT(10, 5, depth=depth, **{**SIZES, **options}).eval()


def step_through(model: DeepCoT, x: Tensor) -> Tensor:
    state = model.init_state(len(x))
    return torch.stack([model.forward_step(row, state).logits for row in x.unbind(1)], 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": "fixed", "attention": "soft"},
        {"positions": "rotary", "activation": "relu"},
        {"positions": "none", "residual": "scaled", "activation": "none", "final_norm": False},
    ],
)
def test_steps_chunks_and_clip_agree(options: dict[str, Any]) -> None:
    model = small(3, **options).double()
    x = torch.randn(2, 48, 10, dtype=torch.float64)
    clip = model(x).logits
    torch.testing.assert_close(step_through(model, x), clip)
    state = model.init_state(2)
    chunks = [model.forward_steps(part, state).logits for part in x.split(11, 1)]
    torch.testing.assert_close(torch.cat(chunks, 1), clip)
    torch.testing.assert_close(model(x, last=2).logits, clip[:, -2:])


def test_one_block_is_cooadtr_and_two_are_not() -> None:
    x = torch.randn(1, 20, 10)
    for depth in (1, 2):
        exact = CoOadTR(10, 5, depth=depth, qkv_bias=True, out_bias=True, **SIZES).eval()
        deep = small(depth)
        deep.load_state_dict(exact.state_dict())
        same = torch.allclose(deep(x).logits, exact(x).logits, atol=1e-6)
        assert same == (depth == 1)


def test_tokens_of_a_step_get_their_positions() -> None:
    model = small().double()
    x = torch.randn(1, 12, 10, dtype=torch.float64)
    state = model.init_state()
    steps = [model.forward_step(part, state).logits for part in x.split(3, 1)]
    tokens = model.positions(model.input_projection(x))
    expected = model.head(model.encoder(tokens, tokens=3))
    torch.testing.assert_close(torch.cat(steps, 1), expected)


def test_sizes_and_macs() -> None:
    model = DeepCoT(128, 10, depth=4)
    assert (model.window, model.receptive_field) == (120, 4 * 119 + 1)
    block = 4 * 192**2 + 2 * 120 * 192 + 2 * 192 * 192
    assert model.count_macs() == 128 * 192 + 4 * block + 1920
    assert model.dense_macs > 60 * model.count_macs()
