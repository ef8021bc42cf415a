"""Benchmark of the continual encoder step against other implementations, timed in one run."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.bench.peers import encoder_peer
from costream.bench.timing import Contender, measure, quiet_torch, state_size, step_row
from costream.core.tables import Table
from costream.models.devices import find_device, find_dtype
from costream.nn.block import EncoderConfig
from costream.nn.cuda_graph import GraphedStep
from costream.nn.encoder import Encoder
from costream.nn.fast import compile_blocks

# queries [B, h, m, e], keys and values [B, h, n, e] -> [B, h, m, e]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


# Post-norm encoders with all biases.
CONFIGS: tuple[EncoderConfig, ...] = (
    EncoderConfig(192, 16, 384, 1, 120, activation="relu"),
    EncoderConfig(192, 16, 384, 2, 120, activation="relu"),
    EncoderConfig(1024, 8, 1024, 1, 64),
    EncoderConfig(1024, 8, 1024, 2, 64),
)
COLUMNS = ("way", "median us", "p10 us", "x bound", "MACs", "state bytes", "max error")


def steps_table(
    config: EncoderConfig,
    rounds: int = 60,
    threads: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
    streams: int = 1,
    windows: int = 3,
) -> Table:
    """Return the timings of all implementations of this encoder's step, in turns.

    ``rounds``: number of turns of each. Microseconds are of one step of all streams with full
    windows; "x bound" compares medians; "max error" is the largest difference of an output from
    float64 over so many times n steps as ``windows`` says, at least one.
    """
    place = find_device(device), find_dtype(dtype)
    compile_blocks()
    with quiet_torch(threads), torch.inference_mode():
        encoder = build_encoder(config).to(*place)
        given = torch.randn(64, streams, config.embed_dim).to(*place)
        makers = [continual, window_sdpa, window_matmul, window_torch]
        if given.is_cuda:
            makers.append(window_compiled)
        ways = [make(encoder, given[0]) for make in makers]
        other, floor = encoder_peer(encoder, given[0]), bound(encoder, given[0])
        everyone = [way for way in (*ways, other, floor) if way is not None]
        steps = windows * config.window
        errors = _errors([w for w in everyone if w is not floor], config, given, steps)
        times = measure(everyone, list(given), rounds)
    base = statistics.median(times[floor.name])
    rows = [step_row(way, times, base, errors) for way in (*ways, other, floor)]
    step = "a CUDA graph." if given.is_cuda else "compiled if L=1, as after 8,192 steps."
    notes = (
        f"{threads} thread(s), {device}, {dtype}, {streams} stream(s), full window.",
        f"{rounds} rounds in turns.",
        f"Bound: the weights, each times one row of each stream by PyTorch. The step is {step}",
        f"Max error: against float64, over {steps} steps.",
    )
    title = (
        f"d={config.embed_dim} h={config.num_heads} n={config.window} ff={config.feedforward} "
        f"L={config.depth} {config.activation}"
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def _errors(
    ways: Sequence[Contender], config: EncoderConfig, given: Tensor, steps: int
) -> dict[str, float]:
    """Return each implementation's largest error from step n to ``steps``; also fill the windows.

    ``given``: inputs [., B, d] with the type and device of the implementations.
    """
    n = config.window
    exact = copy.deepcopy(torch_encoder(build_encoder(config))).double().to(given.device)
    x = torch.randn(steps, *given.shape[1:]).to(given)
    truth = {
        t: exact(x[t - n + 1 : t + 1].transpose(0, 1).double())[:, -1]
        for t in range(n - 1, steps, n // 2)
    }
    worst = {way.name: 0.0 for way in ways}
    for t in range(steps):
        for way in ways:
            out = way.step(x[t])
            if t in truth:
                error = float((out.double() - truth[t]).abs().max())
                worst[way.name] = max(worst[way.name], error)
    return worst


def build_encoder(config: EncoderConfig, seed: int = 0) -> Encoder:
    """Return an encoder with random weights of usual magnitude, in evaluation mode."""
    torch.manual_seed(seed)
    return Encoder(config).eval()


def continual(encoder: Encoder, x: Tensor) -> Contender:
    """Return costream's step for inputs like ``x`` [B, d]: a CUDA graph on a GPU."""
    encoder = copy.deepcopy(encoder)
    state = encoder.init_state(len(x))
    size = state_size(state.tensors().values())
    step: Callable[[Tensor], Tensor] = partial(encoder.forward_step, state=state)
    if x.is_cuda:
        step = GraphedStep(encoder, state)
    return Contender("costream", step, encoder.count_macs(), lambda: size)


class WindowRing:
    """Ring buffer of the last n input rows, in slot order, which attention does not depend on."""

    def __init__(self, encoder: Encoder, x: Tensor) -> None:
        self.rows = x.new_zeros(len(x), encoder.window, encoder.embed_dim)
        self.steps = 0

    def push(self, row: Tensor) -> tuple[Tensor, int]:
        """Store a row [B, d], return the filled rows [B, m, d] and the slot of the newest."""
        n = self.rows.shape[1]
        slot = self.steps % n
        self.rows[:, slot] = row
        self.steps += 1
        return self.rows[:, : min(self.steps, n)], slot

    def size(self) -> int:
        """Return the size in bytes."""
        return self.rows.numel() * self.rows.element_size()


