"""Networks of inverted residuals as graphs: the encoder of pictures, and joints in a crop."""

from __future__ import annotations

from typing import Any

from costream.models.exporting.graph import StepGraph
from costream.models.exporting.skeletons import window_mean
from costream.models.oad.linear import LinearClassifier
from costream.models.pose.blazepose import POINTS, SIDE, BlazePose
from costream.models.video.efficientnet_lite import CENTRE, SCALE, EfficientNetLite
from costream.models.video.movinet.trunk import same_pads

_LEAST_NORM = 1e-12  # as of torch.nn.functional.normalize


def why_not_linear(network: LinearClassifier) -> str:
    """Return why the step of a classifier of features is not exported; '' if it is."""
    if network.changes or network.spread:
        return "only the mean of a window of features is, not their changes and spread"
    return ""


def linear_shape(network: LinearClassifier) -> tuple[int, int]:
    """Return the shape of what a classifier of features takes in a step."""
    return 1, network.input_width


def add_linear(graph: StepGraph, network: LinearClassifier, x: str) -> str:
    """Add a classifier of features [1, C], which become an output too; return its logits [1, K]."""
    if x not in graph.inputs:
        graph.output("features", x, (1, network.input_width))
    if network.window > 1:
        x = window_mean(graph, "rows", x, network.input_width, network.window)
    if network.unit:
        squares = graph.reduce("ReduceSum", graph.add("Mul", x, x), (1,), keep=True)
        norm = graph.add("Max", graph.add("Sqrt", squares), graph.constant(_LEAST_NORM))
        x = graph.add("Div", x, norm)
    return graph.linear(x, network.classifier.weight, network.classifier.bias)


def add_encoder(graph: StepGraph, net: EfficientNetLite) -> str:
    """Add the network for a picture ``x`` [1, 3, S, S] from 0 to 255; return its features."""
    x = graph.input("x", (1, 3, net.size, net.size))
    x = graph.add("Div", graph.add("Sub", x, graph.constant(CENTRE)), graph.constant(SCALE))
    y, side = _same(graph, net.stem, x, net.size)
    for block in net.blocks:
        y, side = _inverted(graph, block, y, side)
    return graph.reduce("ReduceMean", _bounded(graph, graph.layer(y, net.last)), (2, 3))


def _inverted(graph: StepGraph, block: Any, x: str, side: int) -> tuple[str, int]:
    y = x if block.expand is None else _bounded(graph, graph.layer(x, block.expand))
    y, side = _same(graph, block.depthwise, y, side)
    y = graph.layer(y, block.project)
    return (graph.add("Add", y, x) if block.residual else y), side


def _same(graph: StepGraph, layer: Any, x: str, side: int) -> tuple[str, int]:
    """Add a convolution, activated, with TensorFlow's padding; return its side too."""
    before, after = same_pads(side, layer)
    y = graph.layer(x, layer, (before,) * 2, (after,) * 2)
    return _bounded(graph, y), -(-side // layer.stride[0])


def pose_graph(network: BlazePose) -> StepGraph:
    """Return the graph of a crop ``x`` [1, 3, 256, 256], red, green and blue from 0 to 1.

    Outputs are those of ``Landmarks``: ``places`` and ``space`` [1, 39, 3], ``visible`` [1, 39] and
    ``present`` [1].
    """
    graph = StepGraph()
    y = graph.input("x", (1, 3, SIDE, SIDE))
    first: Any = network.first
    y = _bounded(graph, graph.layer(y, network.stem))
    y = graph.layer(_bounded(graph, graph.layer(y, first[0])), first[1])
    for block in network.blocks:
        y = _residual(graph, block, y)
    for layer in network.last:
        y = _bounded(graph, graph.layer(y, layer))
    for unit in network.units:
        y = _unit(graph, unit, y)
    points = graph.reshape(graph.layer(y, network.places), 1, POINTS, 5)
    space = graph.reshape(graph.layer(y, network.space), 1, POINTS, 3)
    visible = graph.reshape(graph.slice(points, 2, 3, 4), 1, POINTS)
    present = graph.reshape(graph.layer(y, network.present), 1)
    graph.output("places", graph.slice(points, 2, 0, 3), (1, POINTS, 3))
    graph.output("visible", graph.add("Sigmoid", visible), (1, POINTS))
    graph.output("space", space, (1, POINTS, 3))
    graph.output("present", graph.add("Sigmoid", present), (1,))
    return graph


def _residual(graph: StepGraph, block: Any, x: str) -> str:
    y = _bounded(graph, graph.layer(x, block.expand))
    y = graph.layer(_bounded(graph, graph.layer(y, block.depth)), block.project)
    return graph.add("Add", y, x) if block.skips else y


def _unit(graph: StepGraph, unit: Any, x: str) -> str:
    if unit.depth.stride[0] == 2:  # the side below and to the right is padded
        y = graph.layer(x, unit.depth, (0, 0), (1, 1))
        x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4)
    else:
        y = graph.layer(x, unit.depth)
    y = graph.layer(_bounded(graph, y), unit.point)
    return _bounded(graph, graph.add("Add", y, x))


def _bounded(graph: StepGraph, x: str) -> str:
    """Return ReLU6 of a value."""
    return graph.add("Clip", x, graph.constant(0.0), graph.constant(6.0))
