"""Operation counts of the skeleton networks, as in the paper and as implemented here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costream.models.skeleton.network import STRIDES, WIDTHS, SkeletonNet
from costream.tables import Table

_KERNEL, _FRAMES, _PERSONS, _JOINTS, _CLASSES, _AXES = 9, 300, 2, 25, 60, 3
_ATTENTION_FROM = 4  # S-TR
# NTU RGB+D; the bones do not affect the counts
_BONES = tuple((joint, joint - 1) for joint in range(1, _JOINTS))


@dataclass(frozen=True)
class PublishedSkeletonCount:
    """A network of Hedegaard et al. (Pattern Recognition 2023) and its published count."""

    name: str
    kind: str  # see SkeletonNet
    starred: bool  # no strides, no padding
    continual: bool
    published: float  # billions per prediction
    discarded: bool = True  # whether outputs that a stride discards are counted


COUNTS = (
    PublishedSkeletonCount("ST-GCN", "stgcn", False, False, 16.73),
    PublishedSkeletonCount("ST-GCN*", "stgcn", True, False, 36.90),
    PublishedSkeletonCount("CoST-GCN", "stgcn", False, True, 0.27),
    PublishedSkeletonCount("CoST-GCN*", "stgcn", True, True, 0.16),
    PublishedSkeletonCount("AGCN", "agcn", False, False, 18.69),
    PublishedSkeletonCount("AGCN*", "agcn", True, False, 40.87),
    PublishedSkeletonCount("CoAGCN", "agcn", False, True, 0.30),
    PublishedSkeletonCount("CoAGCN*", "agcn", True, True, 0.17),
    PublishedSkeletonCount("S-TR", "str", False, False, 16.14),
    PublishedSkeletonCount("S-TR*", "str", True, False, 35.65),
    PublishedSkeletonCount("CoS-TR", "str", False, True, 0.22, discarded=False),
    PublishedSkeletonCount("CoS-TR*", "str", True, True, 0.15),
)


def build_net(kind: str, starred: bool) -> SkeletonNet:
    """Return a network of the paper's size for NTU RGB+D, 60 classes, with random weights."""
    return SkeletonNet(
        _CLASSES,
        _JOINTS,
        _BONES,
        0,
        _AXES,
        _PERSONS,
        kind=kind,
        strides=(1,) * len(STRIDES) if starred else STRIDES,
        padding="none" if starred else "same",
        pool=220 if starred else 75,
    )


def published_macs(count: PublishedSkeletonCount) -> int:
    """Return the multiply-accumulates of a prediction as the paper counts them.

    Convolutions with biases, 2 per number for batch norms, 1 for ReLU and for means, and the
    classifier; no graph or attention products. Both persons are present. A continual strided
    layer counts at every step of its input, that is, including discarded outputs; only the
    published number of CoS-TR excludes them.
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
        computed = frames if count.continual and count.discarded else given
        temporal = _KERNEL * out * out + 3 * out
        beside = (width + 3) * out if step > 1 else 0
        total += frames * spatial + computed * (temporal + beside) + given * out
        frames, width = given, out
    return _PERSONS * _JOINTS * (total + frames * width) + (width + 1) * _CLASSES


def _spatial(kind: str, number: int, width: int, out: int) -> int:
    """Return the cost of a spatial unit per joint and frame."""
    if kind == "str" and number >= _ATTENTION_FROM:
        qkv = 3 * out // 2
        return 2 * width + (width + 1) * qkv + (out + 1) * out + 3 * out
    convolutions = 3 * (width + 1) * out + 3 * out
    if kind == "agcn":
        convolutions += 6 * (width + 1) * (out // 4)
    return convolutions + ((width + 3) * out if width != out else 0)


def costream_macs(count: PublishedSkeletonCount, persons: int = _PERSONS) -> int:
    """Return the multiply-accumulates of costream's prediction, all products counted."""
    with torch.device("meta"):  # only sizes are needed
        net = build_net(count.kind, count.starred)
    if count.continual:
        return net.count_macs(persons) * net.stride
    return net.count_clip_macs(_FRAMES)


def skeleton_ops_table() -> Table:
    """Return the table of operation counts, in billions of multiply-accumulates per prediction."""
    rows = []
    for count in COUNTS:
        given = [published_macs(count), costream_macs(count)]
        alone = round(costream_macs(count, 1) / 1e9, 4) if count.continual else None
        numbers = [round(n / 1e9, 4) for n in given]
        rows.append((count.name, numbers[0], count.published, numbers[1], alone))
    columns = ("network", "paper's way", "published", "costream", "costream, one person")
    notes = (
        f"NTU RGB+D, {_CLASSES} classes: {_JOINTS} joints, {_PERSONS} persons, clips of"
        f" {_FRAMES} frames; * without strides and padding (here: -s1).",
        "Paper's way: convolutions, norms and classifier, without graph and attention products;",
        "continual networks, except CoS-TR, with the outputs that a stride discards.",
        "costream: every matrix product of a step as implemented here; for a strided network, of",
        "the 4 steps of a prediction. It computes no outputs that a stride discards, and nothing",
        "for absent persons.",
    )
    title = "Multiply-accumulates of one prediction of a skeleton network, in billions"
    return Table(title, columns, tuple(rows), notes)
