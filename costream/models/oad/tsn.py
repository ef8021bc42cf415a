"""TSN features of video chunks, as used to train online action detection.

Checkpoints of MMAction2 (Wang et al., Temporal Segment Networks, ECCV 2016) have one file per
stream, recognised by the channels of its first convolution; the classifiers are dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import VideoFrame
from costream.models.frontend import frontend
from costream.models.image_values import IMAGENET_MEAN, IMAGENET_STD
from costream.models.images import scaled_size
from costream.models.oad.tdn import check_image
from costream.nn.state import State, zeros
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import frontend_importer, has_tensors
from costream.weights_io.tensor_rules import (
    BATCH_NORM,
    COUNTER,
    ImportedFrontend,
    TensorRule,
    apply,
    shape_of,
    with_counters,
)

STREAMS = ("rgb", "flow")
MAX_DISPLACEMENT = 20.0  # largest displacement in a flow image, in pixels; faster motion is clipped
_EXPANSION = 4  # of a block's width in its output


@dataclass
class TSNState(State):
    """Step count of each stream; chunks are processed independently."""

    steps: Tensor  # int64 [B]


@frontend("tsn", order=2)
class TSN(nn.Module):
    """Residual networks on the middle frame of a chunk and on the optical flow through it.

    Wang et al., "Temporal segment networks" (ECCV 2016), as features of OadTR, LSTR, MiniROAD and
    others: video at 24 frames a second in chunks of 6, so 4 tokens a second. The image is the
    fourth frame, the flow is between the 6 frames, as 5 fields of 2 channels (see ``flow_images``).
    A token is the output of the RGB network, then that of the flow network. Frames are resized to
    ``short`` and cropped in the middle. Published networks with 3072 values a row use a
    BN-Inception for the flow, which is not supported; those with 4096 values use a ResNet.

    Args:
        streams: of "rgb" and "flow", in this order.
        frames: per chunk. ``short``: pixels of the shorter side. ``crop``: side of the
            square crop in pixels.
        layers, width: see ``ResNet``.
    """

    takes = "video"

    def __init__(
        self,
        streams: Sequence[str] = STREAMS,
        frames: int = 6,
        short: int = 256,
        crop: int = 224,
        layers: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
    ) -> None:
        super().__init__()
        if not streams or list(streams) != [s for s in STREAMS if s in streams]:
            raise ValueError(f"streams must be rgb, flow or rgb and flow, not {', '.join(streams)}")
        if frames < 2 or not 0 < crop <= short:
            raise ValueError(f"frames {frames} must be at least 2, crop {crop} from 1 to {short}")
        self.streams, self.frames, self.short, self.crop = tuple(streams), frames, short, crop
        self.box = (math.ceil(short * 16 / 9),) * 2  # right for 16:9
        channels = {"rgb": 3, "flow": 2 * (frames - 1)}
        self.networks = nn.ModuleDict({s: ResNet(channels[s], layers, width) for s in streams})
        self.parts = {s: int(n.token_width) for s, n in self.networks.items()}  # type: ignore[arg-type]
        self.token_width = sum(self.parts.values())
        self._channels = [channels[s] for s in streams]
        mean, deviation = (
            {"rgb": IMAGENET_MEAN, "flow": (128.0,)},
            {"rgb": IMAGENET_STD, "flow": (128.0,)},
        )
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", mean), ("deviation", deviation)):
            each = [v * (channels[s] // len(v)) for s in streams if (v := values[s])]
            table = torch.tensor([x for row in each for x in row])[:, None, None]
            self.register_buffer(name, table, persistent=False)

    def prepare(self, frames: Sequence[VideoFrame]) -> npt.NDArray[np.uint8]:
        """Return the input for a chunk, uint8 [C, crop, crop]: an image, then flow.

        Raise ValueError for a wrong number of frames, ModelError if there is flow but no OpenCV.
        """
        if len(frames) != self.frames:
            raise ValueError(f"a chunk has {self.frames} frames, not {len(frames)}")
        middle = self.frames // 2
        needed = frames if "flow" in self.streams else frames[middle : middle + 1]
        images = [self._resize(frame.rgb) for frame in needed]
        parts: list[npt.NDArray[np.uint8]] = []
        if "rgb" in self.streams:
            parts.append(images[middle if len(images) > 1 else 0].transpose(2, 0, 1))
        if "flow" in self.streams:
            parts.append(flow_images(images))
        whole = np.concatenate(parts)
        top, left = ((side - self.crop) // 2 for side in whole.shape[1:])
        return whole[:, top : top + self.crop, left : left + self.crop]

    def init_state(self, batch_size: int = 1) -> TSNState:
        """Return the initial state of a batch of streams."""
        return TSNState(zeros(batch_size))

    def forward(self, chunks: Tensor) -> Tensor:
        """Return the tokens [..., D] of chunks, uint8 [..., C, crop, crop]."""
        flat = chunks.flatten(0, -4).to(self.mean.dtype)
        flat = (flat - self.mean) / self.deviation
        seen = torch.split(flat, self._channels, 1)
        parts = [net(x) for net, x in zip(self.networks.values(), seen, strict=True)]
        return torch.cat(parts, -1).view(*chunks.shape[:-3], -1)

    def forward_step(self, chunks: Tensor, state: TSNState) -> Tensor:
        """Return the tokens [B, D] of the next chunk of every stream, uint8 [B, C, crop, crop]."""
        state.steps += 1
        tokens: Tensor = self(chunks)
        return tokens

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one chunk, without computing the flow."""
        nets = cast("list[ResNet]", list(self.networks.values()))
        return sum(net.count_macs(self.crop) for net in nets)

    def _resize(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], resized to the shorter side ``short``."""
        check_image(rgb)
        size = scaled_size(rgb.shape[:2], self.short)
        if size == rgb.shape[:2]:
            return rgb
        pixels = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
        out = F.interpolate(pixels, size, mode="bilinear", antialias=True)[0]
        return out.permute(1, 2, 0).contiguous().numpy()


def load_opencv(model: str) -> Any:
    """Return OpenCV, set to one thread. ModelError, for ``model``, if it is not installed."""
    try:
        opencv = import_module("cv2")
    except ImportError as error:
        raise ModelError(
            f"{model} uses optical flow, which needs OpenCV",
            hint="pip install 'costream[flow]', or use feature files",
        ) from error
    opencv.setNumThreads(1)
    return opencv


def flow_images(images: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Return the optical flow from each frame, uint8 [h, w, 3], to the next, as images.

    uint8 [2 (T - 1), h, w]: right and down for each pair; 0 to 255 are -20 to 20 pixels, as in the
    input of the published networks. The method is DIS (Kroeger et al., ECCV 2016). Those networks
    were trained on TV-L1, which OpenCV's wheels do not have and which gives other fields: their
    accuracy with DIS differs from that in their papers, and by how much has to be measured.
    """
    opencv = load_opencv("TSN")
    method = opencv.DISOpticalFlow_create(opencv.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grey = [opencv.cvtColor(p, opencv.COLOR_RGB2GRAY) for p in images]
    fields = [method.calc(before, after, None) for before, after in pairwise(grey)]
    scaled = np.stack(fields).transpose(0, 3, 1, 2) * (127.5 / MAX_DISPLACEMENT) + 127.5
    flat: npt.NDArray[np.uint8] = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return flat.reshape(-1, *flat.shape[2:])


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

    Strides are in the 3x3 convolutions; parameters have the names of MMAction2. ``channels``: of
    an image. ``layers``: blocks at each of the four sizes, (3, 4, 6, 3) for 50 layers. ``width``:
    of the first layer.
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

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean of the last feature maps, [N, D], for images [N, C, H, W]."""
        x = F.relu(self.conv1(images.contiguous(memory_format=torch.channels_last)))
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


PAPER = "https://arxiv.org/abs/1608.00859"
RATE_HZ = 4.0  # chunks of 6 frames at 24 frames per second
_FIRST = "backbone.conv1.conv.weight"


detect = has_tensors(_FIRST, "backbone.layer1.0.conv3.conv.weight")  # a bottleneck ResNet


@frontend_importer(
    "tsn", title="TSN", detect=detect, keys=(), alone={"rate_hz": RATE_HZ, "paper": PAPER}
)
def read_frontend(
    parts: Sequence[ForeignCheckpoint], settings: ImportSettings, rate_hz: float
) -> ImportedFrontend:
    """Return the frontend of these files: RGB, flow or both.

    ``rate_hz``: of the network after it; a chunk always has 6 frames. Raises ModelError when a
    file does not fit, two have the same stream, or they differ in their blocks.
    """
    read = [_stream(part.tensors) for part in parts]
    streams = {name: (sizes, tensors) for name, sizes, tensors in read}
    if len(streams) < len(read):
        raise ModelError(f"two checkpoints of {read[0][0]}; TSN has one for rgb, one for flow")
    order = [name for name in ("rgb", "flow") if name in streams]
    sizes = streams[order[0]][0]
    if any(other != sizes for other, _ in streams.values()):
        raise ModelError("the checkpoints of rgb and flow have different blocks")
    tensors = {
        f"networks.{name}.{key}": value for name in order for key, value in streams[name][1].items()
    }
    width = 4 * (sizes["width"] << len(sizes["layers"]) - 1)
    description = f"TSN of MMAction2 ({' and '.join(order)})"
    arguments: dict[str, Any] = {"streams": order, **sizes}
    return ImportedFrontend("tsn", arguments, tensors, width * len(order), description)


def _stream(tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Return stream, sizes and tensors of a checkpoint as ``models.oad.tsn`` expects them."""
    width, channels = shape_of(tensors, _FIRST, 4)[:2]
    if channels not in (3, 10):
        raise ModelError(f"the first convolution has {channels} channels; rgb has 3, flow 10")
    blocks = {
        (int(m[1]), int(m[2])) for n in tensors if (m := re.match(r"backbone\.layer(\d)\.(\d+)", n))
    }
    layers = [sum(layer == k for layer, _ in blocks) for k in range(1, max(blocks)[0] + 1)]
    rules = _unit("conv1", width, channels, 7)
    inputs = width
    for k, count in enumerate(layers):
        inner = width << k
        for i in range(count):
            at = f"layer{k + 1}.{i}"
            rules += _unit(f"{at}.conv1", inner, inputs, 1)
            rules += _unit(f"{at}.conv2", inner, inner, 3)
            rules += _unit(f"{at}.conv3", 4 * inner, inner, 1)
            if not i:
                rules += _unit(f"{at}.downsample", 4 * inner, inputs, 1)
            inputs = 4 * inner
    unused = [n for n in tensors if n.startswith(("cls_head.", "data_preprocessor."))]
    unused += [n for n in tensors if n.endswith(COUNTER)]
    renamed = with_counters(apply(rules, tensors, unused))
    return "rgb" if channels == 3 else "flow", {"layers": layers, "width": width}, renamed


def _unit(name: str, outputs: int, inputs: int, size: int) -> list[TensorRule]:
    """Return the rules of a convolution and its BatchNorm."""
    weight = f"{name}.conv.weight"
    rules = [TensorRule(weight, (f"backbone.{weight}",), (outputs, inputs, size, size))]
    names = [f"{name}.bn.{part}" for part in BATCH_NORM]
    return rules + [TensorRule(n, (f"backbone.{n}",), (outputs,)) for n in names]
