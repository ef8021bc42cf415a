"""Random training views of the scenes of a bank, made in batches on one device."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.image_values import IMAGENET_MEAN, IMAGENET_STD
from costream.nn.boxes import areas
from costream.training.objects.losses import UNSURE
from weights.recipes.objects.bank import Bank, decode
from weights.recipes.objects.labels import LABELS, chance_of_right

# width and height of views, and their share
SHAPES = {(384, 288): 0.6, (288, 288): 0.15, (224, 288): 0.15, (384, 224): 0.1}
PADDING = -2  # label of boxes that are not there
KEPT = 64  # boxes of a view, at most
_MOSAIC, _PASTED = 0.25, 0.2  # shares of the views
_REACH, _STEADY = (0.55, 1.8), (0.85, 1.3)  # scales, relative to a picture that fills the view
_AROUND, _ZOOMED = 0.6, 0.25  # shares of crops around an object, and of those that choose its size
_SIZES, _LARGEST = (14.0, 110.0), 3.5  # pixels of these objects; and the largest scale
_VISIBLE = 0.3  # least visible share of an object
_SHORTEST = 5.0  # pixels, least shorter side of an object
_LEVELS = 3  # a picture in full, half and quarter size
_FULL, _HIDDEN = 120, 0.65  # boxes of a scene at most; hidden share from which on one is unsure


class ViewBatch(NamedTuple):
    """Views of one shape."""

    pixels: Tensor  # [B, 3, H, W], 0 to 255
    boxes: Tensor  # [B, KEPT, 4], pixels
    labels: Tensor  # int64 [B, KEPT], UNSURE or PADDING

    def normalised(self) -> Tensor:
        """Return the pixels as networks take them."""
        mean, deviation = (self.pixels.new_tensor(x) for x in (IMAGENET_MEAN, IMAGENET_STD))
        return (self.pixels - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)


class ViewMaker:
    """The scenes of a bank on a device, drawn with torch's generator of that device."""

    def __init__(self, bank: Bank, device: torch.device) -> None:
        rows, starts, sizes, at = [], [], [], 0
        for picture in decode(bank.scenes):
            own_starts, own_sizes, level = [], [], picture.to(device)
            for number in range(_LEVELS):
                if number:
                    larger = level.permute(2, 0, 1)[None].float()
                    smaller = F.avg_pool2d(larger, 2, ceil_mode=True)[0]
                    level = smaller.round().byte().permute(1, 2, 0)
                height, width = level.shape[:2]
                own_starts.append(at)
                own_sizes.append([width, height])
                at += width * height
                rows.append(level.reshape(-1, 3))
            starts.append(own_starts)
            sizes.append(own_sizes)
        self._pixels = torch.cat(rows)
        self._starts = torch.tensor(starts, device=device)
        self._sizes = torch.tensor(sizes, device=device)
        counts = [min(_FULL, len(s.labels)) for s in bank.scenes]
        most = max(KEPT // 4, *counts)  # in four cells, at least KEPT
        self._boxes = torch.zeros(len(counts), most, 4)
        self._labels = torch.full((len(counts), most), PADDING)
        self._right = torch.zeros(len(counts), most)
        for number, (scene, count) in enumerate(zip(bank.scenes, counts, strict=True)):
            best = scene.scores.argsort(descending=True)[:count]
            self._boxes[number, :count] = scene.boxes[best]
            self._labels[number, :count] = scene.labels[best]
            self._right[number, :count] = chance_of_right(scene.scores[best])
        self._boxes, self._labels, self._right = (
            x.to(device) for x in (self._boxes, self._labels, self._right)
        )
        self._share = torch.tensor([s.share for s in bank.scenes], device=device)
        self._steady = torch.tensor([s.steady for s in bank.scenes], device=device)
        self._cutouts, self._wide, self._kinds, self._chances = (
            x.to(device) for x in (bank.cutouts, bank.wide, bank.kinds, bank.chances)
        )
        self.device = device

    def shape(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return the width and height of views, drawn at random."""
        shapes = list(SHAPES)
        return shapes[int(rng.choice(len(shapes), p=list(SHAPES.values())))]

    @torch.no_grad()
    def batch(self, count: int, shape: tuple[int, int]) -> ViewBatch:
        """Return ``count`` views of a width and height."""
        width, height = shape
        corners = self._corners(count, width, height)
        chosen = torch.multinomial(self._share, count * 4, replacement=True).view(count, 4)
        crops = self._crops(chosen, corners)
        pixels = self._pixels_of(chosen, corners, crops, width, height)
        boxes, labels = self._boxes_of(chosen, corners, crops)
        first = round(count * _PASTED)
        if len(self._cutouts) and first:
            for _ in range(2):
                pixels, boxes, labels = self._paste(pixels, boxes, labels, first)
        order = (labels >= 0) * 2.0 + (labels == UNSURE) + self._rand(*labels.shape)
        best = order.topk(KEPT, 1).indices
        boxes = boxes.take_along_dim(best[..., None], 1)
        labels = labels.take_along_dim(best, 1)
        mirrored = self._rand(count) < 0.5
        pixels = torch.where(mirrored.view(-1, 1, 1, 1), pixels.flip(2), pixels)
        x1, y1, x2, y2 = boxes.unbind(2)
        flipped = torch.stack([width - x2, y1, width - x1, y2], 2)
        boxes = torch.where(mirrored.view(-1, 1, 1), flipped, boxes)
        return ViewBatch(self._coloured(pixels).permute(0, 3, 1, 2).contiguous(), boxes, labels)

    def _rand(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(*shape, device=self.device) * (high - low) + low

    def _corners(self, count: int, width: int, height: int) -> Tensor:
        """Return the corners [B, 4, 4] of four cells around a point; of one scene, the last.

        Mosaics: Bochkovskiy et al., "YOLOv4" (2020).
        """
        whole = self._rand(count) >= _MOSAIC
        point = self._rand(count, 2, low=0.35, high=0.65)
        point = point * point.new_tensor([width, height])
        x, y = torch.where(whole[:, None], 0.0, point).floor().unbind(1)
        left, right = torch.zeros_like(x), torch.full_like(x, width)
        top, bottom = torch.zeros_like(y), torch.full_like(y, height)
        cells = [(left, top, x, y), (x, top, right, y), (left, y, x, bottom), (x, y, right, bottom)]
        return torch.stack([torch.stack(cell, 1) for cell in cells], 1)

    def _crops(self, chosen: Tensor, corners: Tensor) -> Tensor:
        """Return random crops of the scenes in their cells, [B, 4, 8].

        Left and top in the scene, scales across and down, left, top, width and height in the cell.
        """
        count = len(chosen)
        room = (corners[..., 2:] - corners[..., :2]).clamp(min=1)
        size = self._sizes[chosen, 0].float()
        steady = self._steady[chosen]
        low, high = (torch.where(steady, a, b).log() for a, b in zip(_STEADY, _REACH, strict=True))
        cover = (room / size).amax(2)
        scale = cover * (low + (high - low) * self._rand(count, 4)).exp()
        labels, boxes = self._labels[chosen], self._boxes[chosen]
        some = (labels >= 0).flatten(0, 1)
        number = torch.multinomial(some + 1e-6, 1).view(count, 4)
        box = boxes.take_along_dim(number[..., None, None], 2)[:, :, 0]
        longer = (box[..., 2:] - box[..., :2]).amax(2).clamp(min=1)
        around = (self._rand(count, 4) < _AROUND) & some.any(1).view(count, 4)
        zoomed = around & (self._rand(count, 4) < _ZOOMED) & ~steady
        wanted = self._rand(count, 4, low=math.log(_SIZES[0]), high=math.log(_SIZES[1])).exp()
        own = torch.minimum(torch.maximum(wanted / longer, 0.5 * cover), _LARGEST * cover)
        scale = torch.where(zoomed, own, scale)
        stretch = self._rand(count, 4, low=-0.15, high=0.15).exp()
        scales = torch.stack([scale * stretch, scale / stretch], 2)
        extent = torch.minimum(size, room / scales)
        begin = self._rand(count, 4, 2) * (size - extent)
        within = box[..., :2] + self._rand(count, 4, 2) * (box[..., 2:] - box[..., :2])
        near = within - extent * self._rand(count, 4, 2, low=0.3, high=0.7)
        near = torch.minimum(near.clamp(min=0), size - extent)
        begin = torch.where(around[..., None], near, begin)
        fitted = torch.minimum(room, extent * scales)
        offset = (self._rand(count, 4, 2) * (room - fitted)).floor()
        return torch.cat([begin, scales, offset, fitted], 2)

    def _pixels_of(
        self, chosen: Tensor, corners: Tensor, crops: Tensor, width: int, height: int
    ) -> Tensor:
        """Return the pixels [B, H, W, 3] of views, bilinear; pictures are of about their scale."""
        x = torch.arange(width, device=self.device) + 0.5
        y = torch.arange(height, device=self.device) + 0.5
        point = corners[:, 3, :2]
        right = (x >= point[:, :1]).long()[:, None]  # [B, 1, W]
        below = (y >= point[:, 1:]).long()[:, :, None]  # [B, H, 1]
        scale = crops[..., 2:4].amin(2)
        level = (-scale.log2()).round().clamp(0, _LEVELS - 1).long()
        shrink = 2.0 ** level[..., None]
        start = corners[..., :2] + crops[..., 4:6]
        sizes = self._sizes[chosen, level]
        cell = below * 2 + right
        view = torch.arange(len(chosen), device=self.device)[:, None, None]
        sides, inside = [], []
        for axis, place in ((0, x.view(1, 1, -1)), (1, y.view(1, -1, 1))):
            reached = place - start[..., axis][view, cell]
            inside.append((reached >= 0) & (reached < crops[..., 6 + axis][view, cell]))
            source = crops[..., axis][view, cell] + reached / crops[..., 2 + axis][view, cell]
            source = source / shrink[..., 0][view, cell] - 0.5
            last = sizes[..., axis][view, cell] - 1
            source = torch.minimum(source.clamp(min=0), last)
            first = source.floor()
            sides.append((first.long(), torch.minimum(first.long() + 1, last), source - first))
        (x0, x1, across), (y0, y1, down) = sides
        base = self._starts[chosen, level][view, cell]
        line = sizes[..., 0][view, cell]
        upper, lower = base + y0 * line, base + y1 * line
        across, down = across[..., None], down[..., None]

        def at(index: Tensor) -> Tensor:
            found = self._pixels.index_select(0, index.flatten())
            return found.view(*index.shape, 3).float()

        above = torch.lerp(at(upper + x0), at(upper + x1), across)
        pixels = torch.lerp(above, torch.lerp(at(lower + x0), at(lower + x1), across), down)
        grey = pixels.new_tensor(IMAGENET_MEAN)
        return torch.where((inside[0] & inside[1])[..., None], pixels, grey)

    def _boxes_of(self, chosen: Tensor, corners: Tensor, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes [B, n, 4] and labels [B, n] of views."""
        boxes, labels = self._boxes[chosen], self._labels[chosen]
        sure = self._rand(*labels.shape) < self._right[chosen]
        labels = torch.where((labels >= 0) & ~sure, UNSURE, labels)
        begin, scales, offset, fitted = (
            crops[..., k : k + 2].repeat(1, 1, 2) for k in (0, 2, 4, 6)
        )
        begin, scales, offset, fitted = (
            part[:, :, None] for part in (begin, scales, offset, fitted)
        )
        whole = (boxes - begin) * scales
        inside = torch.minimum(whole.clamp(min=0), fitted)
        seen = areas(inside) / areas(whole).clamp(min=1e-3)
        shorter = (inside[..., 2:] - inside[..., :2]).amin(3)
        faint = (seen < _VISIBLE) | (shorter < _SHORTEST)
        labels = torch.where((labels >= 0) & faint, UNSURE, labels)
        empty = (corners[..., 2:] - corners[..., :2]).amin(2) < 1
        gone = (areas(inside) < 1) | empty[..., None]
        labels = torch.where(gone, PADDING, labels)
        shift = corners[..., :2].repeat(1, 1, 2)[:, :, None]
        return (inside + offset + shift).flatten(1, 2), labels.flatten(1, 2)

    def _paste(
        self, pixels: Tensor, boxes: Tensor, labels: Tensor, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return views with a cut-out pasted into each of the first ones."""
        height, width = pixels.shape[1:3]
        kind = torch.multinomial(self._chances, first, replacement=True)
        size = min(width, height) * self._rand(first, low=math.log(0.12), high=math.log(0.85)).exp()
        wide = self._wide[kind]
        across, down = size * wide.clamp(max=1), size / wide.clamp(min=1)
        # a car seen from above may face any direction
        turn = torch.where(self._kinds[kind] == LABELS.index("car"), math.pi, 0.15)
        turn = turn * self._rand(first, low=-1.0)
        x, y = self._rand(first, low=-1.0), self._rand(first, low=-1.0)
        cos, sin = turn.cos(), turn.sin()
        theta = torch.stack(
            [
                torch.stack([cos * width / across, sin * height / across], 1),
                torch.stack([-sin * width / down, cos * height / down], 1),
            ],
            1,
        )
        shift = -(theta @ torch.stack([x, y], 1)[..., None])
        grid = F.affine_grid(
            torch.cat([theta, shift], 2), [first, 4, height, width], align_corners=False
        )
        layers = self._cutouts[kind].float()
        layers = torch.cat([layers[:, :3] * (layers[:, 3:] / 255), layers[:, 3:] / 255], 1)
        turned = F.grid_sample(layers, grid, align_corners=False)
        mask = turned[:, 3:]
        gain = self._rand(first, 1, low=0.5, high=1.25) * self._rand(first, 3, low=0.8, high=1.2)
        new = (turned[:, :3] / mask.clamp(min=1e-3) * gain.view(first, 3, 1, 1)).clamp(0, 255)
        old = pixels[:first].permute(0, 3, 1, 2)
        solid = F.avg_pool2d(mask, 3, 1, 1)
        pasted = torch.lerp(old, new, solid).permute(0, 2, 3, 1)
        there = mask[:, 0] > 0.5
        low_x, high_x = _span(there.any(1))
        low_y, high_y = _span(there.any(2))
        box = torch.stack([low_x, low_y, high_x, high_y], 1).float()
        label = torch.where(there.flatten(1).sum(1) > 30, self._kinds[kind], PADDING)
        own = boxes[:first]
        low = torch.maximum(own[..., :2], box[:, None, :2])
        high = torch.minimum(own[..., 2:], box[:, None, 2:])
        hidden = areas(torch.cat([low, high], 2)) / areas(own).clamp(min=1)
        covered = (hidden > _HIDDEN) & (labels[:first] >= 0)
        labels = torch.cat([torch.where(covered, UNSURE, labels[:first]), labels[first:]])
        rest = len(boxes) - first
        box = torch.cat([box, box.new_zeros(rest, 4)])
        label = torch.cat([label, label.new_full((rest,), PADDING)])
        return (
            torch.cat([pasted, pixels[first:]]),
            torch.cat([boxes, box[:, None]], 1),
            torch.cat([labels, label[:, None]], 1),
        )

    def _coloured(self, pixels: Tensor) -> Tensor:
        """Return views [B, H, W, 3] with random gain, contrast, saturation and noise."""
        count = len(pixels)

        def draw(low: float, high: float, channels: int = 1) -> Tensor:
            return self._rand(count, 1, 1, channels, low=low, high=high)

        grey = pixels.mean(3, keepdim=True)
        saturation = torch.where(draw(0, 1) < 0.06, 0.0, draw(0.5, 1.5))
        pixels = torch.lerp(grey, pixels, saturation)
        middle = pixels.mean((1, 2, 3), keepdim=True)
        pixels = torch.lerp(middle, pixels, draw(0.65, 1.4))
        pixels = pixels * draw(0.9, 1.1, 3) * draw(0.65, 1.35)
        strength = torch.where(draw(0, 1) < 0.3, draw(1.0, 6.0), 0.0)
        pixels = pixels + torch.randn_like(pixels) * strength
        return pixels.clamp(0, 255)


def _span(there: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place that is True, and the one after the last, of each row [n, m]."""
    numbers = there.to(torch.uint8)
    return numbers.argmax(1), there.shape[1] - numbers.flip(1).argmax(1)
