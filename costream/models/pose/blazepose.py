"""BlazePose: joints of one person in a crop (Bazarevsky et al., 2020; Grishchenko et al., 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import POSE_ESTIMATION
from costream.models.pose.tflite_layers import (
    convolutions_before,
    fits,
    graph_of,
    has_constants,
    named_tensors,
)
from costream.models.spec import register_model
from costream.nn.fused import RELU6, convolve
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import ImportedNetwork

SIDE = 256  # of a crop, in pixels
JOINTS, POINTS = 33, 39  # the last six points are for the next crop, and for hands
_STEM, _GROWTH = 24, 6


class Landmarks(NamedTuple):
    """What is found in crops of B persons."""

    places: Tensor  # [B, 39, 3], pixels of the crop; z towards the camera is negative
    visible: Tensor  # [B, 39], 0 to 1
    space: Tensor  # [B, 39, 3], metres around the hips; x to the right, y down, z away
    present: Tensor  # [B], 0 to 1: how likely there is a person


@register_model(
    "blazepose",
    order=31,
    model="costream.models.pose.weights:PoseWeights",
    bench="costream.bench.published:published_steps_table",
    task=POSE_ESTIMATION,
)
class BlazePose(nn.Module):
    """The landmark network: inverted residuals, then residual units down to 2 x 2 places.

    The heat maps and the segmentation of the original are not computed: no joint depends on them.

    Args:
        first: channels of the first block.
        blocks: channels, side of the kernel and stride of each inverted residual.
        width: channels of the residual units.
        units: number of them at 4 x 4 places, and at 2 x 2.
    """

    def __init__(
        self, first: int, blocks: Sequence[Sequence[int]], width: int, units: Sequence[int]
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, _STEM, 3, 2, 1)
        self.first = nn.Sequential(_depthwise(_STEM, 3), nn.Conv2d(_STEM, first, 1))
        channels, stages = first, []
        for k, (out, kernel, stride) in enumerate(blocks):
            inner = channels * (_GROWTH if k else 4)
            stages.append(InvertedResidual(channels, inner, out, kernel, stride))
            channels = out
        self.blocks = nn.ModuleList(stages)
        inner = _GROWTH * channels
        self.last = nn.Sequential(
            nn.Conv2d(channels, inner, 1),
            _depthwise(inner, 3),
            _depthwise(inner, 3),
            nn.Conv2d(inner, width, 1),
        )
        strides = [stride for count in units for stride in (2, *[1] * (count - 1))]
        self.units = nn.ModuleList(ResidualUnit(width, stride) for stride in strides)
        self.places = nn.Conv2d(width, 5 * POINTS, 2)
        self.space = nn.Conv2d(width, 3 * POINTS, 2)
        self.present = nn.Conv2d(width, 1, 2)

    def forward(self, crops: Tensor) -> Landmarks:
        """Return the landmarks in crops [B, 3, 256, 256], red, green, blue from 0 to 1."""
        x = crops.contiguous(memory_format=torch.channels_last)
        x = convolve(self.stem, x, RELU6)
        first, project = cast("list[nn.Conv2d]", list(self.first))
        x = convolve(project, convolve(first, x, RELU6))
        for block in self.blocks:
            x = block(x)
        for layer in cast("list[nn.Conv2d]", list(self.last)):
            x = convolve(layer, x, RELU6)
        for unit in self.units:
            x = unit(x)
        points = torch.unflatten(self.places(x).flatten(1), 1, (POINTS, 5))
        space = torch.unflatten(self.space(x).flatten(1), 1, (POINTS, 3))
        present = self.present(x).flatten().sigmoid()
        return Landmarks(points[..., :3], points[..., 3].sigmoid(), space, present)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of a crop."""
        return count_convolutions(self, SIDE, SIDE)

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield all convolutions in the order of the original file."""
        return (layer for layer in self.modules() if isinstance(layer, nn.Conv2d))


def count_convolutions(network: nn.Module, height: int, width: int) -> int:
    """Return the multiply-accumulates of the convolutions of a network for a picture."""
    counted: list[int] = []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        counted.append(out[0, 0].numel() * layer.weight.numel())

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.inference_mode():
        network(layers[0].weight.new_zeros(1, 3, height, width))
    for hook in hooks:
        hook.remove()
    return sum(counted)


class InvertedResidual(nn.Module):
    """A pointwise, a depthwise and a linear pointwise convolution, added to what came in.

    ``below``: with a stride of 2, maps are padded below and to the right, as TensorFlow does, and
    not on all sides.
    """

    def __init__(
        self,
        in_channels: int,
        inner: int,
        out_channels: int,
        kernel: int,
        stride: int,
        below: bool = False,
    ) -> None:
        super().__init__()
        self.expand = nn.Conv2d(in_channels, inner, 1)
        self.depth = _depthwise(inner, kernel, stride)
        self.pads = (kernel // 2 - 1, kernel // 2) * 2 if below and stride == 2 else None
        if self.pads is not None:
            self.depth.padding = (0, 0)
        self.project = nn.Conv2d(inner, out_channels, 1)
        self.skips = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the map [B, out, h, w] for a map [B, in, H, W]."""
        y = convolve(self.depth, convolve(self.expand, x, RELU6), RELU6, self.pads)
        y = convolve(self.project, y)
        return y.add_(x) if self.skips else y


