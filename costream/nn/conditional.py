"""One of two parts, chosen at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.join import paired
from costream.nn.network import as_part
from costream.nn.parts import Part, PartState
from costream.nn.state import State, zeros


@dataclass
class ConditionalState(PartState):
    """States of both parts."""

    branches: tuple[State, ...]


class Conditional(Part):
    """One of two parts, chosen at every step; the state of the other one is frozen.

    Args:
        predicate: of a frame as a clip of length 1, [B, C, 1, ...], returns whether ``true`` is
            called, else ``false``, which is the identity if left out. Neither may have a delay or a
            stride: ValueError.
    """

    def __init__(
        self, predicate: Callable[[Tensor], bool], true: Any, false: Any | None = None
    ) -> None:
        super().__init__()
        self.predicate = predicate
        self.true, self.false = as_part(true), as_part(nn.Identity() if false is None else false)
        for part in (self.true, self.false):
            if part.delay or part.stride > 1:
                raise ValueError(f"{part} has delay {part.delay} and stride {part.stride}")
        self.timing = paired(self.true.timing, self.false.timing)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a clip, frame by frame if its frames go different ways."""
        ways = {bool(self.predicate(frame)) for frame in torch.split(x, 1, self.axis)}
        if len(ways) == 1:
            return (self.true if ways.pop() else self.false)(x)  # type: ignore[no-any-return]
        return self.forward_steps(x, self.start(len(x), x[:1].narrow(self.axis, 0, 1)))

    def start(self, batch_size: int, clip: Tensor) -> ConditionalState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        states = self.true.start(batch_size, clip), self.false.start(batch_size, clip)
        return ConditionalState(zeros(batch_size), states[0].empty.clone(), states)

    def advance(self, x: Tensor, state: ConditionalState) -> Tensor:
        """Take T frames, return as many."""
        state.tick(x.shape[self.axis])
        outs = []
        for frame in torch.split(x, 1, self.axis):
            way = bool(self.predicate(frame))
            part, own = (self.true if way else self.false), state.branches[not way]
            outs.append(part.advance(frame, own))
        return torch.cat(outs, self.axis)  # type: ignore[arg-type]
