"""Operation counts of ViTDet-B with token gates, from the counters of the running code."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from costream.core.tables import Cell, Table
from costream.nn.eventful.block import VARIANTS, EventfulBlock
from costream.nn.eventful.counts import Operations

# Video length over which the paper's numbers are means, including the frame computed in full.
FRAMES = 270
GRIDS = {1024: 64, 672: 42}  # pixels -> tokens of 16 pixels along one side
_DIM, _HEADS, _DEPTH, _GLOBAL = 768, 12, 12, 4
_SIZE, _WINDOW = (64, 64), (14, 14)


@dataclass(frozen=True)
class PublishedRow:
    """A row of the paper's tables: billions of operations per frame."""

    pixels: int
    tokens: int
    eventful: float
    token_wise: float
    spatiotemporal: float
    pooled: int  # keys that contain a chosen token; depends on the paper's data


ROWS = (
    PublishedRow(1024, 2048, 294.9, 294.1, 217.0, 565),
    PublishedRow(1024, 1536, 225.9, 250.7, 169.3, 493),
    PublishedRow(1024, 1024, 156.8, 207.3, 121.0, 404),
    PublishedRow(1024, 768, 122.3, 185.7, 96.3, 346),
    PublishedRow(1024, 512, 87.8, 164.0, 70.9, 268),
    PublishedRow(1024, 256, 53.3, 142.3, 44.5, 164),
    PublishedRow(672, 1024, 115.1, 111.9, 98.2, 275),
    PublishedRow(672, 768, 87.9, 90.2, 75.5, 234),
    PublishedRow(672, 512, 60.7, 68.5, 52.8, 192),
    PublishedRow(672, 384, 47.1, 57.7, 41.4, 169),
    PublishedRow(672, 256, 33.5, 46.8, 29.8, 132),
    PublishedRow(672, 128, 19.9, 36.0, 18.0, 84),
)
# All tokens of every frame, and the same with pooled keys and values.
BASE = {1024: (467.4, 388.1), 672: (174.5, 159.7)}


@dataclass(frozen=True)
class FixedTokens:
    """Policy for counting: always the same tokens."""

    tokens: Tensor

    def choose(self, errors: Tensor) -> Tensor:
        """Return the tokens."""
        return self.tokens


def count_vitdet(variant: str, side: int, tokens: int | None, pooled: int | None = None) -> int:
    """Return the operations of a frame of side x side tokens in the backbone of ViTDet-B.

    ``tokens``: number of updated tokens; None: all, in full. ``pooled``: number of pooled keys that
    contain them. All windows are computed, even where the variant would skip some.
    """
    windowed = _block("token-wise", True, side, tokens, None)
    among_all = _block(variant, False, side, tokens, pooled)
    return side**2 * _DIM + (_DEPTH - _GLOBAL) * windowed + _GLOBAL * among_all


@cache
def _block(variant: str, windowed: bool, side: int, tokens: int | None, pooled: int | None) -> int:
    """Return the operations of one block; blocks of a kind cost the same, only shapes count."""
    with torch.device("meta"), torch.no_grad():
        window = _WINDOW if windowed else None
        block = EventfulBlock(_DIM, _HEADS, _SIZE, window, variant=VARIANTS[variant])
        state = block.init_state(1, side, side)
        x = torch.empty(1, side, side, _DIM)
    spent = Operations()
    with torch.no_grad():
        policy = FixedTokens(_spread(side, tokens or 0, pooled))
        block.forward_step(x, state, [tokens is None], policy, spent)
    return spent.total


def mean(variant: str, side: int, tokens: int, pooled: int | None = None) -> float:
    """Return the mean over a video of ``FRAMES`` frames, in billions."""
    whole, part = count_vitdet(variant, side, None), count_vitdet(variant, side, tokens, pooled)
    return (part + (whole - part) / FRAMES) / 1e9


