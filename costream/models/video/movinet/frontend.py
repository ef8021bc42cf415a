"""Video features from the trunk of a MoViNet: one row for each frame."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.images import CentreCrop
from costream.models.video.movinet.trunk import MoViNetState, MoViNetTrunk


@frontend("movinet", order=9)
class MoViNetFeatures(nn.Module):
    """``CentreCrop``, values from 0 to 1, and a ``MoViNetTrunk``: one token per frame.

    ``arguments``: of the trunk.
    """

    takes = "video"

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments
        self.trunk = MoViNetTrunk(**arguments)
        self.crop = CentreCrop(self.trunk.size, self.trunk.size, 0.0, 1.0)
        self.box = self.crop.box
        self.token_width = self.trunk.head.out_channels

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square crop, uint8 [3, size, size], of an image, uint8 [h, w, 3]."""
        return self.crop.prepare(rgb)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of clips, uint8 [B, T, 3, H, W], from their start."""
        return self.forward_steps(frames, self.init_state(len(frames)))

    def init_state(self, batch_size: int = 1) -> MoViNetState:
        """Return the initial state of a batch of streams."""
        return self.trunk.init_state(batch_size)

    def forward_step(self, frames: Tensor, state: MoViNetState) -> Tensor:
        """Return the tokens [B, D] of the next frame of every stream, uint8 [B, 3, H, W]."""
        return self.forward_steps(frames[:, None], state)[:, 0]

    def forward_steps(self, frames: Tensor, state: MoViNetState) -> Tensor:
        """Return the tokens [B, T, D] of the next T frames of every stream, [B, T, 3, H, W]."""
        rows = self.trunk.features(cast(Tensor, self.crop(frames)), state)
        state.frames += frames.shape[1]
        return rows

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        return self.trunk.count_macs()
