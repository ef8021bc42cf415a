"""NanoDet-Plus: a small convolutional detector of objects (RangiLyu/nanodet, 2021).

Checkpoints are those of its training (.ckpt, .pth) with a ShuffleNet V2. Their batch norms (eps
1e-5) are folded into the convolutions.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.records import OBJECT_DETECTION
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.shuffle import GhostExchange
from costream.models.spec import register_model
from costream.nn.eventful.counts import Operations
from costream.nn.shuffle import LEAKY, ShuffleBackbone, convolved, depthwise
from costream.nn.suppression import suppress
from costream.weights_io.card import Timeline
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    TensorRule,
    apply,
    fold_norm,
    normed_convolution,
    shape_of,
)

T = TypeVar("T")
STRIDES = (8, 16, 32, 64)
BINS = 8  # distances to a side of a box, in strides: 0 to 7
_OVERLAP = 0.6  # of two boxes of a label above which the one with the lower score is dropped
_CANDIDATES, _KEPT = 1000, 100  # boxes before and after that, at most


@register_model(
    "nanodet",
    summary="objects in video, 80 kinds, every frame alone",
    listed=20,
    order=16,
    model="costream.models.objects.model:DetectorModel",
    any_size=True,
    bench="costream.bench.published:published_steps_table",
    arguments={"classes": 80},
    task=OBJECT_DETECTION,
    rate_hz=10.0,
    frontend="pixels",
    frontend_arguments={"box": [416, 416], "patch": 32},
)
class NanoDetPlus(nn.Module):
    """A ShuffleNet V2, a Ghost path aggregation network and a head for each of four maps.

    The defaults are NanoDet-Plus-m-1.5x. Each place of a map has scores of all classes, and a
    distribution over the distance to each side of a box (Li et al., "Generalized focal loss",
    NeurIPS 2020). Batch norms are part of the weights. Images must be normalised, and their sides
    multiples of ``patch``.

    Args:
        classes: K.
        stages: channels and number of units of each stage of the backbone.
        width: channels of the maps.
        score: boxes below are dropped.
    """

    patch = 32

    def __init__(
        self,
        classes: int,
        stages: Sequence[Sequence[int]] = ((176, 4), (352, 8), (704, 4)),
        width: int = 128,
        score: float = 0.05,
    ) -> None:
        super().__init__()
        if not 0 < score < 1:
            raise ValueError(f"score {score} is not between 0 and 1")
        self.classes, self.score = classes, score
        self.backbone = ShuffleBackbone(stages)
        self.exchange = GhostExchange([channels for channels, _ in stages], width)
        self.coarsest = nn.ModuleList(nn.Sequential(*_separable(width, 2)) for _ in range(2))
        outputs = classes + 4 * BINS
        self.heads = nn.ModuleList(
            nn.Sequential(*_separable(width), *_separable(width), nn.Conv2d(width, outputs, 1))
            for _ in STRIDES
        )

    def forward(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return logits of classes and bins [B, places, K + 32] of images [B, 3, H, W].

        Places of the finest map come first, row by row. Bins are those of the distances to the
        left, top, right and bottom side. ``operations``: counts the operations.
        """
        return self.predicted(self.maps(pictures, operations), operations)

    def maps(self, pictures: Tensor, operations: Operations | None = None) -> list[Tensor]:
        """Return four maps [B, width, h, w], the finest first, of images [B, 3, H, W]."""
        height, width = pictures.shape[2:]
        if height % self.patch or width % self.patch:
            raise ValueError(f"{width}x{height} pixels are not multiples of {self.patch}")
        given = self.exchange.reduced(self.backbone.stage_maps(pictures, operations), operations)
        maps = self.exchange.exchanged(given, operations)
        last, there = (
            _activated(cast(nn.Sequential, layers), x, operations)
            for layers, x in zip(self.coarsest, (given[-1], maps[-1]), strict=True)
        )
        return [*maps, last + there]

    def predicted(self, maps: Sequence[Tensor], operations: Operations | None = None) -> Tensor:
        """Return logits of classes and bins for the maps, see ``forward``."""
        rows = []
        for head, x in zip(self.heads, maps, strict=True):
            *layers, out = cast(nn.Sequential, head)
            x = convolved(out, _activated(layers, x, operations), operations)
            rows.append(x.permute(0, 2, 3, 1).flatten(1, 2))
        return torch.cat(rows, 1)

    def detect(self, pictures: Tensor, operations: Operations | None = None) -> list[Detections]:
        """Return the objects in each of the images [B, 3, H, W], the best score first."""
        size = (pictures.shape[2], pictures.shape[3])
        return [self.objects(rows, size) for rows in self(pictures, operations).float()]

    def objects(self, rows: Tensor, size: tuple[int, int]) -> Detections:
        """Return the objects of an image of a height and width; ``rows``: of ``forward``."""
        bins = rows[:, self.classes :]
        return best_objects(
            rows[:, : self.classes], lambda at: boxes_at(bins[at], at, size), self.score
        )

    def in_order(self) -> Iterator[nn.Conv2d]:
        """Yield all convolutions in the order of NanoDet's own files."""
        yield from self.backbone.pretrained()
        yield from self.exchange.in_order()
        coarsest, heads = (
            [list(cast("Sequence[nn.Conv2d]", layers)) for layers in part]
            for part in (self.coarsest, self.heads)
        )
        yield from itertools.chain(*coarsest, *(head[:2] for head in heads))
        yield from itertools.chain(*(head[2:] for head in reversed(heads)))


