"""Operation counts of the online-action-detection networks, from their architecture."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costream.models.oad.cooadtr import CoOadTR, CoTrans
from costream.models.oad.deepcot import DeepCoT
from costream.models.oad.oadtr import OadTR
from costream.tables import Cell, Table

# Continual Transformers (ICLR 2023), table of online action detection: MMACs per prediction.
PUBLISHED = {
    "ActivityNet": (2445.6, 1008.1, 605.5, 410.9, 9.6),
    "Kinetics": (2513.5, 1075.7, 673.0, 411.9, 10.6),
}
FEATURE_WIDTH = {"ActivityNet": 3072, "Kinetics": 4096}
NETWORKS = ("OadTR", "OadTR-b2", "OadTR-b1", "CoOadTR-b2", "CoOadTR-b1")


@dataclass(frozen=True)
class OadSizes:
    """Sizes of the published networks for THUMOS14."""

    embed_dim: int = 1024
    feedforward: int = 1024
    window: int = 64
    classes: int = 22
    depth: int = 3
    decoder_depth: int = 5
    queries: int = 8


def block_macs(rows: int, s: OadSizes) -> int:
    """Return the MACs of an encoder block over ``rows`` rows: q, k, v, output, feed-forward."""
    return rows * (4 * s.embed_dim**2 + 2 * s.embed_dim * s.feedforward)


def oadtr_macs(width: int, s: OadSizes) -> int:
    """Return the MACs of OadTR as published: products with weights, without attention products."""
    d, tokens = s.embed_dim, s.window + 1
    decoder = s.queries * (6 * d**2 + 2 * d * s.feedforward) + tokens * 2 * d**2
    heads = 2 * d * s.classes + s.queries * d * s.classes
    encoder = s.depth * block_macs(tokens, s)
    return s.window * width * d + encoder + s.decoder_depth * decoder + heads


def oadtr_blocks_macs(width: int, depth: int, s: OadSizes) -> int:
    """Return the MACs of OadTR-b1, -b2 as published: no class token, no decoder, a head per row."""
    head = s.window * s.embed_dim * s.classes
    return s.window * width * s.embed_dim + depth * block_macs(s.window, s) + head


def continual_encoder_macs(depth: int, s: OadSizes) -> int:
    """Return the MACs of one or two continual blocks as published, with attention products.

    Retroactive attention counts 7 n d, single-output attention 2 n d. The second block projects
    queries, keys and values of all rows, although it uses only one query.
    """
    d, n = s.embed_dim, s.window
    rows = 1 if depth == 1 else n
    newest = rows * 3 * d**2 + 2 * n * d + d**2 + 2 * d * s.feedforward
    retroactive = 3 * d**2 + 7 * n * d + n * (d**2 + 2 * d * s.feedforward)
    return (depth - 1) * retroactive + newest


def cooadtr_macs(width: int, depth: int, s: OadSizes) -> int:
    """Return the MACs of CoOadTR-b1, -b2 as published: projection, continual encoder, head."""
    return (width + s.classes) * s.embed_dim + continual_encoder_macs(depth, s)


def published_oad_macs(network: str, width: int, s: OadSizes | None = None) -> int:
    """Return the multiply-accumulates of a prediction as counted in the papers."""
    s = s or OadSizes()
    if network == "OadTR":
        return oadtr_macs(width, s)
    depth = int(network[-1])
    count = cooadtr_macs if network.startswith("Co") else oadtr_blocks_macs
    return count(width, depth, s)


def oad_step_macs(network: str, width: int) -> int:
    """Return the multiply-accumulates of costream's step of this network, all products counted.

    OadTR-b1 and -b2 stand for the encoder of CoOadTR recomputed over the whole window.
    """
    with torch.device("meta"):  # only sizes are needed
        if network == "OadTR":
            return OadTR(width, OadSizes.classes).count_macs()
        model = CoOadTR(width, OadSizes.classes, depth=int(network[-1]))
    return model.count_macs() if network.startswith("Co") else model.dense_macs


def ops_table() -> Table:
    """Return the table of operation counts, in millions of multiply-accumulates per prediction."""
    columns: list[str] = ["network"]
    for name in FEATURE_WIDTH:
        columns += [name, f"{name} published", f"{name} costream"]
    rows = []
    for k, network in enumerate(NETWORKS):
        row: list[str | float] = [network]
        for name, width in FEATURE_WIDTH.items():
            counted = published_oad_macs(network, width) / 1e6, oad_step_macs(network, width) / 1e6
            row += [round(counted[0], 2), PUBLISHED[name][k], round(counted[1], 2)]
        rows.append(tuple(row))
    notes = (
        f"Features: {FEATURE_WIDTH['ActivityNet']} wide (ActivityNet), "
        f"{FEATURE_WIDTH['Kinetics']} wide (Kinetics).",
        "First column: counted from the architecture as in the papers: window networks without",
        "the two products of attention, continual ones with them.",
        "costream: every product of a step as implemented here. OadTR stores projected rows;",
        "OadTR-b1, -b2 are CoOadTR's encoder over the whole window; CoOadTR-b2 does not project",
        "the keys and values of its last block.",
    )
    title = "Multiply-accumulates of one prediction, in millions"
    return Table(title, tuple(columns), tuple(rows), notes)


# Operation counts of the networks for GTZAN: windows, CoTrans and DeepCoT.


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
