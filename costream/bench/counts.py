"""Operation counts of the online-action-detection networks, from their architecture."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costream.core.tables import Cell, Table
from costream.models.oad.cmert import CMeRT
from costream.models.oad.cooadtr import CoOadTR, CoTrans
from costream.models.oad.deepcot import DeepCoT
from costream.models.oad.oadtr import OadTR
from costream.models.oad.testra import TeSTra

NETWORKS = ("OadTR", "OadTR-b2", "OadTR-b1", "CoOadTR-b2", "CoOadTR-b1")


@dataclass(frozen=True)
class OadFeatures:
    """Features of THUMOS14 and what Continual Transformers (ICLR 2023) prints for them.

    ``published``: MMACs per prediction of ``NETWORKS``; None: the printed number is not at hand.
    """

    name: str
    width: int
    published: tuple[float | None, ...]


# With sound: 4096 values of VGGish more (Table 3 of the paper).
FEATURES = (
    OadFeatures("ActivityNet", 3072, (2445.6, 1008.1, 605.5, 410.9, 9.6)),
    OadFeatures("Kinetics", 4096, (2513.5, 1075.7, 673.0, 411.9, 10.6)),
    OadFeatures("ActivityNet and sound", 7168, (2714.9, 1277.0, 874.1, 415.0, 13.8)),
    OadFeatures("Kinetics and sound", 8192, (2781.9, 1344.1, 941.2, 416.0, 14.8)),
)
# Where OadTR's class token enters an encoder of some blocks (Table 1a), ActivityNet features:
# blocks, block before whose attention or feed-forward part it enters (0: there is none), whether
# the latter, MMACs.
CLASS_TOKENS: tuple[tuple[int, int, bool, float | None], ...] = (
    (3, 1, False, 1430.6),
    (3, 1, True, None),
    (3, 2, False, 1423.5),
    (3, 2, True, None),
    (3, 3, False, 1417.2),
    (3, 0, False, 1410.9),
    (2, 1, False, 1020.7),
    (2, 1, True, None),
    (2, 2, False, 1014.5),
    (2, 0, False, 1008.1),
    (1, 1, False, 611.7),
    (1, 0, False, 605.5),
)
_RECOUNTED = (
    "Recounted: by costream, from the architecture, by the paper's rule. Published: as the paper",
    "prints it; - where it prints none or its number is not at hand.",
)


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


def class_token_macs(width: int, depth: int, block: int, inside: bool, s: OadSizes) -> int:
    """Return the MACs of an OadTR encoder whose class token enters before a block, from 1.

    ``inside``: before the block's feed-forward part. From there on there is one row more.
    """
    d = s.embed_dim
    attention = 4 * d**2 * (depth - block + (not inside))
    feedforward = 2 * d * s.feedforward * (depth - block + 1)
    return oadtr_blocks_macs(width, depth, s) + attention + feedforward


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

    OadTR-b1 and -b2 stand for the encoder of CoOadTR recomputed over the window.
    """
    with torch.device("meta"):  # only sizes are needed
        if network == "OadTR":
            return OadTR(width, OadSizes.classes).count_macs()
        model = CoOadTR(width, OadSizes.classes, depth=int(network[-1]))
    return model.count_macs() if network.startswith("Co") else model.dense_macs


def ops_table() -> Table:
    """Return the table of operation counts, in millions of multiply-accumulates per prediction."""
    rows: list[tuple[Cell, ...]] = []
    for features in FEATURES:
        for network, published in zip(NETWORKS, features.published, strict=True):
            counted = published_oad_macs(network, features.width) / 1e6
            own = oad_step_macs(network, features.width) / 1e6
            rows.append((network, features.name, round(counted, 2), published, round(own, 2)))
    n = OadSizes.window
    saved = (2 * n**2 - 6 * n) * OadSizes.embed_dim / 1e6  # of retroactive attention
    notes = (
        "Features: " + ", ".join(f"{f.name} {f.width}" for f in FEATURES) + " values.",
        *_RECOUNTED,
        "Window networks without the two products of attention, continual ones with them.",
        "costream: every product of a step as implemented here. OadTR stores projected rows;",
        "OadTR-b1, -b2 are CoOadTR's encoder over the window; CoOadTR-b2 does not project",
        f"the keys and values of its last block; once its loops are compiled it takes {saved:.1f}",
        "fewer.",
    )
    title = "Multiply-accumulates of one prediction, in millions"
    columns = ("network", "features", "recounted", "published", "costream")
    return Table(title, columns, tuple(rows), notes)


