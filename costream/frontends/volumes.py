"""Pictures to tokens with a continual 3D network: nothing is computed twice from pixel to token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from costream.frontends.crop import CentreCrop
from costream.nn.video import VideoEncoder
from costream.nn.video_step import VideoState


class VideoFeatures(nn.Module):
    """``CentreCrop`` and a ``VideoEncoder`` that starts with its first frame: a token a frame.

    The defaults are CoX3D-S with its features of 2048 values; ``pool``: how many of these frame
    by frame are averaged.

    Raises ValueError for a network that does not speak at every frame.
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
            raise ValueError(f"{kind} gives a token at every {self.encoder.stride}nd frame only")
        self.token_width = self.encoder.token_width

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Give the square of a picture, uint8 [h, w, 3], as uint8 [3, size, size]."""
        return self.crop.prepare(rgb)

    def forward(self, frames: Tensor) -> Tensor:
        """Give the tokens [B, T, D] of whole clips, uint8 [B, T, 3, H, W], from their start."""
        return self.encoder.forward_stream(self.crop(frames))

    def init_state(self, batch_size: int = 1) -> VideoState:
        """Give the state of streams that have seen nothing."""
        return self.encoder.init_state(batch_size)

    def forward_step(self, frames: Tensor, state: VideoState) -> Tensor:
        """Give the tokens [B, D] of the next frame of every stream, uint8 [B, 3, H, W]."""
        return cast(Tensor, self.encoder.forward_step(self.crop(frames), state))

    def forward_steps(self, frames: Tensor, state: VideoState) -> Tensor:
        """Give the tokens [B, T, D] of the next T frames of every stream, [B, T, 3, H, W]."""
        return self.encoder.forward_steps(self.crop(frames), state)

    def count_macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.encoder.count_macs()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same token with a clip of ``pool`` frames computed anew."""
        return self.encoder.count_clip_macs(self.encoder.pool)
