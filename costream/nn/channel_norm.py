"""Layer normalisation over the channels of each place of a feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of maps [B, C, H, W], eps 1e-6."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps."""
        return self.of_rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def of_rows(self, x: Tensor) -> Tensor:
        """Return normalised rows [..., C]."""
        return super().forward(x)


class NormedConv2d(nn.Conv2d):
    """3x3 convolution without bias, then a norm of its channels, then ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [B, out, H, W] for maps [B, in, H, W]."""
        return F.relu(self.norm(super().forward(x)))
