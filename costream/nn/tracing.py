"""Tracing: graphs of networks, copies to analyse, and where time is in their values."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from costream.nn.layers import RecurrentOutputs
from costream.nn.recurrence_rules import assigned
from costream.nn.rules import attribute, rule_of


class Tracer(fx.Tracer):
    """A tracer that stops at layers of torch, and at those with a rule."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is taken as one operation."""
        if isinstance(m, nn.Sequential | nn.ModuleList):
            return False
        leaf: bool = super().is_leaf_module(m, module_qualified_name)
        return leaf or rule_of(m, None) is not None


class ClipTracer(Tracer):
    """A tracer whose sizes stay open, so that clips may have any number of frames.

    ``example``: tells how many values there are where sizes are unpacked (``*x.shape[-2:]``).
    """

    proxy_buffer_attributes = True  # tables that are sliced by sizes

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self._example = example
        self._values: dict[fx.Node, Any] = {}

    def proxy(self, node: fx.Node) -> Any:
        """Return the traced value of a node."""
        return AssignableProxy(node, self)

    def iter(self, obj: Any) -> Any:
        """Return the parts of a traced value that has several."""
        count = self.count(obj)
        return super().iter(obj) if count is None else (obj[k] for k in range(count))

    def count(self, obj: Any) -> int | None:
        """Return how many parts a traced value has, None for a tensor or a number."""
        value = self._value(obj.node)
        return len(value) if isinstance(value, tuple | list) else None

    def _value(self, node: fx.Node) -> Any:
        """Return the value of a node for the example."""
        if node in self._values:
            return self._values[node]
        if node.op == "placeholder":
            return self._example
        if node.op == "get_attr":
            return attribute(self.root, str(node.target))
        args = fx.node.map_arg(node.args, self._value)
        kwargs = fx.node.map_arg(node.kwargs, self._value)
        if node.op == "call_module":
            layer = self.root.get_submodule(str(node.target))
            value = type(layer).forward(layer, *args, **kwargs)
        elif node.op == "call_method":
            value = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            value = node.target(*args, **kwargs)  # type: ignore[operator]
        self._values[node] = value
        return value


class AssignableProxy(fx.Proxy):
    """A traced value; after ``x[index] = value`` it is a copy with other numbers."""

    tracer: ClipTracer

    def __len__(self) -> int:
        count = self.tracer.count(self)
        return super().__len__() if count is None else count

    def __setitem__(self, index: Any, value: Any) -> None:
        self.node = self.tracer.create_proxy(
            "call_function", assigned, (self, index, value), {}
        ).node


class ExampleTracer(Tracer):
    """A tracer that also runs the network on an example: sizes and conditions are the example's.

    Only the network's first argument is traced; the others have their defaults.

    Attributes:
        values: of the nodes, for the example.
        changed: the earlier nodes whose values, or the memory of them, a node changes in place.
    """

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self._example, self._running = example, False
        self.values: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, list[fx.Node]] = {}
        self._noted: dict[fx.Node, list[int]] = {}  # versions

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Return the function to trace, and its arguments."""
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]

    def create_node(self, kind: str, target: Any, *given: Any, **options: Any) -> fx.Node:
        """Return a new node, whose value is noted."""
        node = super().create_node(kind, target, *given, **options)
        args = fx.node.map_arg(node.args, self.values.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self.values.__getitem__)
        value: Any
        self._running = True
        try:
            if kind == "placeholder":
                value = self._example.clone()
            elif kind == "get_attr":
                value = attribute(self.root, target)
            elif kind == "call_module":
                value = self.root.get_submodule(target)(*args, **kwargs)
            elif kind == "call_method":
                value = getattr(args[0], target)(*args[1:], **kwargs)
            else:
                value = args[0] if kind == "output" else target(*args, **kwargs)
        finally:
            self._running = False
        if any(self._is_changed(given) for given in node.all_input_nodes):
            self.changed[node] = [each for each in self.values if self._is_changed(each)]
            self._noted |= {each: _versions(self.values[each]) for each in self.changed[node]}
        self.values[node], self._noted[node] = value, _versions(value)
        return node

    def _is_changed(self, node: fx.Node) -> bool:
        return _versions(self.values[node]) != self._noted[node]

    def proxy(self, node: fx.Node) -> Any:
        """Return the traced value of a node, or the value itself if it is not a tensor."""
        value = self.values[node]
        several = isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value)
        return ExampleProxy(node, self) if several or isinstance(value, Tensor) else value

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Return what stands for the output of a module."""
        return (
            forward(*args, **kwargs)
            if self._running
            else super().call_module(m, forward, args, kwargs)
        )

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return what stands for a parameter."""
        return attr_val if self._running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return the truth of a value."""
        return bool(self.values[obj.node])

    def iter(self, obj: Any) -> Any:
        """Yield what stands for the parts of a value."""
        return (obj[k] for k in range(len(self.values[obj.node])))


def _versions(value: Any) -> list[int]:
    """Return how often the tensors of a value were changed in place; views count together."""
    several = value if isinstance(value, tuple | list) else [value]
    return [v._version for v in several if isinstance(v, Tensor) and not v.is_inference()]