def window_sdpa(encoder: Encoder, x: Tensor) -> Contender:
    """Return the window recomputed; the last block computes only the newest row's output."""
    return _window("scaled_dot_product_attention", encoder, x, F.scaled_dot_product_attention)


def window_matmul(encoder: Encoder, x: Tensor) -> Contender:
    """Return the same, with attention as two products around a softmax."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q.shape[3] ** -0.5 * q @ k.transpose(2, 3)
        return torch.matmul(logits.softmax(3), v)

    return _window("matmul and softmax", encoder, x, attend)


def window_compiled(encoder: Encoder, x: Tensor) -> Contender:
    """Return ``window_sdpa`` by torch.compile, with CUDA graphs."""
    name = "scaled_dot_product_attention, compiled"
    return _window(name, encoder, x, F.scaled_dot_product_attention, compiled=True)


def _window(
    name: str, encoder: Encoder, x: Tensor, attend: Attend, compiled: bool = False
) -> Contender:
    ring, config = WindowRing(encoder, x), encoder.config
    layers = torch_encoder(encoder).layers
    blocks = [cast(nn.TransformerEncoderLayer, layer) for layer in layers]

    def newest(rows: Tensor, slot: Tensor) -> Tensor:
        for block in blocks[:-1]:
            rows = _block(block, rows, rows, attend)
        return _block(blocks[-1], rows.index_select(1, slot), rows, attend)[:, 0]

    slots = torch.split(torch.arange(config.window, device=x.device), 1)
    fast = torch.compile(newest, mode="reduce-overhead") if compiled else newest

    def step(x: Tensor) -> Tensor:
        rows, slot = ring.push(x)
        full = rows.shape[1] == config.window  # windows of other lengths are not compiled
        return fast(rows, slots[slot]) if full else newest(rows, slots[slot])

    d, n, ff = config.embed_dim, config.window, config.feedforward
    whole = 4 * n * d**2 + 2 * n**2 * d + 2 * n * d * ff
    last = 2 * (n + 1) * d**2 + 2 * n * d + 2 * d * ff
    return Contender(f"window, {name}", step, (config.depth - 1) * whole + last, ring.size)


def _block(layer: nn.TransformerEncoderLayer, x: Tensor, rows: Tensor, attend: Attend) -> Tensor:
    """Return the block's output [B, m, d] for queries ``x``, keys and values ``rows`` [B, n, d]."""
    a, d = layer.self_attn, x.shape[2]
    weight, bias = cast(Tensor, a.in_proj_weight), cast(Tensor, a.in_proj_bias)
    q = F.linear(x, weight[:d], bias[:d])
    k, v = F.linear(rows, weight[d:], bias[d:]).chunk(2, 2)
    q, k, v = (t.view(len(x), -1, a.num_heads, a.head_dim).transpose(1, 2) for t in (q, k, v))
    y = layer.norm1(x + a.out_proj(attend(q, k, v).transpose(1, 2).flatten(2)))
    hidden = layer.activation(layer.linear1(y))
    return cast(Tensor, layer.norm2(y + layer.linear2(hidden)))


def window_torch(encoder: Encoder, x: Tensor) -> Contender:
    """Return ``nn.TransformerEncoder`` over the window, with its fast path."""
    ring = WindowRing(encoder, x)
    model = torch_encoder(encoder)

    def step(x: Tensor) -> Tensor:
        rows, slot = ring.push(x)
        return cast(Tensor, model(rows)[:, slot])

    return Contender("window, nn.TransformerEncoder", step, encoder.dense_macs, ring.size)


def torch_encoder(encoder: Encoder) -> nn.TransformerEncoder:
    """Return the encoder as ``nn.TransformerEncoder``, sharing its parameters."""
    config = encoder.config
    layer = nn.TransformerEncoderLayer(
        config.embed_dim,
        config.num_heads,
        config.feedforward,
        0.0,
        config.activation,
        batch_first=True,
    )
    model = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False)
    model.load_state_dict(encoder.state_dict(), assign=True)
    return model.eval()


def bound(encoder: Encoder, x: Tensor) -> Contender:
    """Return the lower bound: every matrix times B rows by F.linear; for one, reading weights."""
    # A copy, as in the continual step: memory that others also read stays in the caches longer.
    matrices = [p.detach().clone() for p in encoder.parameters() if p.dim() == 2]
    widths = encoder.config.embed_dim, encoder.config.feedforward
    rows = {width: torch.randn(len(x), width).to(x) for width in widths}
    products = [(rows[m.shape[1]], m) for m in matrices]

    def step(x: Tensor) -> Tensor:
        for row, matrix in products:
            F.linear(row, matrix)
        return x

    macs = sum(m.numel() for m in matrices)
    return Contender("bound: weights times one row", step, macs, int)
