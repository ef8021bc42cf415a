"""Benchmark of a continual skeleton network's step against other implementations."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.bench.timing import (
    Contender,
    fit_norms,
    measure,
    peer_name,
    peer_state_size,
    quiet_torch,
    state_size,
    timing_cells,
)
from costream.core.tables import Cell, Table
from costream.models.skeleton.blocks import SkeletonBlock, TemporalUnit
from costream.models.skeleton.network import ATTENTION_FROM, STRIDES, WIDTHS, SkeletonNet
from costream.models.spec import model_spec
from costream.nn.graph import GraphConvolution

COLUMNS = ("way", "persons", "median us", "p10 us", "x bound", "MACs", "state bytes", "max error")
_COMPARED = 10  # steps after the window is full


def skeleton_steps_table(model: str, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of a network of the paper's size, against other implementations.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream with a full
    window; "x bound" compares the median with that of the bound for the same number of persons;
    "max error" is the largest difference of a logit from the clip network in float64, relative
    to the largest logit.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        net = SkeletonNet(**model_spec(model).arguments or {})
        frames = 2 * net.layer_timing.receptive_field
        fit_norms(net, torch.randn(1, frames, net.persons, net.joints, net.channels))
        return compare(model, net, rounds, threads)


def compare(title: str, net: SkeletonNet, rounds: int, threads: int = 1) -> Table:
    """Return the table of a network without padding and strides; see ``skeleton_steps_table``."""
    frames = torch.randn(net.window + _COMPARED, 1, net.persons, net.joints, net.channels)
    alone = frames.clone()
    alone[:, :, 1:] = 0
    other = skeleton_peer(net, peer_name(), net.count_macs())
    ways = [
        (continual("costream", net, frames), net.persons),
        (continual("costream, one there", net, alone), 1),
        *([(other, net.persons)] if other else []),
        (clip(net, frames), net.persons),
        (bound(net, net.persons), net.persons),
        (bound(net, 1), 1),
    ]
    errors = _errors(ways, net, {net.persons: frames, 1: alone})
    times = measure([way for way, _ in ways], list(frames), rounds)
    base = {persons: statistics.median(times[way.name]) for way, persons in ways[-2:]}
    rows: list[tuple[Cell, ...]] = []
    for way, persons in ways:
        numbers = timing_cells(times[way.name], base[persons])
        rows.append(
            (way.name, persons, *numbers, way.macs, way.state_bytes(), errors.get(way.name))
        )
    if other is None:
        rows.insert(2, (peer_name(), *[None] * (len(COLUMNS) - 1)))
    notes = (
        f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights.",
        f"The window has {net.window} frames. Of continual-inference there is only ST-GCN.",
        "Bound: only the step's products with weights, none of joints with each other.",
        "Max error: against the clip network in float64, relative to the largest logit.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def continual(name: str, net: SkeletonNet, frames: Tensor) -> Contender:
    """Return costream's own step; it cycles through ``frames``, as persons may be absent."""
    state, turn = net.init_state(), itertools.cycle(frames)
    persons = int(frames.flatten(3).any(3).any(0).sum())

    def step(x: Tensor) -> Tensor:
        out = net.forward_step(next(turn), state)
        return x if out is None else out.logits

    size = state_size(state.tensors().values())
    return Contender(name, step, net.count_macs(persons), lambda: size)


def clip(net: SkeletonNet, frames: Tensor) -> Contender:
    """Return the clip network over the last frames, from the first full window on."""
    clips = torch.cat([frames, frames]).transpose(0, 1)
    turn = itertools.cycle(range(len(frames)))

    def step(x: Tensor) -> Tensor:
        start = next(turn)
        return cast(Tensor, net(clips[:, start : start + net.window]))

    size = net.window * frames[0].numel() * frames.element_size()
    return Contender("the clip recomputed", step, net.dense_macs, lambda: size)


def bound(net: SkeletonNet, persons: int) -> Contender:
    """Return the lower bound: only a step's products with weights, for ``persons`` persons."""
    matrices = [matrix for block in net.folded().blocks for matrix in block.matrices()]
    rows = persons * net.joints
    products = [(torch.randn(rows, len(matrix)), matrix) for matrix in matrices]

    def step(x: Tensor) -> Tensor:
        for given, matrix in products:
            torch.mm(given, matrix)
        return x

    macs = rows * sum(matrix.numel() for matrix in matrices)
    return Contender(f"bound: its products, {persons} there", step, macs, int)


