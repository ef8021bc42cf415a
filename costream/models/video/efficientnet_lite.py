"""EfficientNet-Lite: pictures as features, and as scores of the 1,000 classes of ImageNet.

Tan and Le, EfficientNet: Rethinking model scaling for convolutional neural networks (ICML 2019),
without squeeze-excitation and with ReLU6, as in TensorFlow's tpu/efficientnet/lite. The features
are a frontend; a ``LinearClassifier`` follows.

Checkpoints are those of the PyTorch port EfficientNet-Lite-PyTorch. Their batch norms (eps 0.001)
are folded into the convolutions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import IMAGE_CLASSIFICATION
from costream.models.frontend import frontend
from costream.models.oad.tdn import check_image
from costream.nn import fast
from costream.nn.fused import RELU6, convolve
from costream.nn.state import State, zeros
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    TensorRule,
    apply,
    fold_norm,
    linear,
    normed_convolution,
    shape_of,
)

PAPER = "https://arxiv.org/abs/1905.11946"
RATE_HZ = 4.0
EPS = 1e-3  # of the batch norms
WIDTH = 1280  # features
CENTRE, SCALE = 127.0, 128.0  # of pixels
_STEM = 32  # channels of every size
_TOGETHER = 4  # pictures of a recording on a CPU: the maps of more do not stay in its cache
_SAVED = 25  # in units of 0.1 ms, by the compiled program of a live picture
# Width, depth and pixels of Lite0 to Lite4.
SIZES = ((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260), (1.2, 1.4, 280), (1.4, 1.8, 300))


class _Stage(NamedTuple):
    """Sizes of a stage at width and depth 1."""

    blocks: int
    kernel: int
    stride: int  # of its first block
    factor: int  # expanded channels for each channel of the input
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


@dataclass
class PictureCount(State):
    """State of streams: how many pictures each had, as nothing else is remembered."""

    pictures: Tensor  # int64 [B]


@frontend("efficientnet-lite", order=13)
class EfficientNetLite(nn.Module):
    """Video frontend: a token is the 1,280 features of a picture, the means over the last maps.

    The square in the middle of a picture is resized to ``size`` pixels, bilinear with antialiasing.
    Padding of convolutions is TensorFlow's "SAME". The defaults are EfficientNet-Lite0.

    Args:
        width: factor of the channels, rounded to multiples of 8; not of stem and features.
        depth: factor of the number of blocks of a stage, rounded up; not of the first and last.
        size: pixels of a side.

    Raises ValueError unless all are positive.
    """

    takes = "video"
    token_width = WIDTH

    def __init__(self, width: float = 1.0, depth: float = 1.0, size: int = 224) -> None:
        super().__init__()
        if min(width, depth, size) <= 0:
            raise ValueError(f"width {width}, depth {depth} and size {size} must be positive")
        self.size = int(size)
        self.box = (2 * self.size, 2 * self.size)  # enough for pictures of up to two to one
        self.stem = nn.Conv2d(3, _STEM, 3, 2)
        blocks, channels = [], _STEM
        for k, stage in enumerate(_STAGES):
            out, fixed = _rounded(stage.channels * width), k in (0, len(_STAGES) - 1)
            for i in range(stage.blocks if fixed else math.ceil(stage.blocks * depth)):
                stride = 1 if i else stage.stride
                blocks.append(_Block(channels, out, stage.kernel, stride, stage.factor))
                channels = out
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Conv2d(channels, WIDTH, 1)
        # Convolutions over interleaved channels take about half the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square in the middle of an image, uint8 [h, w, 3], as uint8 [3, size, size].

        Raise ValueError for other arrays.
        """
        return middle_square(rgb, self.size)

    def init_state(self, batch_size: int = 1) -> PictureCount:
        """Return the initial state of a batch of streams."""
        return PictureCount(zeros(batch_size))

    def features(self, pictures: Tensor) -> Tensor:
        """Return the features [N, 1280] of pictures [N, 3, S, S] from 0 to 255, of any side."""
        return self.features_of_scaled(self.scaled(pictures))

    def scaled(self, pictures: Tensor) -> Tensor:
        """Return pictures from 0 to 255 as the convolutions take them, about -1 to 1."""
        return (pictures.to(self.stem.weight.dtype) - CENTRE) / SCALE

    def features_of_scaled(self, x: Tensor) -> Tensor:
        """Return the features [N, 1280] of pictures that were ``scaled``, [N, 3, S, S]."""
        x = _same(self.stem, x.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return convolve(self.last, x, RELU6).mean((2, 3))

    def forward(self, clips: Tensor) -> Tensor:
        """Return the tokens [B, T, 1280] of clips, uint8 [B, T, 3, size, size]."""
        pictures = clips.flatten(0, 1)
        count = _TOGETHER if clips.device.type == "cpu" else max(1, len(pictures))
        features = torch.cat([self.features(part) for part in torch.split(pictures, count)])
        return torch.unflatten(features, 0, clips.shape[:2])

    def forward_step(self, pictures: Tensor, state: PictureCount) -> Tensor:
        """Return the tokens [B, 1280] of the next picture of every stream, [B, 3, size, size]."""
        state.pictures += 1
        x = self.scaled(pictures)
        if len(x) == 1 and fast.runs_chains(x):
            count = int(state.pictures)
            if fast.chains_after(count * _SAVED):
                from costream.nn.chain import chained

                return chained(self, self.features_of_scaled, x)
        return self.features_of_scaled(x)

    def forward_steps(self, clips: Tensor, state: PictureCount) -> Tensor:
        """Return the tokens [B, T, 1280] of the next T pictures of every stream."""
        state.pictures += clips.shape[1]
        return cast(Tensor, self(clips))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one picture."""
        total, side = _macs(self.stem, self.size)
        for block in self.blocks:
            for layer in cast(_Block, block).layers:
                macs, side = _macs(layer, side)
                total += macs
        return total + _macs(self.last, side)[0]


def middle_square(rgb: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return the square in the middle of an image, uint8 [h, w, 3], as uint8 [3, size, size].

    Raise ValueError for other arrays.
    """
    check_image(rgb)
    side = min(rgb.shape[:2])
    top, left = ((length - side) // 2 for length in rgb.shape[:2])
    square = np.ascontiguousarray(rgb[top : top + side, left : left + side])
    pixels = torch.from_numpy(square).permute(2, 0, 1)[None]
    if side != size:
        pixels = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return pixels[0].numpy()


class _Block(nn.Module):
    """Inverted residual of MobileNetV2: 1x1, depthwise, 1x1."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        expanded = factor * channels
        self.residual = stride == 1 and channels == out
        self.expand = nn.Conv2d(channels, expanded, 1) if factor > 1 else None
        padding = kernel // 2 if stride == 1 else 0
        self.depthwise = nn.Conv2d(expanded, expanded, kernel, stride, padding, groups=expanded)
        self.project = nn.Conv2d(expanded, out, 1)

    @property
    def layers(self) -> list[nn.Conv2d]:
        """The convolutions, in order."""
        before = [] if self.expand is None else [self.expand]
        return [*before, self.depthwise, self.project]

    def forward(self, x: Tensor) -> Tensor:
        """Return maps [N, O, H', W'] of maps [N, I, H, W]."""
        y = x if self.expand is None else convolve(self.expand, x, RELU6)
        y = convolve(self.project, _same(self.depthwise, y))
        return y.add_(x) if self.residual else y


def _same(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Return a convolution, activated, with TensorFlow's padding: less before than behind."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    if stride == 1:
        return convolve(layer, x, RELU6)
    across, down = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[:1:-1])
    pads = (across // 2, across - across // 2, down // 2, down - down // 2)
    return convolve(layer, x, RELU6, pads)


def _macs(layer: nn.Conv2d, side: int) -> tuple[int, int]:
    """Return the multiply-accumulates of a convolution on a square map, and the output's side."""
    side = -(-side // layer.stride[0])
    return side * side * layer.weight.numel(), side


def _rounded(channels: float) -> int:
    """Return the multiple of 8 next to ``channels``, at least 8 and nine tenths of them."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


_BLOCK = re.compile(r"_blocks\.(\d+)\._project_conv\.weight")


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of an EfficientNet without squeeze-excitation."""
    named = {"_conv_stem.weight", "_conv_head.weight", "_fc.weight"} <= tensors.keys()
    return named and not any("_se_reduce" in name for name in tensors)


@importer(
    "efficientnet-lite",
    summary="EfficientNet-Lite0 to Lite4 of EfficientNet-Lite-PyTorch",
    detect=detect,
    keys=("num_classes",),
    order=23,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = foreign.tensors
    classes = settings.check("num_classes", shape_of(tensors, "_fc.weight", 2)[0])
    arguments, shapes = _size_of(tensors)
    rules: list[TensorRule] = []
    names = _published_names(shapes)
    for ours, (theirs, theirs_norm) in names.items():
        rules += normed_convolution(ours, theirs, theirs_norm, shapes[f"{ours}.weight"])
    rules += linear("classifier", "_fc", classes, WIDTH)
    named = apply(rules, tensors, [name for name in tensors if name.endswith(COUNTER)])
    return ImportedNetwork(
        "linear",
        {"input_width": WIDTH, "num_classes": classes},
        {f"classifier.{end}": named[f"classifier.{end}"] for end in ("weight", "bias")},
        classes,
        paper=PAPER,
        task=IMAGE_CLASSIFICATION,
        frontend="efficientnet-lite",
        frontend_arguments=arguments,
        frontend_tensors={k: v for ours in names for k, v in fold_norm(ours, named, EPS).items()},
        rate_hz=RATE_HZ,
    )


def _size_of(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return the arguments of the size of a checkpoint, and the shapes of our tensors."""
    found = [0] * (1 + max((int(m[1]) for m in map(_BLOCK.match, tensors) if m), default=-1))
    for name in filter(_BLOCK.match, tensors):
        found[int(name.split(".")[1])] = shape_of(tensors, name, 4)[0]
    for width, depth, size in SIZES:
        with torch.device("meta"):  # only shapes are needed
            net = EfficientNetLite(width, depth, size)
        if [cast(_Block, block).project.out_channels for block in net.blocks] == found:
            shapes = {name: tuple(value.shape) for name, value in net.state_dict().items()}
            return {"width": width, "depth": depth, "size": size}, shapes
    raise ModelError("the checkpoint does not fit: its blocks are not those of Lite0 to Lite4")


def _published_names(shapes: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Return the published names of convolution and norm for each of our convolutions."""
    names = {"stem": ("_conv_stem", "_bn0"), "last": ("_conv_head", "_bn1")}
    for name in shapes:
        place, _, end = name.rpartition(".")
        if place.startswith("blocks.") and end == "weight":
            layer = place.rpartition(".")[2]
            norm = ("expand", "depthwise", "project").index(layer)
            at = f"_{place.rpartition('.')[0]}"
            names[place] = (f"{at}._{layer}_conv", f"{at}._bn{norm}")
    return names
