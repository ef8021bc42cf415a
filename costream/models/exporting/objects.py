"""A NanoDet as a graph: from a picture to the boxes at all places, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from costream.models.exporting.frontends import leaky, shuffle_maps
from costream.models.exporting.graph import FLOAT, StepGraph
from costream.models.images import Pixels
from costream.models.objects.nanodet import BINS, STRIDES, NanoDetPlus
from costream.nn.eventful.counts import Operations


def detector_graph(network: NanoDetPlus, frontend: Pixels, whole: bool) -> StepGraph:
    """Return the graph of a picture [1, 3, H, W], ``x``; in ONNX, H and W are free.

    Outputs are ``boxes`` [1, N, 4] in pixels, ``logits`` and ``probabilities`` [1, N, K] of all
    places. ``whole``: values of the picture are from 0 to 255, otherwise they are normalised.
    """
    width, height = (side + -side % frontend.patch for side in frontend.box)
    graph, count = StepGraph(), network.classes
    graph.facts = {"whole": whole, "classes": count, "score": network.score}
    graph.facts["costs"] = _costs(network)
    x = graph.input("x", (1, 3, height, width), free={2: "height", 3: "width"})
    if whole:
        x = graph.add("Sub", x, graph.constant(frontend.mean))
        x = graph.add("Div", x, graph.constant(frontend.deviation))
    maps, centres = _maps(graph, network, x), []
    for k, (y, stride) in enumerate(zip(maps, STRIDES, strict=True)):
        centres.append(_centres(graph, y, stride))
        maps[k] = _rows(graph, y, count + 4 * BINS)
    rows = graph.add("Concat", *maps, axis=1)
    logits = graph.slice(rows, 2, 0, count)
    boxes = _boxes(graph, graph.slice(rows, 2, count, count + 4 * BINS), centres)
    places = sum(-(-height // stride) * -(-width // stride) for stride in STRIDES)
    graph.output("boxes", boxes, (1, places, 4), free={1: "places"})
    scores = {"logits": logits, "probabilities": graph.add("Sigmoid", logits)}
    for name, value in scores.items():
        graph.output(name, value, (1, places, count), free={1: "places"})
    return graph


def _maps(graph: StepGraph, net: NanoDetPlus, x: str) -> list[str]:
    """Add the network; return its output [1, K + 32, h, w] for each stride."""
    exchange: Any = net.exchange
    stages = shuffle_maps(graph, net.backbone, x)
    given = [_layers(graph, [one], y) for one, y in zip(exchange.reduce, stages, strict=True)]
    maps = _exchanged(graph, exchange, given)
    ends = zip(net.coarsest, (given[-1], maps[-1]), strict=True)
    maps.append(graph.add("Add", *(_layers(graph, layers, y) for layers, y in ends)))
    heads: Any = zip(net.heads, maps, strict=True)
    return [graph.layer(_layers(graph, head[:-1], y), head[-1]) for head, y in heads]


def _exchanged(graph: StepGraph, net: Any, given: Sequence[str]) -> list[str]:
    """Add a ``GhostExchange`` after its reduced maps; return its maps."""
    found = [given[-1]]
    for block, x in zip(net.finer, given[-2::-1], strict=True):
        large = graph.add("Resize", found[-1], "", "", graph.add("Shape", x), mode="linear")
        found.append(_ghost(graph, block, graph.add("Concat", large, x, axis=1)))
    out = [found.pop()]
    for block, *pair in zip(net.coarser, net.halve, net.halved, strict=True):
        small = _layers(graph, pair, out[-1])
        out.append(_ghost(graph, block, graph.add("Concat", small, found.pop(), axis=1)))
    return out


def _ghost(graph: StepGraph, block: Any, x: str) -> str:
    y = leaky(graph, graph.layer(x, block.first))
    y = graph.add("Concat", y, leaky(graph, graph.layer(y, block.first_ghost)), axis=1)
    y = graph.layer(y, block.second)
    y = graph.add("Concat", y, graph.layer(y, block.second_ghost), axis=1)
    return graph.add("Add", y, graph.layer(graph.layer(x, block.side_depth), block.side))


def _layers(graph: StepGraph, layers: Any, x: str) -> str:
    for layer in layers:
        x = leaky(graph, graph.layer(x, layer))
    return x


def _rows(graph: StepGraph, x: str, channels: int) -> str:
    """Return a map [1, C, h, w] as rows [1, h w, C]."""
    return graph.add("Transpose", graph.reshape(x, 1, channels, -1), perm=[0, 2, 1])


def _centres(graph: StepGraph, x: str, stride: int) -> str:
    """Return x, y, x, y and stride of each place of a map, [1, h w, 5]."""
    one = graph.slice(x, 1, 0, 1)
    ones = graph.add("Cast", graph.add("Equal", one, one), to=FLOAT)
    counted = (graph.add("CumSum", ones, graph.whole([axis])) for axis in (3, 2))
    across, down = (graph.add("Sub", value, ones) for value in counted)
    grid = graph.add("Concat", across, down, across, down, ones, axis=1)
    return _rows(graph, graph.add("Mul", grid, graph.constant(float(stride))), 5)


def _boxes(graph: StepGraph, rows: str, centres: Sequence[str]) -> str:
    """Return boxes [1, N, 4] in pixels, x1, y1, x2, y2, for bins [1, N, 32] of their distances."""
    bins = graph.add("Softmax", graph.reshape(rows, 1, -1, 4, BINS), axis=-1)
    weighed = graph.add("Mul", bins, graph.constant(torch.arange(BINS).float()))
    grid = graph.add("Concat", *centres, axis=1)
    reach = graph.add("Mul", graph.reduce("ReduceSum", weighed, (3,)), graph.slice(grid, 2, 4, 5))
    signs = graph.constant(torch.tensor([-1.0, -1.0, 1.0, 1.0]))
    return graph.add("Add", graph.add("Mul", reach, signs), graph.slice(grid, 2, 0, 4))


@torch.no_grad()
def _costs(network: NanoDetPlus) -> list[list[int]]:
    """Return operations for each place of the maps at strides 32 and 64, of finer ones included."""
    totals = []
    for width in (32, 64):  # one and two places at stride 32, one at stride 64
        counted = Operations()
        network(torch.zeros(1, 3, 32, width), counted)
        totals.append(counted.total)
    return [[32, totals[1] - totals[0]], [64, 2 * totals[0] - totals[1]]]
