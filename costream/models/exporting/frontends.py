"""Steps of frontends as graphs: spectrogram and convolutions of sound, the network for pictures."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import nn

from costream.models.audio.audio_net import ContinualAudioNet
from costream.models.audio.efficientat import PREEMPHASIS, SCALE, SHIFT, EfficientAtFeatures
from costream.models.audio.joined import JoinedSound
from costream.models.audio.mel import LogMel
from costream.models.exporting.convolutional import add_tagger
from costream.models.exporting.graph import StepGraph
from costream.models.exporting.mobile import add_encoder
from costream.models.exporting.skeletons import window_mean
from costream.models.images import CentreCrop
from costream.models.oad.image_context import ImageContext
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.models.video.efficientnet_lite import EfficientNetLite
from costream.nn.shuffle import SLOPE, ShuffleBackbone, ShuffleUnit


def why_not_frontend(frontend: nn.Module | None) -> str:
    """Return why the step of a frontend is not exported; '' if it is."""
    if frontend is None:
        return "it has no frontend"
    if isinstance(frontend, JoinedSound):
        return next(filter(None, map(why_not_frontend, frontend.each())), "")
    known = ContinualAudioNet | EfficientAtFeatures | TemporalDifferenceNet | CentreCrop
    if not isinstance(frontend, known | EfficientNetLite):
        return "only the frontends audio, efficientat, efficientnet-lite and tdn, and crops are"
    return ""


def add_frontend(graph: StepGraph, frontend: Any) -> str:
    """Add a frontend for the input ``x``; return its token [1, D].

    ``x``: a block of samples [1, N], from -1 to 1; or a picture [1, 3, H, W], from 0 to 255.
    """
    if isinstance(frontend, CentreCrop):
        x = graph.input("x", (1, 3, frontend.size, frontend.size))
        x = graph.add(
            "Sub", graph.add("Div", x, graph.constant(255.0)), graph.constant(frontend.mean)
        )
        return graph.add("Div", x, graph.constant(frontend.deviation))
    if isinstance(frontend, EfficientNetLite):
        return add_encoder(graph, frontend)
    if isinstance(frontend, ContinualAudioNet):
        return _sound(graph, frontend)
    if isinstance(frontend, EfficientAtFeatures):
        return _tagged(graph, frontend)
    if isinstance(frontend, JoinedSound):
        tokens = []
        for name, part in zip(frontend.parts, frontend.each(), strict=True):
            graph.prefix = f"{name}_"  # of what each keeps
            tokens.append(add_frontend(graph, part))
        graph.prefix = ""
        return graph.add("Concat", *tokens, axis=1)
    return _picture(graph, frontend)


def _spectrogram(graph: StepGraph, mel: LogMel, x: str, size: int) -> str:
    """Return the log-mel frames [frames, bands] of a block [1, size] of samples."""
    overlap, hop = mel.window - mel.hop, mel.hop
    frames = size // hop
    rows = graph.keep("samples", x, (1, overlap), 1, size)
    index = [k * hop + i for k in range(frames) for i in range(mel.window)]
    windows = graph.add("Gather", rows, graph.whole(index), axis=1)
    windows = graph.reshape(windows, frames, mel.window)
    # The Fourier transform is two products: runtimes do without an operation of their own for it.
    times = torch.arange(mel.window, dtype=torch.float64)[:, None]
    bins = torch.arange(mel.fft // 2 + 1, dtype=torch.float64)
    angle, hann = 2 * math.pi * times * bins / mel.fft, mel.hann.double()[:, None]
    parts = [
        graph.add("MatMul", windows, graph.constant(hann * wave))
        for wave in (angle.cos(), angle.sin())
    ]
    power = graph.add("Add", *(graph.add("Mul", part, part) for part in parts))
    if mel.power == 1:
        power = graph.add("Sqrt", power)
    bands = graph.add("MatMul", power, graph.constant(mel.matrix))
    return graph.add("Log", graph.add("Add", bands, graph.constant(mel.offset)))


def _tagged(graph: StepGraph, net: EfficientAtFeatures) -> str:
    """Add the features of windows of frames; return the token."""
    front = net.mel
    x = graph.input("x", (1, net.block))
    if front.emphasises:
        rows = graph.keep("last", x, (1, 1), 1, net.block)
        before = graph.slice(rows, 1, 0, net.block)
        x = graph.add("Sub", x, graph.add("Mul", before, graph.constant(PREEMPHASIS)))
    frames = _spectrogram(graph, front.mel, x, net.block)
    frames = graph.add("Add", frames, graph.constant(SHIFT))
    frames = graph.add("Div", frames, graph.constant(SCALE))
    frames = graph.reshape(frames, 1, front.hop_frames, front.mel.bands)
    return add_tagger(graph, net.trunk, frames)


def _sound(graph: StepGraph, net: ContinualAudioNet) -> str:
    mel = net.mel
    frames = net.block // mel.hop
    spectrogram = _spectrogram(graph, mel, graph.input("x", (1, net.block)), net.block)
    x = graph.add("Sub", spectrogram, graph.constant(net.centre))
    x = graph.add("Div", x, graph.constant(net.spread))
    x = graph.reshape(x, 1, 1, frames, mel.bands)
    for k, (layer, width) in enumerate(zip(net.blocks, net._bands, strict=True)):
        convolution, new = layer.convolution, x
        if convolution.reach:
            past = (1, convolution.in_width, convolution.reach, width)
            x = graph.keep(f"layer_{k}", x, past, 2, frames)
        frames //= convolution.stride[0]
        x = graph.convolve(x, *layer.folded(), convolution.stride, convolution.pads)
        x = graph.add("Relu", graph.add("Add", x, new) if layer.residual else x)
    width = net.project.in_features
    mean = window_mean(graph, "hops", graph.reshape(x, 1, width), width, net.pool)
    return graph.linear(mean, net.project.weight, net.project.bias)


def _picture(graph: StepGraph, net: Any) -> str:
    """Add a ``TemporalDifferenceNet``; return its token."""
    width, height = net.box
    picture = graph.input("x", (1, 3, height, width))
    x = graph.add("Mul", picture, graph.constant(1 / 64))
    for layer in net.stem:
        x = graph.add("Relu", graph.normed(x, layer[0], layer[1]))
    parts = [x]
    if net.lags:
        motion = graph.layer(x, net.motion)
        most, shape = net.lags[-1], tuple(-(-side // 4) for side in (height, width))
        channels = len(net.motion.weight)
        ring = graph.keep("motion", motion, (most, channels, *shape), 0, 1)
        for lag in net.lags:
            earlier = graph.slice(ring, 0, most - lag, most - lag + 1)
            seen = graph.add("GreaterOrEqual", graph.steps_before(), graph.whole([lag]))
            moved = graph.add("Sub", motion, earlier)
            parts.append(graph.add("Where", seen, moved, graph.constant(0.0)))
    joined = graph.add("Concat", *parts, axis=1)
    first, *residual = net.body
    body = graph.add("Relu", graph.normed(joined, first[0], first[1]))
    for block in residual:
        y = graph.add("Relu", graph.normed(body, block.first[0], block.first[1]))
        y = graph.normed(y, block.second, block.norm)
        body = graph.add("Relu", graph.add("Add", body, y))
    focus = graph.layer(body, net.focus)
    weight = graph.add("Sigmoid", focus)
    places = graph.add("Relu", graph.normed(body, net.places[0], net.places[1]))
    seen = graph.reduce("ReduceSum", graph.add("Mul", weight, places), (2, 3))
    share = graph.add("Add", graph.reduce("ReduceSum", weight, (2, 3)), graph.constant(1.0))
    most_seen = graph.reduce("ReduceMax", places, (2, 3))
    token = graph.add("Concat", graph.add("Div", seen, share), most_seen, axis=1)
    glimpse = net.glimpse
    if glimpse is None:
        return token
    name, shape = "glimpse", (1, net.glimpse_width)
    turn = graph.add("Mod", graph.steps_before(), graph.whole([net.glimpse_every]))
    due = graph.add("Equal", turn, graph.whole([0]))
    before = graph.input(name, shape)
    now = graph.choose(due, lambda: _glimpse(graph, glimpse, picture, (height, width)), before)
    graph.output(f"next_{name}", now, shape)
    return graph.add("Concat", token, now, axis=1)


def _glimpse(graph: StepGraph, net: ImageContext, picture: str, size: tuple[int, int]) -> str:
    """Add the image context [1, G] of a picture [1, 3, H, W]."""
    mean, spread = (graph.constant(value) for value in net.normalisation())
    x = graph.add("Div", graph.add("Sub", picture, mean), spread)
    size = net.size(*size)
    x = graph.add("Resize", x, "", "", graph.whole((1, 3, *size)), mode="linear")
    seen = graph.add("Relu", graph.layer(shuffle_maps(graph, net, x)[-1], net.project))
    return graph.reduce("ReduceMax", seen, (2, 3))


def shuffle_maps(graph: StepGraph, net: ShuffleBackbone, x: str) -> list[str]:
    """Add a ``ShuffleBackbone`` on a picture of any size; return its maps."""
    x = leaky(graph, graph.layer(x, net.first))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    maps = []
    for units in net.stages:
        for unit in cast("list[ShuffleUnit]", units):
            if unit.halve:
                kept = leaky(graph, graph.layer(graph.layer(x, unit.side_depth), unit.side))
            else:
                channels = unit.reduce.in_channels
                kept = graph.slice(x, 1, 0, channels)
                x = graph.slice(x, 1, channels, 2 * channels)
            x = graph.layer(leaky(graph, graph.layer(x, unit.reduce)), unit.depth)
            x = leaky(graph, graph.layer(x, unit.expand))
            x, half = graph.add("Concat", kept, x, axis=1), unit.expand.out_channels
            halves = graph.reshape(x, 1, 2, half, -1)
            mixed = graph.add("Transpose", halves, perm=[0, 2, 1, 3])
            x = graph.add("Reshape", mixed, graph.add("Shape", x))
        maps.append(x)
    return maps


def leaky(graph: StepGraph, x: str) -> str:
    """Add the leaky ReLU of a ``ShuffleBackbone``."""
    return graph.add("LeakyRelu", x, alpha=SLOPE)
