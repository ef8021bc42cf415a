from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
from costream.nn.nystrom.encoder import NystromEncoder
from costream.nn.nystrom.window import NystromAttention
from kit.nystrom_oracle import oracle

D, N = 8, 7


def build(depth: int, landmarks: str, **options: Any) -> NystromEncoder:
    config = EncoderConfig(D, 2, 12, depth, N, **options)
    encoder = NystromEncoder(config, 3, landmarks=landmarks).double()
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    for attention in encoder.attention:
        if attention.fixed:
            attention.fix_landmarks(*torch.randn(2, 2, 3, D // 2).double())
    return encoder.eval()


def newest(encoder: NystromEncoder, x: Tensor, t: int) -> Tensor:
    """The newest output of a stack at step ``t`` of a stream [T, d]."""
    first, *others = encoder.layers
    attended = oracle(first.self_attn, first.before_attention(x[: t + 1]), t)
    y = first.after_attention(x[max(0, t + 1 - N) : t + 1], attended)[None]
    for block in others:
        y = block.after_attention(
            y, NystromAttention.forward(block.self_attn, block.before_attention(y), None)
        )
    return encoder.norm(y[0, -1]) if encoder.norm else y[0, -1]


@pytest.mark.parametrize("landmarks", ["continual", "fixed"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_clip_and_formula_agree(depth: int, landmarks: str) -> None:
    style = {"norm_first": True} if depth == 3 else {"final_norm": True, "qkv_bias": False}
    encoder = build(depth, landmarks, **style)
    x = torch.randn(2, 4 * N + 2, D).double()
    state = encoder.init_state(2)
    steps = torch.stack([encoder.forward_step(row, state) for row in x.unbind(1)], 1)
    torch.testing.assert_close(encoder(x), steps)
    torch.testing.assert_close(encoder(x, last=3), steps[:, -3:])
    torch.testing.assert_close(encoder.forward_steps(x, encoder.init_state(2)), steps)
    # Rows of a partial window have as many landmarks in every block as segments begun.
    for t in (0, N - 1, N, 2 * N + 3, 4 * N + 1):
        if depth == 1 or landmarks == "fixed" or t >= N - 1:
            torch.testing.assert_close(steps[1, t], newest(encoder, x[1], t))


@pytest.mark.parametrize("landmarks", ["continual", "fixed"])
@pytest.mark.parametrize("depth", [1, 2])
def test_streams_that_start_again(depth: int, landmarks: str) -> None:
    encoder = build(depth, landmarks)
    x = torch.randn(3, 30, D).double()
    state = encoder.init_state(3)
    for t, rows in enumerate(x.unbind(1)):
        if t == 12:
            state.reset([1])
        out = encoder.forward_step(rows, state)
    assert encoder.warmup(state) == (False, False, False)
    alone = encoder(torch.stack([x[1, 12:]]))[0, -1]
    torch.testing.assert_close(out, torch.stack([encoder(x)[0, -1], alone, encoder(x)[2, -1]]))


def test_weights_of_an_exact_encoder_fit() -> None:
    config = EncoderConfig(D, 2, 12, 2, N, final_norm=True)
    exact = Encoder(config).double().eval()
    encoder = NystromEncoder(config, N, iterations=0).double().eval()
    encoder.load_state_dict(exact.state_dict())
    x = torch.randn(1, N, D).double()
    # A landmark a row is no approximation.
    torch.testing.assert_close(encoder(x), exact(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_macs_are_those_of_the_products(depth: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    encoder = build(depth, "continual")
    state, x = encoder.init_state(), torch.randn(2 * N, 1, D).double()
    for row in x[:N]:
        encoder.forward_step(row, state)
    with FlopCounterMode(display=False) as counter:
        for row in x[N:]:
            encoder.forward_step(row, state)
    assert encoder.count_macs() == pytest.approx(counter.get_total_flops() / 2 / N, rel=0.02)


def test_unknown_landmarks() -> None:
    with pytest.raises(ValueError, match="continual or fixed"):
        build(1, "learned")
