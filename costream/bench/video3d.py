"""Benchmark of a continual 3D network's step against other implementations."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from dataclasses import dataclass
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
from costream.models.spec import model_spec
from costream.models.streaming import find_device, find_dtype
from costream.models.video.video3d.network import VideoNet
from costream.nn.cuda_graph import GraphedStep
from costream.nn.pooling import TemporalMean
from costream.nn.timing import in_sequence
from costream.nn.video3d.blocks import Bottleneck3d, SqueezeExcitation
from costream.nn.video3d.encoder import VideoEncoder
from costream.nn.video3d.sizes import find_size

COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "state bytes", "max error")
_COMPARED = 4  # steps after the window is full


def video_steps_table(
    model: str, rounds: int = 60, threads: int = 1, device: str = "cpu", dtype: str = "float32"
) -> Table:
    """Return the timings of a network of the paper's size against other implementations, in turns.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream with a full
    window; "x costream" compares medians; "max error" is the largest difference of a classifier
    input from the step in float64, relative to the largest one. The clip network is a different
    function: it pads its clip with zeros and applies squeeze-and-excitation to the whole clip.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        net = VideoNet(**model_spec(model).arguments or {})
        size = net.encoder.size
        net.to(find_device(device))
        fit_norms(net, torch.randn(2, 8, 3, size, size, device=find_device(device)))
        return compare(model, net.to(find_dtype(dtype)), rounds, threads)


