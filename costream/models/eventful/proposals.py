"""Region proposal network: the likeliest boxes of all feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.eventful.pyramid import SimplePyramid
from costream.nn.boxes import apply_deltas, clip_boxes
from costream.nn.eventful.counts import Operations
from costream.nn.maps import MapLayout, convolve, places_affected
from costream.nn.suppression import suppress

RATIOS = (0.5, 1.0, 2.0)  # height over width
PREDICTED = 5 * len(RATIOS)  # a logit and four deltas for each anchor of a place
OBJECTNESS = len(RATIOS)  # the first of them: the logits
NOTHING = -100.0  # logit of an anchor in a hidden place
_THRESHOLD = 0.7  # IoU of boxes that suppress one another
SMALLEST = 32.0  # anchor of the largest feature map, in pixels; doubled at each next one


class Proposals(NamedTuple):
    """Boxes in an image, the likeliest first."""

    boxes: Tensor  # [n, 4], pixels of the input
    objectness: Tensor  # [n], logits


class ProposalHead(nn.Module):
    """Two convolutions, then a logit and four deltas for each place and anchor.

    Ren et al., "Faster R-CNN" (NeurIPS 2015); two convolutions as in ViTDet.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ModuleDict(
            {f"conv{k}": nn.Conv2d(channels, channels, 3, padding=1) for k in range(2)}
        )
        self.objectness_logits = nn.Conv2d(channels, len(RATIOS), 1)
        self.anchor_deltas = nn.Conv2d(channels, 4 * len(RATIOS), 1)

    @property
    def hidden(self) -> int:
        """Channels after the first convolution."""
        return cast(nn.Conv2d, self.conv["conv0"]).out_channels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, n] and deltas [B, n, 4] of n = H W anchors for a map [B, C, H, W]."""
        for layer in self.conv.values():
            x = F.relu(layer(x))
        logits = self.objectness_logits(x).permute(0, 2, 3, 1).flatten(1)
        deltas = torch.unflatten(self.anchor_deltas(x), 1, (len(RATIOS), 4))
        return logits, deltas.permute(0, 3, 4, 1, 2).flatten(1, 3)


class ProposalNetwork(nn.Module):
    """Selects the likeliest boxes of all feature maps.

    Args:
        channels: of the feature maps. ``keep``: boxes per image at most.
        candidates: boxes per feature map before suppression, at most.
    """

    def __init__(self, channels: int, keep: int = 1000, candidates: int = 1000) -> None:
        super().__init__()
        self.keep, self.candidates = keep, candidates
        self.rpn_head = ProposalHead(channels)

    def predict(
        self, maps: Sequence[Tensor], operations: Operations | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Return logits [B, n] and deltas [B, n, 4] of the anchors of each feature map."""
        if operations is not None:
            for x in maps:
                for layer in self.rpn_head.modules():
                    if isinstance(layer, nn.Conv2d):
                        operations.count_linear(x[:, 0].numel(), layer)
        return [self.rpn_head(x) for x in maps]

    def renew(
        self,
        layout: MapLayout,
        rows: Tensor,
        computed: Tensor,
        hidden: Tensor,
        predicted: Tensor,
        operations: Operations,
    ) -> None:
        """Update the predictions for one frame in place, where its feature maps have changed.

        ``rows`` [places + 1, C]: the feature maps; ``computed`` bool [places + 1]: which are new.
        ``hidden``, like ``rows``: after the first convolution; ``predicted`` [places, 5 ratios]:
        logits, then deltas, of the anchors of each place.
        """
        levels, head = range(len(layout.sizes)), self.rpn_head
        first, second = (cast(nn.Conv2d, layer) for layer in head.conv.values())
        near = places_affected(computed, layout, levels)
        places, x = convolve(rows, layout, levels, near, first, operations)
        hidden.index_copy_(0, places, x.relu_())
        places, x = convolve(
            hidden, layout, levels, places_affected(near, layout, levels), second, operations
        )
        x.relu_()
        outs = []
        for layer in (head.objectness_logits, head.anchor_deltas):
            operations.count_linear(len(x), layer)
            outs.append(F.linear(x, layer.weight.flatten(1), layer.bias))
        predicted.index_copy_(0, places, torch.cat(outs, 1))

    def of_anchors(self, layout: MapLayout, predicted: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return logits [B, n] and deltas [B, n, 4] of the anchors of each feature map.

        ``predicted`` [B, places, 5 ratios]: see ``renew``.
        """
        parts = torch.split(predicted, layout.counts, 1)
        every = (torch.split(p, [len(RATIOS), 4 * len(RATIOS)], 2) for p in parts)
        return [(a.flatten(1), torch.unflatten(b.flatten(1), 1, (-1, 4))) for a, b in every]

    def count_macs(
        self, pyramid: SimplePyramid, layout: MapLayout, updated: int | None = None
    ) -> int:
        """Return the cost of one frame; see ``SimplePyramid.count_macs``."""
        estimate_places, operations = pyramid.estimate_places, Operations()
        first, *rest = (m for m in self.rpn_head.modules() if isinstance(m, nn.Conv2d))
        for level in range(len(layout.sizes)):
            operations.count_linear(estimate_places(layout, level, updated, 2), first)
            for layer in rest:
                operations.count_linear(estimate_places(layout, level, updated, 3), layer)
        return operations.total

    def choose(
        self,
        predicted: Sequence[tuple[Tensor, Tensor]],
        every: Sequence[Tensor],
        size: tuple[int, int],
    ) -> list[Proposals]:
        """Return the proposals for the predictions of the anchors of every feature map."""
        tops, starts = [], [0]
        for logits, _ in predicted:
            tops.append(logits.topk(min(self.candidates, logits.shape[1]), dim=1))
            starts.append(starts[-1] + logits.shape[1])
        places = torch.cat([t.indices + start for t, start in zip(tops, starts, strict=False)], 1)
        scores = torch.cat([t.values for t in tops], 1)
        counts = torch.tensor([t.indices.shape[1] for t in tops])
        levels = torch.repeat_interleave(counts).to(scores.device)
        shifts = torch.cat([deltas for _, deltas in predicted], 1)
        shifts = torch.take_along_dim(shifts, places[..., None], 1)
        boxes = torch.cat(list(every))[places]
        moved = apply_deltas(boxes.flatten(0, 1), shifts.view(-1, 1, 4), (1.0, 1.0, 1.0, 1.0))
        boxes = moved.view(boxes.shape)
        return [self._select(*pair, levels, size) for pair in zip(scores, boxes, strict=True)]

    def _select(
        self, logits: Tensor, boxes: Tensor, levels: Tensor, size: tuple[int, int]
    ) -> Proposals:
        boxes = clip_boxes(boxes, *size)
        real = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)
        boxes, logits = boxes[real], logits[real]
        keep = suppress(boxes, logits, levels[real], _THRESHOLD)[: self.keep]
        return Proposals(boxes[keep], logits[keep])


def pyramid_anchors(
    maps: Sequence[Tensor], strides: Sequence[int], smallest: float = SMALLEST
) -> list[Tensor]:
    """Return the anchors [n, 4] of each of the feature maps [B, C, H, W].

    ``smallest``: square root of the area of the anchors of the largest map.
    """
    return [
        anchors(x.shape[2], x.shape[3], stride, smallest * 2**level).to(x)
        for level, (x, stride) in enumerate(zip(maps, strides, strict=True))
    ]


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def anchors(height: int, width: int, stride: int, size: float) -> Tensor:
    """Return the anchors [H W ratios, 4] of a feature map, centred on multiples of its stride.

    ``size``: the square root of their area. The result is cached and must not be written to.
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