def best_objects(logits: Tensor, boxes_of: Callable[[Tensor], Tensor], score: float) -> Detections:
    """Return the objects, the best score first, without those that overlap a better one.

    ``logits`` [n, K] of all places; ``boxes_of``: returns the boxes [m, 4] of places int64 [m];
    ``score``: objects below are dropped.
    """
    at, labels = (logits > math.log(score / (1 - score))).nonzero().unbind(1)
    found = logits[at, labels]
    if len(found) > _CANDIDATES:
        found, best = found.topk(_CANDIDATES)
        at, labels = at[best], labels[best]
    boxes, scores = boxes_of(at), found.sigmoid()
    best = suppress(boxes, scores, labels, _OVERLAP)[:_KEPT]
    return Detections(boxes[best], scores[best], labels[best])


def boxes_at(bins: Tensor, at: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes [n, 4] in pixels for the bins [n, 32] of places ``at``, int64 [n].

    ``size``: height and width of the network's input.
    """
    centres, strides = (x[at] for x in places(size, bins.device))
    parts = torch.unflatten(bins, 1, (4, BINS)).softmax(-1)
    reach = parts @ torch.arange(BINS, dtype=parts.dtype, device=parts.device) * strides
    return torch.cat([centres - reach[:, :2], centres + reach[:, 2:]], 1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def places(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return x and y in pixels, and the stride, of every place: [n, 2] and [n, 1]."""
    centres, strides = [], []
    for stride in STRIDES:
        y, x = (torch.arange(0, side, stride, device=device) for side in size)
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2).float()
        centres.append(grid)
        strides.append(grid.new_full((len(grid), 1), stride))
    return torch.cat(centres), torch.cat(strides)


def _separable(width: int, stride: int = 1) -> list[nn.Conv2d]:
    return [depthwise(width, 5, stride), nn.Conv2d(width, width, 1)]


def _activated(layers: Any, x: Tensor, operations: Operations | None) -> Tensor:
    for layer in layers:
        x = convolved(layer, x, operations, LEAKY)
    return x


PAPER = "https://github.com/RangiLyu/nanodet"
_EPS = 1e-5  # of the batch norms
_AVERAGE = "avg_model."  # prefix of the weights that a training averages, which are evaluated
_FIRST, _LAST = "backbone.conv1.0.weight", "head.gfl_cls.0.weight"
# Branch and place of the convolutions of a unit, of a Ghost block, and of a separable one.
_BRANCHES = {
    "side_depth": ("branch1", 0),
    "side": ("branch1", 2),
    "reduce": ("branch2", 0),
    "depth": ("branch2", 3),
    "expand": ("branch2", 5),
}
_GHOSTS = {
    "first": ("ghost1.primary_conv", 0),
    "first_ghost": ("ghost1.cheap_operation", 0),
    "second": ("ghost2.primary_conv", 0),
    "second_ghost": ("ghost2.cheap_operation", 0),
    "side_depth": ("shortcut", 0),
    "side": ("shortcut", 2),
}
_SEPARABLE = (("depthwise", "dwnorm"), ("pointwise", "pwnorm"))
_WAYS = {"finer": "top_down_blocks", "coarser": "bottom_up_blocks"}
_UNIT = re.compile(r"backbone\.stage(\d)\.(\d+)\.branch2\.0\.weight")
# Parts for the training alone: an auxiliary head, and constants.
_UNUSED = re.compile(r"aux_(fpn|head)\.|head\.(distribution_project\.)?project$|.*" + COUNTER)


def _is_ours(tensors: Mapping[str, object]) -> bool:
    return has_tensors(_FIRST, _LAST)(_plain(tensors))


