"""Ring buffer of the last frames of each stream, for convolutions over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import zeros
from costream.nn.timing import ClockedState, check_shape

STARTS = ("zeros", "replicate")


@dataclass
class FrameRingState(ClockedState):
    """Frames in a ring: frame t is in slot t mod n."""

    frames: Tensor  # [B, n, H, W, C]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.move(self.frames)

    def move(self, frames: Tensor) -> None:
        """Let these be the frames, which are equal to those so far, elsewhere in memory."""
        self.frames = frames
        with torch.inference_mode(False):  # views of the same memory; making one takes 2 us
            self.slots = self.frames.unbind(1)
            self.volume = self.frames.permute(0, 4, 1, 2, 3)


class FrameRing:
    """Ring buffer of the newest ``slots`` frames.

    Args:
        slots: n.
        start: frames before the first of a stream: "zeros", or copies of the first ("replicate").
    """

    def __init__(self, slots: int, start: str) -> None:
        self.slots, self.start = slots, start

    def init_state(self, batch_size: int, size: Sequence[int], like: Tensor) -> FrameRingState:
        """Return the initial state of ``batch_size`` streams; ``size``: (H, W, C) of a frame."""
        return FrameRingState(zeros(batch_size), zeros(batch_size, self.slots, *size, like=like))

    def next_slot(self, state: FrameRingState) -> Tensor:
        """Return the memory [B, H, W, C] of the next frame, to be written before ``push``."""
        return state.slots[state.peek() % self.slots]

    def push(self, x: Tensor, state: FrameRingState, rows: Sequence[int]) -> int:
        """Store a frame [B, H, W, C] of every stream and return its number t.

        ``rows``: streams that have not started yet, whose frames are set to zero; with start
        "replicate", those that start with this frame.
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

    def past(self, x: Tensor, state: FrameRingState, rows: Sequence[int]) -> Tensor:
        """Return the frame of n steps ago, in a slot that ``replace`` writes.

        ``x``, ``rows``: as for ``push``.
        """
        slot = state.slots[state.peek() % self.slots]
        check_shape(x.shape, slot.shape)
        if rows and self.start == "replicate":
            each = list(rows)
            state.frames[each] = x[each].unsqueeze(1)
        return slot

    def replace(self, x: Tensor, state: FrameRingState, rows: Sequence[int]) -> None:
        """Store a frame in place of that of n steps ago; with start "zeros", none of ``rows``."""
        slot = state.slots[state.tick() % self.slots]
        slot.copy_(x)
        if rows and self.start == "zeros":
            slot[list(rows)] = 0

    def frame(self, state: FrameRingState, time: int) -> Tensor:
        """Return a view of frame t [B, H, W, C], one of the last n."""
        return state.slots[time % self.slots]
