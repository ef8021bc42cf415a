"""Maps of several scales from the one that a plain vision transformer gives."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from costream.nn.channel_norm import ChannelNorm
from costream.nn.operations import Operations


class SimplePyramid(nn.Module):
    """Maps at strides 4, 8, 16, 32 and 64 from tokens at stride 16.

    Li et al., "Exploring plain vision transformer backbones for object detection" (ECCV 2022).

    Args:
        dim: D of the tokens, a multiple of 4. ``channels``: of the maps.
    """

    strides = (4, 8, 16, 32, 64)

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        ways: list[tuple[list[nn.Module], int]] = [
            (
                [
                    nn.ConvTranspose2d(dim, dim // 2, 2, 2),
                    ChannelNorm(dim // 2),
                    nn.GELU(),
                    nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2),
                ],
                dim // 4,
            ),
            ([nn.ConvTranspose2d(dim, dim // 2, 2, 2)], dim // 2),
            ([], dim),
            ([nn.MaxPool2d(2)], dim),
        ]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *scaling,
                nn.Conv2d(width, channels, 1, bias=False),
                ChannelNorm(channels),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                ChannelNorm(channels),
            )
            for scaling, width in ways
        )

    def forward(self, tokens: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Give five maps [B, C, H, W], the largest first, for tokens [B, h, w, D].

        ``operations``: what is spent is added.
        """
        maps = []
        for stage in self.stages:
            x = tokens.permute(0, 3, 1, 2)
            for layer in cast(nn.Sequential, stage):
                before, x = x, layer(x)
                if operations is not None and isinstance(layer, nn.ConvTranspose2d):
                    operations.linear += before[:, 0].numel() * layer.weight.numel()
                    operations.bias += x.numel()
                elif operations is not None and isinstance(layer, nn.Conv2d):
                    operations.count_linear(x[:, 0].numel(), layer)
            maps.append(x)
        return [*maps, maps[-1][:, :, ::2, ::2]]
