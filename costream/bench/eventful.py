"""Benchmark of ViTDet's backbone: token-gated updates against computing frames in full."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.bench.encoders import quiet_torch
from costream.models.eventful.backbone import ViTDetBackbone
from costream.nn.eventful.block import use_bfloat16_products
from costream.nn.operations import Operations
from costream.nn.policy import TopTokens
from costream.runtime.machine import has_fast_bfloat16
from costream.tables import Cell, Table

COLUMNS = ("way", "tokens", "median ms", "p10 ms", "x dense", "G operations", "state MB")
TOKENS = (128, 256, 512, 882, 1323, 1676)
_SIDE = 42  # tokens; 672 pixels
_SHARE = 4  # a quarter of the 12 blocks of ViT-B, with the same share of global ones
_FRAMES = 16


@dataclass
class BackboneContender:
    """One implementation of the backbone."""

    name: str
    tokens: int  # computed per frame
    step: Callable[[Tensor, Operations], Tensor]
    state_bytes: int


def object_steps_table(rounds: int = 5, threads: int = 1) -> Table:
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
    frames = _video(side, backbone.dim)
    second = tokens[1]  # number of tokens at which the variants are compared
    ways = [
        _dense("dense float32", backbone, side),
        *(_gated("costream", backbone, side, count) for count in (*tokens, side**2)),
        _gated("token-wise", build("token-wise"), side, second),
        _gated("eventful, as published", build("eventful"), side, second),
    ]
    if has_fast_bfloat16():
        half = build("exact")
        use_bfloat16_products(half)
        ways.insert(1, _dense("dense bfloat16", half, side))
        ways += [_gated("costream, bfloat16", half, side, count) for count in tokens]
    times, spent = _measure(ways, frames, rounds)
    base = statistics.median(times[0])
    rows: list[tuple[Cell, ...]] = []
    for way, own, operations in zip(ways, times, spent, strict=True):
        ordered = sorted(1e3 * t for t in own)
        median, tenth = statistics.median(ordered), ordered[len(ordered) // 10]
        share, count = statistics.median(own) / base, operations.total / 1e9
        numbers = (round(median, 1), round(tenth, 1), round(share, 3), round(count, 6))
        rows.append((way.name, way.tokens, *numbers, round(way.state_bytes / 1e6, 1)))
    notes = (
        f"{threads} thread(s), one stream, {rounds} frames in turns, random weights; a square of"
        " a sixth of the frame moves.",
        f"{len(backbone.blocks)} blocks, one in three with global attention; ViT-B has {_SHARE}"
        " times as many.",
    )
    return Table(f"vitdet backbone, {side} x {side} tokens", COLUMNS, tuple(rows), notes)


def _build(variant: str) -> ViTDetBackbone:
    torch.manual_seed(0)
    backbone = ViTDetBackbone(depth=12 // _SHARE, global_blocks=(2,), variant=variant)
    for parameter in backbone.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return backbone.eval()


def _dense(name: str, backbone: ViTDetBackbone, side: int) -> BackboneContender:
    def step(x: Tensor, operations: Operations) -> Tensor:
        operations.linear += backbone.count_macs(side, side)
        out: Tensor = backbone(x)
        return out

    return BackboneContender(name, side**2, step, 0)


def _gated(name: str, backbone: ViTDetBackbone, side: int, tokens: int) -> BackboneContender:
    state, policy = backbone.init_state(1, side, side), TopTokens(tokens)

    def step(x: Tensor, operations: Operations) -> Tensor:
        return backbone.forward_step(x, state, policy, operations)

    size = sum(t.numel() * t.element_size() for t in state.tensors().values())
    return BackboneContender(name, tokens, step, size)


def _video(side: int, dim: int) -> list[Tensor]:
    """Return frames of almost constant noise with a moving square."""
    x, size = torch.randn(1, side, side, dim), max(1, round(side / 6**0.5))
    frames = []
    for number in range(_FRAMES):
        x = x + 0.02 * torch.randn_like(x)
        at = number % (side - size + 1)
        x[:, at : at + size, at : at + size] += 0.5 * torch.randn(1, size, size, dim)
        frames.append(x)
    return frames


def _measure(
    ways: Sequence[BackboneContender], frames: Sequence[Tensor], rounds: int
) -> tuple[list[list[float]], list[Operations]]:
    """Return the seconds per frame of every implementation, and its last frame's operations."""
    times: list[list[float]] = [[] for _ in ways]
    spent = [Operations() for _ in ways]
    for number in range(-2, rounds):  # the first frame is computed in full, the second warms up
        for place, way in enumerate(ways):
            spent[place] = Operations()
            start = time.perf_counter()
            way.step(frames[number % len(frames)], spent[place])
            if number >= 0:
                times[place].append(time.perf_counter() - start)
    return times, spent
