"""Skeleton networks over a sliding window, as a baseline for the continual ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from costream.models.oad.cooadtr import OadOutput
from costream.models.skeleton.network import SkeletonNet, ntu_model
from costream.models.spec import register_model
from costream.nn.state import zeros
from costream.nn.timing import ClockedState, Timing


@dataclass
class SkeletonWindowState(ClockedState):
    """The last frames; that of step t is in slots t mod n and n + t mod n."""

    steps: Tensor  # int64 [B], frames since the stream began
    frames: Tensor  # [B, 2 n, M, V, C]


@register_model("stgcn", order=14, **ntu_model("stgcn", window=300))
@register_model("agcn", order=15, **ntu_model("agcn", window=300, attention="clip"))
@register_model("str", order=16, **ntu_model("str", window=300))
class WindowSkeletonNet(SkeletonNet):
    """A ``SkeletonNet`` that is recomputed over the last ``window`` frames, or fewer at first.

    The attention of adaptive graphs may be that of clips.

    Args:
        window: n, frames. ``hop``: steps from one output to the next.
        arguments: those of ``SkeletonNet``; all features of the window are averaged, or ``pool``
            with padding "causal", of which the newest logits are used.
    """

    def __init__(self, *arguments: Any, window: int = 300, hop: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        least = self.layer_timing.receptive_field if self.form == "none" else 1
        if not least <= window or hop < 1:
            raise ValueError(f"window {window}, at least {least}; hop {hop}, at least 1")
        self.timing = Timing(window, window - least, hop)

    def init_state(self, batch_size: int = 1) -> SkeletonWindowState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        shape = (2 * self.window, self.persons, self.joints, self.channels)
        frames = zeros(batch_size, *shape, like=self.fc.weight)
        return SkeletonWindowState(zeros(batch_size), zeros(batch_size), frames)

    @torch.no_grad()
    def forward_step(  # type: ignore[override]
        self, x: Tensor, state: SkeletonWindowState
    ) -> OadOutput | None:
        """Take a frame [B, M, V, C] of every stream, return logits [B, K], or None between hops.

        Logits of streams that began later and have too few frames are zeros.
        """
        time = state.tick()
        slot = time % self.window
        for place in (slot, slot + self.window):
            state.frames[:, place] = x
        state.steps += 1
        if time != self.timing.next_output(time):
            return None
        end, seen = slot + self.window + 1, state.steps.clamp(max=self.window)
        logits = x.new_zeros(len(x), self.num_classes)
        for length in set(seen.tolist()):
            if length > self.timing.delay:
                rows = (seen == length).to(x.device)
                given = self(state.frames[rows, end - length : end])
                logits[rows] = given[:, -1] if self.form == "causal" else given
        return OadOutput(logits, None)

    def forward_steps(self, x: Tensor, state: SkeletonWindowState) -> OadOutput:  # type: ignore[override]
        """Take T frames [B, T, M, V, C], return the logits [B, T', K] of all outputs."""
        given = [self.forward_step(frame, state) for frame in x.unbind(1)]
        logits = [out.logits for out in given if out is not None]
        nothing = x.new_zeros(len(x), 0, self.num_classes)
        return OadOutput(torch.stack(logits, 1) if logits else nothing, None)

    def warmup(self, state: SkeletonWindowState) -> tuple[bool, ...]:  # type: ignore[override]
        """Return for each stream whether its window is not yet full."""
        return tuple(steps < self.window for steps in state.steps.tolist())

    def count_macs(self, persons: int | None = None) -> int:
        """Return the multiply-accumulates of one step of one stream, the mean over a hop.

        ``persons`` has no effect: absent persons are computed like the others.
        """
        return self.dense_macs

    @property
    def dense_macs(self) -> int:
        """The same as ``count_macs``: the whole clip is recomputed."""
        return round(self.count_clip_macs(self.window) / self.stride)