def class_token_ops_table() -> Table:
    """Return the table of counts of OadTR by where its class token enters, in millions."""
    rows: list[tuple[Cell, ...]] = []
    for depth, block, inside, published in CLASS_TOKENS:
        width, place = FEATURES[0].width, "no class token"
        counted = oadtr_blocks_macs(width, depth, OadSizes()) / 1e6
        if block:
            counted = class_token_macs(width, depth, block, inside, OadSizes()) / 1e6
            place = f"{'feed-forward' if inside else 'attention'} of block {block}"
        rows.append((depth, place, round(counted, 2), published))
    title = "Multiply-accumulates of OadTR without decoder, by class token, in millions"
    columns = ("blocks", "class token before", "recounted", "published")
    notes = ("ActivityNet features; without the two products of attention.", *_RECOUNTED)
    return Table(title, columns, tuple(rows), notes)


# Parameters in thousands (Tables 1a, 1b), ActivityNet features: network, blocks, decoder or kind of
# positions, rows of positions, as printed.
PARAMETERS: tuple[tuple[str, int, str, int, float], ...] = (
    ("OadTR", 3, "decoder", 65, 74_700),
    ("OadTR", 3, "no decoder", 65, 22_200),
    ("OadTR", 2, "no decoder", 65, 15_900),
    ("OadTR", 1, "no decoder", 65, 9_600),
    ("CoOadTR-b2", 2, "learned", 64, 15_832),
    ("CoOadTR-b2", 2, "learned", 127, 15_897),
    ("CoOadTR-b2", 2, "fixed", 127, 15_767),
    ("CoOadTR-b1", 1, "learned", 64, 9_535),
    ("CoOadTR-b1", 1, "learned", 127, 9_599),
    ("CoOadTR-b1", 1, "fixed", 127, 9_469),
)


def parameter_table() -> Table:
    """Return the table of parameters of OadTR and CoOadTR, in thousands."""
    rows: list[tuple[Cell, ...]] = []
    sizes = (FEATURES[0].width, OadSizes.classes)
    for name, depth, kind, positions, published in PARAMETERS:
        with torch.device("meta"):  # only sizes are needed
            model: OadTR | CoOadTR
            if name == "OadTR":
                decoder = OadSizes.decoder_depth if kind == "decoder" else 0
                model = OadTR(*sizes, depth=depth, decoder_depth=decoder)
            else:
                model = CoOadTR(*sizes, depth=depth, positions=kind, num_positions=positions)
        count = sum(p.numel() for p in model.parameters()) / 1e3
        rows.append((name, depth, kind, positions, round(count, 1), published))
    columns = ("network", "blocks", "decoder or positions", "rows of positions")
    notes = (
        "ActivityNet features. The paper prints OadTR in millions with one decimal; what it prints",
        "without a decoder includes a table of 64 rows more.",
    )
    title = "Parameters of OadTR and CoOadTR, in thousands"
    return Table(title, (*columns, "parameters", "published"), tuple(rows), notes)


def memory_ops_table() -> Table:
    """Return the table of networks with a memory of sampled rows, in millions."""
    sizes = (FEATURES[0].width, OadSizes.classes)
    with torch.device("meta"):  # only sizes are needed
        networks = (
            ("TeSTra", TeSTra(*sizes), None),
            ("CMeRT", CMeRT(*sizes, motion_width=1024), 94.685),
        )
    rows: list[tuple[Cell, ...]] = []
    for name, model, published in networks:
        parameters = sum(p.numel() for p in model.parameters()) / 1e6
        step, dense = (round(macs / 1e6, 2) for macs in (model.count_macs(), model.dense_macs))
        rows.append(
            (name, model.window, model.samples, round(parameters, 3), published, dense, step)
        )
    columns = ("network", "window", "remembered rows", "parameters", "published", "from all rows")
    notes = (
        "Features of 3072 values. From all rows: memory and window are computed from the rows, as",
        "the authors evaluate; costream: a step. Published: parameters, by the authors' training",
        "log; 0.041 million are 40 rows for the future that no output depends on, not kept here.",
    )
    title = "Parameters and multiply-accumulates with a memory of sampled rows, in millions"
    return Table(title, (*columns, "costream"), tuple(rows), notes)


# n = d, and how many times fewer operations than a window retroactive and single-output attention
# take (Section 3.4).
RATIOS = ((100, 31, 100), (1000, 308, 1000))


