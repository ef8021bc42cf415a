"""Operation counts of the skeleton networks, as in the paper and as implemented here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from costream.core.tables import Cell, Table
from costream.models.skeleton.network import ATTENTION_FROM, STRIDES, WIDTHS, SkeletonNet

_KERNEL, _FRAMES, _PERSONS, _AXES = 9, 300, 2, 3


@dataclass(frozen=True)
class SkeletonData:
    """A data set of the paper: clips of 300 frames, two persons, three values a joint."""

    name: str
    joints: int
    classes: int
    discarded: bool = True  # whether the paper counts outputs that a stride discards


NTU = SkeletonData("NTU", 25, 60)
KINETICS = SkeletonData("Kinetics", 18, 400, discarded=False)


@dataclass(frozen=True)
class PublishedSkeletonCount:
    """A network of Hedegaard et al. (Pattern Recognition 2023) and its published count."""

    name: str
    kind: str  # see SkeletonNet
    starred: bool  # no strides, no padding
    continual: bool
    published: float  # billions per prediction, NTU RGB+D
    discarded: bool = True  # whether outputs that a stride discards are counted for NTU RGB+D
    kinetics: float | None = None  # the same for Kinetics-skeleton; None: not at hand
    two_streams: float | None = None  # there, of joints and bones together


COUNTS = (
    PublishedSkeletonCount(
        "ST-GCN", "stgcn", False, False, 16.73, kinetics=12.04, two_streams=24.09
    ),
    PublishedSkeletonCount("ST-GCN*", "stgcn", True, False, 36.90),
    PublishedSkeletonCount("CoST-GCN", "stgcn", False, True, 0.27, two_streams=0.32),
    PublishedSkeletonCount("CoST-GCN*", "stgcn", True, True, 0.16),
    PublishedSkeletonCount("AGCN", "agcn", False, False, 18.69, kinetics=13.45, two_streams=26.91),
    PublishedSkeletonCount("AGCN*", "agcn", True, False, 40.87),
    PublishedSkeletonCount("CoAGCN", "agcn", False, True, 0.30, kinetics=0.18, two_streams=0.36),
    PublishedSkeletonCount("CoAGCN*", "agcn", True, True, 0.17),
    PublishedSkeletonCount("S-TR", "str", False, False, 16.14, kinetics=11.62, two_streams=23.24),
    PublishedSkeletonCount("S-TR*", "str", True, False, 35.65),
    PublishedSkeletonCount("CoS-TR", "str", False, True, 0.22, discarded=False, two_streams=0.31),
    PublishedSkeletonCount("CoS-TR*", "str", True, True, 0.15, kinetics=0.11, two_streams=0.22),
)


@cache
def _network(kind: str, starred: bool, data: SkeletonData) -> SkeletonNet:
    """Return a network of the paper's size without weights; the bones affect no count."""
    with torch.device("meta"):  # only sizes are needed
        return SkeletonNet(
            data.classes,
            data.joints,
            tuple((joint, joint - 1) for joint in range(1, data.joints)),
            0,
            _AXES,
            _PERSONS,
            kind=kind,
            strides=(1,) * len(STRIDES) if starred else STRIDES,
            padding="none" if starred else "same",
            pool=220 if starred else 75,
        )


