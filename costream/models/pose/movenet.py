"""MoveNet MultiPose: joints of up to six persons in a picture (Google, 2021).

Its maps say where the middle of a person is, and how large the person is and where its joints are
as seen from there; a second set of maps says more exactly where joints are (Zhou et al., "Objects
as points", 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import POSE_ESTIMATION
from costream.models.pose.blazepose import InvertedResidual, count_convolutions
from costream.models.pose.tflite_layers import (
    convolutions_before,
    fits,
    graph_of,
    has_constants,
    named_tensors,
)
from costream.models.spec import register_model
from costream.nn.fused import RELU, RELU6, convolve
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import ImportedNetwork

MOST = 6  # persons
JOINTS = 17  # of COCO
PATCH = 32  # sides of pictures are multiples of it
_STRIDE = 4  # pixels of a place of the maps
# Channels, number of units, stride and, if a map leaves it, channels of this map.
_STAGES = ((40, 2, 2, 24), (48, 3, 2, 32), (96, 4, 2, 64), (144, 3, 1, 0), (240, 3, 2, 0))
_STEM, _GROWTH, _INNER = 48, 6, 96
_LAST = (480, 1280, 64)
# Outputs of the heads in the order of the original file; y is before x. The offset of the middle of
# a person from its place, the size of the box, how likely a middle and a joint is, the offset of a
# joint from its place, and the way from the middle to each joint.
_HEADS = {
    "offset": 2,
    "size": 2,
    "centre": 1,
    "joints": JOINTS,
    "shifts": 2 * JOINTS,
    "reach": 2 * JOINTS,
}
_PEAK = 5  # side of the square in which the middle of a person is the largest
_CLEAR = 0.127  # score from which on a joint counts for the score of the person
_SPREAD = 0.3  # of the shorter side of the maps: square of the distance to what is expected


class PersonMaps(NamedTuple):
    """Maps [B, channels, h, w] of pictures, a quarter of their height and width."""

    features: Tensor  # 24
    centre: Tensor  # 1, logit: how likely there is the middle of a person
    joints: Tensor  # 17, logits


class FoundPersons(NamedTuple):
    """N persons in a picture, in pixels of it, x before y; those with a clear middle come first."""

    joints: Tensor  # [N, 17, 2]
    scores: Tensor  # [N, 17], 0 to 1
    boxes: Tensor  # [N, 4]
    score: Tensor  # [N], 0 to 1


@register_model(
    "movenet",
    order=32,
    model="costream.models.pose.weights:PoseWeights",
    bench="costream.bench.published:published_steps_table",
    task=POSE_ESTIMATION,
)
class MoveNet(nn.Module):
    """A MobileNetV2, three steps of a feature pyramid and six heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, _STEM, 3, 2, 0)
        self.first = nn.Sequential(
            nn.Conv2d(_STEM, _STEM, 3, 1, 1, groups=_STEM), nn.Conv2d(_STEM, _STEM // 2, 1)
        )
        channels = _STEM // 2
        unit = partial(InvertedResidual, kernel=3, below=True)
        self.stages, self.sideways = nn.ModuleList(), nn.ModuleList()
        for width, count, stride, side in _STAGES:
            sizes = [(channels, stride), *[(width, 1)] * (count - 1)]
            units = [unit(into, _GROWTH * into, width, stride=step) for into, step in sizes]
            self.stages.append(nn.Sequential(*units))
            self.sideways.append(nn.Conv2d(width, side, 1) if side else nn.Identity())
            channels = width
        deepest, wide, narrow = _LAST
        self.deepest = unit(channels, _GROWTH * channels, deepest, stride=1)
        self.last = nn.Sequential(nn.Conv2d(deepest, wide, 1), nn.Conv2d(wide, narrow, 1))
        sides = [side for *_, side in _STAGES if side]  # the finest first
        ends = [sides[0], *sides[:-1]]
        self.finer = nn.ModuleList(
            nn.Sequential(_depthwise(side), nn.Conv2d(side, end, 1))
            for side, end in zip(reversed(sides), reversed(ends), strict=True)
        )
        self.heads = nn.ModuleDict({name: _head(sides[0], n) for name, n in _HEADS.items()})
        self._macs: dict[tuple[int, int], int] = {}  # by height and width

    def forward(self, pictures: Tensor) -> PersonMaps:
        """Return the maps of pictures [B, 3, H, W], red, green, blue from -1 to 1.

        Raises ValueError unless H and W are multiples of ``PATCH``.
        """
        height, width = pictures.shape[2:]
        if height % PATCH or width % PATCH:
            raise ValueError(f"{width}x{height} pixels are not multiples of {PATCH}")
        x = pictures.contiguous(memory_format=torch.channels_last)
        x = convolve(self.stem, x, RELU6, (0, 1, 0, 1))
        depth, project = cast("list[nn.Conv2d]", list(self.first))
        x = convolve(project, convolve(depth, x, RELU6))
        sides = []
        for stage, side in zip(self.stages, self.sideways, strict=True):
            x = stage(x)
            if isinstance(side, nn.Conv2d):
                sides.append(convolve(side, x))
        wide, narrow = cast("list[nn.Conv2d]", list(self.last))
        x = convolve(narrow, convolve(wide, self.deepest(x), RELU6))
        for layers, finer in zip(self.finer, reversed(sides), strict=True):
            depth, point = cast("list[nn.Conv2d]", list(cast(nn.Sequential, layers)))
            larger = F.interpolate(x, scale_factor=2.0, mode="bilinear")
            x = convolve(point, convolve(depth, larger.add_(finer)), RELU)
        return PersonMaps(x, self._headed("centre", x), self._headed("joints", x))

    @torch.no_grad()
    def find(self, pictures: Tensor, least: float = 0.0) -> list[FoundPersons]:
        """Return the persons in each of the pictures [B, 3, H, W], uint8.

        At most ``MOST``, with a score of at least ``least``.
        """
        maps = self(pictures.to(self.stem.weight.dtype) / 127.5 - 1)
        return [self.persons(PersonMaps(*row), least) for row in zip(*maps, strict=True)]

    def persons(self, maps: PersonMaps, least: float = 0.0) -> FoundPersons:
        """Return the persons of the maps [channels, h, w] of one picture.

        The middle of a person is a place whose score is the largest around. Of each kind of joint
        the place is taken that is the best of those in the box: its score counts less with the
        distance to where the joint is as seen from the middle. The other heads are computed only at
        these places.
        """
        centre = maps.centre.sigmoid()
        around = F.max_pool2d(centre[None], _PEAK, 1, _PEAK // 2)[0]
        peaks = torch.where(centre == around, centre, 0.0).flatten()
        centres, at = peaks.topk(min(MOST, len(peaks)))
        height, width = centre.shape[1:]
        sides = centre.new_tensor((height, width))
        places = torch.stack([at // width, at % width], 1)
        offset, size, reach = (
            self._headed_at(name, maps.features, places) for name in ("offset", "size", "reach")
        )
        halves = size.clamp(min=0) / 2
        low, high = (places + offset - halves, places + offset + halves)
        low, high = (edge.clamp(min=0).minimum(sides) for edge in (low, high))
        expected = places[:, None] + reach.view(-1, JOINTS, 2)
        # The square of a distance is a sum, so that its exponential is a product.
        rows, columns = (
            _nearness(expected[..., k], low[:, k], high[:, k], int(sides[k]), min(height, width))
            for k in range(2)
        )
        likely = maps.joints.sigmoid()
        sure = int((centres >= least).sum())  # a person's score is not higher
        near = likely * rows[:sure, ..., None] * columns[:sure, ..., None, :]  # [N, 17, h, w]
        y = near.amax(3).argmax(2)
        x = near.gather(2, y[..., None, None].expand(-1, -1, 1, width)).argmax(3)[..., 0]
        kinds = torch.arange(JOINTS, device=at.device)
        # As in the original, what is nearest for another person gives a joint its score, too.
        best = likely[kinds, y, x] * (rows[:, kinds, y] * columns[:, kinds, x]).amax(0)
        found = torch.stack([y, x], -1)
        shifts = self._headed_at("shifts", maps.features, found.flatten(0, 1))
        shifts = shifts.view(sure, JOINTS, JOINTS, 2)[:, kinds, kinds]
        clear = best > _CLEAR
        score = centres[:sure] * (best * clear).sum(1) / clear.sum(1).clamp(min=1)
        boxes = torch.cat([low.flip(1), high.flip(1)], 1)[:sure]
        parts = (_STRIDE * (found + shifts).flip(2), best, _STRIDE * boxes, score)
        return FoundPersons(*(part[score >= least] for part in parts))

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield all convolutions in the order of the original file."""
        yield self.stem
        yield from cast("list[nn.Conv2d]", list(self.first))
        for stage, side in zip(self.stages, self.sideways, strict=True):
            yield from _convolutions(stage)
            yield from _convolutions(side)
        for part in (self.deepest, self.last, self.finer, self.heads):
            yield from _convolutions(part)

    def macs(self, height: int, width: int) -> int:
        """Return the multiply-accumulates of the maps of a picture."""
        if (height, width) not in self._macs:
            self._macs[height, width] = count_convolutions(self, height, width)
        return self._macs[height, width]

    def _headed(self, name: str, x: Tensor) -> Tensor:
        """Return the map of a head for features."""
        depth, point, out = cast("list[nn.Conv2d]", list(cast(nn.Sequential, self.heads[name])))
        return convolve(out, convolve(point, convolve(depth, x), RELU))

    def _headed_at(self, name: str, features: Tensor, places: Tensor) -> Tensor:
        """Return the outputs [n, outputs] of a head at places [n, 2] of [channels, h, w]."""
        depth, point, out = cast("list[nn.Conv2d]", list(cast(nn.Sequential, self.heads[name])))
        rows = convolve(depth, features[None])[0][:, places[:, 0], places[:, 1]].t()
        inner = F.linear(rows, point.weight[:, :, 0, 0], point.bias).relu_()
        return F.linear(inner, out.weight[:, :, 0, 0], out.bias)


def _nearness(expected: Tensor, low: Tensor, high: Tensor, side: int, shorter: int) -> Tensor:
    """Return [n, joints, side]: how near places along a side are to ``expected`` [n, joints].

    Zero outside of the box from ``low`` to ``high``, [n].
    """
    places = torch.arange(side, device=expected.device, dtype=expected.dtype)
    near = torch.exp((places - expected[..., None]).square() / (-_SPREAD * shorter))
    inside = (places >= low[:, None]) & (places < high[:, None])
    return near * inside[:, None]


def _depthwise(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False)


def _head(channels: int, outputs: int) -> nn.Sequential:
    last = nn.Conv2d(channels, _INNER, 1), nn.Conv2d(_INNER, outputs, 1)
    return nn.Sequential(_depthwise(channels), *last)


def _convolutions(part: nn.Module) -> Iterator[nn.Conv2d]:
    return (layer for layer in part.modules() if isinstance(layer, nn.Conv2d))


PAPER = "https://blog.tensorflow.org/2021/05/next-generation-pose-detection-with-movenet-and-tensorflowjs.html"


@importer(
    "movenet",
    summary="MoveNet MultiPose, joints of six persons (TFLite)",
    detect=has_constants((_LAST[1], 1, 1, _LAST[0]), (JOINTS, 1, 1, _INNER)),
    keys=(),
    order=33,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError if the file has other convolutions."""
    network = MoveNet()
    layers = list(network.in_order())
    found = convolutions_before(foreign, [k for k, _ in graph_of(foreign)["outputs"]])
    if not fits(layers, found):
        raise ModelError(f"{len(found)} convolutions, which are not those of MoveNet MultiPose")
    tensors = named_tensors(network, layers, found)
    return ImportedNetwork("movenet", {}, tensors, None, paper=PAPER, task=POSE_ESTIMATION)
