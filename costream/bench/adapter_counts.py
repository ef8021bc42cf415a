"""Numbers that ResNet-50 learns with adapters, as in "Structured Pruning Adapters" (Table 5.1)."""

from __future__ import annotations

import torch
from torch import nn

from costream.core.tables import Cell, Table
from costream.nn.adapters.low_rank import SPLoRA

_CLASSES = 10
_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of a bottleneck, blocks
# Rank of the adapters, None: all weights are learnt; thousands of numbers as printed, unpruned.
PUBLISHED: tuple[tuple[int | None, float], ...] = ((None, 23520.8), (32, 1644.5), (8, 466.3))


def resnet50_convolutions() -> list[tuple[int, int, int]]:
    """Return inputs, outputs and kernel of each convolution, the first one for small pictures."""
    found, width = [(3, 64, 3)], 64
    for middle, blocks in _STAGES:
        for number in range(blocks):
            wide = 4 * middle
            found += [(width, middle, 1), (middle, middle, 3), (middle, wide, 1)]
            found += [(width, wide, 1)] * (number == 0)
            width = wide
    return found


def learnt_numbers(rank: int | None) -> int:
    """Return how many numbers are learnt: of the norms, the classifier, adapters or weights.

    ``rank``: of an adapter for each convolution; None: the convolutions themselves are learnt.
    """
    last = 4 * _STAGES[-1][0]
    total = (last + 1) * _CLASSES
    for inputs, outputs, kernel in resnet50_convolutions():
        with torch.device("meta"):  # only sizes are needed
            conv = nn.Conv2d(inputs, outputs, kernel, bias=False)
            part = conv if rank is None else SPLoRA(conv.weight, 1, rank)
        total += 2 * outputs + sum(p.numel() for p in part.parameters())
    return total


def adapter_table() -> Table:
    """Return the table of learnt numbers, in thousands."""
    rows: list[tuple[Cell, ...]] = []
    for rank, published in PUBLISHED:
        way = "all weights" if rank is None else f"SPLoRA, rank {rank}"
        rows.append((way, round(learnt_numbers(rank) / 1e3, 1), published))
    notes = (
        "Without pruning; norms and the classifier of 10 classes are learnt in each. Counted:",
        "parameters of costream.nn.SPLoRA for every convolution.",
    )
    title = "Numbers that ResNet-50 learns with adapters, in thousands"
    return Table(title, ("learnt", "counted", "published"), tuple(rows), notes)
