"""Tables with a row for each frame of a clip, such as learnt positions, in streams without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.nn.parts import Part, PartState
from costream.nn.state import zeros


@dataclass
class TableState(PartState):
    """State of a table: frames that each stream has seen."""

    steps: Tensor  # int64 [B]


class RecycledTable(Part):
    """A function of each frame and of a row of a table: row t mod n for frame t of a stream.

    "Recycling Positional Encoding" of Hedegaard et al., Continual Transformers (ICLR 2023).

    Args:
        function: of clips [B, C, T, ...] and of T rows.
        table: returns the table.
        dim: of its n rows, negative.
        axis: dimension of time in clips.
    """

    def __init__(
        self, function: Callable[..., Tensor], table: Callable[[], Tensor], dim: int, axis: int
    ) -> None:
        super().__init__()
        self.function, self.table, self.dim, self.axis = function, table, dim, axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of a clip and of the rows from the first on."""
        return self._apply_rows(x, 0)

    def _apply_rows(self, x: Tensor, start: int) -> Tensor:
        table, count = self.table(), x.shape[self.axis]
        times = torch.arange(start, start + count, device=table.device)
        return self.function(x, table.index_select(self.dim, times % table.shape[self.dim]))

    def start(self, batch_size: int, clip: Tensor) -> TableState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        return TableState(zeros(batch_size), self.empty(batch_size, clip), zeros(batch_size))

    def advance(self, x: Tensor, state: Any) -> Tensor:
        """Take T frames, return as many."""
        steps = state.steps.tolist()
        state.steps += x.shape[self.axis]
        if len(set(steps)) == 1:
            return self._apply_rows(x, steps[0])
        streams = torch.split(x, len(x) // len(steps))
        return torch.cat([self._apply_rows(y, n) for y, n in zip(streams, steps, strict=True)])
