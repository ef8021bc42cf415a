"""Operation counts of Nyström attention: the paper's closed forms and this implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from costream.bench.audio_ops import attention_ops
from costream.nn.attention import MultiheadAttention, SingleOutputAttention
from costream.nn.nystrom.window import NystromAttention
from costream.nn.nystrom_retroactive import RetroactiveNystrom
from costream.nn.nystrom_single import SingleOutputNystrom
from costream.nn.retroactive import RetroactiveAttention
from costream.tables import Cell, Table


@dataclass(frozen=True)
class NystromSizes:
    """Sizes of an attention layer: n rows, m landmarks, width d, h heads."""

    name: str
    window: int
    landmarks: int
    width: int
    heads: int
    printed: float | None = None  # millions per step, single-output with continual landmarks


SIZES = (
    NystromSizes("GTZAN", 120, 4, 192, 16, 0.0109),
    NystromSizes("THUMOS14", 64, 16, 1024, 8, 0.461),
    NystromSizes("long window", 1024, 16, 192, 8),
)


def window_ops(s: NystromSizes, fixed: bool) -> int:
    """Return the operations of Nyström attention over a window as in the paper: *, + and exp."""
    n, m, d = s.window, s.landmarks, s.width
    if fixed:
        return 4 * n * d * m + n * m**2 + 2 * n * m + n + m
    own = 2 * n * d + d * m**2 + 24 * m**3 + 22 * m**2 + 2 * m
    return 4 * n * d * m + own + n + n * m**2 + 2 * n * m


def step_ops(s: NystromSizes, retroactive: bool, landmark: bool) -> int:
    """Return the operations of a continual step as the paper counts them.

    ``landmark``: whether a landmark changes in this step; never with fixed landmarks.
    """
    n, m, d = s.window, s.landmarks, s.width
    if not landmark:
        return m**2 + 6 * m + (n * d * m + 6 * d * m if retroactive else 7 * d * m)
    inverse = 24 * m**3 + 22 * m**2
    if retroactive:
        rows = n * d * m + 8 * n * d + n * m**2 + n * m + 11 * n
        return rows + 15 * d * m + 2 * d + inverse + 22 * m
    return n * d * m + 3 * n * d + n + 9 * d * m + 2 * d + inverse + 13 * m


def average_ops(s: NystromSizes, retroactive: bool, fixed: bool) -> float:
    """Return the mean operations of a continual step; every n/m-th changes a landmark."""
    usual = step_ops(s, retroactive, landmark=False)
    if fixed:
        return usual
    every = s.window / s.landmarks
    return (step_ops(s, retroactive, landmark=True) + (every - 1) * usual) / every


def exact_memory(s: NystromSizes, retroactive: bool) -> int:
    """Return the size of exact attention's state in numbers (Hedegaard et al., ICLR 2023).

    Keys and values of the previous rows; if retroactive, also queries, sums and denominators.
    """
    return (s.window - 1) * (4 * s.width + 1 if retroactive else 2 * s.width)


def landmark_memory(s: NystromSizes, retroactive: bool, fixed: bool) -> int:
    """Return the size of Nyström attention's state in numbers, as in its authors' code.

    The tensors that a form uses, of one head (Carreto Picón et al., arXiv 2412.03214, and their
    published ``ContinualNystromMultiheadAttention``): keys, values and landmarks, the inverse of
    the landmarks' kernel, summed values and denominators; if retroactive, the rows' products with
    landmarks. Changing landmarks also need queries, unnormalised kernels and the running mean.
    """
    n, m, d = s.window, s.landmarks, s.width
    kept = 2 * n * d + 3 * m * d + m**2 + m + (n * m if retroactive else 0)
    if not fixed:
        kept += n * d + m**2 + m + 2 * d + (n * m + n if retroactive else 0)
    return kept


def nystrom_ops_table(s: NystromSizes) -> Table:
    """Return the table of one layer's counts, in millions per step."""
    n, m, d = s.window, s.landmarks, s.width
    size = (d, s.heads)
    rows: list[tuple[Cell, ...]] = []

    def add(
        name: str,
        paper: float,
        module: Any,
        macs: int,
        memory: int | None = None,
        printed: float | None = None,
    ) -> None:
        stepped = hasattr(module, "init_state")
        kept = sum(x.numel() for x in module.init_state().tensors().values()) - 1 if stepped else 0
        counts = (paper / 1e6, printed, macs / 1e6, macs / exact)
        rows.append((name, *counts, memory, kept or n * d))

    with torch.device("meta"):  # only sizes are needed
        single = SingleOutputAttention(*size, n)
        exact = single.count_macs()
        whole = MultiheadAttention(*size)
        add("window", attention_ops("window", 1, n, d), whole, 2 * n**2 * d + 4 * n * d**2)
        for fixed in (False, True):
            name = f"window, Nyström, {_kind(fixed)}"
            nystrom = NystromAttention(*size, m, fixed=fixed)
            add(name, window_ops(s, fixed), nystrom, nystrom.count_macs(n))
        paper: float = attention_ops("cotrans", 1, n, d)
        add("single-output", paper, single, exact, exact_memory(s, False))
        for fixed in (False, True):
            one = SingleOutputNystrom(*size, n, m, fixed=fixed)
            printed = None if fixed else s.printed
            paper = average_ops(s, False, fixed)
            name = f"single-output, Nyström, {_kind(fixed)}"
            memory = landmark_memory(s, False, fixed)
            add(name, paper, one, one.count_macs(), memory, printed)
        retroactive = RetroactiveAttention(*size, n)
        paper = attention_ops("cotrans", 2, n, d) - attention_ops("cotrans", 1, n, d)
        add("retroactive", paper, retroactive, retroactive.count_macs(), exact_memory(s, True))
        for fixed in (False, True):
            all_rows = RetroactiveNystrom(*size, n, m, fixed=fixed)
            name = f"retroactive, Nyström, {_kind(fixed)}"
            paper, memory = average_ops(s, True, fixed), landmark_memory(s, True, fixed)
            add(name, paper, all_rows, all_rows.count_macs(), memory)
    columns = (
        "attention",
        "paper's way",
        "printed",
        "costream",
        "x single-output",
        "kept, paper's way",
        "kept",
    )
    notes = (
        "One layer. Paper's way: closed forms of additions, products and exp, without projections;",
        "the mean over steps with and without a new landmark, independent of the number of heads.",
        "costream: every product of a step as implemented here, on average, including projections,",
        "into which fixed landmarks are folded. The papers' running sums, from which the oldest",
        "row is subtracted, are cheaper but not exact; see nn/nystrom_summary.py.",
        "x single-output: relative to exact single-output attention here. Kept: numbers in the",
        "state of a stream; for a window, its rows. Kept, paper's way: closed forms of the tensors",
        "that the authors' code stores and a form uses, of one head.",
    )
    title = f"Nyström attention, {s.name}: n={n} d={d} m={m} h={s.heads}, millions per step"
    return Table(title, columns, tuple(rows), notes, decimals=4)


def _kind(fixed: bool) -> str:
    return "fixed" if fixed else "continual"
