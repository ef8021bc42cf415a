"""Benchmark of ViTDet's backbone: token-gated updates against computing frames in full."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.bench.eventful_counts import GRIDS
from costream.bench.timing import quiet_torch, state_size
from costream.core.tables import Cell, Table
from costream.models.devices import find_device, find_dtype, has_fast_bfloat16, synchronize
from costream.models.eventful.backbone import ViTDetBackbone
from costream.nn import fast
from costream.nn.cuda_graph import GraphedStep
from costream.nn.eventful.attention import EmptyState
from costream.nn.eventful.block import use_bfloat16_products
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