def _plain(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors by their names in the network; the averaged ones, if there are both."""
    averaged = {k.removeprefix(_AVERAGE): v for k, v in tensors.items() if k.startswith(_AVERAGE)}
    return averaged or {k.removeprefix("model."): v for k, v in tensors.items()}


def _size_of_name(path: Path) -> dict[str, Any]:
    """Return the size in a name such as nanodet-plus-m-1.5x_320.pth."""
    found = re.search(r"_(320|416|512|640)(?!\d)", path.stem)
    return {"size": int(found[1])} if found else {}


@importer(
    "nanodet",
    summary="NanoDet-Plus with a ShuffleNet V2",
    detect=_is_ours,
    keys=("num_classes", "size"),
    order=24,
    of_file_name=_size_of_name,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = _plain(foreign.tensors)
    outputs, width, *_ = shape_of(tensors, _LAST, 4)
    if outputs <= 4 * BINS:
        raise ModelError(f"the checkpoint does not fit: {_LAST} has {outputs} rows")
    classes = settings.check("num_classes", outputs - 4 * BINS)
    found = sorted((int(m[1]), int(m[2]), k) for k in tensors if (m := _UNIT.fullmatch(k)))
    stages = []
    for _, units in itertools.groupby(found, key=lambda unit: unit[0]):
        names = [name for _, _, name in units]
        stages.append((2 * shape_of(tensors, names[0], 4)[0], len(names)))
    arguments = {"classes": classes, "stages": stages, "width": width}
    with torch.device("meta"):  # only shapes are needed
        network = NanoDetPlus(**arguments)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    last = [f"heads.{k}.4.{end}" for k in range(len(STRIDES)) for end in ("weight", "bias")]
    rules = [
        TensorRule(name, (re.sub(r"heads\.(\d)\.4", r"head.gfl_cls.\1", name),), shapes[name])
        for name in last
    ]
    normed = {name.rpartition(".")[0] for name in shapes.keys() - {*last}}
    for name in normed:
        rules += normed_convolution(name, *_published_name(name), shapes[f"{name}.weight"])
    named = apply(rules, tensors, [name for name in tensors if _UNUSED.match(name)])
    folded = {k: v for name in normed for k, v in fold_norm(name, named, _EPS).items()}
    folded["backbone.first.weight"] = folded["backbone.first.weight"].flip(1)  # it takes BGR
    settings.suggest({"size": 416})
    size = settings.get("size")
    if size % NanoDetPlus.patch:
        settings.reject(f"size={size} is not a multiple of {NanoDetPlus.patch}")
    return ImportedNetwork(
        "nanodet",
        arguments,
        folded | {name: named[name] for name in last},
        classes,
        paper=PAPER,
        task=OBJECT_DETECTION,
        frontend="pixels",
        frontend_arguments={"box": [size, size], "patch": NanoDetPlus.patch},
        rate_hz=10.0,
        timeline=Timeline(threshold=0.45),
    )


def _published_name(ours: str) -> tuple[str, str]:
    """Return the published names of a convolution and of the norm after it."""
    match ours.split("."):
        case ["backbone", "first"]:
            path, (conv, norm) = "backbone.conv1", _numbered(0)
        case ["backbone", "stages", stage, unit, name]:
            branch, at = _BRANCHES[name]
            path, (conv, norm) = f"backbone.stage{int(stage) + 2}.{unit}.{branch}", _numbered(at)
        case ["exchange", "reduce", level]:
            path, conv, norm = f"fpn.reduce_layers.{level}", "conv", "bn"
        case ["exchange", "finer" | "coarser" as way, level, name]:
            part, at = _GHOSTS[name]
            path, (conv, norm) = f"fpn.{_WAYS[way]}.{level}.blocks.0.{part}", _numbered(at)
        case ["exchange", name, level]:
            path, (conv, norm) = f"fpn.downsamples.{level}", _SEPARABLE[name == "halved"]
        case ["coarsest", end, layer]:
            path = f"fpn.extra_lvl_{('in', 'out')[int(end)]}_conv.0"
            conv, norm = _SEPARABLE[int(layer)]
        case [_, level, layer]:
            path = f"head.cls_convs.{level}.{int(layer) // 2}"
            conv, norm = _SEPARABLE[int(layer) % 2]
        case _:
            raise ValueError(f"{ours} is not a convolution of NanoDet")
    return f"{path}.{conv}", f"{path}.{norm}"


def _numbered(place: int) -> tuple[str, str]:
    return str(place), str(place + 1)
