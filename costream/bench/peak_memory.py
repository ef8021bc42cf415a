"""Peak memory of a call: the numbers of all tensors that it makes and that are alive together.

And the table of it for attention, as in appendix B of Carreto Picón et al., "Continual Low-Rank
Scaled Dot-product Attention" (arXiv 2412.03214), which has the least and the most of a step.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costream.bench.nystrom_counts import SIZES, NystromSizes
from costream.core.tables import Cell, Table
from costream.nn.attention import MultiheadAttention, RetroactiveAttention, SingleOutputAttention
from costream.nn.nystrom.continual import RetroactiveNystrom, SingleOutputNystrom
from costream.nn.nystrom.window import NystromAttention


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers of tensors from when an operation returns them until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = self.peak = 0
        self._tensors: Counter[int] = Counter()  # of each storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_place(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._watch(tensor, given)
        return out

    def _watch(self, tensor: Tensor, given: set[int]) -> None:
        place, size = _place(tensor), tensor.untyped_storage().nbytes() // tensor.element_size()
        if not size or (place in given and place not in self._tensors):
            return
        if not self._tensors[place]:
            self.numbers += size
            self.peak = max(self.peak, self.numbers)
        self._tensors[place] += 1
        weakref.finalize(tensor, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self._tensors[place] -= 1
        if not self._tensors[place]:
            del self._tensors[place]
            self.numbers -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak_numbers(call: Callable[[], object]) -> int:
    """Return how many numbers a call makes that are alive together, its results included.

    What it is given, such as weights and a state, does not count, nor does what happens within an
    operation of PyTorch.
    """
    alive = _Alive()
    with torch.no_grad(), alive:
        result = call()
    del result
    return alive.peak


def attention_memory_table() -> Table:
    """Return the table of the state of attention and of what a step makes, in thousand numbers."""
    rows: list[tuple[Cell, ...]] = []
    for sizes in SIZES[:2]:  # the paper's
        rows += [(*row[:1], sizes.name, *row[1:]) for row in _attention_memory(sizes)]
    notes = (
        "State: of a stream; of a window, its rows. A step: numbers that it makes and that exist",
        "together, beside weights and state, at its least and its most over n steps, with and",
        "without a new landmark or new sums of a block; measured over PyTorch's operations.",
        "Projections and scores of all heads count, which the paper's closed forms leave out.",
    )
    columns = ("attention", "sizes", "state", "a step, least", "a step, most")
    title = "Memory of attention, in thousand numbers"
    return Table(title, columns, tuple(rows), notes)


def _attention_memory(s: NystromSizes) -> list[tuple[Cell, ...]]:
    torch.manual_seed(0)
    size, n, m = (s.width, s.heads), s.window, s.landmarks
    rows: list[tuple[Cell, ...]] = []
    window = torch.randn(1, n, s.width)
    for name, whole in (
        ("window", MultiheadAttention(*size)),
        ("window, Nyström", NystromAttention(*size, m)),
    ):
        peak = peak_numbers(lambda layer=whole: layer(window)) / 1e3  # type: ignore[misc]
        rows.append((name, n * s.width / 1e3, peak, peak))
    for name, layer in (
        ("single-output", SingleOutputAttention(*size, n)),
        ("single-output, Nyström, continual", SingleOutputNystrom(*size, n, m)),
        ("single-output, Nyström, fixed", SingleOutputNystrom(*size, n, m, fixed=True)),
        ("retroactive", RetroactiveAttention(*size, n)),
        ("retroactive, Nyström, continual", RetroactiveNystrom(*size, n, m)),
        ("retroactive, Nyström, fixed", RetroactiveNystrom(*size, n, m, fixed=True)),
    ):
        rows.append((name, *_steps_memory(layer, s)))
    return rows


def _steps_memory(layer: Any, s: NystromSizes) -> tuple[float, float, float]:
    """Return thousands of numbers: of the state, and the least and most that a step makes."""
    state = layer.init_state()
    kept = sum(x.numel() for x in state.tensors().values()) - 1
    with torch.no_grad():
        for row in torch.randn(s.window, 1, s.width):
            layer.forward_step(row, state)
    peaks = [
        peak_numbers(lambda row=row: layer.forward_step(row, state))  # type: ignore[misc]
        for row in torch.randn(s.window, 1, s.width)
    ]
    return kept / 1e3, min(peaks) / 1e3, max(peaks) / 1e3