class ResidualUnit(nn.Module):
    """A depthwise and a pointwise convolution, added to what came in, or to its maxima."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, stride, stride % 2, groups=channels)
        self.point = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map [B, C, h, w] for a map [B, C, H, W]."""
        if self.depth.stride[0] == 2:  # the side below and to the right is padded
            y = convolve(self.depth, x, RELU6, (0, 1, 0, 1))
            x = F.max_pool2d(x, 2)
        else:
            y = convolve(self.depth, x, RELU6)
        return F.relu6(convolve(self.point, y).add_(x), inplace=True)


def _depthwise(channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels)


LITE: dict[str, Any] = {
    "first": 8,
    "blocks": [
        *([16, 3, 2], [16, 3, 1], [24, 5, 2], [24, 5, 1], [40, 3, 2], [40, 3, 1], [40, 3, 1]),
        *([56, 5, 1], [56, 5, 1], [56, 5, 1], [96, 5, 2], [96, 5, 1], [96, 5, 1], [96, 5, 1]),
    ],
    "width": 192,
    "units": [3, 4],
}
FULL: dict[str, Any] = {
    "first": 16,
    "blocks": [
        *([24, 3, 2], [24, 3, 1], [32, 5, 2], [32, 5, 1], [64, 3, 2], [64, 3, 1], [64, 3, 1]),
        *([88, 5, 1], [88, 5, 1], [88, 5, 1], [144, 5, 2], [144, 5, 1], [144, 5, 1], [144, 5, 1]),
    ],
    "width": 288,
    "units": [5, 6],
}
PAPER = "https://arxiv.org/abs/2206.11678"


@importer(
    "blazepose",
    summary="BlazePose landmarks, lite and full, of MediaPipe (TFLite)",
    detect=lambda tensors: any(
        has_constants((5 * POINTS, 2, 2, sizes["width"]))(tensors) for sizes in (LITE, FULL)
    ),
    keys=(),
    order=21,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError if the file has other convolutions than lite or full."""
    shapes = {5 * POINTS, 3 * POINTS, 1}
    outputs = graph_of(foreign)["outputs"]
    ends = [k for k, shape in outputs if len(shape) == 2 and shape[1] in shapes]
    found = convolutions_before(foreign, ends)
    for sizes in (LITE, FULL):
        network = BlazePose(**sizes)
        layers = list(network.in_order())
        if fits(layers, found):
            break
    else:
        raise ModelError(f"{len(found)} convolutions, which are not those of BlazePose")
    tensors = named_tensors(network, layers, found)
    return ImportedNetwork("blazepose", sizes, tensors, None, paper=PAPER, task=POSE_ESTIMATION)
