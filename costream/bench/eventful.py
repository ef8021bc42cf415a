"""Benchmark of ViTDet's backbone: token-gated updates against computing frames in full."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from costream.bench.timing import quiet_torch, state_size
from costream.core.processor import has_fast_bfloat16
from costream.core.tables import Cell, Table
from costream.models.eventful.backbone import ViTDetBackbone
from costream.models.streaming import find_device, find_dtype, synchronize
from costream.nn import fast
from costream.nn.cuda_graph import GraphedStep
from costream.nn.eventful.attention import EmptyState
from costream.nn.eventful.block import VARIANTS, EventfulBlock, use_bfloat16_products
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.state import State, zeros

COLUMNS = ("way", "tokens", "median ms", "p10 ms", "x dense", "G operations", "state MB")
TOKENS = (128, 256, 512, 882, 1323, 1676)
_GPU_TOKENS = (128, 256, 512)
_SIDE = 42  # tokens; 672 pixels
_SHARE = 4  # a quarter of the 12 blocks of ViT-B, with the same share of global ones
_FRAMES = 16


@dataclass
class GatedContender:
    """One way to compute the tokens of a frame."""

    name: str
    tokens: int  # computed per frame
    step: Callable[[Tensor, Operations], Tensor]
    state_bytes: int


def object_steps_table(model: str, rounds: int = 5, threads: int = 1) -> Table:
    """Return the timings of a quarter of ViT-B's blocks, random weights, 672 pixels, in turns.

    ``rounds``: number of frames per implementation. On processors with fast bfloat16 there are
    implementations with bfloat16 products, too.
    """
    with quiet_torch(threads), torch.no_grad():
        return compare(_build, _SIDE, TOKENS, rounds, threads)


def compare(
    build: Callable[[str], ViTDetBackbone],
    side: int,
    tokens: Sequence[int],
    rounds: int,
    threads: int = 1,
) -> Table:
    """Return the table for frames of side x side tokens; see ``object_steps_table``.

    ``build`` returns the backbone of a variant, always with the same weights.
    """
    backbone = build("exact")
    frames = moving_square(side, backbone.dim)
    second = tokens[1]  # number of tokens at which the variants are compared
    ways = [
        dense("dense float32", backbone, side**2, backbone.count_macs(side, side)),
        *(_gated("costream", backbone, side, count) for count in (*tokens, side**2)),
        _gated("token-wise", build("token-wise"), side, second),
        _gated("eventful, as published", build("eventful"), side, second),
    ]
    if has_fast_bfloat16():
        half = build("exact")
        use_bfloat16_products(half)
        ways.insert(1, dense("dense bfloat16", half, side**2, half.count_macs(side, side)))
        ways += [_gated("costream, bfloat16", half, side, count) for count in tokens]
    notes = (
        f"{threads} thread(s), one stream, {rounds} frames in turns, random weights; a square of"
        " a sixth of the frame moves.",
        f"{len(backbone.blocks)} blocks, one in three with global attention; ViT-B has {_SHARE}"
        " times as many.",
    )
    return compare_ways(f"vitdet backbone, {side} x {side} tokens", ways, frames, rounds, notes)


def object_steps_tables(device: str, dtype: str, rounds: int = 50) -> list[Table]:
    """Return the timings of ViT-B's backbone on a GPU, all blocks, 672 and 1,024 pixels.

    ``rounds``: number of frames per implementation. Dense forms are CUDA graphs too.
    """
    place, tables = (find_device(device), find_dtype(dtype)), []

    def build(variant: str) -> ViTDetBackbone:
        return _build(variant, 12, (2, 5, 8, 11)).to(*place)

    with quiet_torch(1), torch.no_grad():
        for pixels, side in sorted(GRIDS.items()):
            exact, rows, published = map(build, ("exact", "rows", "eventful"))
            frames = [frame.to(*place) for frame in moving_square(side, exact.dim)]
            ways = [
                _dense_graph("dense", exact, side, frames[0], False),
                _dense_graph("dense, positions in the keys", exact, side, frames[0], True),
                *(_gated("costream", exact, side, n) for n in (*_GPU_TOKENS, side**2 // 4)),
                *(_gated("costream, rows", rows, side, n) for n in (*_GPU_TOKENS, side**2 // 4)),
                _gated("eventful, as published", published, side, side**2 // 4),
            ]
            notes = (
                f"{torch.cuda.get_device_name(place[0])}, {dtype}, one stream, {rounds} frames in"
                " turns, random weights; a square of a sixth of the frame moves.",
                "Dense: scaled_dot_product_attention with positions as its bias, and without one.",
            )
            title = f"vitdet backbone, {pixels} x {pixels} pixels"
            tables.append(compare_ways(title, ways, frames, rounds, notes))
    return tables


def compare_ways(
    title: str,
    ways: Sequence[GatedContender],
    frames: Sequence[Tensor],
    rounds: int,
    notes: tuple[str, ...],
) -> Table:
    """Return the timings of ``rounds`` frames, in turns, compared with the first way."""
    times, spent = _measure(ways, frames, rounds)
    base = statistics.median(times[0])
    rows: list[tuple[Cell, ...]] = []
    for way, own, operations in zip(ways, times, spent, strict=True):
        ordered = sorted(1e3 * t for t in own)
        median, tenth = statistics.median(ordered), ordered[len(ordered) // 10]
        share, count = statistics.median(own) / base, operations.total / 1e9
        numbers = (round(median, 2), round(tenth, 2), round(share, 3), round(count, 6))
        rows.append((way.name, way.tokens, *numbers, round(way.state_bytes / 1e6, 1)))
    return Table(title, COLUMNS, tuple(rows), notes)


@dataclass(frozen=True)
class _Whole:
    """Frames computed in full, for ``GraphedStep``."""

    network: Callable[[Tensor], Tensor]

    def graph_key(self, x: Tensor, state: EmptyState) -> bool:
        return True

    def warmup(self, state: EmptyState) -> tuple[bool, ...]:
        return ()

    def forward_step(self, x: Tensor, state: EmptyState) -> Tensor:
        return self.network(x)


def whole_frames(network: Callable[[Tensor], Tensor]) -> GraphedStep:
    """Return what a network computes of each frame, as a CUDA graph."""
    return GraphedStep(_Whole(network), EmptyState(zeros(1)))


def _dense_graph(
    name: str, backbone: ViTDetBackbone, side: int, x: Tensor, kernels: bool
) -> GatedContender:
    whole = whole_frames(backbone)
    with fast.use_kernels(kernels):
        whole(x)
    return dense(name, whole, side**2, backbone.count_macs(side, side))


def _build(
    variant: str, depth: int = 12 // _SHARE, global_blocks: tuple[int, ...] = (2,)
) -> ViTDetBackbone:
    torch.manual_seed(0)
    backbone = ViTDetBackbone(depth=depth, global_blocks=global_blocks, variant=variant)
    for parameter in backbone.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return backbone.eval()


def dense(name: str, network: Callable[[Tensor], Tensor], tokens: int, macs: int) -> GatedContender:
    """Return the way that computes all tokens of a frame, which costs ``macs``."""

    def step(x: Tensor, operations: Operations) -> Tensor:
        operations.linear += macs
        return network(x)

    return GatedContender(name, tokens, step, 0)


def gated(name: str, network: Any, state: State, tokens: int) -> GatedContender:
    """Return the way that computes ``tokens`` of a frame, by the network's steps on a stream."""
    policy = TopTokens(tokens)

    def step(x: Tensor, operations: Operations) -> Tensor:
        out: Tensor = network.forward_step(x, state, policy, operations)
        return out

    return GatedContender(name, tokens, step, state_size(state.tensors().values()))


