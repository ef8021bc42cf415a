"""Clip networks over a sliding window, as a baseline for the continual ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from costream.models.oad.cooadtr import OadOutput
from costream.nn.state import zeros
from costream.nn.timing import ClockedState, ContinualModule, Timing, check_shape


@dataclass
class WindowState(ClockedState):
    """The last frames: that of step t in slot t mod n, also in n + t mod n of 2 n slots."""

    steps: Tensor  # int64 [B], frames since the stream began
    frames: Tensor  # [B, n or 2 n, ...]


class SlidingWindow(ContinualModule):
    """Mixin before a clip network: recomputes it over the last frames, fewer at the start."""

    num_classes: int
    count_clip_macs: Callable[[int], int]

    def _slide(self, window: int, least: int, hop: int) -> None:
        """Set the window and the fewest frames with an output, and the steps between outputs.

        Raises ValueError for a window or hop that is too small.
        """
        if not least <= window or hop < 1:
            raise ValueError(f"window {window}, at least {least}; hop {hop}, at least 1")
        self.timing = Timing(window, window - least, hop)

    def _window_state(self, *shape: int, like: Tensor) -> WindowState:
        """Return an initial state for streams with frames of ``shape`` [B, slots, ...]."""
        return WindowState(zeros(shape[0]), zeros(shape[0]), zeros(*shape, like=like))

    @torch.no_grad()
    def forward_step(self, x: Tensor, state: WindowState) -> OadOutput | None:
        """Take a frame [B, ...] of every stream, return logits [B, K], or None between hops.

        Logits of streams that began later and have too few frames are zeros.
        """
        frames, window = state.frames, self.receptive_field
        check_shape(x.shape, (frames.shape[0], *frames.shape[2:]))
        time = state.tick()
        slot = time % window
        for place in range(slot, frames.shape[1], window):
            frames[:, place] = x
        state.steps += 1
        if time != self.timing.next_output(time):
            return None
        if frames.shape[1] > window:
            clips = frames[:, slot + 1 : slot + 1 + window]
        else:
            clips = torch.roll(frames, window - 1 - slot, 1)
        logits = x.new_zeros(len(x), self.num_classes)
        seen = state.steps.clamp(max=window)
        for length in set(seen.tolist()):
            if length > self.delay:
                rows = (seen == length).to(x.device)
                out = cast(Tensor, self(clips[rows, -length:]))
                logits[rows] = out if out.dim() == 2 else out[:, -1]
        return OadOutput(logits, None)

    def forward_steps(self, x: Tensor, state: WindowState) -> OadOutput:
        """Take T frames [B, T, ...], return the logits [B, T', K] of all outputs."""
        outs = [self.forward_step(frame, state) for frame in x.unbind(1)]
        logits = [out.logits for out in outs if out is not None]
        empty = x.new_zeros(len(x), 0, self.num_classes)
        return OadOutput(torch.stack(logits, 1) if logits else empty, None)

    def warmup(self, state: WindowState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(steps < self.receptive_field for steps in state.steps.tolist())

    def count_macs(self, persons: int | None = None) -> int:
        """Return the multiply-accumulates of one step of one stream, the mean over a hop.

        ``persons`` has no effect: absent persons are computed like the others.
        """
        return self.dense_macs

    @property
    def dense_macs(self) -> int:
        """The same as ``count_macs``, because every step recomputes the window."""
        return round(self.count_clip_macs(self.receptive_field) / self.stride)