def object_ops_table() -> Table:
    """Return the table of operation counts, in billions per frame."""
    rows: list[tuple[Cell, ...]] = []
    for pixels, published in BASE.items():
        side = GRIDS[pixels]
        counted = [count_vitdet(variant, side, None) / 1e9 for variant in ("eventful", "spatial")]
        whole, pooled = (round(c, 1) for c in counted)
        every = (whole, published[0], whole, published[0], pooled, published[1], whole)
        rows.append((pixels, "all", *every))
        for row in ROWS:
            if row.pixels != pixels:
                continue
            cells = (
                (mean("eventful", side, row.tokens), row.eventful),
                (mean("token-wise", side, row.tokens), row.token_wise),
                (mean("spatiotemporal", side, row.tokens, row.pooled), row.spatiotemporal),
            )
            numbers = [n for mine, paper in cells for n in (round(mine, 1), paper)]
            own = round(mean("exact", side, row.tokens), 1)
            rows.append((pixels, str(row.tokens), *numbers, own))
    columns = (
        "pixels",
        "tokens",
        "eventful, recounted",
        "eventful, published",
        "token-wise, recounted",
        "token-wise, published",
        "pooled keys, recounted",
        "pooled keys, published",
        "costream",
    )
    gate, products = (_megabytes(1024, of_products) for of_products in (False, True))
    few = _megabytes(672, True)
    notes = (
        "Backbone of ViTDet-B, square frames; as in the paper, additions count like",
        f"multiply-accumulates, and a number is the mean over a video of {FRAMES} frames whose",
        "first is computed in full. Token-wise is also STGT. The number of pooled keys that change",
        "depends on the video: it is chosen to match the paper's number.",
        "costream: the default, exact attention, no window skipped.",
        f"Memory of tensors, float32, 1,024 pixels: tokens of a gate {gate} MB (published",
        f"12.6), products of queries and keys {products} MB (805), at 672 pixels {few} MB (149);",
        "in half precision half of it (6.3, 403, 75).",
    )
    title = "Operations of ViTDet-B with token gates, in billions per frame"
    return Table(title, columns, tuple(rows), notes)


# Thresholds on the norm of a token's change instead of a number of tokens (the paper's Table B),
# 1,024 pixels: billions of operations per frame and AP50 in percent.
THRESHOLDS = ((0.2, 431.8, 83.00), (1.0, 294.1, 82.75), (5.0, 133.5, 78.11))


def _megabytes(pixels: int, products: bool) -> float:
    """Return the size of a gate's tokens, or of the products of queries and keys of all heads."""
    tokens = GRIDS[pixels] ** 2
    return round(4 * tokens * (_HEADS * tokens if products else _DIM) / 1e6, 1)


def threshold_ops_table() -> Table:
    """Return the paper's table of thresholds, with the number of tokens that costs as much."""
    side, rows = GRIDS[1024], []
    for threshold, published, precision in THRESHOLDS:
        tokens = bisect_left(
            range(side**2), published, key=lambda count: mean("eventful", side, count)
        )
        recounted = round(mean("eventful", side, tokens), 1)
        rows.append((threshold, published, precision, tokens, recounted))
    columns = ("threshold", "published", "AP50 published", "tokens of that cost", "recounted")
    notes = (
        "How many tokens pass a threshold depends on the video: so many at every gate, of"
        f" {side**2:,},",
        "would cost what was published. Recounted: by costream, for that number.",
    )
    title = "Operations of ViTDet-B with thresholds, 1,024 pixels, in billions per frame"
    return Table(title, columns, tuple(rows), notes)


def _spread(side: int, tokens: int, pooled: int | None) -> Tensor:
    """Return tokens spread over a frame that belong to ``pooled`` keys of 2 x 2 tokens."""
    if pooled is None:
        return torch.arange(tokens) * side**2 // max(tokens, 1)
    half = side // 2
    cells = torch.arange(pooled) * half**2 // pooled
    corners = cells // half * 2 * side + cells % half * 2
    return (corners + torch.tensor([[0], [1], [side], [side + 1]])).flatten()[:tokens].sort().values