def _gated(name: str, backbone: ViTDetBackbone, side: int, tokens: int) -> GatedContender:
    return gated(name, backbone, backbone.init_state(1, side, side), tokens)


def moving_square(side: int, dim: int) -> list[Tensor]:
    """Return frames of tokens [1, side, side, dim]: little noise, and a square that moves."""
    x, size = torch.randn(1, side, side, dim), max(1, round(side / 6**0.5))
    frames = []
    for number in range(_FRAMES):
        x = x + 0.02 * torch.randn_like(x)
        at = number % (side - size + 1)
        x[:, at : at + size, at : at + size] += 0.5 * torch.randn(1, size, size, dim)
        frames.append(x)
    return frames


def _measure(
    ways: Sequence[GatedContender], frames: Sequence[Tensor], rounds: int
) -> tuple[list[list[float]], list[Operations]]:
    """Return the seconds per frame of every implementation, and its last frame's operations."""
    times: list[list[float]] = [[] for _ in ways]
    spent = [Operations() for _ in ways]
    for number in range(-2, rounds):  # the first frame is computed in full, the second warms up
        for place, way in enumerate(ways):
            spent[place] = Operations()
            synchronize(frames[0].device)
            start = time.perf_counter()
            way.step(frames[number % len(frames)], spent[place])
            synchronize(frames[0].device)
            if number >= 0:
                times[place].append(time.perf_counter() - start)
    return times, spent


