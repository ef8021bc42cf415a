"""Where something may be: boxes from a region proposal network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.boxes import clip, move
from costream.nn.operations import Operations
from costream.nn.suppression import suppress

RATIOS = (0.5, 1.0, 2.0)  # height over width
_THRESHOLD = 0.7
SMALLEST = 32.0  # anchor of the largest map, in pixels; twice that of the next


class Proposals(NamedTuple):
    """Boxes of a picture, the likeliest first."""

    boxes: Tensor  # [n, 4], pixels of the input
    objectness: Tensor  # [n], logits


class ProposalHead(nn.Module):
    """Two convolutions, then for each place and anchor a logit and four deltas.

    Ren et al., "Faster R-CNN" (NeurIPS 2015); two convolutions as in ViTDet.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ModuleDict(
            {f"conv{k}": nn.Conv2d(channels, channels, 3, padding=1) for k in range(2)}
        )
        self.objectness_logits = nn.Conv2d(channels, len(RATIOS), 1)
        self.anchor_deltas = nn.Conv2d(channels, 4 * len(RATIOS), 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give logits [B, n] and deltas [B, n, 4] for a map [B, C, H, W]; n = H W anchors."""
        for layer in self.conv.values():
            x = F.relu(layer(x))
        logits = self.objectness_logits(x).permute(0, 2, 3, 1).flatten(1)
        deltas = torch.unflatten(self.anchor_deltas(x), 1, (len(RATIOS), 4))
        return logits, deltas.permute(0, 3, 4, 1, 2).flatten(1, 3)


class ProposalNetwork(nn.Module):
    """Gives the likeliest boxes of all maps.

    Args:
        channels: of the maps. ``keep``: boxes of a picture at most.
        candidates: boxes of a map that suppression looks at, at most.
    """

    def __init__(self, channels: int, keep: int = 1000, candidates: int = 1000) -> None:
        super().__init__()
        self.keep, self.candidates = keep, candidates
        self.rpn_head = ProposalHead(channels)

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[int],
        size: tuple[int, int],
        operations: Operations | None = None,
    ) -> list[Proposals]:
        """Give the proposals of each picture of a batch, cut off at ``size`` (height, width)."""
        return self.choose(self.predict(maps, operations), pyramid_anchors(maps, strides), size)

    def predict(
        self, maps: Sequence[Tensor], operations: Operations | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Give logits [B, n] and deltas [B, n, 4] of the anchors of each map."""
        if operations is not None:
            for x in maps:
                for layer in self.rpn_head.modules():
                    if isinstance(layer, nn.Conv2d):
                        operations.count_linear(x[:, 0].numel(), layer)
        return [self.rpn_head(x) for x in maps]

    def choose(
        self,
        predicted: Sequence[tuple[Tensor, Tensor]],
        every: Sequence[Tensor],
        size: tuple[int, int],
    ) -> list[Proposals]:
        """Give the proposals for what was predicted of the anchors of every map."""
        found: list[tuple[Tensor, Tensor]] = []
        for (logits, deltas), own in zip(predicted, every, strict=True):
            count = min(self.candidates, logits.shape[1])
            best, places = logits.topk(count, dim=1)
            boxes = own[places]
            shifts = torch.take_along_dim(deltas, places[..., None], 1)
            moved = move(boxes.flatten(0, 1), shifts.view(-1, 1, 4), (1.0, 1.0, 1.0, 1.0))
            found.append((best, moved.view(boxes.shape)))
        levels = torch.repeat_interleave(torch.tensor([f[0].shape[1] for f in found]))
        scores, boxes = (torch.cat(column, 1) for column in zip(*found, strict=True))
        levels = levels.to(boxes.device)
        return [self._select(*pair, levels, size) for pair in zip(scores, boxes, strict=True)]

    def _select(
        self, logits: Tensor, boxes: Tensor, levels: Tensor, size: tuple[int, int]
    ) -> Proposals:
        boxes = clip(boxes, *size)
        real = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)
        boxes, logits = boxes[real], logits[real]
        keep = suppress(boxes, logits, levels[real], _THRESHOLD)[: self.keep]
        return Proposals(boxes[keep], logits[keep])


def pyramid_anchors(maps: Sequence[Tensor], strides: Sequence[int]) -> list[Tensor]:
    """Give the anchors [n, 4] of each of the maps [B, C, H, W]."""
    return [
        anchors(x.shape[2], x.shape[3], stride, SMALLEST * 2**level).to(x)
        for level, (x, stride) in enumerate(zip(maps, strides, strict=True))
    ]


def anchors(height: int, width: int, stride: int, size: float) -> Tensor:
    """Give the anchors [H W ratios, 4] of a map, centred on the multiples of its stride.

    ``size``: the square root of their area.
    """
    shapes = []
    for ratio in RATIOS:
        w = size / ratio**0.5
        h = ratio * w
        shapes.append([-w / 2, -h / 2, w / 2, h / 2])
    y = torch.arange(height, dtype=torch.float32)[:, None].expand(-1, width) * stride
    x = torch.arange(width, dtype=torch.float32).expand(height, -1) * stride
    centres = torch.stack([x, y, x, y], -1).view(-1, 1, 4)
    return (centres + torch.tensor(shapes)).view(-1, 4)
