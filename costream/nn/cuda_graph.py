"""Steps of a network as CUDA graphs.

A step of one stream is twenty kernels of a few microseconds, and starting each of them from Python
takes longer than computing it. A CUDA graph is recorded once and starts all of them together.

What is recorded may not depend on a number that Python reads, and a ring's slot is one. So while a
step is recorded, slots are computed on the GPU from counters there (``ring.DeviceCounters``): one
graph serves all times, and streams that started at different ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.nn.ring import DeviceCounters, record
from costream.nn.state import State


@dataclass(frozen=True)
class _Graph:
    """A recorded step, with the memory of its input and of its output."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    out: Any
    counts: list[Any]  # what the step adds to each counter of the state


class GraphedStep:
    """The steps of ``network`` on the streams of ``state``, which are on a CUDA device.

    The result and the new state are as from ``network.forward_step``, for inference. Other
    steps, ``reset``, ``put`` and ``load_tensors`` may come between. Parameters may change in place
    only; another state needs another ``GraphedStep``.

    A network that can be recorded has a method ``graph_key(x, state)``, which distinguishes the
    graphs that it needs apart, or returns None where the next step has to be an ordinary one.
    """

    def __init__(self, network: Any, state: State) -> None:
        self._network, self._state = network, state
        self._counters = [t for t in state.tensors().values() if t.is_cpu]
        self._arrays: list[Any] = [t.numpy() for t in self._counters]  # the same memory, faster
        self._graphs: dict[Hashable, _Graph] = {}
        self._pool: Any = None  # memory that the graphs share: only one runs at a time
        self._recording: DeviceCounters | None = None
        self._expected: list[bytes] = []  # the counters that those on the device are equal to

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Any:
        """Take one row [B, ...] of every stream, return what ``forward_step`` returns."""
        key = self._network.graph_key(x, self._state)
        if key is None:
            return self._network.forward_step(x, self._state)
        key = (key, x.shape, x.dtype)
        if self._recording is None:
            self._recording = DeviceCounters(self._counters, x.device)
            self._pool = torch.cuda.graph_pool_handle()
        if [a.tobytes() for a in self._arrays] != self._expected:
            self._recording.upload()
        graph = self._graphs.get(key)
        if graph is None:
            with torch.cuda.device(x.device):
                self._graphs[key] = graph = self._record(x)
        else:
            graph.x.copy_(x)
            for array, count in zip(self._arrays, graph.counts, strict=True):
                array += count
        graph.graph.replay()
        self._expected = [a.tobytes() for a in self._arrays]
        return _copy(graph.out)

    def _record(self, x: Tensor) -> _Graph:
        """Return a step as a graph; the state's counters count it, but nothing is computed."""
        assert self._recording is not None
        full = not any(self._network.warmup(self._state))
        x, side = x.clone(), torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):  # libraries allocate what they need in a first step
            other = self._state.clone()
            counters = [t for t in other.tensors().values() if t.is_cpu]
            with record(DeviceCounters(counters, x.device), full):
                self._network.forward_step(x, other)
        torch.cuda.current_stream(x.device).wait_stream(side)
        before, graph = [a.copy() for a in self._arrays], torch.cuda.CUDAGraph()
        threads = "thread_local"  # others may use the device meanwhile
        with (
            record(self._recording, full),
            torch.cuda.graph(graph, self._pool, capture_error_mode=threads),
        ):
            out = self._network.forward_step(x, self._state)
        counts = [a - past for a, past in zip(self._arrays, before, strict=True)]
        return _Graph(graph, x, out, counts)


def _copy(out: Any) -> Any:
    """Return a copy of an output, whose memory the next step overwrites."""
    if isinstance(out, Tensor):
        return out.clone()
    if isinstance(out, tuple):
        parts = [_copy(part) for part in out]
        return type(out)(*parts) if hasattr(out, "_fields") else tuple(parts)
    return out
