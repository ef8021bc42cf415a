"""Video features from a continual 3D network, without repeated computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.images import CentreCrop
from costream.nn.video3d.encoder import VideoEncoder, VideoState


@frontend("cox3d", order=5)
class VideoFeatures(nn.Module):
    """``CentreCrop`` and a ``VideoEncoder`` that replicates the first frame: one token per frame.

    The defaults are CoX3D-S with its features of 2048 values; ``pool``: number of consecutive
    frames whose features are averaged.

    Raises ValueError for a network without an output at every frame.
    """

    takes = "video"
    in_time = True  # one clock for all streams of a batch

    def __init__(
        self,
        kind: str = "x3d",
        size: int = 160,
        short_side: int = 182,
        widths: Sequence[int] = (24, 48, 96, 192),
        depths: Sequence[int] = (3, 5, 11, 7),
        stem_width: int = 24,
        head: Sequence[int] = (432, 2048),
        pool: int = 13,
    ) -> None:
        super().__init__()
        self.crop = CentreCrop(size, short_side)
        self.box = self.crop.box
        self.encoder = VideoEncoder(
            kind, size, widths, depths, stem_width, head=head, pool=pool, start="replicate"
        )
        if self.encoder.stride > 1:
            raise ValueError(f"{kind} yields a token only every {self.encoder.stride} frames")
        self.token_width = self.encoder.token_width

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square crop, uint8 [3, size, size], of an image, uint8 [h, w, 3]."""
        return self.crop.prepare(rgb)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of whole clips, uint8 [B, T, 3, H, W], from their start."""
        return self.encoder.forward_stream(self.crop(frames))

    def init_state(self, batch_size: int = 1) -> VideoState:
        """Return the initial state of a batch of streams."""
        return self.encoder.init_state(batch_size)

    def forward_step(self, frames: Tensor, state: VideoState) -> Tensor:
        """Return the tokens [B, D] of the next frame of every stream, uint8 [B, 3, H, W]."""
        return cast(Tensor, self.encoder.forward_step(self.crop(frames), state))

    def forward_steps(self, frames: Tensor, state: VideoState) -> Tensor:
        """Return the tokens [B, T, D] of the next T frames of every stream, [B, T, 3, H, W]."""
        return self.encoder.forward_steps(self.crop(frames), state)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        return self.encoder.count_macs()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same token when a clip of ``pool`` frames is recomputed."""
        return self.encoder.count_clip_macs(self.encoder.pool)