def published_skeleton_macs(count: PublishedSkeletonCount, data: SkeletonData = NTU) -> int:
    """Return the multiply-accumulates of a prediction as the paper counts them.

    Convolutions with biases, 2 per number for batch norms, 1 for ReLU and for means, and the
    classifier; no graph or attention products. Both persons are present. For NTU RGB+D a continual
    strided layer counts at every step of its input, that is, including discarded outputs; only
    the published number of CoS-TR excludes them, and all those for Kinetics-skeleton.
    """
    frames = _FRAMES
    if count.continual:
        frames = 1 if count.starred else 4
    total, width = frames * 2 * _AXES, _AXES
    for number, (out, step) in enumerate(zip(WIDTHS, STRIDES, strict=True), 1):
        stride = 1 if count.starred else step
        given = -(-frames // stride)
        if count.starred and not count.continual:
            given = frames - _KERNEL + 1
        spatial = _spatial(count.kind, number, width, out)
        computed = frames if count.continual and count.discarded and data.discarded else given
        temporal = _KERNEL * out * out + 3 * out
        beside = (width + 3) * out if step > 1 else 0
        total += frames * spatial + computed * (temporal + beside) + given * out
        frames, width = given, out
    return _PERSONS * data.joints * (total + frames * width) + (width + 1) * data.classes


def _spatial(kind: str, number: int, width: int, out: int) -> int:
    """Return the cost of a spatial unit per joint and frame."""
    if kind == "str" and number >= ATTENTION_FROM:
        qkv = 3 * out // 2
        return 2 * width + (width + 1) * qkv + (out + 1) * out + 3 * out
    convolutions = 3 * (width + 1) * out + 3 * out
    if kind == "agcn":
        convolutions += 6 * (width + 1) * (out // 4)
    return convolutions + ((width + 3) * out if width != out else 0)


def skeleton_macs(
    count: PublishedSkeletonCount, persons: int = _PERSONS, data: SkeletonData = NTU
) -> int:
    """Return the multiply-accumulates of costream's prediction, all products counted."""
    net = _network(count.kind, count.starred, data)
    if count.continual:
        return net.count_macs(persons) * net.stride
    return net.count_clip_macs(_FRAMES)


def skeleton_memory(count: PublishedSkeletonCount) -> int:
    """Return how many numbers the state of a stream has, or those that a clip takes at least.

    Of a clip: the input of a block, the output of its graph and its own, which are needed
    together, of the block where they are the most.
    """
    net = _network(count.kind, count.starred, NTU)
    if count.continual:
        return sum(tensor.numel() for tensor in net.init_state(1).tensors().values())
    frames, most = _FRAMES, 0
    for block in net.blocks:
        after = block.count_frames(frames)
        widths = frames * (block.in_width + block.out_width) + after * block.out_width
        most, frames = max(most, _PERSONS * NTU.joints * widths), after
    return most


def skeleton_ops_table() -> Table:
    """Return the table of operation counts, in billions of multiply-accumulates per prediction."""
    rows: list[tuple[Cell, ...]] = []
    for count in COUNTS:
        cells: list[Cell] = [count.name]
        for data, published in ((NTU, count.published), (KINETICS, count.kinetics)):
            macs = published_skeleton_macs(count, data), skeleton_macs(count, data=data)
            counted, own = (round(n / 1e9, 4) for n in macs)
            cells += [counted, published, own]
        alone = round(skeleton_macs(count, 1) / 1e9, 4) if count.continual else None
        rows.append((*cells, skeleton_memory(count), alone))
    names = [
        f"{data.name}{what}"
        for data in (NTU, KINETICS)
        for what in (" recounted", " published", " costream")
    ]
    columns = ("network", *names, "NTU memory", "NTU costream, one person")
    both = ", ".join(f"{c.name} {c.two_streams}" for c in COUNTS if c.two_streams)
    notes = (
        f"NTU RGB+D: {NTU.joints} joints, {NTU.classes} classes; Kinetics-skeleton:"
        f" {KINETICS.joints} and {KINETICS.classes}. {_PERSONS} persons,",
        f"clips of {_FRAMES} frames; * without strides and padding (here: -s1).",
        "Recounted: by costream, by the paper's rule: convolutions, norms and classifier, without",
        "graph and attention products; for NTU RGB+D continual networks, except CoS-TR, with the",
        "outputs that a stride discards. Published: as the paper prints it; - where its number is",
        f"not at hand. Kinetics, two streams, published: {both}.",
        "costream: every matrix product of a step as implemented here; for a strided network, of",
        "the 4 steps of a prediction. It computes no outputs that a stride discards, and nothing",
        "for absent persons. Memory: numbers in the state of a stream; of a clip, the input of a",
        "block, the output of its graph and its own, where they are the most.",
    )
    title = "Multiply-accumulates of one prediction of a skeleton network, in billions"
    return Table(title, columns, tuple(rows), notes)
