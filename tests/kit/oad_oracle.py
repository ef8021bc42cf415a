"""Networks of online action detection and their training, in plain PyTorch, one window at a time.

Written from the papers; only the names of the weights are those of costream's files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
# Logits [K] and anticipated ones [A, K] for the newest of these rows [m, C]; number of the first.
Network = Callable[[Weights, Tensor, int], tuple[Tensor, Tensor | None]]


def attend(p: Weights, at: str, x: Tensor, memory: Tensor, heads: int, causal: bool) -> Tensor:
    wq, wk, wv = p[f"{at}.in_proj_weight"].chunk(3)
    bias = p.get(f"{at}.in_proj_bias")
    bq, bk, bv = (None, None, None) if bias is None else bias.chunk(3)
    q, k, v = F.linear(x, wq, bq), F.linear(memory, wk, bk), F.linear(memory, wv, bv)
    q, k, v = (y.unflatten(1, (heads, -1)).transpose(0, 1) for y in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
    y = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
    return F.linear(y, p[f"{at}.out_proj.weight"], p.get(f"{at}.out_proj.bias"))


def norm(p: Weights, at: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{at}.weight"], p[f"{at}.bias"])


def forward(p: Weights, at: str, x: Tensor) -> Tensor:
    hidden = F.gelu(F.linear(x, p[f"{at}.linear1.weight"], p[f"{at}.linear1.bias"]))
    return F.linear(hidden, p[f"{at}.linear2.weight"], p[f"{at}.linear2.bias"])


def linear(p: Weights, at: str, x: Tensor) -> Tensor:
    return F.linear(x, p[f"{at}.weight"], p[f"{at}.bias"])


def cooadtr(depth: int, heads: int) -> Network:
    def run(p: Weights, rows: Tensor, first: int) -> tuple[Tensor, None]:
        table = p["positions.table"]
        places = torch.arange(first, first + len(rows)) % len(table)
        x = linear(p, "input_projection", rows) + table[places]
        for k in range(depth):
            at = f"encoder.layers.{k}"
            x = norm(p, f"{at}.norm1", x + attend(p, f"{at}.self_attn", x, x, heads, False))
            x = norm(p, f"{at}.norm2", x + forward(p, at, x))
        return linear(p, "head", norm(p, "encoder.norm", x)[-1]), None

    return run


def oadtr(depth: int, heads: int, decoder_depth: int, decoder_heads: int) -> Network:
    def run(p: Weights, rows: Tensor, first: int) -> tuple[Tensor, Tensor]:
        x = torch.cat([linear(p, "input_projection", rows), p["class_token"][0]])
        x = x + p["positions.table"][-len(x) :]
        for k in range(depth):
            at = f"encoder.layers.{k}"
            y = norm(p, f"{at}.norm1", x)
            x = x + attend(p, f"{at}.self_attn", y, y, heads, False)
            x = x + forward(p, at, norm(p, f"{at}.norm2", x))
        memory, y = norm(p, "encoder.norm", x), p["decoder_queries"][0]
        for k in range(decoder_depth):
            at = f"decoder.layers.{k}"
            mine = attend(p, f"{at}.self_attn", y, y, decoder_heads, True)
            y = norm(p, f"{at}.norm1", y + mine)
            cross = attend(p, f"{at}.multihead_attn", y, memory, decoder_heads, False)
            y = norm(p, f"{at}.norm2", y + cross)
            y = norm(p, f"{at}.norm3", y + forward(p, at, y))
        y = norm(p, "decoder.norm", y)
        now = linear(p, "head", torch.cat([memory[-1], y.mean(0)]))
        return now, linear(p, "anticipation_head", y)

    return run


def miniroad(p: Weights, rows: Tensor, first: int) -> tuple[Tensor, None]:
    x = F.relu(norm(p, "norm", linear(p, "input_projection", rows)))
    state = torch.zeros(p["gru.weight_hh_l0"].shape[1], dtype=rows.dtype)
    for row in x:
        gates = F.linear(row, p["gru.weight_ih_l0"], p["gru.bias_ih_l0"]).chunk(3)
        held = F.linear(state, p["gru.weight_hh_l0"], p["gru.bias_hh_l0"]).chunk(3)
        reset, update = (torch.sigmoid(g + h) for g, h in zip(gates[:2], held[:2], strict=True))
        new = torch.tanh(gates[2] + reset * held[2])
        state = (1 - update) * new + update * state
    return linear(p, "head", F.relu(state)), None


def cross_entropy(logits: Tensor, target: Tensor, unit: bool) -> Tensor:
    return -(target / (target.norm() if unit else 1) * logits.log_softmax(-1)).sum()


def train(  # noqa: C901, PLR0913 - a loop as one writes it
    network: Network,
    initial: Weights,
    recordings: Sequence[tuple[Tensor, Tensor]],
    *,
    window: int,
    ahead: int = 0,
    stride: int = 1,
    padded: bool = False,
    stepwise: bool = False,
    batch: int,
    epochs: int,
    rate: float,
    drop: float = 1.0,
    decoupled: bool = False,
    decay: float = 1e-4,
    clip: float | None = 1.0,
    unit: bool = False,
    seed: int = 0,
) -> Weights:
    """Return the weights after training on recordings: rows [T, C], and targets [T, K]."""
    p = {k: v.clone().requires_grad_() for k, v in initial.items()}
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(p.values(), lr=rate, weight_decay=decay)
    labelled = window if stepwise else 1
    stride, batch = (window, max(1, batch // window)) if stepwise else (stride, batch)
    lengths = [len(rows) for rows, _ in recordings]

    def ends(phase: int) -> np.ndarray:
        found = []
        for k, length in enumerate(lengths):
            first = min(labelled, length) if padded else window + labelled - 1
            places = length + 1 - ahead - first
            begin = first + phase % max(1, min(stride, places))
            found += [(k, end) for end in range(begin, first + places, stride)]
        return np.array(found)

    batch = min(batch, max(1, min(len(ends(phase)) for phase in range(stride))))
    steps = max(1, min(len(ends(phase)) for phase in range(stride)) // batch)
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        found = ends(int(rng.integers(stride)))
        order = rng.permutation(len(found))
        for group in optimizer.param_groups:
            group["lr"] = rate * drop**epoch
        for step in range(steps):
            drawn = found[order[step * batch : (step + 1) * batch]]
            offsets = np.random.default_rng([seed, epoch, step]).integers(1 << 16, size=len(drawn))
            now, later = [], []
            for (k, end), offset in zip(drawn.tolist(), offsets.tolist(), strict=True):
                rows, targets = recordings[k]
                before = end - labelled - window + 1  # first row of the stream
                for place in range(max(0, end - labelled), end):  # each window by itself
                    begin = before if padded and stepwise else place - window + 1
                    x = rows[max(0, begin) : place + 1]
                    if padded:
                        x = F.pad(x, (0, 0, max(0, -begin), 0))
                    logits, coming = network(p, x, offset + begin - before)
                    now.append(cross_entropy(logits, targets[place], unit))
                    for j, row in enumerate(() if coming is None else coming):
                        later.append(cross_entropy(row, targets[place + 1 + j], unit))
            loss = torch.stack(now).mean()
            if later:
                loss = loss + 0.5 * torch.stack(later).mean()
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(list(p.values()), clip)
            optimizer.step()
    return {k: v.detach() for k, v in p.items()}


@torch.no_grad()
def scores(network: Network, p: Weights, rows: Tensor, window: int) -> Tensor:
    """Return the probabilities [T, K] of each row of a recording; fewer rows at its beginning."""
    firsts = [max(0, t + 1 - window) for t in range(len(rows))]
    found = [network(p, rows[a : t + 1], a)[0] for t, a in enumerate(firsts)]
    return torch.stack(found).softmax(-1)
