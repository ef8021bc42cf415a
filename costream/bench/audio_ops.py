"""Operation counts of the networks for GTZAN: windows, CoTrans and DeepCoT."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costream.models.audio import CoTrans
from costream.models.oad.deepcot import DeepCoT
from costream.tables import Cell, Table

# Two blocks over a window / CoTrans-b2, in "Continual Low-Rank Scaled Dot-product Attention".
PUBLISHED_RATIO = 48.26
_INPUT, _CLASSES, _POSITIONS = 128, 10, 192


@dataclass(frozen=True)
class AudioNetwork:
    """A network for GTZAN with the numbers published by Hedegaard et al. (ICLR 2023)."""

    name: str
    way: str  # "window", "cotrans" or "deepcot"
    depth: int
    accuracy: float | None = None  # percent
    parameters: int | None = None  # thousands


AUDIO_NETWORKS = (
    AudioNetwork("Trans-b2", "window", 2, 95.0, 509),
    AudioNetwork("Trans-b1", "window", 1, 93.8, 286),
    AudioNetwork("CoTrans-b2", "cotrans", 2, 94.4, 509),
    AudioNetwork("CoTrans-b1", "cotrans", 1, 93.2, 286),
    AudioNetwork("DeepCoT, 2 blocks", "deepcot", 2),
    AudioNetwork("DeepCoT, 12 blocks", "deepcot", 12),
)


def attention_ops(way: str, depth: int, window: int, width: int) -> int:
    """Return the attention operations of a step as the papers count them: additions, products, exp.

    Window: 2 n^2 d + n^2 + n d + n per block; retroactive: 7 n d + 4 n - 2 d - 2; single-output:
    3 n d + 2 n. They do not depend on the number of heads.
    """
    n, d = window, width
    single = 3 * n * d + 2 * n
    if way == "window":
        return depth * (2 * n**2 * d + n**2 + n * d + n)
    if way == "deepcot":
        return depth * single
    if depth > 2:
        raise ValueError("the papers only count CoTrans with one or two blocks")
    return (depth - 1) * (7 * n * d + 4 * n - 2 * d - 2) + single


def audio_ops_table() -> Table:
    """Return the table of operation counts, in millions per step."""
    rows: list[tuple[Cell, ...]] = []
    for network in AUDIO_NETWORKS:
        with torch.device("meta"):  # only sizes are needed
            if network.way == "deepcot":
                model: CoTrans | DeepCoT = DeepCoT(
                    _INPUT, _CLASSES, depth=network.depth, num_positions=_POSITIONS
                )
            else:
                model = CoTrans(_CLASSES, depth=network.depth)
        parameters = sum(p.numel() for p in model.parameters())
        macs = model.dense_macs if network.way == "window" else model.count_macs()
        width = model.encoder.embed_dim
        attention = attention_ops(network.way, network.depth, model.window, width)
        rows.append(
            (
                network.name,
                network.accuracy,
                network.parameters,
                round(parameters / 1e3),
                round(attention / 1e6, 3),
                round(macs / 1e6, 3),
            )
        )
    columns = (
        "network",
        "accuracy published, %",
        "parameters published, k",
        "parameters, k",
        "attention, paper's way",
        "costream",
    )
    notes = (
        f"{_INPUT} features every 0.25 s, d={width}, n={model.window}; without the feature"
        " extractor.",
        "Paper's way: operations of attention only, without projections. Published for two"
        f" blocks: {PUBLISHED_RATIO} times fewer than over a window.",
        "costream: every product of a step as implemented here; Trans-b1, -b2 are CoTrans's"
        " encoder over the whole window.",
        "DeepCoT with two or more blocks gives other results than a window.",
    )
    title = "Operations of networks for GTZAN, in millions per step"
    return Table(title, columns, tuple(rows), notes)
