"""Depthwise convolution over time: its partial sums are stored, not frames.

The outputs that are still to come are fewer than the frames that they need, and after a stride in
space they are smaller. This is the form of Hedegaard, Iosifidis, "Continual 3D Convolutional Neural
Networks for Real-time Processing of Videos" (ECCV 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.state import zeros
from costream.nn.timing import ClockedState
from costream.nn.video3d.convolution import VolumeStep


@dataclass
class TapSumsState(ClockedState):
    """Sums of the next K - 1 outputs over the frames so far."""

    sums: Tensor  # [B, K - 1, H', W', C]

    @property
    def frames(self) -> Tensor:
        """The sums, as frames."""
        return self.sums

    def move(self, frames: Tensor) -> None:
        """Let these be the sums, which are equal to those so far, elsewhere in memory."""
        self.sums = frames


class TapSums:
    """The steps of a convolution with K > 1 taps.

    Args:
        step: its weights. ``start``: see ``FrameRing``.
    """

    def __init__(self, step: VolumeStep, start: str) -> None:
        self.step, self.start = step, start

    def init_state(self, batch_size: int, size: Sequence[int], like: Tensor) -> TapSumsState:
        """Return the initial state of ``batch_size`` streams; ``size``: (H, W, C) of a frame."""
        shape = (self.step.kernel[0] - 1, *self.step.output_size(size))
        return TapSumsState(zeros(batch_size), zeros(batch_size, *shape, like=like))

    def push(self, x: Tensor, state: TapSumsState, rows: Sequence[int]) -> Tensor:
        """Take a frame [B, H, W, C] of every stream, return the outputs [B, H', W', C].

        ``rows``: see ``FrameRing.push``.
        """
        state.tick()
        products, sums, each = self.step.spread(x), state.sums, list(rows)
        if rows and self.start == "zeros":
            products[each] = 0
        elif rows:
            for k in range(sums.shape[1]):  # as if the frames before had been the same
                sums[each, k] = products[each, k + 1 :].sum(1)
        out = products[:, 0].add_(sums[:, 0])
        for k in range(1, sums.shape[1]):
            torch.add(products[:, k], sums[:, k], out=sums[:, k - 1])
        sums[:, -1] = products[:, -1]
        return out.add_(self.step.bias)