# Operation counts of ViTDet-B with token gates, from the counters of the running code.


# Video length over which the paper's numbers are means, including the frame computed in full.
FRAMES = 270
GRIDS = {1024: 64, 672: 42}  # pixels -> tokens of 16 pixels along one side
_DIM, _HEADS, _DEPTH, _GLOBAL = 768, 12, 12, 4
_SIZE, _WINDOW = (64, 64), (14, 14)


@dataclass(frozen=True)
class PublishedRow:
    """A row of the paper's tables: billions of operations per frame."""

    pixels: int
    tokens: int
    eventful: float
    token_wise: float
    spatiotemporal: float
    pooled: int  # keys that contain a chosen token; depends on the paper's data


ROWS = (
    PublishedRow(1024, 2048, 294.9, 294.1, 217.0, 565),
    PublishedRow(1024, 1536, 225.9, 250.7, 169.3, 493),
    PublishedRow(1024, 1024, 156.8, 207.3, 121.0, 404),
    PublishedRow(1024, 768, 122.3, 185.7, 96.3, 346),
    PublishedRow(1024, 512, 87.8, 164.0, 70.9, 268),
    PublishedRow(1024, 256, 53.3, 142.3, 44.5, 164),
    PublishedRow(672, 1024, 115.1, 111.9, 98.2, 275),
    PublishedRow(672, 768, 87.9, 90.2, 75.5, 234),
    PublishedRow(672, 512, 60.7, 68.5, 52.8, 192),
    PublishedRow(672, 384, 47.1, 57.7, 41.4, 169),
    PublishedRow(672, 256, 33.5, 46.8, 29.8, 132),
    PublishedRow(672, 128, 19.9, 36.0, 18.0, 84),
)
# All tokens of every frame, and the same with pooled keys and values.
BASE = {1024: (467.4, 388.1), 672: (174.5, 159.7)}


@dataclass(frozen=True)
class FixedTokens:
    """Policy for counting: always the given tokens."""

    tokens: Tensor

    def choose(self, errors: Tensor) -> Tensor:
        """Return the given tokens."""
        return self.tokens


def count_vitdet(variant: str, side: int, tokens: int | None, pooled: int | None = None) -> int:
    """Return the operations of a frame of side x side tokens in the backbone of ViTDet-B.

    ``tokens``: number of updated tokens; None: all, in full. ``pooled``: number of pooled keys that
    contain them. All windows are computed, even where the variant would skip some.
    """
    windowed = _block("token-wise", True, side, tokens, None)
    among_all = _block(variant, False, side, tokens, pooled)
    return side**2 * _DIM + (_DEPTH - _GLOBAL) * windowed + _GLOBAL * among_all


@cache
def _block(variant: str, windowed: bool, side: int, tokens: int | None, pooled: int | None) -> int:
    """Return the operations of one block; blocks of a kind cost the same, only shapes count."""
    with torch.device("meta"), torch.no_grad():
        window = _WINDOW if windowed else None
        block = EventfulBlock(_DIM, _HEADS, _SIZE, window, variant=VARIANTS[variant])
        state = block.init_state(1, side, side)
        x = torch.empty(1, side, side, _DIM)
    spent = Operations()
    with torch.no_grad():
        policy = FixedTokens(_spread(side, tokens or 0, pooled))
        block.forward_step(x, state, [tokens is None], policy, spent)
    return spent.total


