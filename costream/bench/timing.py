"""Timing of several implementations of a step, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

from costream.core.tables import Cell
from costream.models.devices import synchronize
from costream.nn.allocator import keep_freed_memory

_BLOCK_S = 0.01  # approximate duration of the steps between two clock readings
_MAX_BLOCK = 50


@dataclass(frozen=True)
class Contender:
    """One implementation of a step."""

    name: str
    step: Callable[[Tensor], Tensor]  # [B, d] -> newest output [B, d]
    macs: int
    state_bytes: Callable[[], int]


def measure(
    ways: Sequence[Contender], inputs: Sequence[Tensor], rounds: int
) -> dict[str, list[float]]:
    """Return microseconds per step of each implementation, one number per round."""
    device, blocks = inputs[0].device, {way.name: _block_length(way, inputs) for way in ways}
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            way.step(inputs[0])  # refill the caches after the other implementations' turns
            count = blocks[way.name]
            synchronize(device)
            start = time.perf_counter()
            for k in range(count):
                way.step(inputs[k % len(inputs)])
            synchronize(device)
            times[way.name].append((time.perf_counter() - start) / count * 1e6)
    return times


def _block_length(way: Contender, inputs: Sequence[Tensor]) -> int:
    synchronize(inputs[0].device)
    start = time.perf_counter()
    for x in inputs[:3]:
        way.step(x)
    synchronize(inputs[0].device)
    step_s = (time.perf_counter() - start) / 3
    return max(1, min(_MAX_BLOCK, int(_BLOCK_S / step_s)))


def timing_cells(times: Sequence[float], base: float) -> tuple[float, float, float]:
    """Return median and first decile of times, and the ratio of the median to ``base``."""
    median = statistics.median(times)
    return round(median, 1), round(sorted(times)[len(times) // 10], 1), round(median / base, 2)


def step_row(
    way: Contender | None,
    times: Mapping[str, Sequence[float]],
    base: float,
    errors: Mapping[str, float] | None = None,
) -> tuple[Cell, ...]:
    """Return name, median, p10, ratio to ``base``, multiply-accumulates, state bytes and error.

    ``way``: None for the package continual-inference where it cannot be compared. ``errors``: by
    name; the cell of a way without one is empty.
    """
    if way is None:
        return (peer_name(), *[None] * 6)
    error = None if errors is None else errors.get(way.name)
    return (way.name, *timing_cells(times[way.name], base), way.macs, way.state_bytes(), error)


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


def fit_norms(net: nn.Module, x: Tensor) -> None:
    """Fit batch norms to noise, so that features have the magnitude of a trained network's."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    net.train()(x)
    net.eval()


def state_size(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)


def peer_state_size(modules: Sequence[nn.Module]) -> int:
    """Return the bytes of the stream state in modules of the package continual-inference."""
    own = [m for whole in modules for m in whole.modules()]
    own = [m for m in own if type(m).__module__.startswith("continual.")]
    return state_size(buffer for module in own for buffer in module.buffers(recurse=False))


def peer_name() -> str:
    """Return the name and version of the package, or that it is not installed."""
    try:
        return f"continual-inference {version('continual-inference')}"
    except PackageNotFoundError:
        return "continual-inference (not installed)"
