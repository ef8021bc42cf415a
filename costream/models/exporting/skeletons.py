"""Steps of skeleton networks as graphs: ST-GCN's convolutions over joints and time.

Persons are computed whether they are there or not, and layers behind a stride in every step: in a
graph nothing is left out. State behind a stride only changes in the steps that reach it.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from costream.models.exporting.graph import FLOAT, WHOLE, StepGraph
from costream.models.skeleton.blocks import TemporalUnit
from costream.models.skeleton.network import SkeletonNet
from costream.nn.graph import GraphConvolution
from costream.nn.pooling import LEAST


def why_not_skeleton(network: nn.Module) -> str:
    """Return why the step of a skeleton network is not exported; '' if it is."""
    if not isinstance(network, SkeletonNet):
        return "several networks see the skeletons"
    if network.form == "same":
        return "it pads the features of each layer with zeros before the first frame"
    if network.stride > 1 and network.form == "none":
        return "it has strides in time and no padding"
    if any(type(block.gcn) is not GraphConvolution for block in network.blocks):
        return "its graph is another one in each frame"
    if any(type(block.tcn) is not TemporalUnit for block in network.blocks):
        return "its layers have branches in time"
    return ""


def skeleton_shape(network: Any) -> tuple[int, ...]:
    """Return the shape of the joints that a network takes in a step."""
    return 1, network.persons, network.joints, network.channels


def add_skeleton(graph: StepGraph, network: SkeletonNet, x: str) -> str:
    """Add the step of a network for a frame [1, M, V, C]; return its logits [1, K].

    With strides in time they are of use in the steps whose output ``ready`` [1] is 1.
    """
    folded = network.fold()
    persons, joints = network.persons, network.joints
    y = graph.add("Mul", x, graph.constant(folded.scale))
    y = graph.add("Add", y, graph.constant(folded.shift))
    y = graph.reshape(y, persons, joints, network.channels)
    jump, reached = 1, ""
    for k, (block, layer) in enumerate(zip(folded.blocks, network.blocks, strict=True)):
        y = _block(graph, block, y, (persons, joints), k, reached)
        if layer.stride > 1:
            jump *= layer.stride
            behind = graph.add("Mod", graph.steps_before(), graph.whole([jump]))
            reached = graph.add("Equal", behind, graph.whole([0]))
    if reached:
        graph.output("ready", graph.add("Cast", reached, to=WHOLE), (1,), whole=True)
    feature = graph.reshape(graph.reduce("ReduceMean", y, (0, 1)), 1, len(folded.weight))
    mean = _mean(graph, feature, network, jump, reached)
    logits = graph.linear(mean, network.fc.weight, network.fc.bias)
    if network.statistics is None or network.reading is None:
        return logits
    window, width = network.statistics.mean.window, joints * network.channels
    rows = graph.reshape(x, 1, persons * width)
    described = _describe(graph, rows, window, persons, width)
    return graph.add("Add", logits, graph.linear(described, network.reading.weight, None))


def _block(
    graph: StepGraph, block: Any, x: str, shape: tuple[int, int], k: int, reached: str
) -> str:
    """Add a ``FoldedBlock`` for frames [M, V, C]; ``reached``: see ``StepGraph.keep``."""
    spatial, conv = block.spatial, block.temporal.conv
    products = spatial.products
    persons, joints = shape
    width = block.in_width
    mixed = graph.add("MatMul", graph.constant(spatial.graph), x)  # [M, P V, C]
    mixed = graph.reshape(mixed, persons, joints, len(products.weight))
    y = graph.add("MatMul", mixed, graph.constant(products.weight))
    y = graph.add("Add", y, graph.constant(products.bias))
    if products.adds_input:
        y = graph.add("Add", y, x)
    y = graph.add("Relu", y)
    if conv.kernel > 1:
        past = (persons, joints, (conv.kernel - 1) * conv.in_width)
        y = graph.keep(f"frames_{k}", y, past, 2, conv.in_width, reached)
    y = graph.add("MatMul", y, graph.constant(conv.matrix))
    y = graph.add("Add", y, graph.constant(conv.bias))
    if block.delay is not None:
        late = block.delay.delay
        if late:
            past = (persons, joints, late * width)
            joined = graph.keep(f"inputs_{k}", x, past, 2, width, reached)
            x = graph.slice(joined, 2, 0, width)
        if block.beside is not None:
            x = graph.add("MatMul", x, graph.constant(block.beside))
        y = graph.add("Add", y, x)
    return graph.add("Relu", y)


def _mean(graph: StepGraph, row: str, network: SkeletonNet, jump: int, reached: str) -> str:
    """Return the mean [1, O] of the last features, of those that there are if it is partial."""
    window, kept = network.pool, row
    if window > 1:
        past = (window - 1, network.fc.in_features)
        kept = graph.keep("features", row, past, 0, 1, reached)
    total = graph.reduce("ReduceSum", kept, (0,), keep=True)
    if not network.mean.partial:
        return graph.add("Div", total, graph.constant(float(window)))
    return graph.add("Div", total, count_rows(graph, window, jump))


def window_mean(graph: StepGraph, name: str, row: str, width: int, window: int) -> str:
    """Return the mean [1, C] over the last ``window`` rows, or those that there are."""
    kept = graph.keep(name, row, (window - 1, width), 0, 1) if window > 1 else row
    total = graph.reduce("ReduceSum", kept, (0,), keep=True)
    return graph.add("Div", total, count_rows(graph, window))


def count_rows(graph: StepGraph, window: int, jump: int = 1) -> str:
    """Return how many rows of a window there are with this step, float32 [1].

    ``jump``: steps from one row to the next.
    """
    before = graph.add("Div", graph.steps_before(), graph.whole([jump]))
    seen = graph.add("Add", before, graph.whole([1]))
    return graph.add("Min", graph.add("Cast", seen, to=FLOAT), graph.constant(float(window)))


def _describe(graph: StepGraph, row: str, window: int, persons: int, width: int) -> str:
    """Return mean and deviation [1, 2 D] of the frames in a window, averaged over persons."""
    shape = (window - 1, persons * width)
    kept = graph.keep("joints", row, shape, 0, 1) if window > 1 else row
    count = count_rows(graph, window)
    mean = graph.add("Div", graph.reduce("ReduceSum", kept, (0,), keep=True), count)
    off = graph.add("Sub", kept, mean)
    # Frames before the first are zeros: they count in no sum.
    first = graph.add("Sub", graph.whole([window - 1]), graph.steps_before())
    there = graph.add("GreaterOrEqual", graph.whole(range(window)), first)
    there = graph.reshape(there, window, 1)
    off = graph.add("Where", there, off, graph.constant(0.0))
    square = graph.reduce("ReduceSum", graph.add("Mul", off, off), (0,), keep=True)
    variance = graph.add("Max", graph.add("Div", square, count), graph.constant(LEAST**2))
    parts = [graph.reshape(v, persons, width) for v in (mean, graph.add("Sqrt", variance))]
    both = graph.add("Concat", *parts, axis=1)
    return graph.reduce("ReduceMean", both, (0,), keep=True)