def scalar_ops(way: str, n: int, d: int) -> int:
    """Return the multiplications, additions and exp of a step of attention (Table 1 of the paper).

    ``way``: "window", "retroactive" or "single-output".
    """
    if way == "window":
        return 2 * n**2 * d + 2 * n * d + 2 * n**2 * d - n * d - n + n**2
    if way == "retroactive":
        return 7 * n * d + 2 * n - 3 * d + 6 * n * d + 3 * n - 6 * d - 3 + 3 * n - 2
    return 2 * n * d + 2 * d + 2 * n * d - d - 1 + n


def ratio_ops_table() -> Table:
    """Return the table of attention alone: over a window and continually, in millions per step."""
    rows: list[tuple[Cell, ...]] = []
    for n, retroactive, single in RATIOS:
        for name, published, macs in (
            ("window", None, 2 * n**3),
            ("retroactive", retroactive, 6 * n**2),
            ("single-output", single, 2 * n**2),
        ):
            ops = scalar_ops(name, n, n)
            ratio = round(scalar_ops("window", n, n) / ops, 1)
            rows.append((name, n, round(ops / 1e6, 4), ratio, published, macs / 1e6))
    notes = (
        "Recounted: multiplications, additions and exp by the paper's forms, without projections.",
        "costream: products. Retroactive attention takes so many on a CPU once compiled (after",
        "some steps, or costream.nn.fast.compile_blocks), else as many as a window.",
    )
    columns = ("attention", "n = d", "recounted", "x fewer", "x fewer, published", "costream")
    title = "Attention of continual transformers, in millions per step"
    return Table(title, columns, tuple(rows), notes, decimals=4)


# Operation counts of the networks for GTZAN: windows, CoTrans and DeepCoT.


# Two blocks over a window / CoTrans-b2, in "Continual Low-Rank Scaled Dot-product Attention".
PUBLISHED_RATIO = 48.26
_INPUT, _CLASSES, _POSITIONS, _WINDOW = 128, 10, 192, 120


@dataclass(frozen=True)
class AudioNetwork:
    """A network for GTZAN with the numbers published by Hedegaard et al. (ICLR 2023)."""

    name: str
    way: str  # "window", "cotrans" or "deepcot"
    depth: int
    accuracy: float | None = None  # percent
    parameters: int | None = None  # thousands
    macs: float | None = None  # millions, "FLOPs" in the paper


AUDIO_NETWORKS = (
    AudioNetwork("Trans-b2", "window", 2, 95.0, 509, 47.4),
    AudioNetwork("Trans-b1", "window", 1, 93.8, 286, 15.2),
    AudioNetwork("CoTrans-b2", "cotrans", 2, 94.4, 509, 27.0),
    AudioNetwork("CoTrans-b1", "cotrans", 1, 93.2, 286, 0.3),
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


def published_audio_macs(network: AudioNetwork) -> int | None:
    """Return the multiply-accumulates by the rule that the paper's OadTR rows follow.

    None for DeepCoT, which that paper does not have.
    """
    d = _POSITIONS  # as wide as its table of positions is long
    sizes = OadSizes(d, d, _WINDOW, _CLASSES)
    if network.way == "window":
        return oadtr_blocks_macs(_INPUT, network.depth, sizes)
    return cooadtr_macs(_INPUT, network.depth, sizes) if network.way == "cotrans" else None


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
        counted = published_audio_macs(network)
        attention = attention_ops(network.way, network.depth, model.window, width)
        rows.append(
            (
                network.name,
                network.accuracy,
                network.parameters,
                round(parameters / 1e3),
                round(attention / 1e6, 3),
                None if counted is None else round(counted / 1e6, 3),
                network.macs,
                round(macs / 1e6, 3),
            )
        )
    columns = (
        "network",
        "accuracy published, %",
        "parameters published, k",
        "parameters, k",
        "attention, recounted",
        "recounted",
        "published",
        "costream",
    )
    notes = (
        f"{_INPUT} features every 0.25 s, d={width}, n={model.window}; without the feature"
        " extractor.",
        "Attention: additions, products and exp without projections. Published for two blocks:"
        f" {PUBLISHED_RATIO} times fewer than over a window.",
        "Recounted by the rule of the OadTR rows. The windows' published numbers follow no rule"
        " found: both are",
        "19.7 to 19.8 below all products, whose difference between the rows, one block, they have.",
        "costream: every product of a step as implemented here; Trans-b1, -b2 are CoTrans's"
        " encoder over the window.",
        "DeepCoT with two or more blocks gives other results than a window.",
    )
    title = "Operations of networks for GTZAN, in millions per step"
    return Table(title, columns, tuple(rows), notes)
