"""RF-DETR after its backbone: one feature map of tokens, and a decoder with deformable attention.

Robinson et al., "RF-DETR: Neural Architecture Search for Real-Time Detection Transformers" (2025),
after Chen et al., "LW-DETR" (2024), and Zhu et al., "Deformable DETR" (ICLR 2021).
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.eventful.counts import Operations
from costream.nn.maps import ChannelNorm

_SIDE = 0.05  # of the boxes that tokens propose, as a part of the picture
_EDGE = 0.01  # tokens whose centre is closer to the picture's edge propose nothing


class NormedSiLU(nn.Conv2d):
    """A convolution without bias that keeps the map's size, a norm of its channels, SiLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return maps [B, out, H, W] for maps [B, in, H, W]."""
        x = super().forward(x)
        if operations is not None:
            operations.count_linear(x[:, 0].numel(), self)
        return F.silu(self.norm(x))


class FeatureProjector(nn.Module):
    """One feature map [B, ``channels``, h, w] of the tokens of several blocks, [B, ``dim``, h, w].

    Half of the channels pass through ``depth`` pairs of 3x3 convolutions; the results of all pairs
    are merged.
    """

    def __init__(self, dim: int, channels: int, depth: int = 3) -> None:
        super().__init__()
        half = channels // 2
        self.reduce = NormedSiLU(dim, 2 * half, 1)
        self.pairs = nn.ModuleList(
            nn.ModuleList(NormedSiLU(half, half, 3) for _ in range(2)) for _ in range(depth)
        )
        self.merge = NormedSiLU((2 + depth) * half, channels, 1)
        self.norm = ChannelNorm(channels)

    def forward(self, x: Tensor, operations: Operations | None = None) -> Tensor:
        """Return the feature map. ``operations``: counts the operations."""
        parts = list(self.reduce(x, operations).chunk(2, 1))
        for pair in self.pairs:
            x = parts[-1]
            for convolution in cast(nn.ModuleList, pair):
                x = convolution(x, operations)
            parts.append(x)
        return cast(Tensor, self.norm(self.merge(torch.cat(parts, 1), operations)))


