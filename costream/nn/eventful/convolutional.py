"""Convolutional networks that compute only the places whose input has changed.

The input of the newest step is kept, and so is the input of each layer that reads neighbours:
convolutions, poolings, enlargements. In a step, cells of the input that have changed beyond a
threshold, and a margin around them, are computed: their places in every map are rows [M, C] of
one matrix, whatever their number and shape, so that a 1 x 1 convolution is one product; layers
that read neighbours read those that have not changed from the kept maps. Changes are measured
against what was last computed, not the newest picture, so that slow ones add up until they are
noticed (as in Dutson et al., "Eventful Transformers", ICCV 2023). DeltaCNN (Parger et al., CVPR
2022) does the same for differences on a GPU.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from costream.nn.eventful import place_kernels as kernels
from costream.nn.eventful.counts import Operations
from costream.nn.operation import ConversionError
from costream.nn.state import State, zeros
from costream.nn.tracing import ExampleTracer

# Shares of the operations above which the network is computed in full, which is faster: with kept
# maps, and without, as the next step then computes all of them by place, in 1.35 of the time.
DENSE, BEGIN = 0.75, 0.5
CELL = 8  # side in pixels of the squares of the input that are compared
Node: TypeAlias = Any  # of torch.fx; the types of its arguments are too many
_Key = tuple[float, tuple[int, int]]  # stride and size of a map
Ints = Any  # NumPy array, int64
Rows = Callable[..., Any]  # (frame, rows of the inputs) -> rows
_Read = Callable[..., None]  # calls a kernel on the map that is read


@dataclass
class KeptMaps(State):
    """State of streams of pictures: what was last computed of each."""

    frames: Tensor  # int64 [B], since the start
    size: Tensor  # int64 [B, 2], height and width of the newest picture; zeros: none yet
    complete: Tensor  # int64 [B], 1 if the maps are those of the kept picture
    maps: Tensor  # [B, L], maps that layers with neighbours read, one after the other


class _Map(NamedTuple):
    """A map of the traced network."""

    channels: int
    size: tuple[int, int]
    stride: float  # pixels of the input from one place to the next
    reach: float  # largest distance in pixels of an input that it depends on


@dataclass
class _Frame:
    """What is computed in a step."""

    buffer: Any  # NumPy array that shares the memory of the state
    streams: Ints
    places: dict[_Key, Ints]
    operations: Operations


class _Step(NamedTuple):
    node: Node
    run: Callable[[_Frame, list[Any]], Any]
    inputs: list[Node]
    keep: Callable[[_Frame, Tensor], None] | None


class _Plan(NamedTuple):
    """How the pictures of a size are computed."""

    steps: list[_Step]
    first: Node  # the picture
    kept: dict[Node, tuple[int, _Map]]  # where maps begin in the buffer
    dense: list[Node]  # computed in full ...
    read: list[Node]  # ... from these kept maps
    length: int
    near: tuple[Ints, Ints]  # which cells reach each other
    cells: dict[_Key, tuple[Ints, Ints]]  # which rows and columns of them reach a map's
    costs: dict[_Key, Operations]  # of a place
    every: int  # operations of a picture


class EventfulConvolutions(nn.Module):
    """A network of convolutions that computes the places that have changed.

    Where they are more than ``DENSE`` of the operations of all streams together, the network is
    computed in full, and so it is in the first step; the maps are kept from the next one on in
    which they are at most ``BEGIN``.
    ``operations`` and ``share``, of the cells, are those of the newest step, ``every`` is what the
    network takes in full for its pictures, and ``in_full`` is whether it was computed so.

    Args:
        model: takes pictures [B, C, H, W]; it is copied, and traced by ``torch.fx`` for each size.
            Convolutions, poolings by maximum, enlargements, batch norms, pointwise functions, sums,
            and parts and orders of channels are computed by place; from any other operation on, the
            network is computed in full.
        example: pictures [*, C, H, W] of the largest size; their values do not matter.
        threshold: root mean square of the change of a cell of ``CELL`` x ``CELL`` pixels above
            which it is computed. 0: any change.
        margin: pixels around cells that have changed that are computed, at least one and a half
            places of each map, as coarse ones see more and cost less. None: all that depend on
            the change, so that with the threshold 0 the outputs equal the network's.

    Raises ConversionError for networks that cannot be traced, begin with other operations, or are
    not float32 or float64 on the CPU; ValueError for a negative threshold or margin.
    """

    def __init__(
        self, model: nn.Module, example: Tensor, threshold: float = 0.0, margin: int | None = None
    ) -> None:
        super().__init__()
        if not (threshold >= 0 and (margin is None or margin >= 0)):
            raise ValueError(f"threshold {threshold} and margin {margin} must not be negative")
        weight = next(model.parameters(), torch.zeros(0))
        if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
            raise ConversionError(f"its weights are {weight.dtype} on {weight.device}")
        self.model = copy.deepcopy(model).eval()
        self.threshold, self.margin = threshold, margin
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._shape, self._dtype = tuple(example.shape[1:]), weight.dtype
        self.length = self._plan(self._shape).length
        self.share, self.operations, self.in_full = 0.0, Operations(), True
        self.every = 0

    def forward(self, pictures: Tensor) -> Any:
        """Return the network's output for pictures [B, C, H, W], computed in full."""
        return self.model(pictures)

    def init_state(self, batch_size: int = 1, shape: Sequence[int] | None = None) -> KeptMaps:
        """Return the state of streams without a picture.

        ``shape``: [C, H, W] of their largest pictures; None: of the example.
        """
        length = self.length if shape is None else self._plan(tuple(shape)).length
        maps = zeros(batch_size, length, like=torch.zeros(0, dtype=self._dtype))
        return KeptMaps(zeros(batch_size), zeros(batch_size, 2), zeros(batch_size), maps)

    @torch.no_grad()
    def forward_step(
        self,
        pictures: Tensor,
        state: KeptMaps,
        streams: Sequence[int] | None = None,
        renew: bool = False,
    ) -> Any:
        """Take a picture of every stream, [B, C, H, W], return the network's output.

        ``streams``: of these rows of the state only, or of none. ``renew``: compute all places, by
        which what ``threshold`` and ``margin`` have left out is made up for. Raises ValueError for
        pictures that are larger than those of the state.
        """
        at = torch.arange(len(state.frames)) if streams is None else torch.tensor([*streams]).long()
        if not len(at):
            self.share, self.operations, self.in_full, self.every = 0.0, Operations(), False, 0
            return self.model(pictures)
        plan = self._plan(tuple(pictures.shape[1:]))
        length = state.maps.shape[1]
        if plan.length > length:
            raise ValueError(f"pictures {tuple(pictures.shape[1:])} exceed those of the state")
        begins = at.numpy() * length
        frame = _Frame(state.maps.numpy().reshape(-1), begins, {}, Operations())
        x = pictures.to(self._dtype).permute(0, 2, 3, 1).contiguous()
        layout = (*x.shape[1:], CELL)
        size = torch.tensor(pictures.shape[2:])
        fits = (state.size[at] == size).all(1)
        chosen = self._changed(x, frame)
        chosen |= ~fits[:, None, None]
        complete = state.complete[at].bool()
        full = self._find_places(plan, chosen, frame, DENSE if complete.all() else BEGIN)
        if not full and (renew or not complete.all()):
            chosen |= renew | ~complete[:, None, None]
            self._find_places(plan, chosen, frame, DENSE)
        kept = torch.full(chosen.shape, full)
        kept.view(-1).numpy()[_near(chosen, plan.near)] = True
        kernels.keep_cells(x.view(-1).numpy(), frame.buffer, begins, layout, kept.numpy())
        state.frames[at] += 1
        state.size[at], state.complete[at] = size, int(not full)
        self.share, self.operations = float(chosen.double().mean()), frame.operations
        self.in_full = full
        if full:
            return self.model(pictures)
        if self.share:
            _compute(plan, frame)
        return _finished(self.model, plan, state.maps, at)

    def _changed(self, x: Tensor, frame: _Frame) -> Tensor:
        """Return which cells of pictures [S, H, W, C] have changed, bool [S, h, w]."""
        cells = [-(-side // CELL) for side in x.shape[1:3]]
        change = x.new_empty(len(x), *cells)
        layout = (*x.shape[1:], CELL)
        flat = x.view(-1).numpy()
        kernels.changes(flat, frame.buffer, frame.streams, layout, change.numpy())
        return ~(change <= self.threshold**2)

    def _find_places(self, plan: _Plan, chosen: Tensor, frame: _Frame, most: float) -> bool:
        """Find the places to compute, and count their operations.

        Return whether they are more than the share ``most`` of all.
        """
        operations = Operations()
        for key, reaching in plan.cells.items():
            frame.places[key] = _near(chosen, reaching)
            if key in plan.costs:
                count, cost = len(frame.places[key]), plan.costs[key]
                operations.linear += count * cost.linear
                operations.bias += count * cost.bias
        frame.operations, self.every = operations, len(chosen) * plan.every
        return operations.total > most * self.every

    def _plan(self, shape: tuple[int, ...]) -> _Plan:
        if shape not in self._plans:
            self._plans[shape] = _planned(self.model, shape, self.margin)
        return self._plans[shape]


def _near(chosen: Tensor, reaching: tuple[Ints, Ints]) -> Ints:
    """Return the numbers of the places that chosen cells, bool [S, h, w], reach."""
    rows, columns = reaching
    length = len(chosen) * rows.shape[1] * columns.shape[1]
    places = torch.empty(length, dtype=torch.int64).numpy()
    return places[: kernels.reach(chosen.numpy(), rows, columns, places)]


def _reaching(
    cells: Sequence[int], stride: float, size: Sequence[int], margin: int
) -> tuple[Ints, Ints]:
    """Return which cells reach each row [2, H] and column [2, W] of a map: the first, and the end.

    ``cells``: their numbers of rows and columns; ``margin``: pixels around them.
    """
    near, found = max(margin, 1.5 * stride), []
    for count, side in zip(cells, size, strict=True):
        first = torch.arange(side, dtype=torch.float64) * stride
        ends = torch.stack([first - near, first + stride - 1 + near]).div(CELL).floor()
        ends[1] += 1
        found.append(ends.clamp(0, count).long().numpy())
    return found[0], found[1]


def _compute(plan: _Plan, frame: _Frame) -> None:
    """Compute the chosen places of all layers, and write them to the kept maps."""
    values: dict[Node, Any] = {plan.first: None}
    for step in plan.steps:
        rows = step.run(frame, [values[node] for node in step.inputs])
        values[step.node] = rows
        if step.keep is not None:
            step.keep(frame, rows)


def _finished(model: nn.Module, plan: _Plan, maps: Tensor, at: Tensor) -> Any:
    """Return the network's output, from the kept maps on."""
    values: dict[Node, Any] = {}
    for node in plan.read:
        begin, form = plan.kept[node]
        length = form.channels * form.size[0] * form.size[1]
        part = maps[:, begin : begin + length]
        kept = part.clone() if len(at) == 1 == len(maps) else part[at]  # the network may change it
        values[node] = kept.view(len(at), *form.size, form.channels).permute(0, 3, 1, 2)
    for node in plan.dense:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "output":
            return args[0]
        values[node] = _called(model, node, args, kwargs)
    raise AssertionError


def _called(model: nn.Module, node: Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_module":
        return model.get_submodule(node.target)(*args, **kwargs)
    if node.op == "get_attr":
        return operator.attrgetter(node.target)(model)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _planned(model: nn.Module, shape: tuple[int, ...], margin: int | None) -> _Plan:
    """Trace a network on a picture of this shape, [C, H, W]."""
    weight = next(model.parameters())
    tracer = ExampleTracer(torch.zeros(1, *shape, dtype=weight.dtype))
    try:
        with torch.inference_mode(False), torch.no_grad():
            graph = tracer.trace(model)
    except Exception as error:
        raise ConversionError(f"it cannot be traced: {error}") from error
    changed = {*itertools.chain(*tracer.changed.values())}
    for node in [*graph.nodes]:
        if node.op == "call_method" and node.target == "contiguous" and node not in changed:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    first = next(iter(graph.nodes))
    found = _Finder(model, tracer.values, first)
    for node in graph.nodes:
        found.add(node)
    if not found.steps:
        raise ConversionError("it does not begin with a convolution")
    for node, others in tracer.changed.items():
        _check_unread(node, others, {*found.dense})
    return found.plan(margin)


class _Window(NamedTuple):
    """What a place reads: a square, its stride, and the zeros above and before the map."""

    side: int
    stride: int
    above: int
    before: int


@dataclass
class _Finder:
    """Goes through a traced network, and finds how to compute each node by place."""

    model: nn.Module
    values: dict[Node, Any]
    first: Node
    maps: dict[Node, _Map] = field(default_factory=dict)
    parts: dict[Node, list[_Map]] = field(default_factory=dict)  # of tuples
    pads: dict[Node, tuple[Node, int, int]] = field(default_factory=dict)
    enlarged: dict[Node, tuple[Node, float]] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    dense: list[Node] = field(default_factory=list)
    kept: dict[Node, tuple[int, _Map]] = field(default_factory=dict)
    readers: set[Node] = field(default_factory=set)  # that read kept maps
    layers: list[tuple[_Map, nn.Conv2d]] = field(default_factory=list)
    length: int = 0

    def __post_init__(self) -> None:
        _, channels, height, width = self.values[self.first].shape
        self.maps[self.first] = _Map(channels, (height, width), 1.0, 0.0)
        self.keep(self.first)

    def keep(self, node: Node) -> int:
        """Return where the map of a node begins in the buffer."""
        if node not in self.kept:
            form = self.maps[node]
            self.kept[node] = self.length, form
            self.length += form.channels * form.size[0] * form.size[1]
        return self.kept[node][0]

    def add(self, node: Node) -> None:
        """Add the next node of the graph."""
        if node is self.first or any(rule(self, node) for rule in _RULES):
            return
        self.dense.append(node)
        for given in node.all_input_nodes:
            if given in self.maps:
                self.keep(given)
            elif given not in self.dense:
                raise ConversionError(f"{given.name} is used by an operation without a rule")

    def by_place(
        self, node: Node, run: Callable[..., Any], inputs: Sequence[Node], form: _Map
    ) -> bool:
        """Add a node that is computed by place; True."""
        self.maps[node] = form
        self.steps.append(_Step(node, run, list(inputs), None))
        return True

    def layer(self, node: Node) -> Any:
        """Return the layer that a node calls, or the function."""
        if node.op == "call_module":
            return self.model.get_submodule(str(node.target))
        return node.target

    def plan(self, margin: int | None) -> _Plan:
        """Return the plan of the network."""
        reach = max(form.reach for form in self.maps.values())
        near = reach if margin is None else margin
        near = max(1, math.ceil(near / CELL)) * CELL
        _, size, _, _ = self.maps[self.first]
        cells = [-(-side // CELL) for side in size]
        computed = (form for node, form in self.maps.items() if node is not self.first)
        keys = {(form.stride, form.size) for form in computed}
        steps = [self._written(step) if step.node in self.kept else step for step in self.steps]
        reaching = {key: _reaching(cells, key[0], key[1], near) for key in keys}
        read = [
            given for node in self.dense for given in node.all_input_nodes if given in self.maps
        ]
        read = [*dict.fromkeys(read)]
        costs: dict[_Key, Operations] = {}
        for form, layer in self.layers:
            costs.setdefault((form.stride, form.size), Operations()).count_linear(1, layer)
        every = sum(cost.total * math.prod(key[1]) for key, cost in costs.items())
        around = _reaching(cells, CELL, cells, near)
        return _Plan(
            *(steps, self.first, self.kept, self.dense, read, self.length),
            *(around, reaching, costs, every),
        )

    def _written(self, step: _Step) -> _Step:
        """Return a step that keeps its map."""
        begin, form = self.kept[step.node]
        slope = self._slope(step.node)  # applied when the rows are written
        shape, key = (begin, *form.size, form.channels, *form.size), (form.stride, form.size)

        def keep(frame: _Frame, rows: Tensor) -> None:
            flat = rows.contiguous().view(-1).numpy()
            kernels.put(flat, frame.places[key], frame.buffer, frame.streams, shape, slope)

        run = step.run if slope == 1 else lambda frame, rows: rows[0]
        return step._replace(run=run, keep=keep)

    def _slope(self, node: Node) -> float:
        """Return the slope of a leaky ReLU in place of which only neighbours are read; else 1."""
        if (
            any(user not in self.readers for user in node.users)
            or node.target is not F.leaky_relu
            or not node.kwargs.get("inplace")
        ):
            return 1.0
        given = node.kwargs.get("negative_slope", 0.01)
        return float(node.args[1] if len(node.args) > 1 else given)


def _convolution(found: _Finder, node: Node) -> bool:
    layer = found.layer(node)
    if not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros":
        return False
    given, above, before = found.pads.get(node.args[0], (node.args[0], 0, 0))
    side, stride = layer.kernel_size[0], layer.stride[0]
    square = layer.kernel_size == (side, side) and layer.stride == (stride, stride)
    if not square or layer.dilation != (1, 1) or isinstance(layer.padding, str):
        return False
    if given not in found.maps or layer.groups not in (1, layer.in_channels):
        return False
    window = _Window(side, stride, above + layer.padding[0], before + layer.padding[1])
    weight, bias = layer.weight.detach(), layer.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias.detach()
    form = _after(found, node, given, window)
    if window == (1, 1, 0, 0) and layer.groups == 1 and given is not found.first:
        matrix = weight.flatten(1).T.contiguous()

        def pointwise(frame: _Frame, rows: list[Tensor]) -> Tensor:
            return torch.addmm(bias, rows[0], matrix)

        found.layers.append((form, layer))
        return found.by_place(node, pointwise, [given], form)
    if layer.groups == 1:
        matrix = weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous()

        def product(read: _Read, rows: int) -> Tensor:
            out = bias.new_empty(rows, len(matrix))
            read(kernels.patches, window, out.view(-1).numpy())
            return torch.addmm(bias, out, matrix)

        return _reading(found, node, given, form, product, layer)
    if layer.in_channels != layer.out_channels:
        return False
    factors = weight.flatten(1).T.contiguous().view(-1).numpy(), bias.numpy()

    def depthwise(read: _Read, rows: int) -> Tensor:
        out = bias.new_empty(rows, len(bias))
        read(kernels.depthwise, window, factors, out.view(-1).numpy())
        return out

    return _reading(found, node, given, form, depthwise, layer)


def _max_pool(found: _Finder, node: Node) -> bool:
    layer = found.layer(node)
    if isinstance(layer, nn.MaxPool2d):
        options = vars(layer)
    elif layer in (F.max_pool2d, torch.max_pool2d):
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        options = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    else:
        return False
    sizes: list[Any] = [options.get(name) for name in ("kernel_size", "stride", "padding")]
    side, stride, padding = (x[0] if isinstance(x, tuple) and len({*x}) == 1 else x for x in sizes)
    stride, padding = stride or side, padding or 0
    given = node.args[0]
    usual = options.get("dilation", 1) in (1, (1, 1)) and not options.get("return_indices")
    if (
        given not in found.maps
        or not usual
        or any(not isinstance(x, int) for x in (side, stride, padding))
    ):
        return False
    window = _Window(side, stride, padding, padding)
    form = _after(found, node, given, window)
    return _filling(found, node, given, form, kernels.max_pool, window)


def _pad(found: _Finder, node: Node) -> bool:
    """Zeros around a map, which only convolutions read."""
    if node.target is not F.pad or node.args[0] not in found.maps:
        return False
    given, sides = node.args[:2]
    zeros_only = node.kwargs.get("mode", "constant") == "constant" and not node.kwargs.get("value")
    read = all(isinstance(found.layer(user), nn.Conv2d) for user in node.users)
    if not zeros_only or not read or len(node.args) > 2 or len(sides) != 4 or min(sides) < 0:
        return False
    found.pads[node] = given, sides[2], sides[0]
    return True


def _enlargement(found: _Finder, node: Node) -> bool:
    if node.target is not F.interpolate or node.args[0] not in found.maps:
        return False
    options = {k: v for k, v in node.kwargs.items() if v not in (None, False)}
    factor, mode = options.pop("scale_factor", None), options.pop("mode", "nearest")
    if options or mode not in ("nearest", "bilinear") or not isinstance(factor, float | int):
        return False
    if len(node.args) > 1 or factor < 1:
        return False
    found.enlarged[node] = node.args[0], float(factor if mode == "bilinear" else -factor)
    if all(user.target is operator.getitem for user in node.users):
        return True  # computed where it is cropped
    return _enlarged(found, node, node)


def _crop(found: _Finder, node: Node) -> bool:
    """The first rows and columns of an enlarged map."""
    if node.target is not operator.getitem or node.args[0] not in found.enlarged:
        return False
    parts = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    first = all(isinstance(x, slice) and x == slice(None, x.stop) for x in parts[-2:])
    if len(parts) < 2 or not first or any(x not in (Ellipsis, slice(None)) for x in parts[:-2]):
        return False
    return _enlarged(found, node, node.args[0])


def _enlarged(found: _Finder, node: Node, source: Node) -> bool:
    given, factor = found.enlarged[source]
    before, shape = found.maps[given], found.values[node].shape
    stride = before.stride / abs(factor)
    form = _Map(shape[1], (shape[2], shape[3]), stride, before.reach + 2 * before.stride)
    return _filling(found, node, given, form, kernels.enlarge, factor)


def _channels(found: _Finder, node: Node) -> bool:
    """Functions of the channels of each place: parts, sums, orders, activations."""
    inputs = _maps_read(node)
    if not inputs or any(given not in found.maps for given in inputs):
        return _part(found, node)
    forms = [found.maps[given] for given in inputs]
    if found.first in inputs or len({(form.stride, form.size) for form in forms}) > 1:
        return False
    if node.target is F.channel_shuffle and _is_pair(inputs[0]):
        pair = _maps_read(inputs[0])  # need not be joined before
        if found.values[pair[0]].shape == found.values[pair[1]].shape:
            found.steps = [step for step in found.steps if step.node is not inputs[0]]
            inputs = pair
    run = _row_function(found, node)
    if run is None:
        return False
    value = found.values[node]
    reach = max(form.reach for form in forms)
    if isinstance(value, tuple):
        found.parts[node] = [forms[0]._replace(channels=v.shape[1]) for v in value]
        found.steps.append(_Step(node, run, inputs, None))
        return True
    if value.shape[2:] != forms[0].size:
        return False
    return found.by_place(node, run, inputs, _Map(value.shape[1], *forms[0][1:3], reach))


def _is_pair(node: Node) -> bool:
    """Return whether a node joins the channels of two maps, and is read once."""
    return node.target is torch.cat and len(_maps_read(node)) == 2 and len(node.users) == 1


def _part(found: _Finder, node: Node) -> bool:
    """One of the parts of a tuple."""
    if node.target is not operator.getitem or node.args[0] not in found.parts:
        return False
    given, number = node.args
    form = found.parts[given][number]
    return found.by_place(node, lambda frame, values: values[0][number], [given], form)


def _maps_read(node: Node) -> list[Node]:
    """Return the arguments that are nodes, as often as they occur."""
    first = node.args[0] if node.args else None
    given = first if isinstance(first, tuple | list) else node.args
    return [x for x in given if isinstance(x, fx.Node)]


def _row_function(found: _Finder, node: Node) -> Rows | None:
    """Return the function of rows [M, C] that a node is; None if it is not one."""
    layer, options = found.layer(node), node.kwargs
    if isinstance(layer, _POINTWISE_LAYERS) or (layer in _POINTWISE and len(_maps_read(node)) == 1):
        rest = () if isinstance(layer, nn.Module) else node.args[1:]
        return lambda frame, rows: layer(rows[0], *rest, **options)
    if isinstance(layer, nn.BatchNorm2d) and layer.running_var is not None:
        return _norm(layer)
    if layer in _SUMS and len(_maps_read(node)) == len(node.args) == 2 and not options:
        return lambda frame, rows: rows[0] + rows[1]
    dim = options.get("dim", node.args[-1] if len(node.args) > 1 else 0)
    if layer is torch.cat and dim == 1:
        return lambda frame, rows: torch.cat(rows, 1)
    if layer in ("chunk", torch.chunk, "split", torch.split) and dim == 1 < len(node.args):
        divide = torch.chunk if layer in ("chunk", torch.chunk) else torch.split
        count = node.args[1]
        return lambda frame, rows: divide(rows[0], count, 1)
    if layer is F.channel_shuffle:
        groups = options.get("groups", node.args[-1])
        return _interleaved if groups == 2 else partial(_shuffled, groups=groups)
    return None


def _check_unread(node: Node, changed: Sequence[Node], dense: set[Node]) -> None:
    """Raise ConversionError if what a node changes in place is read after it by another name.

    ``dense``: nodes that are computed in full, in their order, so that they read what they change;
    but what is a view of it in the network may be a copy here.
    """
    before = {*itertools.takewhile(lambda each: each is not node, node.graph.nodes), node}
    for each in changed:
        is_changed = node in dense and each in node.args[:1]
        if {*each.users} - before - (dense if is_changed else set()):
            raise ConversionError(f"{node.name} changes a map in place that others read")


def _shuffled(frame: _Frame, rows: list[Tensor], groups: int) -> Tensor:
    return rows[0].reshape(len(rows[0]), groups, -1).transpose(1, 2).flatten(1)


def _interleaved(frame: _Frame, rows: list[Tensor]) -> Tensor:
    """Return two matrices, or the halves of one, with their channels in turn."""
    first, second = rows if len(rows) == 2 else rows[0].chunk(2, 1)
    out = first.new_empty(len(first), 2 * first.shape[1])
    steps = first.stride(0), second.stride(0)
    kernels.interleave(_flat(first), _flat(second), steps, out.numpy())
    return out


def _flat(rows: Tensor) -> Any:
    """Return the memory from the first number of rows, which may be columns of a matrix, on."""
    length = (len(rows) - 1) * rows.stride(0) + rows.shape[1]
    return rows.as_strided((max(0, length),), (1,)).numpy()


def _norm(layer: nn.BatchNorm2d) -> Rows:
    assert layer.running_var is not None
    assert layer.running_mean is not None
    scale = (layer.running_var + layer.eps).rsqrt()
    scale = scale if layer.weight is None else scale * layer.weight.detach()
    shift = -layer.running_mean * scale
    shift = shift if layer.bias is None else shift + layer.bias.detach()
    return lambda frame, rows: torch.addcmul(shift, rows[0], scale)


def _after(found: _Finder, node: Node, given: Node, window: _Window) -> _Map:
    """Return the map that a window gives."""
    before, shape = found.maps[given], found.values[node].shape
    middle = (window.side - 1) / 2
    off = max(abs(zeros - middle) for zeros in (window.above, window.before))
    reach = before.reach + (middle + off) * before.stride
    return _Map(shape[1], (shape[2], shape[3]), before.stride * window.stride, reach)


def _reading(
    found: _Finder,
    node: Node,
    given: Node,
    form: _Map,
    compute: Callable[[_Read, int], Tensor],
    layer: nn.Conv2d | None,
) -> bool:
    """Add a node that reads neighbours, from the kept map of ``given``; True."""
    before = found.maps[given]
    shape = (found.keep(given), *before.size, before.channels, *form.size)
    key = form.stride, form.size
    if layer is not None:
        found.layers.append((form, layer))

    def run(frame: _Frame, rows: list[Any]) -> Tensor:
        places = frame.places[key]

        def read(kernel: Any, *rest: Any) -> None:
            kernel(frame.buffer, frame.streams, places, shape, *rest)

        return compute(read, len(places))

    found.readers.add(node)
    return found.by_place(node, run, [given], form)


def _filling(
    found: _Finder, node: Node, given: Node, form: _Map, kernel: Any, argument: Any
) -> bool:
    """Add a node whose rows a kernel fills, from the kept map of ``given``; True."""
    dtype = found.values[node].dtype

    def filled(read: _Read, rows: int) -> Tensor:
        out = torch.empty(rows, form.channels, dtype=dtype)
        read(kernel, argument, out.view(-1).numpy())
        return out

    return _reading(found, node, given, form, filled, None)


_POINTWISE_LAYERS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.GELU, nn.Sigmoid,
    nn.Tanh, nn.ELU, nn.Identity, nn.Dropout, nn.Dropout2d,
)  # fmt: skip
_POINTWISE = (
    F.relu, torch.relu, F.relu6, F.leaky_relu, F.silu, F.hardswish, F.hardsigmoid, F.gelu,
    torch.sigmoid, torch.tanh, F.elu,
)  # fmt: skip
_SUMS = ("add_", operator.add, operator.iadd, torch.add)
_RULES = (_convolution, _max_pool, _pad, _enlargement, _crop, _channels)
