"""Continual Nyström attention from its formulas, row by row in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.nystrom.window import segment_sizes


def build(kind: type, d: int, h: int, n: int, m: int, scale: float = 1.0, **options: Any) -> Any:
    """A module in float64 whose every parameter matters; ``scale``: of the logits."""
    module = kind(d, h, n, m, **options).double().eval()
    nn.init.normal_(module.in_proj_weight, std=d**-0.5)
    module.in_proj_weight.data[:d] *= scale
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    if module.fixed:
        shape = (h, m, d // h)
        module.fix_landmarks(scale * torch.randn(shape).double(), torch.randn(shape).double())
    return module


def six_iterations(g: Tensor) -> Tensor:
    """As published, for one matrix."""
    z = g.T / (g.abs().sum(0).max() * g.abs().sum(1).max())
    one = torch.eye(len(g), dtype=g.dtype)
    for _ in range(6):
        a = g @ z
        z = 0.25 * z @ (13 * one - a @ (15 * one - a @ (7 * one - a)))
    return z


def nystrom(q: Tensor, k: Tensor, v: Tensor, qt: Tensor, kt: Tensor, exact: bool) -> Tensor:
    """The formula for one head: queries [r, e], keys and values [n, e], landmarks [m, e]."""
    e = q.shape[1]
    b = (q @ kt.T / math.sqrt(e)).softmax(1)
    g = (qt @ kt.T / math.sqrt(e)).softmax(1)
    d = (qt @ k.T / math.sqrt(e)).softmax(1)
    return b @ (torch.linalg.pinv(g) if exact else six_iterations(g)) @ (d @ v)


def oracle(module: Any, x: Tensor, t: int) -> Tensor:
    """All rows [r, d] of the window at step ``t`` of a stream [T, d], in order of time."""
    module = copy.deepcopy(module).double()
    d, h, n, m = module.embed_dim, module.num_heads, module.window, module.num_landmarks
    qkv = F.linear(x[: t + 1].double(), module.in_proj_weight, module.in_proj_bias)
    low, out = max(0, t + 1 - n), []
    for head in range(h):
        part = slice(head * d // h, (head + 1) * d // h)
        q, k, v = (rows[:, part] for rows in qkv.chunk(3, 1))
        if module.fixed:
            qt, kt = module.landmarks[head] * math.sqrt(d // h)
        else:
            ends, size, spans = [], segment_sizes(n, m), []
            while not ends or ends[-1] <= t:
                ends.append((ends[-1] if ends else 0) + size[len(ends) % m])
            for first, last in zip([0, *ends], ends, strict=False):
                whole = last <= t + 1
                if whole or (t + 1 < n and first <= t):
                    spans.append(slice(first, min(last, t + 1)))
            qt, kt = (torch.stack([y[s].mean(0) for s in spans[-m:]]) for y in (q, k))
        rows = (y[low : t + 1] for y in (q, k, v))
        out.append(nystrom(*rows, qt, kt, module.iterations == 0))
    return module.out_proj(torch.cat(out, 1))
