"""Benchmark of the continual encoder step against other implementations, timed in one run."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from costream.bench.timing import (
    Contender,
    EncoderBench,
    bound,
    build_encoder,
    continual,
    peer,
    peer_name,
    torch_encoder,
    window_matmul,
    window_sdpa,
    window_torch,
)
from costream.nn.fast import keep_freed_memory
from costream.tables import Cell, Table

CONFIGS = (
    EncoderBench(192, 16, 120, 384, 1, "relu"),
    EncoderBench(192, 16, 120, 384, 2, "relu"),
    EncoderBench(1024, 8, 64, 1024, 1, "gelu"),
    EncoderBench(1024, 8, 64, 1024, 2, "gelu"),
)
COLUMNS = ("way", "median us", "p10 us", "x bound", "MACs", "state bytes", "max error")
_BLOCK_S = 0.01  # approximate duration of the steps between two clock readings
_MAX_BLOCK = 50


def steps_table(config: EncoderBench, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of all implementations of this encoder's step, in turns.

    ``rounds``: number of turns of each. Microseconds are of one step with a full window;
    "x bound" compares medians; "max error" is the largest difference of an output from float64
    over 3 n steps.
    """
    with quiet_torch(threads), torch.inference_mode():
        encoder = build_encoder(config)
        ways = [
            continual(encoder),
            window_sdpa(encoder, config),
            window_matmul(encoder, config),
            window_torch(encoder, config),
        ]
        other, floor = peer(encoder, config), bound(encoder, config)
        everyone = [*ways, *([other] if other else []), floor]
        errors = _errors([w for w in everyone if w is not floor], config)
        inputs = list(torch.randn(64, 1, config.embed_dim))
        times = measure(everyone, inputs, rounds)
    base = statistics.median(times[floor.name])
    rows = [_row(way, times[way.name], base, errors.get(way.name)) for way in everyone]
    if other is None:
        rows.insert(-1, (peer_name(), None, None, None, None, None, None))
    notes = (
        f"{threads} thread(s), float32, one stream, full window, {rounds} rounds in turns.",
        "Bound: the weights as stored by nn.Linear, each times one row. The continual step stores",
        "those of up to 1 MB by columns, which is faster for a single row.",
        f"Max error: against float64, over {3 * config.window} steps.",
    )
    return Table(config.name, COLUMNS, tuple(rows), notes)


def _row(
    way: Contender, times: Sequence[float], base: float, error: float | None
) -> tuple[Cell, ...]:
    median = statistics.median(times)
    p10 = sorted(times)[len(times) // 10]
    ratio = round(median / base, 2)
    return (way.name, round(median, 1), round(p10, 1), ratio, way.macs, way.state_bytes(), error)


def measure(
    ways: Sequence[Contender], inputs: Sequence[Tensor], rounds: int
) -> dict[str, list[float]]:
    """Return microseconds per step of each implementation, one number per round."""
    blocks = {way.name: _block_length(way, inputs) for way in ways}
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            way.step(inputs[0])  # refill the caches after the other implementations' turns
            count = blocks[way.name]
            start = time.perf_counter()
            for k in range(count):
                way.step(inputs[k % len(inputs)])
            times[way.name].append((time.perf_counter() - start) / count * 1e6)
    return times


def _block_length(way: Contender, inputs: Sequence[Tensor]) -> int:
    start = time.perf_counter()
    for x in inputs[:3]:
        way.step(x)
    step_s = (time.perf_counter() - start) / 3
    return max(1, min(_MAX_BLOCK, int(_BLOCK_S / step_s)))


def _errors(ways: Sequence[Contender], config: EncoderBench) -> dict[str, float]:
    """Return each implementation's largest error over steps n to 3 n; also fill the windows."""
    n = config.window
    exact = copy.deepcopy(torch_encoder(build_encoder(config), config)).double()
    x = torch.randn(3 * n, config.embed_dim)
    truth = {
        t: exact(x[None, t - n + 1 : t + 1].double())[0, -1] for t in range(n - 1, 3 * n, n // 2)
    }
    worst = {way.name: 0.0 for way in ways}
    for t in range(3 * n):
        for way in ways:
            out = way.step(x[t : t + 1])
            if t in truth:
                error = float((out[0].double() - truth[t]).abs().max())
                worst[way.name] = max(worst[way.name], error)
    return worst


@contextmanager
def quiet_torch(threads: int) -> Iterator[None]:
    """Use ``threads`` threads, retain freed memory, and flush denormal numbers, which are slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
