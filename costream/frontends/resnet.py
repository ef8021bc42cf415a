"""Residual networks for images, with the parameter names of MMAction2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EXPANSION = 4  # of a block's width in its output


class ConvNorm(nn.Module):
    """A convolution without bias, followed by BatchNorm."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [N, outputs, H / stride, W / stride]."""
        return cast(Tensor, self.bn(self.conv(x)))

    def count_macs(self, side: int) -> tuple[int, int]:
        """Return the multiply-accumulates for a square of this side, and the output's side."""
        side = -(-side // self.conv.stride[0])
        return side * side * self.conv.weight.numel(), side


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions; the shortcut is identity or projection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(inputs, width, 1)
        self.conv2 = ConvNorm(width, width, 3, stride)
        self.conv3 = ConvNorm(width, _EXPANSION * width, 1)
        same = inputs == _EXPANSION * width and stride == 1
        self.downsample = None if same else ConvNorm(inputs, _EXPANSION * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [N, 4 width, H / stride, W / stride]."""
        beside = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.relu(self.conv3(x) + beside)

    def count_macs(self, side: int) -> tuple[int, int]:
        """Return the multiply-accumulates for a square of this side, and the output's side."""
        total, inside = 0, side
        for part in (self.conv1, self.conv2, self.conv3):
            macs, inside = part.count_macs(inside)
            total += macs
        if self.downsample is not None:
            total += self.downsample.count_macs(side)[0]
        return total, inside


class ResNet(nn.Module):
    """He et al., "Deep residual learning for image recognition" (CVPR 2016), without classifier.

    Strides are in the 3x3 convolutions. ``channels``: of an image. ``layers``: blocks at each of
    the four sizes, (3, 4, 6, 3) for 50 layers. ``width``: of the first layer.
    """

    def __init__(
        self, channels: int = 3, layers: Sequence[int] = (3, 4, 6, 3), width: int = 64
    ) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, width, 7, 2)
        inputs = width
        self._names = tuple(f"layer{k + 1}" for k in range(len(layers)))
        for k, (name, count) in enumerate(zip(self._names, layers, strict=True)):
            blocks = []
            for i in range(count):
                stride = 2 if k and not i else 1
                blocks.append(Bottleneck(inputs, width << k, stride))
                inputs = _EXPANSION * (width << k)
            self.add_module(name, nn.Sequential(*blocks))
        self.token_width = inputs
        # Convolutions over interleaved channels take about half the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the mean of the last feature maps, [N, D], for images [N, C, H, W]."""
        x = F.relu(self.conv1(pictures.contiguous(memory_format=torch.channels_last)))
        x = F.max_pool2d(x, 3, 2, 1)
        for name in self._names:
            x = getattr(self, name)(x)
        return x.mean((2, 3))

    def count_macs(self, side: int) -> int:
        """Return the multiply-accumulates for a square image of this side."""
        total, side = self.conv1.count_macs(side)
        side = -(-side // 2)
        for name in self._names:
            for block in getattr(self, name):
                macs, side = block.count_macs(side)
                total += macs
        return total
