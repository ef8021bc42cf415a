"""Steps of convolutional networks as graphs: CoX3D, CoSlow, MoViNet, YAMNet and EfficientAT.

Frames are [1, C, h, w]; with those before them, which are the state, [1, C, K, h, w].
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import nn

from costream.models.audio.efficientat import EfficientAt, EfficientAtTrunk
from costream.models.audio.logmel import OFFSET
from costream.models.audio.windows import SpectrogramWindows
from costream.models.audio.yamnet import BANDS, FRAMES, YamNet
from costream.models.exporting.graph import WHOLE, StepGraph
from costream.models.exporting.skeletons import window_mean
from costream.models.video.movinet.network import MoViNet
from costream.models.video.movinet.trunk import same_pads
from costream.models.video.video3d.network import VideoNet, WindowVideoNet
from costream.nn.timing import in_sequence
from costream.nn.video3d.padding import odd_kernel_timing

Shape = tuple[int, int, int]  # of a frame, C, h, w


def why_not_convolutional(network: nn.Module) -> str:
    """Return why the step of a convolutional network is not exported; '' if it is."""
    if isinstance(network, WindowVideoNet):
        return "it computes its whole window anew"
    if isinstance(network, VideoNet) and network.encoder.halving is not None:
        return "its layers halve the frames in time"
    return ""


def convolutional_shape(network: Any) -> tuple[int, ...]:
    """Return the shape of what a network takes in a step."""
    if isinstance(network, SpectrogramWindows):
        return 1, network.hop_frames, network.bands
    size = network.size if isinstance(network, MoViNet) else network.encoder.size
    return 1, 3, size, size


def add_convolutional(graph: StepGraph, network: Any, x: str) -> str:
    """Add the step of a network; return its logits [1, K].

    Those of CoX3D and CoSlow that start with zeros are of use where the output ``ready`` [1] is 1.
    """
    if isinstance(network, YamNet):
        return _patch(graph, network, x)
    if isinstance(network, EfficientAt):
        return add_tagger(graph, network, x)
    if isinstance(network, MoViNet):
        return _mobile(graph, network, x)
    return _video(graph, network, x)


def _patch(graph: StepGraph, net: YamNet, x: str) -> str:
    past = (1, FRAMES - net.hop_frames, BANDS)
    silence = graph.constant(math.log(OFFSET))
    rows = graph.keep("frames", x, past, 1, net.hop_frames, start=silence)
    y = graph.reshape(rows, 1, 1, FRAMES, BANDS)
    layers: list[Any] = [net.stem]
    for layer in net.layers:
        layers += [layer.depthwise, layer.pointwise]
    for layer in layers:
        pads = (0, 0) if layer.stride[0] == 2 or layer.kernel_size[0] == 1 else (1, 1)
        ends = (1, 1) if layer.kernel_size[0] == 3 else (0, 0)
        y = graph.add("Relu", graph.layer(y, layer, pads, ends))
    return _linear(graph, net.classifier, graph.reduce("ReduceMean", y, (2, 3)))


def add_tagger(graph: StepGraph, net: EfficientAt, x: str) -> str:
    """Add windows of all lengths that a stream has; return logits [1, K], or features [1, E].

    The shorter windows are at its beginning.
    """
    past = (1, net.window_frames - net.hop_frames, net.bands)
    start = graph.constant(net.silence)
    rows = graph.keep("frames", x, past, 1, net.hop_frames, start=start)
    logits = _tags(graph, net, rows, net.window_frames)
    hops = range(1, net.window + 1)
    lengths = [min(max(net.shortest, hop * net.hop_frames), net.window_frames) for hop in hops]
    for length in sorted({*lengths} - {net.window_frames}, reverse=True):
        most = max(hop for hop, other in zip(hops, lengths, strict=True) if other == length)
        due = graph.add("GreaterOrEqual", graph.whole([most - 1]), graph.steps_before())
        logits = graph.choose(due, partial(_tags, graph, net, rows, length), logits)
    return logits


def _tags(graph: StepGraph, net: EfficientAt, rows: str, length: int) -> str:
    """Add the network on the newest ``length`` frames; return its output."""
    window = graph.slice(rows, 1, net.window_frames - length, net.window_frames)
    y = graph.reshape(window, 1, 1, length, net.bands)
    y = _hard_swish(graph, graph.layer(y, net.stem))
    for block in net.blocks:
        y = _inverted(graph, block, y)
    y = _hard_swish(graph, graph.layer(y, net.last))
    features = graph.reduce("ReduceMean", y, (2, 3))
    if isinstance(net, EfficientAtTrunk):
        return features
    hidden = _linear(graph, net.hidden, features)
    return _linear(graph, net.classifier, _hard_swish(graph, hidden))


def _inverted(graph: StepGraph, block: Any, x: str) -> str:
    kind, y = "HardSwish" if block.hard else "Relu", x
    if block.expand is not None:
        y = graph.add(kind, graph.layer(y, block.expand))
    y = graph.add(kind, graph.layer(y, block.depthwise))
    if block.squeeze is not None:
        gate = _linear(graph, block.squeeze, graph.reduce("ReduceMean", y, (2, 3)))
        gate = graph.add("Sigmoid", _linear(graph, block.excite, graph.add("Relu", gate)))
        y = graph.add("Mul", y, graph.reshape(gate, 1, block.excite.out_features, 1, 1))
    y = graph.layer(y, block.project)
    return graph.add("Add", y, x) if block.residual else y


def _mobile(graph: StepGraph, net: MoViNet, x: str) -> str:
    before, after = same_pads(net.size, net.stem)
    y = _hard_swish(graph, graph.layer(x, net.stem, (before,) * 2, (after,) * 2))
    side = -(-net.size // 2)
    for k, block in enumerate(net._blocks):
        y, side = _mobile_block(graph, block, y, side, k, net.window), block.side
    y = _hard_swish(graph, graph.layer(y, net.head))
    row = graph.reduce("ReduceMean", y, (2, 3))
    mean = window_mean(graph, "means", row, net.hidden.in_features, net.window)
    hidden = _linear(graph, net.hidden, mean)
    return _linear(graph, net.classifier, graph.add("Mul", hidden, graph.add("Sigmoid", hidden)))


def _mobile_block(graph: StepGraph, block: Any, x: str, side: int, k: int, window: int) -> str:
    width = block.expand.out_channels
    y = _hard_swish(graph, graph.layer(x, block.expand))
    before, after = same_pads(side, block.space)
    y = _hard_swish(graph, graph.layer(y, block.space, (before,) * 2, (after,) * 2))
    if block.time is not None:
        weight = block.time.weight[:, :, :, None, None]
        shape = (width, block.side, block.side)
        rows = _ring(graph, f"past_{k}", y, shape, weight.shape[2])
        y = graph.convolve(rows, weight, block.time.bias, (1,) * 3, (0,) * 3, groups=width)
        y = _hard_swish(graph, graph.reshape(y, 1, *shape))
    now = graph.reduce("ReduceMean", y, (2, 3))
    mean = window_mean(graph, f"means_{k}", now, width, window)
    gate = _linear(graph, block.squeeze, graph.add("Concat", mean, now, axis=1))
    gate = _linear(graph, block.excite, _hard_swish(graph, gate))
    gate = graph.add("HardSigmoid", gate, alpha=0.2, beta=0.5)
    y = graph.layer(graph.add("Mul", y, graph.reshape(gate, 1, width, 1, 1)), block.project)
    if block.stride > 1:
        first = side % 2
        pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [first, first, 1, 1]}
        x = graph.add("AveragePool", x, **pool)
    beside = x if block.shortcut is None else graph.layer(x, block.shortcut)
    return graph.add("Add", y, beside)


def _video(graph: StepGraph, net: VideoNet, x: str) -> str:
    encoder, start = net.encoder, net.encoder.start
    copies, size = start == "replicate", encoder.size
    stem = encoder.stem
    timings = [odd_kernel_timing(stem.kernel, start)]
    if stem.separate:
        y, size = (
            graph.convolve(x, stem.conv_xy.weight[:, :, 0], None, (2, 2), (1, 1)),
            -(-size // 2),
        )
        rows = _ring(graph, "stem", y, (stem.width, size, size), stem.kernel, copies)
    else:
        rows = _ring(graph, "stem", x, (3, size, size), stem.kernel, copies)
    y = graph.add("Relu", graph.normed(rows, stem.conv, stem.bn))
    if not stem.separate:
        size = -(-size // 2)
        y = graph.reshape(y, 1, stem.width, size, size)
        pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
        y, size = graph.add("MaxPool", y, **pool), -(-size // 2)
    width = stem.width
    y = graph.reshape(y, 1, width, size, size)
    for k, block in enumerate(encoder.blocks):
        delay = 0 if copies else in_sequence(*timings).delay
        y = _begun(graph, y, delay)
        y = _bottleneck(graph, block, y, (width, size, size), k, copies, delay)
        timings.append(odd_kernel_timing(block.kernel, start))
        width, size = block.c.out_channels, -(-size // block.stride)
        y = graph.reshape(y, 1, width, size, size)
    y = _begun(graph, y, 0 if copies else in_sequence(*timings).delay)
    if encoder.conv is not None:
        y = graph.reshape(y, 1, width, 1, size, size)
        y = graph.add("Relu", graph.normed(y, encoder.conv, encoder.conv_bn))
        width = encoder.conv.out_channels
        y = graph.reshape(y, 1, width, size, size)
    row = graph.reduce("ReduceMean", y, (2, 3))
    if encoder.pool > 1:
        kept = graph.add("Concat", *[row] * (encoder.pool - 1), axis=0) if copies else ""
        row = graph.keep("features", row, (encoder.pool - 1, width), 0, 1, start=kept)
    row = graph.reduce("ReduceMean", row, (0,), keep=True)
    if encoder.conv is not None:
        row = graph.add("Relu", graph.linear(row, encoder.linear.weight, None))
    due = graph.add("GreaterOrEqual", graph.steps_before(), graph.whole([encoder.delay]))
    graph.output("ready", graph.add("Cast", due, to=WHOLE), (1,), whole=True)
    return _linear(graph, net.classifier, row)


def _begun(graph: StepGraph, x: str, delay: int) -> str:
    """Return frames, and zeros before step ``delay``: there are none yet."""
    if not delay:
        return x
    due = graph.add("GreaterOrEqual", graph.steps_before(), graph.whole([delay]))
    return graph.add("Where", due, x, graph.constant(0.0))


def _bottleneck(
    graph: StepGraph, block: Any, x: str, shape: Shape, k: int, copies: bool, delay: int
) -> str:
    channels, height, width = shape
    half, kernel, inner = block.kernel // 2, block.kernel, block.a.out_channels
    inputs = half + 1 if block.depthwise else kernel
    rows = _ring(graph, f"inputs_{k}", x, shape, inputs, copies)
    newest = graph.reshape(x, 1, channels, 1, height, width)
    y = graph.add("Relu", graph.normed(newest if block.depthwise else rows, block.a, block.a_bn))
    if block.depthwise:
        y = _begun(graph, graph.reshape(y, 1, inner, height, width), delay)
        y = _ring(graph, f"inner_{k}", y, (inner, height, width), kernel, copies)
    y = graph.normed(y, block.b, block.b_bn)
    if block.squeeze is not None:
        mean = graph.reduce("ReduceMean", y, (2, 3, 4))
        gate = graph.add("Relu", _linear(graph, block.squeeze.fc1, mean))
        gate = graph.add("Sigmoid", _linear(graph, block.squeeze.fc2, gate))
        y = graph.add("Mul", y, graph.reshape(gate, 1, inner, 1, 1, 1))
    y = graph.add("Mul", y, graph.add("Sigmoid", y)) if block.depthwise else graph.add("Relu", y)
    y = graph.normed(y, block.c, block.c_bn)
    beside = graph.slice(rows, 2, inputs - 1 - half, inputs - half)
    if block.shortcut is not None:
        beside = graph.normed(beside, block.shortcut, block.shortcut_bn)
    return graph.add("Relu", graph.add("Add", y, beside))


def _ring(
    graph: StepGraph, name: str, x: str, shape: Shape, count: int, copies: bool = False
) -> str:
    """Return the last ``count`` frames [1, C, K, h, w]; ``copies``: of the first before it."""
    channels, *sides = shape
    frame = graph.reshape(x, 1, channels, 1, *sides)
    if count == 1:
        return frame
    start = graph.add("Concat", *[frame] * (count - 1), axis=2) if copies else ""
    return graph.keep(name, frame, (1, channels, count - 1, *sides), 2, 1, start=start)


def _linear(graph: StepGraph, layer: nn.Linear, x: str) -> str:
    return graph.linear(x, layer.weight, layer.bias)


def _hard_swish(graph: StepGraph, x: str) -> str:
    return graph.add("HardSwish", x)
