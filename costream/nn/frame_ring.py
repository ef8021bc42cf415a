"""The last frames of streams: what a kernel over time looks back on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import zeros
from costream.nn.timing import ClockedState, check_shape

STARTS = ("zeros", "replicate")


@dataclass
class FramesState(ClockedState):
    """Frame t lies in slot t mod n."""

    frames: Tensor  # [B, n, H, W, C]

    def __post_init__(self) -> None:
        super().__post_init__()
        with torch.inference_mode(False):  # views of the same memory; making one takes 2 us
            self.slots = self.frames.unbind(1)
            self.volume = self.frames.permute(0, 4, 1, 2, 3)


class FrameRing:
    """Keeps the newest ``slots`` frames.

    Args:
        slots: n.
        start: what was before the first frame of a stream: "zeros", or the first frame itself,
            for ever ("replicate").
    """

    def __init__(self, slots: int, start: str) -> None:
        self.slots, self.start = slots, start

    def init_state(self, batch_size: int, size: Sequence[int], like: Tensor) -> FramesState:
        """Give the state of streams that have seen nothing; ``size``: (H, W, C) of a frame."""
        return FramesState(zeros(batch_size), zeros(batch_size, self.slots, *size, like=like))

    def next_slot(self, state: FramesState) -> Tensor:
        """Give the memory [B, H, W, C] of the next frame; who writes there may ``push`` it."""
        return state.slots[state.peek() % self.slots]

    def push(self, x: Tensor, state: FramesState, rows: Sequence[int]) -> int:
        """Take a frame [B, H, W, C] of every stream, give its number t.

        ``rows``: streams that have not begun yet, of whose frames nothing is kept; with start
        "replicate" those that begin with this frame.
        """
        time = state.tick()
        slot = state.slots[time % self.slots]
        if x is not slot:
            check_shape(x.shape, slot.shape)
            slot.copy_(x)
        if rows:
            each = list(rows)
            if self.start == "zeros":
                slot[each] = 0
            else:
                state.frames[each] = slot[each].unsqueeze(1)
        return time

    def frame(self, state: FramesState, time: int) -> Tensor:
        """Give frame t [B, H, W, C], one of the last n; the very memory."""
        return state.slots[time % self.slots]