class DeformableDecoder(nn.Module):
    """Queries attend to places of a feature map, starting with the boxes that its tokens propose.

    Each token proposes a box and scores it; the best ``queries`` boxes, moved by a learned offset
    for each query, are the references. Queries attend to one another and to ``points`` places per
    head around their references, which are the same in all layers; at the end each moves its box.

    Args:
        channels: of the feature map and the queries. ``columns``: classes.
        layers, queries, points: see above. ``self_heads``, ``cross_heads``: of the attention among
            queries, and to the map.
        hidden: width of the feed-forward.
    """

    def __init__(
        self,
        channels: int,
        columns: int,
        layers: int,
        queries: int,
        self_heads: int,
        cross_heads: int,
        points: int,
        hidden: int,
    ) -> None:
        super().__init__()
        self.token = nn.Linear(channels, channels)
        self.token_norm = nn.LayerNorm(channels)
        self.token_scores = nn.Linear(channels, columns)
        self.token_corners = mlp(channels, channels, 4, 3)
        self.queries = nn.Parameter(torch.empty(queries, channels))
        self.offsets = nn.Parameter(torch.zeros(queries, 4))
        nn.init.normal_(self.queries)
        self.position = mlp(2 * channels, channels, channels, 2)
        self.layers = nn.ModuleList(
            DeformableLayer(channels, self_heads, cross_heads, points, hidden)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(channels)
        self.scores = nn.Linear(channels, columns)
        self.corners = mlp(channels, channels, 4, 3)

    def forward(
        self, x: Tensor, hidden: Tensor | None = None, operations: Operations | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [B, Q, columns] and boxes [B, Q, 4] for a feature map [B, C, h, w].

        Boxes are centre x, y, width and height as parts of the picture. ``hidden``: tokens that
        propose nothing, bool [h w]. ``operations``: counts the operations.
        """
        if operations is not None:
            self._count(len(x), x.shape[2] * x.shape[3], operations)
        references = self.references(x, hidden)
        position = self.position(sinusoids(references, x.shape[1] // 2))
        out = self.queries.expand(len(x), -1, -1)
        for layer in self.layers:
            out = layer(out, position, references, x)
        out = self.norm(out)
        return self.scores(out), move(references, self.corners(out))

    def references(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return the boxes [B, Q, 4] at which queries begin."""
        boxes, inside = proposals(x.shape[2], x.shape[3])
        boxes, inside = boxes.to(x), inside.to(x.device)
        tokens = x.flatten(2).transpose(1, 2) * inside[:, None]
        tokens = self.token_norm(self.token(tokens))
        best, count = self.token_scores(tokens).amax(-1), tokens.shape[1]
        if hidden is not None:
            best = best.masked_fill(hidden.to(x.device), -math.inf)
            count -= int(hidden.sum())
        count = min(len(self.queries), count)
        order = best.topk(count, 1).indices[..., None]
        chosen = tokens.gather(1, order.expand(-1, -1, tokens.shape[2]))
        proposed = move(boxes[order[..., 0]], self.token_corners(chosen))
        rest = self.offsets[count:].expand(len(x), -1, -1)
        return torch.cat([move(proposed, self.offsets[:count]), rest], 1)

    def _count(self, pictures: int, tokens: int, operations: Operations) -> None:
        queries = len(self.queries)
        for layer in (self.token, self.token_scores):
            operations.count_linear(pictures * tokens, layer)
        for layer in _linear(self.token_corners):
            operations.count_linear(pictures * min(tokens, queries), layer)
        for layer in (*_linear(self.position), *_linear(self.corners), self.scores):
            operations.count_linear(pictures * queries, layer)
        for part in self.layers:
            cast(DeformableLayer, part).count(pictures, tokens, queries, operations)


class DeformableLayer(nn.Module):
    """Attention among queries, then to places of a map, then a feed-forward; norms come last."""

    def __init__(
        self, channels: int, self_heads: int, cross_heads: int, points: int, hidden: int
    ) -> None:
        super().__init__()
        if channels % self_heads or channels % cross_heads:
            raise ValueError(
                f"{channels} channels are not a multiple of {self_heads}, {cross_heads}"
            )
        self.heads, self.cross_heads, self.points = self_heads, cross_heads, points
        self.query_key = nn.Linear(channels, 2 * channels)
        self.value = nn.Linear(channels, channels)
        self.out = nn.Linear(channels, channels)
        self.places = nn.Linear(channels, 2 * cross_heads * points)
        self.weights = nn.Linear(channels, cross_heads * points)
        self.map_value = nn.Linear(channels, channels)
        self.map_out = nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))

    def forward(self, x: Tensor, position: Tensor, references: Tensor, seen: Tensor) -> Tensor:
        """Return queries [B, Q, C] for queries and their positions, references and the map."""
        x = self.norms[0](x + self._among(x, position))
        x = self.norms[1](x + self._look(x + position, references, seen))
        return cast(Tensor, self.norms[2](x + self.down(F.relu(self.up(x)))))

    def _among(self, x: Tensor, position: Tensor) -> Tensor:
        pairs = (*self.query_key(x + position).chunk(2, -1), self.value(x))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in pairs)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return cast(Tensor, self.out(out))

    def _look(self, x: Tensor, references: Tensor, seen: Tensor) -> Tensor:
        """Return queries [B, Q, C] attending to the map around their references [B, Q, 4]."""
        heads = (self.cross_heads, self.points)
        value = self.map_value(seen.flatten(2).transpose(1, 2)).transpose(1, 2)
        value = value.reshape(len(x) * self.cross_heads, -1, *seen.shape[2:])
        places = self.places(x).unflatten(2, (*heads, 2))
        centre, size = (part[:, :, None, None] for part in references.chunk(2, -1))
        grid = 2 * (centre + places / self.points * size / 2) - 1
        weights = self.weights(x).unflatten(2, heads).softmax(-1)
        grid, weights = (part.transpose(1, 2).flatten(0, 1) for part in (grid, weights))
        values = F.grid_sample(value, grid, align_corners=False)
        out = (values * weights[:, None]).sum(-1)
        return cast(Tensor, self.map_out(out.view(len(x), -1, x.shape[1]).transpose(1, 2)))

    def count(self, pictures: int, tokens: int, queries: int, operations: Operations) -> None:
        """Count the operations for maps of ``tokens`` places."""
        rows, channels = pictures * queries, self.value.in_features
        for layer in (self.query_key, self.value, self.out, self.places, self.weights):
            operations.count_linear(rows, layer)
        for layer in (self.map_out, self.up, self.down):
            operations.count_linear(rows, layer)
        operations.count_linear(pictures * tokens, self.map_value)
        # a place is the mean of four tokens
        operations.product += rows * channels * (2 * queries + 5 * self.points)
        operations.add += 3 * rows * channels


def mlp(width: int, hidden: int, out: int, layers: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    widths = [width, *[hidden] * (layers - 1), out]
    parts: list[nn.Module] = []
    for k in range(layers):
        parts += [nn.Linear(widths[k], widths[k + 1]), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def _linear(layers: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def move(boxes: Tensor, change: Tensor) -> Tensor:
    """Return boxes [..., 4], centre and size, moved and scaled in proportion to their size."""
    size = boxes[..., 2:]
    return torch.cat([boxes[..., :2] + change[..., :2] * size, change[..., 2:].exp() * size], -1)


def proposals(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the box around each token of a map, [h w, 4], and which are used, bool [h w].

    Boxes too close to the edge of the picture, in maps 50 tokens wide and more, are zeros.
    """
    y, x = ((torch.arange(side, dtype=torch.float64) + 0.5) / side for side in (height, width))
    centre = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).flatten(0, 1)
    inside = ((centre > _EDGE) & (centre < 1 - _EDGE)).all(1)
    boxes = torch.cat([centre, torch.full_like(centre, _SIDE)], 1)
    return boxes * inside[:, None], inside


def sinusoids(boxes: Tensor, width: int) -> Tensor:
    """Return sines and cosines [..., 4 ``width``] of y, x, width and height of boxes [..., 4]."""
    exponents = torch.arange(0, width, 2, device=boxes.device, dtype=boxes.dtype) / width
    angles = 2 * math.pi * boxes[..., [1, 0, 2, 3], None] / 10_000**exponents
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-3)
