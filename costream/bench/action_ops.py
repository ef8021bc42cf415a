"""Operation counts of ViViT-B with token gates, from the counters of the running code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from costream.bench.object_ops import FixedTokens
from costream.models.eventful.vivit import ViViT
from costream.nn.operations import Operations
from costream.tables import Cell, Table

VIEWS = 12  # per video: four in time, each with three in space
DIM, DEPTH = 768, 12
STEPS = 16  # tubelets per view, the first computed in full


@dataclass(frozen=True)
class DataSet:
    """A data set in the paper's tables, with the paper's input size."""

    name: str
    side: int  # tokens of 16 pixels along one side of an image
    classes: int


EPIC = DataSet("EPIC-KITCHENS", 20, 97)
KINETICS = DataSet("Kinetics-400", 14, 400)
# tokens -> trillions of operations per video; None: all tokens of every tubelet
PUBLISHED: dict[DataSet, dict[int | None, float]] = {
    EPIC: {
        None: 7.1220,
        280: 5.4905,
        240: 4.7719,
        200: 4.0532,
        160: 3.3346,
        140: 2.9753,
        120: 2.6160,
        100: 2.2567,
        80: 1.8974,
        70: 1.7177,
        60: 1.5381,
        50: 1.3584,
        40: 1.1787,
        30: 0.9991,
    },
    KINETICS: {None: 3.3596, 96: 1.8138, 48: 1.0164, 24: 0.6178},
}


@cache
def count_vivit(data: DataSet, variant: str, tokens: int | None) -> int:
    """Return the operations of a video as the paper counts them, without the embedding.

    ``tokens``: number of tokens updated in each tubelet but the first of a view; None: all tokens,
    without gates.
    """
    others = (STEPS - 1) * _tubelet(data, variant, tokens)
    return VIEWS * (_tubelet(data, variant, None) + others + _rest(data))


@cache
def _tubelet(data: DataSet, variant: str, tokens: int | None) -> int:
    """Return the operations of the spatial encoder. All blocks cost the same; only shapes count."""
    with torch.device("meta"):
        net = _network(data, variant)
        x = torch.empty(1, data.side**2, DIM)
    encoder, spent = net.spatial_model, Operations()
    state, policy = encoder.init_state(1), FixedTokens(torch.arange(tokens or 0))
    state.steps += tokens is not None  # with 0 steps all tokens are computed
    encoder.forward_step(x, state, policy, spent)
    positions = encoder.tokens * DIM
    return positions + DEPTH * (spent.total - positions)


@cache
def _rest(data: DataSet) -> int:
    """Return the operations of the temporal encoder and the classifier for one view."""
    with torch.device("meta"), torch.no_grad():
        net, spent = _network(data, "exact"), Operations()
        net.classify(net.temporal_model(torch.empty(1, STEPS, DIM), spent), spent)
    return spent.total


def _network(data: DataSet, variant: str) -> ViViT:
    """Return a ViViT-B with one block in its spatial encoder."""
    sizes = (data.side, data.side)
    return ViViT(data.classes, DIM, depth=1, size=sizes, variant=variant)


def action_ops_table() -> Table:
    """Return the table of operation counts, in trillions per video."""
    rows: list[tuple[Cell, ...]] = []
    for data, published in PUBLISHED.items():
        for tokens, theirs in published.items():
            mine, own = (
                round(count_vivit(data, v, tokens) / 1e12, 4) for v in ("eventful", "exact")
            )
            rows.append((data.name, "all" if tokens is None else str(tokens), mine, theirs, own))
    columns = ("data set", "tokens", "eventful", "eventful published", "costream")
    notes = (
        f"ViViT-B, factorised encoder; {VIEWS} views per video of {STEPS} tubelets each, the first",
        "computed in full. As in the paper, additions count like multiply-accumulates, and tubelet",
        "embedding is not counted. Tokens: of 401 (20 x 20 and the class token) and of 197.",
        "costream: the default, exact attention.",
    )
    title = "Operations of ViViT-B with token gates, in trillions per video"
    return Table(title, columns, tuple(rows), notes, decimals=4)
