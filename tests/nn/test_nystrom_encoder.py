from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
from costream.nn.nystrom.encoder import NystromEncoder
from costream.nn.nystrom.window import NystromAttention
from kit.encoders import build_encoder
from kit.nystrom_oracle import oracle

D, N = 8, 7
SIZES = {"window": N, "embed_dim": D, "heads": 2, "feedforward": 12, "num_landmarks": 3}
build = partial(build_encoder, NystromEncoder, dtype=torch.float64, **SIZES)


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
    encoder = build(depth=depth, landmarks=landmarks, **style)
    x = torch.randn(2, 4 * N + 2, D).double()
    state = encoder.init_state(2)
    steps = torch.stack([encoder.forward_step(row, state) for row in x.unbind(1)], 1)
    torch.testing.assert_close(encoder(x), steps)
    # Rows of a partial window have as many landmarks in every block as segments begun.
    for t in (0, N - 1, N, 2 * N + 3, 4 * N + 1):
        if depth == 1 or landmarks == "fixed" or t >= N - 1:
            torch.testing.assert_close(steps[1, t], newest(encoder, x[1], t))


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

    encoder = build(depth=depth)
    state, x = encoder.init_state(), torch.randn(2 * N, 1, D).double()
    for row in x[:N]:
        encoder.forward_step(row, state)
    with FlopCounterMode(display=False) as counter:
        for row in x[N:]:
            encoder.forward_step(row, state)
    assert encoder.count_macs() == pytest.approx(counter.get_total_flops() / 2 / N, rel=0.02)
