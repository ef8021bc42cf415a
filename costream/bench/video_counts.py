"""Operation counts of the 3D networks, as in the paper and as implemented here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from costream.bench.video_baselines import BASELINES
from costream.core.tables import Cell, Table
from costream.models.video.video3d.network import VideoNet
from costream.nn.pooling import TemporalMean
from costream.nn.timing import in_sequence
from costream.nn.video3d.sizes import find_size

_CLASSES = 400


@dataclass(frozen=True)
class PublishedVideoCount:
    """A network of Hedegaard, Iosifidis (ECCV 2022) and its published counts, in millions."""

    name: str
    clip: float  # per clip
    step: float | None  # per step of its continual form; None: it prints none
    pools: tuple[float | None, ...] = (None,) * 4  # with means of ``POOLS``
    memory: tuple[int | None, int | None] = (None, None)  # numbers: of a clip, of a state


COUNTS = (
    PublishedVideoCount("x3d-xs", 640.0, None),
    PublishedVideoCount("x3d-s", 2061.366, 166.565, (166.567, 166.574, 166.587, 166.601)),
    PublishedVideoCount(
        "x3d-m", 4970.008, 325.456, (None, 325.463, 325.477, 325.491), (7_074_816, 4_771_632)
    ),
    PublishedVideoCount("x3d-l", 19166.052, 1245.549, (None, 1245.556, 1245.570, 1245.584)),
    PublishedVideoCount("slow", 54870.0, 6900.0),
    PublishedVideoCount("i3d", 28610.0, 5680.0),
)

POOLS = (16, 32, 64, 96)  # features whose mean is classified, where the paper has a number


def build_net(name: str) -> VideoNet:
    """Return a network of ``SIZES`` with 400 classes and random weights; KeyError for others."""
    size = find_size(name)
    if size is None:
        raise KeyError(name)
    return VideoNet(_CLASSES, **size.arguments(), pool=size.features)


def published_video_macs(net: VideoNet, frames: int | None) -> int:
    """Return the multiply-accumulates of a clip, or (None) of a step, as the paper counts them.

    Convolutions and fully connected layers with biases, 2 per number for batch norms, 1 for ReLU
    and for the inputs of means and maxima; swish, sigmoid and sums are not counted. In a step,
    norms and ReLUs count twice, and outputs that a stride discards count. A clip includes its
    classifier, a step does not.
    """
    encoder, step = net.encoder, frames is None
    times, frames = (2 if step else 1), frames or 1
    stem, size = encoder.stem, -(-encoder.size // 2)
    width = stem.width
    if stem.separate:
        total = frames * size**2 * stem.conv_xy.weight.numel()
    else:
        total = frames * size**2 * width  # max pooling
    total += frames * size**2 * (stem.conv.weight.numel() + times * 3 * width)
    size = size if stem.separate else -(-size // 2)
    for number, block in enumerate(encoder.blocks):
        if encoder.halving and number == encoder.halved:
            total += frames * size**2 * block.a.in_channels
            frames = frames if step else frames // 2
        within, inner, out = -(-size // block.stride), block.a.out_channels, block.c.out_channels
        total += frames * size**2 * (block.a.weight.numel() + times * 3 * inner)
        norms = (2 if block.depthwise else 3) * inner + 3 * out
        weights = block.b.weight.numel() + block.c.weight.numel()
        if block.shortcut is not None:
            weights, norms = weights + block.shortcut.weight.numel(), norms + 2 * out
        total += frames * within**2 * (weights + times * norms)
        if block.squeeze is not None:
            total += sum(p.numel() for p in block.squeeze.parameters())
            total += frames * within**2 * inner + times * block.squeeze.fc1.out_features
        size = within
    if encoder.conv is not None:
        width = encoder.conv.out_channels
        total += frames * size**2 * (encoder.conv.weight.numel() + times * 3 * width)
        total += encoder.linear.weight.numel() + times * encoder.token_width
    else:
        width = encoder.token_width
    total += frames * size**2 * width
    return total if step else total + math.prod(net.classifier.weight.shape) + _CLASSES


def video_ops_table() -> Table:
    """Return the table of operation counts, in millions of multiply-accumulates."""
    columns = (
        *("network", "recounted", "published", "costream", "parameters", "rf", "delay"),
        *("state", "memory, published"),
    )
    rows: list[tuple[Cell, ...]] = []
    for count in COUNTS:
        size = find_size(count.name)
        with torch.device("meta"):  # only sizes are needed
            net = build_net(count.name)
        frames = 0 if size is None else size.frames
        weights = round(sum(p.numel() for p in net.parameters()) / 1e6, 3)
        clip, step = published_video_macs(net, frames) / 1e6, published_video_macs(net, None) / 1e6
        whole, own = net.count_clip_macs(frames) / 1e6, net.count_macs() / 1e6
        clip_row = (round(clip, 3), count.clip, round(whole, 3), weights, frames, None, None)
        step_row = (round(step, 3), count.step, round(own, 3), weights)
        rows.append((count.name, *clip_row, count.memory[0]))
        begin = net.init_state(1)
        state = sum(t.numel() for t in begin.tensors().values())
        places = (net.receptive_field, net.delay, state, count.memory[1])
        rows.append((f"co{count.name}", *step_row, *places))
        for pool, printed in zip(POOLS, count.pools, strict=True):
            if printed is None:
                continue
            counted = step + (pool - net.encoder.pool) * begin.mean.newest.shape[-1] / 1e6
            wide = in_sequence(net.encoder.layer_timing, TemporalMean(pool))
            more = state + (pool - net.encoder.pool) * begin.mean.newest.shape[-1]
            counts = (round(counted, 3), printed, round(own, 3), weights)
            places = (wide.receptive_field, wide.delay, more, None)
            rows.append((f"co{count.name}, mean of {pool}", *counts, *places))
    for one in BASELINES:
        made = one.count()
        macs, weights = (round(n / 1e6, 3) for n in (made.macs, made.parameters))
        rows.append((one.name, macs, one.published, None, weights, one.frames, None, None, None))
    notes = (
        f"A clip, or (co...) one step; {_CLASSES} classes. rf, delay: in frames; for a mean over",
        "as many features as a clip has, or over as many as said.",
        "Recounted: by costream, by the paper's rule: convolutions and layers with biases, 2 per",
        "number for norms, 1 for ReLU and averaged values; in steps, norms and ReLU twice, and",
        "outputs that a stride discards. Clips include their classifier, steps do not.",
        "Published: as the paper prints it, x3d-xs, slow and i3d with two decimals of a billion.",
        "costream: every product with a weight, including the classifier; for coi3d the mean of a",
        "step with an output and one without. State: numbers of a stream; memory, published: of a",
        "clip in the worst case, and of the paper's state. The paper's means over more features",
        "cost an addition for each, as recounted; here they are running sums, of the same cost.",
        "Also published, X3D-M: numbers of a clip of 4 frames and of the continual form 1,655,808",
        "and 5,067,504, of 64 frames 28,449,792 and 5,093,424; of 16 frames at worst 5,072,688.",
        "State of cox3d-m: 3,090,528 sums of outputs to come and 1,204,224 values of the stem, as",
        "in the paper, the means of 18 frames in place of 15, and an input of each block for its",
        "shortcut, 653,856. The paper has 470,400 for these, and does not say which it leaves out.",
        "R(2+1)D, SlowFast: baselines of the thesis (Table 4.1), of 112 and 256 pixels; it prints",
        "billions, and 31.51 and (4x16) 34.48 million parameters.",
    )
    title = "Multiply-accumulates of 3D networks, in millions"
    return Table(title, columns, tuple(rows), notes, decimals=3)
