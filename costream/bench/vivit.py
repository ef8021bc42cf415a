"""Benchmark and operation counts of ViViT-B with token gates, from the running code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from costream.bench.eventful import compare_ways, dense, gated, moving_square, whole_frames
from costream.bench.eventful_counts import FixedTokens
from costream.bench.timing import quiet_torch
from costream.core.tables import Cell, Table
from costream.models.devices import find_device, find_dtype
from costream.models.eventful.vivit.network import ViViT
from costream.nn.eventful.counts import Operations

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
# Numbers of tokens in the paper's tables; None: all tokens of every tubelet.
VIDEO_TOKENS: dict[DataSet, tuple[int | None, ...]] = {
    EPIC: (None, 280, 240, 200, 160, 140, 120, 100, 80, 70, 60, 50, 40, 30),
    KINETICS: (None, 96, 48, 24),
}
STEP_TOKENS = (100, 50, 200)  # that are timed


def vivit_steps_table(
    model: str, rounds: int = 5, threads: int = 1, device: str = "cpu", dtype: str = "float32"
) -> Table:
    """Return the timings of ViViT-B's spatial encoder, random weights, EPIC-KITCHENS' size.

    ``rounds``: number of tubelets per implementation, in turns. On a GPU all are CUDA graphs.
    """
    place = find_device(device), find_dtype(dtype)
    with quiet_torch(threads), torch.no_grad():
        torch.manual_seed(0)
        sizes = (EPIC.side, EPIC.side)
        exact, published = (
            ViViT(EPIC.classes, DIM, depth=DEPTH, size=sizes, variant=v).spatial_model
            for v in ("exact", "eventful")
        )
        published.load_state_dict(exact.state_dict())
        exact, published = exact.eval().to(*place), published.eval().to(*place)
        frames = [x.flatten(1, 2).to(*place) for x in moving_square(EPIC.side, DIM)]
        is_cuda, counts = place[0].type == "cuda", (*STEP_TOKENS, exact.tokens)
        whole = whole_frames(exact) if is_cuda else exact
        ways = [
            dense("dense", whole, exact.tokens, exact.count_macs()),
            *(gated("costream", exact, exact.init_state(1), n) for n in counts),
            gated("eventful, as published", published, published.init_state(1), STEP_TOKENS[0]),
        ]
        where = torch.cuda.get_device_name(place[0]) if is_cuda else place[0].type.upper()
        notes = (
            f"{where}, {dtype}, {threads} thread(s), one stream, {rounds} tubelets in turns, random"
            " weights; a square of a sixth of the picture moves.",
        )
        return compare_ways(
            f"vivit spatial encoder, {exact.tokens} tokens", ways, frames, rounds, notes
        )


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
    for data, numbers in VIDEO_TOKENS.items():
        for tokens in numbers:
            counts = (count_vivit(data, variant, tokens) for variant in ("eventful", "exact"))
            name = "all" if tokens is None else str(tokens)
            rows.append((data.name, name, *(round(count / 1e12, 4) for count in counts)))
    columns = ("data set", "tokens", "eventful, recounted", "costream")
    notes = (
        f"ViViT-B, factorised encoder; {VIEWS} views per video of {STEPS} tubelets each, the first",
        "computed in full. As in the paper, additions count like multiply-accumulates, and tubelet",
        "embedding is not counted. Tokens: of 401 (20 x 20 and the class token) and of 197.",
        "Recounted: by costream, by the paper's rule; its 19 numbers are these, with fewer digits:",
        "5.49 for 280 tokens, for example.",
        "costream: the default, exact attention.",
    )
    title = "Operations of ViViT-B with token gates, in trillions per video"
    return Table(title, columns, tuple(rows), notes, decimals=4)