def mean(variant: str, side: int, tokens: int, pooled: int | None = None) -> float:
    """Return the mean over a video of ``FRAMES`` frames, in billions."""
    whole, part = count_vitdet(variant, side, None), count_vitdet(variant, side, tokens, pooled)
    return (part + (whole - part) / FRAMES) / 1e9


def object_ops_table() -> Table:
    """Return the table of operation counts, in billions per frame."""
    rows: list[tuple[Cell, ...]] = []
    for pixels, published in BASE.items():
        side = GRIDS[pixels]
        counted = [count_vitdet(variant, side, None) / 1e9 for variant in ("eventful", "spatial")]
        whole, pooled = (round(c, 1) for c in counted)
        every = (whole, published[0], whole, published[0], pooled, published[1], whole)
        rows.append((pixels, "all", *every))
        for row in ROWS:
            if row.pixels != pixels:
                continue
            cells = (
                (mean("eventful", side, row.tokens), row.eventful),
                (mean("token-wise", side, row.tokens), row.token_wise),
                (mean("spatiotemporal", side, row.tokens, row.pooled), row.spatiotemporal),
            )
            numbers = [n for mine, paper in cells for n in (round(mine, 1), paper)]
            own = round(mean("exact", side, row.tokens), 1)
            rows.append((pixels, str(row.tokens), *numbers, own))
    columns = (
        "pixels",
        "tokens",
        "eventful, recounted",
        "eventful, published",
        "token-wise, recounted",
        "token-wise, published",
        "pooled keys, recounted",
        "pooled keys, published",
        "costream",
    )
    notes = (
        "Backbone of ViTDet-B, square frames; as in the paper, additions count like",
        f"multiply-accumulates, and a number is the mean over a video of {FRAMES} frames whose",
        "first is computed in full. Token-wise is also STGT. The number of pooled keys that change",
        "depends on the video: it is chosen to match the paper's number.",
        "costream: the default, exact attention, no window skipped.",
    )
    title = "Operations of ViTDet-B with token gates, in billions per frame"
    return Table(title, columns, tuple(rows), notes)


# Thresholds on the norm of a token's change instead of a number of tokens (the paper's Table B),
# 1,024 pixels: billions of operations per frame and AP50 in percent.
THRESHOLDS = ((0.2, 431.8, 83.00), (1.0, 294.1, 82.75), (5.0, 133.5, 78.11))


def threshold_ops_table() -> Table:
    """Return the paper's table of thresholds, with the number of tokens that costs as much."""
    side, rows = GRIDS[1024], []
    for threshold, published, precision in THRESHOLDS:
        tokens = bisect_left(
            range(side**2), published, key=lambda count: mean("eventful", side, count)
        )
        recounted = round(mean("eventful", side, tokens), 1)
        rows.append((threshold, published, precision, tokens, recounted))
    columns = ("threshold", "published", "AP50 published", "tokens of that cost", "recounted")
    notes = (
        "How many tokens pass a threshold depends on the video: so many at every gate, of"
        f" {side**2:,},",
        "would cost what was published. Recounted: by costream, for that number.",
    )
    title = "Operations of ViTDet-B with thresholds, 1,024 pixels, in billions per frame"
    return Table(title, columns, tuple(rows), notes)


def _spread(side: int, tokens: int, pooled: int | None) -> Tensor:
    """Return tokens spread over a frame that belong to ``pooled`` keys of 2 x 2 tokens."""
    if pooled is None:
        return torch.arange(tokens) * side**2 // max(tokens, 1)
    half = side // 2
    cells = torch.arange(pooled) * half**2 // pooled
    corners = cells // half * 2 * side + cells % half * 2
    return (corners + torch.tensor([[0], [1], [side], [side + 1]])).flatten()[:tokens].sort().values