def compare(title: str, net: VideoNet, rounds: int, threads: int = 1) -> Table:
    """Return the table of a network; see ``video_steps_table``."""
    size, like = net.encoder.size, net.classifier.weight
    frames = list(torch.randn(net.window + _COMPARED, 1, 3, size, size).to(like))
    other = video_peer(net.encoder, peer_name(), net.encoder.count_macs())
    ways = [continual(net), *([other] if other else []), clip(net)]
    errors = _errors(ways[:-1], net, frames)
    if like.is_cuda:  # each phase of the rings is recorded when it first comes
        for frame in frames:
            ways[0].step(frame)
    times = measure(ways, frames, rounds)
    base = statistics.median(times[ways[0].name])
    rows: list[tuple[Cell, ...]] = []
    for way in ways:
        numbers = timing_cells(times[way.name], base)
        rows.append((way.name, *numbers, way.macs, way.state_bytes(), errors.get(way.name)))
    if other is None:
        rows.insert(1, (peer_name(), *[None] * (len(COLUMNS) - 1)))
    notes = (
        f"{threads} thread(s), {like.device}, {str(like.dtype)[6:]}, one stream, {rounds} rounds"
        " in turns, random weights,",
        f"without classifier. A clip has {net.encoder.pool * net.stride} frames of"
        f" {size} x {size} pixels; the window of a step has {net.window}.",
        "Of continual-inference there is only X3D.",
        "Max error: against costream's step in float64, relative to the largest number.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def continual(net: VideoNet) -> Contender:
    """Return costream's own step."""
    encoder = net.encoder
    state = encoder.init_state()
    bytes_held = state_size(state.tensors().values())
    graphed = GraphedStep(encoder, state)

    def step(x: Tensor) -> Tensor:
        out = graphed(x) if x.is_cuda else encoder.forward_step(x, state)
        return x if out is None else cast(Tensor, out)

    return Contender("costream", step, encoder.count_macs(), lambda: bytes_held)


def clip(net: VideoNet) -> Contender:
    """Return the clip network over the frames whose features are averaged."""
    encoder = net.encoder
    count = encoder.pool * encoder.stride
    clips = torch.randn(2, 1, count, 3, encoder.size, encoder.size).to(net.classifier.weight)
    turn = itertools.cycle(clips)
    held = clips[0].numel() * clips.element_size()
    macs = encoder.count_clip_macs(count)

    def step(x: Tensor) -> Tensor:
        return cast(Tensor, encoder(next(turn)))

    return Contender("the clip recomputed", step, macs, lambda: held)


def _errors(ways: list[Contender], net: VideoNet, frames: list[Tensor]) -> dict[str, float]:
    """Return each implementation's largest error with a full window; also fill the windows."""
    exact = copy.deepcopy(net.encoder).double()
    state, worst = exact.init_state(), dict.fromkeys((way.name for way in ways), 0.0)
    for number, frame in enumerate(frames):
        truth = exact.forward_step(frame.double(), state)
        for way in ways:
            out = way.step(frame)
            if truth is not None and number >= net.window - 1:
                error = float((out - truth).abs().max() / truth.abs().max())
                worst[way.name] = max(worst[way.name], error)
    return worst


# Operation counts of the 3D networks, as in the paper and as implemented here.


_CLASSES = 400


@dataclass(frozen=True)
class PublishedVideoCount:
    """A network of Hedegaard, Iosifidis (ECCV 2022) and its published counts, in millions."""

    name: str
    clip: float  # per clip
    step: float | None  # per step of its continual form; None: it prints none


COUNTS = (
    PublishedVideoCount("x3d-xs", 640.0, None),
    PublishedVideoCount("x3d-s", 2061.366, 166.565),
    PublishedVideoCount("x3d-m", 4970.008, 325.456),
    PublishedVideoCount("x3d-l", 19166.052, 1245.549),
    PublishedVideoCount("slow", 54870.0, 6900.0),
    PublishedVideoCount("i3d", 28610.0, 5680.0),
)

POOLS = (32, 64, 96)  # features whose mean is classified, instead of as many as a clip has


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
    columns = ("network", "recounted", "published", "costream", "parameters", "rf", "delay")
    rows: list[tuple[Cell, ...]] = []
    for count in COUNTS:
        size = find_size(count.name)
        with torch.device("meta"):  # only sizes are needed
            net = build_net(count.name)
        frames = 0 if size is None else size.frames
        weights = round(sum(p.numel() for p in net.parameters()) / 1e6, 3)
        clip, step = published_video_macs(net, frames) / 1e6, published_video_macs(net, None) / 1e6
        whole, own = net.count_clip_macs(frames) / 1e6, net.count_macs() / 1e6
        clip_row = (round(clip, 3), count.clip, round(whole, 3), weights, frames, None)
        step_row = (round(step, 3), count.step, round(own, 3), weights)
        rows.append((count.name, *clip_row))
        rows.append((f"co{count.name}", *step_row, net.receptive_field, net.delay))
        for pool in POOLS:
            wide = in_sequence(net.encoder.layer_timing, TemporalMean(pool))
            places = (wide.receptive_field, wide.delay)
            counts = (round(step, 3), None, round(own, 3), weights)
            rows.append((f"co{count.name}, mean of {pool}", *counts, *places))
    notes = (
        f"A clip, or (co...) one step; {_CLASSES} classes. rf, delay: in frames; for a mean over",
        "as many features as a clip has, or over as many as said, at the same cost.",
        "Recounted: by costream, by the paper's rule: convolutions and layers with biases, 2 per",
        "number for norms, 1 for ReLU and averaged values; in steps, norms and ReLU twice, and",
        "outputs that a stride discards. Clips include their classifier, steps do not.",
        "Published: as the paper prints it, x3d-xs, slow and i3d with two decimals of a billion.",
        "costream: every product with a weight, including the classifier; for coi3d the mean of a",
        "step with an output and one without.",
    )
    title = "Multiply-accumulates of 3D networks, in millions"
    return Table(title, columns, tuple(rows), notes)


# 3D network built from modules of the PyPI package continual-inference, for comparison.


class FrameGate(nn.Module):
    """Squeeze-and-excitation of each frame, on [N, C, T, H, W]."""

    def __init__(self, unit: SqueezeExcitation) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return cast(Tensor, self.unit(x, "zeros"))


def video_peer(net: VideoEncoder, name: str, macs: int) -> Contender | None:
    """Return the package's step for one stream with the weights of ``net``.

    None when the package is not installed, and for networks other than X3D with ``start`` "zeros".
    """
    if net.kind != "x3d" or net.start != "zeros":
        return None
    try:
        import continual
    except ImportError:
        return None
    net = copy.deepcopy(net)  # the package modifies modules passed to it
    stepping = continual.forward_stepping
    stem, last = net.stem, cast(nn.Conv3d, net.conv)
    layers = continual.Sequential(
        stepping(stem.conv_xy),
        _over_time(continual, stem.conv),
        stepping(nn.Sequential(stem.bn, nn.ReLU())),
        *(_block(continual, block) for block in net.blocks),
        stepping(nn.Sequential(last, net.conv_bn, nn.ReLU())),
    ).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)

    def step(x: Tensor) -> Tensor:
        y = layers.forward_step(x)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((2, 3)))
        return torch.relu(net.linear(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: peer_state_size([layers, mean]))


def _block(continual: Any, block: Bottleneck3d) -> Any:
    stepping = continual.forward_stepping
    gate = [] if block.squeeze is None else [FrameGate(block.squeeze)]
    path = continual.Sequential(
        stepping(nn.Sequential(block.a, block.a_bn, nn.ReLU())),
        _over_time(continual, block.b),
        stepping(nn.Sequential(block.b_bn, *gate, nn.SiLU(), block.c, block.c_bn)),
    )
    if block.shortcut is None:
        both = continual.Residual(path)
    else:
        beside = stepping(nn.Sequential(block.shortcut, block.shortcut_bn))
        delay = continual.Delay(block.kernel // 2, temporal_fill="zeros")
        residual = continual.Sequential(delay, beside)
        both = continual.BroadcastReduce(residual, path, reduce="sum", auto_delay=False)
    return continual.Sequential(both, nn.ReLU())


def _over_time(continual: Any, conv: nn.Conv3d) -> Any:
    own = continual.Conv3d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        stride=conv.stride,
        padding=(conv.kernel_size[0] // 2, *conv.padding[1:]),
        groups=conv.groups,
        bias=False,
    )
    own.weight = conv.weight
    return own
