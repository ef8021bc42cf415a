"""Benchmark of Nyström attention against exact single-output attention, timed in one run."""

from __future__ import annotations

import statistics
from typing import Any, cast

import torch
from torch import Tensor

from costream.bench.timing import Contender, measure, quiet_torch
from costream.core.tables import Cell, Table
from costream.nn.attention import SingleOutputAttention
from costream.nn.nystrom.continual import SingleOutputNystrom

# d, heads, n, m: the papers' sizes, then growing windows.
STEP_SIZES = (
    (192, 16, 120, 4),
    (1024, 8, 64, 16),
    (192, 8, 512, 8),
    (192, 8, 1024, 8),
    (192, 8, 1024, 16),
    (192, 8, 2048, 16),
    (512, 8, 2048, 8),
    (512, 8, 2048, 32),
)
COLUMNS = (
    *("d", "heads", "n", "m", "landmarks", "MACs", "fewer by", "median us", "exact us"),
    *("faster by", "worth it"),
)
_WAYS = ("exact", "continual", "fixed")


def nystrom_steps_table(model: str, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of a layer's step with projections, in turns with exact attention.

    One stream, full window, random weights. "fewer by" and "faster by" are the ratios of exact
    single-output to Nyström attention: multiply-accumulates, and medians.
    """
    with quiet_torch(threads), torch.inference_mode():
        rows = [row for sizes in STEP_SIZES for row in _compare(*sizes, rounds)]
    notes = (
        f"{threads} thread(s), float32, one stream, full window, {rounds} rounds in turns.",
        "A step with landmarks has more and smaller operations, each with an overhead of some",
        "microseconds, and must save more than that; where it does not, use cooadtr or cotrans.",
        "It is not the same function as softmax attention and needs other weights.",
    )
    return Table("Nyström attention, single-output", COLUMNS, tuple(rows), notes)


def _compare(
    width: int, heads: int, window: int, landmarks: int, rounds: int
) -> list[tuple[Cell, ...]]:
    torch.manual_seed(0)
    size = (width, heads, window)
    layers = (
        SingleOutputAttention(*size),
        SingleOutputNystrom(*size, landmarks),
        SingleOutputNystrom(*size, landmarks, fixed=True),
    )
    ways = [_way(*pair, window) for pair in zip(_WAYS, layers, strict=True)]
    times = measure(ways, list(torch.randn(64, 1, width)), rounds)
    medians = {name: statistics.median(row) for name, row in times.items()}
    exact = medians["exact"]
    return [
        (
            *(width, heads, window, landmarks, way.name, way.macs),
            *(round(ways[0].macs / way.macs, 2), round(medians[way.name], 1), round(exact, 1)),
            *(round(exact / medians[way.name], 2), "yes" if medians[way.name] < exact else "no"),
        )
        for way in ways[1:]
    ]


def _way(name: str, layer: Any, window: int) -> Contender:
    layer.eval()
    state = layer.init_state()

    def step(x: Tensor) -> Tensor:
        return cast(Tensor, layer.forward_step(x, state))

    for row in torch.randn(window, 1, layer.embed_dim):
        step(row)
    return Contender(name, step, layer.count_macs(), int)
