"""Encoders whose every parameter matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.block import EncoderConfig, EncoderStack
from costream.nn.encoder import Encoder
from costream.nn.nystrom.encoder import NystromEncoder


def build_encoder(
    kind: type[EncoderStack] = Encoder,
    *,
    depth: int = 1,
    window: int = 7,
    embed_dim: int = 16,
    heads: int = 4,
    feedforward: int = 24,
    logit_scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Any:
    """Return an encoder in evaluation whose biases and norms are not 0 and 1.

    ``options``: fields of ``EncoderConfig`` and arguments of ``kind``. ``logit_scale``: of queries.
    """
    config, own = EncoderConfig(embed_dim, heads, feedforward, depth, window).update(options)
    encoder: Any = kind(config, **own).to(dtype)
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    for block in encoder.layers:
        block.self_attn.in_proj_weight.data[:embed_dim] *= logit_scale
    if isinstance(encoder, NystromEncoder):
        for attention in encoder.attention:
            if attention.fixed:
                shape = (2, heads, attention.num_landmarks, embed_dim // heads)
                attention.fix_landmarks(*torch.randn(shape))
    return encoder.eval()


def step_through(encoder: Any, x: Tensor, state: Any = None) -> Tensor:
    """Return the outputs [B, T, d] of steps through a clip."""
    state = encoder.init_state(len(x)) if state is None else state
    return torch.stack([encoder.forward_step(row, state) for row in x.unbind(1)], 1)
