"""TeSTra as its authors evaluate it, one window at a time, in plain PyTorch.

Written from the paper (Zhao and Krähenbühl, ECCV 2022) and the structure of the released code: rows
of the long memory are sampled for each window, attention to them is a softmax whose logits have the
logarithms of the decays added, and every layer computes all of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def attend(p: Weights, at: str, x: Tensor, memory: Tensor, heads: int, bias: Tensor) -> Tensor:
    """Multi-head attention of rows [n, d] to [m, d] with ``bias`` [n, m] added to the logits."""
    weights, biases = p[f"{at}.in_proj_weight"].chunk(3), p[f"{at}.in_proj_bias"].chunk(3)
    parts = zip((x, memory, memory), weights, biases, strict=True)
    q, k, v = (F.linear(*one).unflatten(1, (heads, -1)).transpose(0, 1) for one in parts)
    shares = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)
    out = (shares @ v).transpose(0, 1).flatten(1)
    return F.linear(out, p[f"{at}.out_proj.weight"], p[f"{at}.out_proj.bias"])


def norm(p: Weights, at: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{at}.weight"], p[f"{at}.bias"])


def linear(p: Weights, at: str, x: Tensor) -> Tensor:
    return F.linear(x, p[f"{at}.weight"], p[f"{at}.bias"])


def layer(
    p: Weights, at: str, x: Tensor, memory: Tensor, heads: int, mask: Tensor, bias: Tensor
) -> Tensor:
    x = norm(p, f"{at}.norm1", x + attend(p, f"{at}.self_attn", x, x, heads, mask))
    x = norm(p, f"{at}.norm2", x + attend(p, f"{at}.multihead_attn", x, memory, heads, bias))
    hidden = F.relu(linear(p, f"{at}.linear1", x))
    return norm(p, f"{at}.norm3", x + linear(p, f"{at}.linear2", hidden))


def sampled(begin: int, samples: int, every: int) -> tuple[np.ndarray, int]:
    """Rows of the long memory of a window that begins at a row, and how many of them are padding.

    The sampler of the authors' evaluation: the newest of each ``every`` rows before the window, row
    0 in front of them as padding, of which all but the last are masked.
    """
    start = begin - samples * every
    rows = np.arange(begin % every if start < 0 else start, begin)[::every]
    rows = np.sort(np.concatenate([np.zeros(max(0, samples - len(rows)), int), rows]))
    return rows, max(0, int((rows == 0).sum()) - 1)


def logits(
    p: Weights,
    x: Tensor,
    step: int,
    *,
    heads: int,
    window: int,
    every: int,
    decay: float,
    samples: int = 512,
) -> Tensor:
    """Return the logits [K] of a step, counted from 0, of a recording of rows [T, C]."""
    begin = max(0, step - window + 1)
    rows, padding = sampled(begin, samples, every)
    long = F.relu(linear(p, "feature_head_long.input_linear.0", x[rows]))
    ages = torch.arange(len(rows) - 1, -1, -1, dtype=x.dtype)
    bias = torch.log(decay**ages + 1e-10)
    bias[:padding] = -math.inf
    queries, zero = p["enc_queries.0.weight"], x.new_zeros(())
    memory = layer(p, "enc_modules.0.layers.0", queries, long, heads, zero, bias)
    memory = norm(p, "enc_modules.0.norm", memory)
    y = p["enc_queries.1.weight"]
    for k in range(2):
        y = layer(p, f"enc_modules.1.layers.{k}", y, memory, heads, zero, zero)
    memory = norm(p, "enc_modules.1.norm", y)
    work = F.relu(linear(p, "feature_head_work.input_linear.0", x[begin : step + 1]))
    work = work + p["pos_encoding.pe"][: len(work), 0]
    mask = torch.full((len(work), len(work)), -math.inf, dtype=x.dtype).triu(1)
    wide = F.pad(mask, (len(memory), 0))
    seen, y = torch.cat([memory, work]), work
    for k in range(2):
        y = layer(p, f"dec_modules.layers.{k}", y, seen, heads, mask, wide)
    return linear(p, "classifier", norm(p, "dec_modules.norm", y))[-1]