class ExampleProxy(fx.Proxy):
    """A traced tensor with known sizes."""

    tracer: ExampleTracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.tracer.values[self.node], name)
        return super().__getattr__(name) if callable(found) or isinstance(found, Tensor) else found

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])

    def __index__(self) -> int:
        return int(self.tracer.values[self.node])

    def _changed(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    # Those of a Proxy are ordinary sums and the like, which leave the tensor as it is.
    __iadd__ = partialmethod(_changed, operator.iadd)
    __isub__ = partialmethod(_changed, operator.isub)
    __imul__ = partialmethod(_changed, operator.imul)
    __itruediv__ = partialmethod(_changed, operator.itruediv)


def trace(root: nn.Module, example: Tensor) -> fx.Graph:
    """Return the graph of a network, which may be a single layer."""
    if rule_of(root, None) is None:
        found = ClipTracer(example).trace(root)
        for node in reversed([*found.nodes]):
            if node.target is operator.getitem and not node.users:  # y, _ = self.gru(x)
                found.erase_node(node)
            elif not node.args and "input" in node.kwargs:  # torch.mean(input=x)
                options = dict(node.kwargs)
                node.args, node.kwargs = (options.pop("input"),), options
        return found
    graph = fx.Graph()
    out = graph.create_node("call_module", "", (graph.placeholder("x"),))
    if isinstance(root, nn.RNNBase):
        out = graph.call_function(operator.getitem, (out, 0))
    graph.output(out)
    return graph


def analysed(module: nn.Module) -> nn.Module:
    """Return a copy in double precision whose parameters all matter: constant ones are changed."""
    root = copy.deepcopy(module).eval().double()
    for parameter in root.parameters():
        if parameter.numel() < 2 or parameter.min() == parameter.max():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return root


class TimeDimension(NamedTuple):
    """Where time is: dimension ``dim`` has ``outer`` times T times what is left."""

    dim: int
    outer: int = 1


def take(clip: Tensor, axis: TimeDimension, frames: int, start: int, count: int) -> Tensor:
    """Return ``count`` of the frames of a clip."""
    if axis.outer * frames == clip.shape[axis.dim] and axis.outer == 1:
        return clip.narrow(axis.dim, start, count)
    rows = torch.unflatten(clip, axis.dim, (axis.outer, frames, -1))
    rows = rows.narrow(axis.dim + 1, start, count)
    return rows.flatten(axis.dim, axis.dim + 2)


@dataclass
class TracedValue:
    """The value of a traced node for the example clip, and where time is in it."""

    number: int  # of the node in the network, or in the head
    short: Any  # for the example, or in the head for one frame
    long: Any = None  # for twice as many frames
    frame: Any = None  # for one frame, where it is not a clip
    axis: TimeDimension | None = None
    frames: tuple[int, int] = (0, 0)
    head: bool = False
    sequence: bool = False  # of a layer that returns several
    each: tuple[TimeDimension, ...] = ()  # of a tuple of clips
    states: RecurrentOutputs | None = None  # which its last dimension has, too
    once: bool = False  # one frame for a clip

    @property
    def is_one(self) -> bool:
        """Whether the ordinary network sees one frame here, if it is a clip."""
        return self.axis is None or self.once or self.frames[0] == 1


def cut(values: Sequence[TracedValue], name: str, shared: int, start: int, count: int) -> list[Any]:
    """Return the values, and of clips ``count`` of their first ``shared`` frames."""
    cut = []
    for v in values:
        clip = getattr(v, name)
        if v.axis is None:
            cut.append(v.frame if count == 1 and shared > 1 else clip)
            continue
        frames = v.frames[name == "long"]
        cut.append(clip if count == frames else take(clip, v.axis, frames, start, count))
    return cut


def find_axis(
    short: Tensor, long: Tensor, frame: Any, frames: tuple[int, int]
) -> TimeDimension | None:
    """Return where time is in results for clips of two lengths and for the last frame of one.

    None if that frame of the result is not the result for that frame.
    """
    if not isinstance(frame, Tensor) or not short.dim() == long.dim() == frame.dim():
        return None
    sizes = list(zip(short.shape, long.shape, frame.shape, strict=True))
    changed = [d for d, (_, b, c) in enumerate(sizes) if b != c]
    if len(changed) != 1:
        return None
    dim = changed[0]
    a, b, merged = sizes[dim]
    if (a, b) != (merged * frames[0], merged * frames[1]):
        return None
    for outer in range(1, merged + 1):
        if merged % outer == 0:
            axis = TimeDimension(dim, outer)
            part = take(long, axis, frames[1], frames[1] - 1, 1)
            if torch.allclose(part, frame, rtol=1e-7, atol=1e-9, equal_nan=True):
                return axis
    return None


def random_like(clip: Tensor) -> Tensor:
    """Return random numbers in double precision, or integers unchanged.

    They are positive if ``clip`` is, such as energies whose logarithm the network takes.
    """
    if clip.is_floating_point():
        random = torch.randn(clip.shape, dtype=torch.float64, device=clip.device)
        return random.abs_() if (clip > 0).all() else random
    return clip


def several(node: fx.Node, root: nn.Module) -> bool:
    """Return whether a node is a layer that returns several values, of which the first counts."""
    module = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention)


def title(target: Any) -> str:
    """Return the name of a function or a method."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def method(name: str) -> Callable[..., Any]:
    """Return a function that calls a method of its first argument."""
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)
