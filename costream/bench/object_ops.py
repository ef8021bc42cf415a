"""Operation counts of ViTDet-B with token gates, from the counters of the code that runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from costream.bench.table import Cell, Table
from costream.nn.eventful import VARIANTS, EventfulBlock
from costream.nn.operations import Operations

# Frames of a video over which the paper's numbers are means, the one computed in full among them.
FRAMES = 270
GRIDS = {1024: 64, 672: 42}  # pixels -> tokens along a side, of 16 pixels
_DIM, _HEADS, _DEPTH, _GLOBAL = 768, 12, 12, 4
_SIZE, _WINDOW = (64, 64), (14, 14)


@dataclass(frozen=True)
class Row:
    """A line of the paper's tables: billions of operations a frame."""

    pixels: int
    tokens: int
    eventful: float
    token_wise: float
    spatiotemporal: float
    pooled: int  # keys that hold a chosen token; the paper's data decide it


ROWS = (
    Row(1024, 2048, 294.9, 294.1, 217.0, 565),
    Row(1024, 1536, 225.9, 250.7, 169.3, 493),
    Row(1024, 1024, 156.8, 207.3, 121.0, 404),
    Row(1024, 768, 122.3, 185.7, 96.3, 346),
    Row(1024, 512, 87.8, 164.0, 70.9, 268),
    Row(1024, 256, 53.3, 142.3, 44.5, 164),
    Row(672, 1024, 115.1, 111.9, 98.2, 275),
    Row(672, 768, 87.9, 90.2, 75.5, 234),
    Row(672, 512, 60.7, 68.5, 52.8, 192),
    Row(672, 384, 47.1, 57.7, 41.4, 169),
    Row(672, 256, 33.5, 46.8, 29.8, 132),
    Row(672, 128, 19.9, 36.0, 18.0, 84),
)
# Every token of every frame, and the same with pooled keys and values.
BASE = {1024: (467.4, 388.1), 672: (174.5, 159.7)}


@dataclass(frozen=True)
class Given:
    """A policy for counting: these tokens, whatever has changed."""

    tokens: Tensor

    def choose(self, errors: Tensor) -> Tensor:
        """Give them."""
        return self.tokens


def count(variant: str, side: int, tokens: int | None, pooled: int | None = None) -> int:
    """Give the operations of a frame of side x side tokens in the backbone of ViTDet-B.

    ``tokens``: how many are chosen; None: all, in full. ``pooled``: how many pooled keys they are
    part of. All windows are computed, also where the variant would skip some.
    """
    windowed = _block("token-wise", True, side, tokens, None)
    among_all = _block(variant, False, side, tokens, pooled)
    return side**2 * _DIM + (_DEPTH - _GLOBAL) * windowed + _GLOBAL * among_all


@cache
def _block(variant: str, windowed: bool, side: int, tokens: int | None, pooled: int | None) -> int:
    """Give the operations of one block: blocks of a kind cost the same. Only sizes are computed."""
    with torch.device("meta"), torch.no_grad():
        window = _WINDOW if windowed else None
        block = EventfulBlock(_DIM, _HEADS, _SIZE, window, variant=VARIANTS[variant])
        state = block.init_state(1, side, side)
        x = torch.empty(1, side, side, _DIM)
    spent = Operations()
    with torch.no_grad():
        policy = Given(_spread(side, tokens or 0, pooled))
        block.forward_step(x, state, [tokens is None], policy, spent)
    return spent.total


def mean(variant: str, side: int, tokens: int, pooled: int | None = None) -> float:
    """Give the mean over a video of ``FRAMES`` frames, in billions."""
    whole, part = count(variant, side, None), count(variant, side, tokens, pooled)
    return (part + (whole - part) / FRAMES) / 1e9


def object_ops_table() -> Table:
    """Give the table of operation counts, in billions a frame."""
    rows: list[tuple[Cell, ...]] = []
    for pixels, published in BASE.items():
        side = GRIDS[pixels]
        counted = [count(variant, side, None) / 1e9 for variant in ("eventful", "spatial")]
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
        "eventful",
        "eventful published",
        "token-wise",
        "token-wise published",
        "pooled keys",
        "pooled keys published",
        "costream",
    )
    notes = (
        "Backbone of ViTDet-B, square frames; as in the paper additions count like",
        f"multiply-accumulates, and a number is the mean of a video of {FRAMES} frames whose first",
        "is computed in full. Token-wise is also STGT. Which of the pooled keys change depends on",
        "the video: as many are taken as the paper's number needs.",
        "costream: the default, exact attention, no window left out.",
    )
    title = "Operations of a frame of ViTDet-B with token gates, in billions"
    return Table(title, columns, tuple(rows), notes)


def _spread(side: int, tokens: int, pooled: int | None) -> Tensor:
    """Give tokens spread over a frame that are part of ``pooled`` keys, squares of four."""
    if pooled is None:
        return torch.arange(tokens) * side**2 // max(tokens, 1)
    half = side // 2
    cells = torch.arange(pooled) * half**2 // pooled
    corners = cells // half * 2 * side + cells % half * 2
    return (corners + torch.tensor([[0], [1], [side], [side + 1]])).flatten()[:tokens].sort().values
