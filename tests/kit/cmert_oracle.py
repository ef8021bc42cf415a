"""CMeRT as its authors evaluate it, one window at a time, in plain PyTorch.

Written from the structure of the released code (Pang et al., CVPR 2025): the rows of the long
memory and the context are sampled for each window, every layer computes all of its rows, and the
last answers are taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kit.oad_oracle import Network
from kit.testra_oracle import Weights, layer, linear, norm, sampled

# Costream's names -> the authors', of a network with one stream
NAMES = (
    (r"remembered\.streams\.0", "feature_head_long.visual_linear"),
    (r"input_projection\.streams\.0", "feature_head_work.visual_linear"),
    (r"queries$", "enc_queries.0.weight"),
    (r"refining$", "enc_queries.1.weight"),
    (r"anticipation_queries$", "final_query.weight"),
    (r"future_queries$", "gen_query.weight"),
    (r"compress\.", "enc_modules.0.layers.0."),
    (r"compress_norm", "enc_modules.0.norm"),
    (r"refine\.", "enc_modules.1.layers."),
    (r"refine_norm", "enc_modules.1.norm"),
    (r"decoder\.", "dec_modules.layers."),
    (r"decoder_norm", "dec_modules.norm"),
    (r"generator\.", "gen_layer.layers."),
    (r"generator_norm", "gen_layer.norm"),
    (r"fusions\.(\d+)\.", r"work_fusions.\1.layers.0."),
    (r"fusion_norms\.(\d+)\.", r"work_fusions.\1.norm."),
    (r"head\.", "classifier."),
)
SIZES = ("heads", "window", "context", "every", "samples", "ahead")


def project(p: Weights, head: str, x: Tensor, motion: int) -> Tensor:
    """Return the rows [n, d] of a feature head; the last ``motion`` values are a second stream."""

    def part(name: str, rows: Tensor) -> Tensor:
        at = f"feature_head_{head}.{name}"
        return F.relu(norm(p, f"{at}.1", linear(p, f"{at}.0", rows)))

    if not motion:
        return part("visual_linear", x)
    both = part("visual_linear", x[:, :-motion]), part("motion_linear", x[:, -motion:])
    return part("input_linear", torch.cat(both, 1))


def stack(p: Weights, at: str, y: Tensor, memory: Tensor, heads: int, *masks: Tensor) -> Tensor:
    """Return rows after all decoder layers at a name and their norm."""
    mask, wide = masks or (y.new_zeros(()), y.new_zeros(()))
    count = len({name.split(".layers.")[1].split(".")[0] for name in p if f"{at}.layers." in name})
    for k in range(count):
        y = layer(p, f"{at}.layers.{k}", y, memory, heads, mask, wide)
    return norm(p, f"{at}.norm", y)


def logits(p: Weights, x: Tensor, begin: int, motion: int, sizes: Mapping[str, int]) -> Tensor:
    """Return the logits [window + ahead, K] of a complete window of a recording of rows [T, C].

    ``sizes``: heads, window, context, every, samples and ahead.
    """
    heads, window, context, every, samples, ahead = (sizes[name] for name in SIZES)
    rows, padding = sampled(begin, samples, every)
    long = project(p, "long", x[rows], motion)
    bias = x.new_zeros(len(rows))
    bias[:padding] = -math.inf
    queries, zero = p["enc_queries.0.weight"], x.new_zeros(())
    memory = layer(p, "enc_modules.0.layers.0", queries, long, heads, zero, bias)
    memory = norm(p, "enc_modules.0.norm", memory)
    memory = stack(p, "enc_modules.1", p["enc_queries.1.weight"], memory, heads)
    places = torch.arange(begin - context, begin + window).clamp(min=0)
    pe = p["pos_encoding.pe"][:, 0]
    work = project(p, "work", x[places], motion) + pe[: context + window]
    coming = p["final_query.weight"][:ahead] + pe[window : window + ahead]
    work = torch.cat([work, coming])
    mask = torch.full((len(work), len(work)), -math.inf, dtype=x.dtype).triu(1)
    mask[-ahead:, -ahead:] = 0
    wide = F.pad(mask, (len(memory), 0))
    y = stack(p, "dec_modules", work, torch.cat([memory, work]), heads, mask, wide)[context:]
    mask = mask[context:, context:]
    future = stack(p, "gen_layer", p["gen_query.weight"], memory, heads)
    wide = F.pad(mask, (len(memory), len(future)))
    for k in range(2):
        seen = torch.cat([memory, y, future])
        y = stack(p, f"work_fusions.{k}", y, seen, heads, mask, wide)
    return linear(p, "classifier", y)


def network(sizes: Mapping[str, int]) -> Network:
    """Return the network with the names of costream's files; its rows have one stream."""

    def run(p: dict[str, Tensor], rows: Tensor, first: int) -> tuple[Tensor, Tensor]:
        theirs = {"pos_encoding.pe": p["positions"].detach()[:, None]}
        for name, tensor in p.items():
            for ours, wanted in NAMES:
                if re.match(ours, name):
                    theirs[re.sub(f"^{ours}", wanted, name)] = tensor
        n = sizes["window"]
        x = F.pad(rows, (0, 0, 0, max(0, n - len(rows))))  # later rows are hidden
        out = logits(theirs, x, len(x) - n, 0, sizes)
        return out[min(len(rows), n) - 1], out[n:]

    return run