def _errors(
    ways: Sequence[tuple[Contender, int]], net: SkeletonNet, frames: dict[int, Tensor]
) -> dict[str, float]:
    """Return each implementation's largest error with a full window; also fill the windows."""
    exact = copy.deepcopy(net).double()
    worst: dict[str, float] = {}
    for persons, given in frames.items():
        ends = (net.window - 1, len(given) - 1)
        clips = given.transpose(0, 1).double()
        truth = {t: exact(clips[:, t - net.window + 1 : t + 1]) for t in ends}
        for way in (way for way, seen in ways[:-2] if seen == persons):
            times = range(net.window - 1, net.window) if "clip" in way.name else range(len(given))
            for t in times:
                out = way.step(given[t])
                if t in truth:
                    error = (out - truth[t]).abs().max() / truth[t].abs().max()
                    worst[way.name] = max(worst.get(way.name, 0.0), float(error))
    return worst


# Operation counts of the skeleton networks, as in the paper and as implemented here.


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
    PublishedSkeletonCount("ST-GCN", "stgcn", False, False, 16.73),
    PublishedSkeletonCount("ST-GCN*", "stgcn", True, False, 36.90),
    PublishedSkeletonCount("CoST-GCN", "stgcn", False, True, 0.27, two_streams=0.32),
    PublishedSkeletonCount("CoST-GCN*", "stgcn", True, True, 0.16),
    PublishedSkeletonCount("AGCN", "agcn", False, False, 18.69),
    PublishedSkeletonCount("AGCN*", "agcn", True, False, 40.87),
    PublishedSkeletonCount("CoAGCN", "agcn", False, True, 0.30, kinetics=0.18, two_streams=0.36),
    PublishedSkeletonCount("CoAGCN*", "agcn", True, True, 0.17),
    PublishedSkeletonCount("S-TR", "str", False, False, 16.14),
    PublishedSkeletonCount("S-TR*", "str", True, False, 35.65),
    PublishedSkeletonCount("CoS-TR", "str", False, True, 0.22, discarded=False, two_streams=0.31),
    PublishedSkeletonCount("CoS-TR*", "str", True, True, 0.15),
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
        rows.append((*cells, alone))
    names = [
        f"{data.name}{what}"
        for data in (NTU, KINETICS)
        for what in (" recounted", " published", " costream")
    ]
    columns = ("network", *names, "NTU costream, one person")
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
        "for absent persons.",
    )
    title = "Multiply-accumulates of one prediction of a skeleton network, in billions"
    return Table(title, columns, tuple(rows), notes)


# Skeleton network built from modules of the PyPI package continual-inference, for comparison.


class ChannelsFirstGraph(nn.Module):
    """A graph convolution as the published networks compute it, on [N, C, T, V]."""

    def __init__(self, unit: GraphConvolution) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, T, V]."""
        unit, graph = self.unit, self.unit.graph()
        parts = [conv(torch.matmul(x, graph[k])) for k, conv in enumerate(unit.g_conv)]
        y = unit.bn(sum(parts))
        return torch.relu(y + (unit.gcn_residual(x) if unit.convolves_residual else x))


def skeleton_peer(net: SkeletonNet, name: str, macs: int) -> Contender | None:
    """Return the package's step for one stream with the weights of ``net``.

    None when the package is not installed, and for networks other than ST-GCN without padding.
    """
    if any(type(block.gcn) is not GraphConvolution for block in net.blocks):
        return None
    try:
        import continual
    except ImportError:
        return None
    net = copy.deepcopy(net)  # the package modifies modules passed to it
    blocks = continual.Sequential(*(_block(continual, block) for block in net.blocks)).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)
    shape = (net.persons, net.joints, net.channels)

    def step(x: Tensor) -> Tensor:
        frame = net.data_bn(x.flatten(1)).view(shape).transpose(1, 2).contiguous()
        y = blocks.forward_step(frame)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((0, 2))[None])
        return cast(Tensor, net.fc(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: peer_state_size([blocks, mean]))


def _block(continual: Any, block: SkeletonBlock) -> Any:
    unit = cast(TemporalUnit, block.tcn)
    conv = continual.Conv2d(block.out_width, block.out_width, (block.kernel, 1))
    conv.weight, conv.bias = unit.t_conv.weight, unit.t_conv.bias
    graph = ChannelsFirstGraph(cast(GraphConvolution, block.gcn))
    stepping = continual.forward_stepping
    path = continual.Sequential(stepping(graph), conv, stepping(unit.bn))
    if block.residual is not None:
        beside = stepping(nn.Sequential(block.residual.t_conv, block.residual.bn))
        delay = continual.Delay(block.residual_delay, temporal_fill="zeros")
        residual = continual.Sequential(beside, delay)
        path = continual.BroadcastReduce(residual, path, reduce="sum", auto_delay=False)
    elif block.has_residual:
        path = continual.Residual(path, residual_shrink=True)
    return continual.Sequential(path, nn.ReLU())
