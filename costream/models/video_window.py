"""3D networks over a sliding window, as a baseline for the continual ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.models.oad.cooadtr import OadOutput
from costream.models.video3d import VideoNet
from costream.nn.state import zeros
from costream.nn.timing import ClockedState, Timing, check_shape


@dataclass
class VideoWindowState(ClockedState):
    """The last frames; that of step t is in slot t mod n."""

    steps: Tensor  # int64 [B], frames since the stream began
    frames: Tensor  # [B, n, 3, H, W]


class WindowVideoNet(VideoNet):
    """A ``VideoNet`` that is recomputed over the last ``window`` frames, or fewer at first.

    Args:
        window: n, frames. ``hop``: steps from one output to the next.
        arguments: those of ``VideoNet``; ``pool`` and ``start`` have no effect.
    """

    def __init__(self, *arguments: Any, window: int = 16, hop: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        least = 2 if self.encoder.halving else 1
        if not least <= window or hop < 1:
            raise ValueError(f"window {window}, at least {least}; hop {hop}, at least 1")
        self.timing = Timing(window, window - least, hop)

    def init_state(self, batch_size: int = 1) -> VideoWindowState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        size = self.encoder.size
        frames = zeros(batch_size, self.window, 3, size, size, like=self.classifier.weight)
        return VideoWindowState(zeros(batch_size), zeros(batch_size), frames)

    @torch.no_grad()
    def forward_step(  # type: ignore[override]
        self, x: Tensor, state: VideoWindowState
    ) -> OadOutput | None:
        """Take a frame [B, 3, H, W] of every stream, return logits [B, K], or None between hops.

        Logits of streams that began later and have too few frames are zeros.
        """
        check_shape(x.shape, (state.frames.shape[0], *state.frames.shape[2:]))
        time = state.tick()
        slot = time % self.window
        state.frames[:, slot] = x
        state.steps += 1
        if time != self.timing.next_output(time):
            return None
        ordered = torch.roll(state.frames, self.window - 1 - slot, 1)
        logits = x.new_zeros(len(x), self.num_classes)
        seen = state.steps.clamp(max=self.window)
        for length in set(seen.tolist()):
            if length > self.delay:
                rows = (seen == length).to(x.device)
                logits[rows] = self(ordered[rows, -length:])
        return OadOutput(logits, None)

    def forward_steps(self, x: Tensor, state: VideoWindowState) -> OadOutput:  # type: ignore[override]
        """Take T frames [B, T, 3, H, W], return the logits [B, T', K] of all outputs."""
        given = [self.forward_step(frame, state) for frame in x.unbind(1)]
        logits = [out.logits for out in given if out is not None]
        nothing = x.new_zeros(len(x), 0, self.num_classes)
        return OadOutput(torch.stack(logits, 1) if logits else nothing, None)

    def warmup(self, state: VideoWindowState) -> tuple[bool, ...]:  # type: ignore[override]
        """Return for each stream whether its window is not yet full."""
        return tuple(steps < self.window for steps in state.steps.tolist())

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step of one stream, the mean over a hop."""
        return self.dense_macs

    @property
    def dense_macs(self) -> int:
        """The same as ``count_macs``: the whole window is recomputed."""
        return round(self.count_clip_macs(self.window) / self.stride)
