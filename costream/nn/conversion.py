"""Conversion of any network to one that takes its clips frame by frame.

The network is traced (``torch.fx``) and run on a random clip and on one of twice its length, in
double precision. Where time is, is seen by which sizes have changed. Each operation is then one of

- a layer with memory, for which there is a rule (``rules``);
- an operation that treats every frame alone. That is tested: for one frame of its inputs, it
  must return that frame of its outputs. It is called as it is, on as many frames as there are;
- from where the network sees one frame only, such as a mean over the clip, on: its *head*, which
  is called on each frame;
- anything else: refused.

Branches wait for one another (``network``). At last the result is run itself, by clip and by steps.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from costream.nn.agreement import TOLERANCE, common, difference, steps_against_clip
from costream.nn.continual import (
    Call,
    Continual,
    ConversionReport,
    ConvertedLayer,
    FrameHead,
    Placeholder,
)
from costream.nn.join import Join
from costream.nn.merging import Planned, merged
from costream.nn.network import PartGraph
from costream.nn.operation import Change, ConversionError, Operation, check_arguments, untraceable
from costream.nn.parts import Part
from costream.nn.rules import FASTER, advice, attribute, has_attribute, rule_of
from costream.nn.tracing import (
    TimeDimension,
    TracedValue,
    analysed,
    cut,
    find_axis,
    method,
    random_like,
    several,
    title,
    trace,
)


def convert(
    module: nn.Module,
    example: Tensor,
    time_axis: int = 2,
    *,
    approximate: Iterable[str] = (),
    window: int | None = None,
) -> Continual:
    """Return a network that takes the clips of ``module`` frame by frame, with its weights.

    Args:
        module: is traced in evaluation mode; it must return one tensor.
        example: a clip [B, ..., T, ...] with a usual number of frames; its numbers do not matter.
        time_axis: dimension of T, not the first.
        approximate: names of ``APPROXIMATIONS`` that are allowed.
        window: steps of a window of attention; if left out, as many as the example has there.

    Attention that is converted has no dropout in training. Raises ConversionError, which names the
    layer and says what to change, for a network that cannot be continual, or is, and for an empty
    example; ValueError for unknown approximations and windows below 1; TypeError for a
    ``module`` that is not an nn.Module, and an ``example`` that is not a tensor.
    """
    approximate = (approximate,) if isinstance(approximate, str) else tuple(approximate)
    check_arguments(module, example, time_axis, approximate, window)
    with torch.no_grad():
        builder = _Builder(module, example[:1], time_axis, frozenset(approximate), window)
        checked = builder.build(builder.root)
        report = builder.check(checked)
        net = builder.build(module)
    net._report = report
    return net


class _Builder:
    """Conversion of one network: a plan of nodes, made from a copy of it."""

    def __init__(
        self,
        module: nn.Module,
        example: Tensor,
        axis: int,
        allowed: frozenset[str],
        window: int | None,
    ) -> None:
        self.module, self.axis, self.allowed = module, axis, allowed
        try:
            self.root = analysed(module)
        except RuntimeError as error:
            raise ConversionError(
                f"{type(module).__name__} cannot be copied",
                hint="for weight_norm use that of torch.nn.utils.parametrizations",
            ) from error
        self.window = window
        self.example = random_like(example)
        try:
            graph = trace(self.root)
        except Exception as error:
            raise untraceable(module, error) from error
        self.plan: list[tuple[Callable[[nn.Module], Part], tuple[int, ...], bool]] = []
        self.calls: list[tuple[Callable[[nn.Module], Call], tuple[Any, ...]]] = []
        self.inputs: list[TracedValue] = []  # of the head
        self.network = Continual(self.root, axis, self.example.select(axis, 0))
        self.entries: list[ConvertedLayer] = []
        self.changes: list[Change] = []  # of each entry
        self.values: dict[fx.Node, TracedValue] = {}
        self.merged: set[fx.Node] = set()  # whose time is merged with another dimension
        for node in graph.nodes:
            try:
                self._visit(node)
            except (ConversionError, ValueError) as error:
                raise ConversionError(str(error), where=self._name(self._cause(node))) from error
            if node in self.values and self._is_merged(self.values[node]):
                self.merged.add(node)
            for used in node.all_input_nodes:  # clips are large
                value = self.values[used]
                if list(used.users)[-1] is node and all(value is not v for v in self.inputs):
                    value.short = value.long = None

    # The graph.

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            layer = self.root.get_submodule(str(node.target))
            return f"{node.target} ({type(layer).__name__})"
        inside = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
        return ": ".join([*inside[-1:], title(node.target)])

    def _cause(self, node: fx.Node) -> fx.Node:
        """Return the operation that is to blame if ``node`` cannot be continual.

        It is the one that makes more frames of each, or, at the output, merges time with another
        dimension; otherwise the node itself.
        """
        first = node
        while any(n in self.merged for n in first.all_input_nodes):
            first = next(n for n in first.all_input_nodes if n in self.merged)
        return first if node.op == "output" or advice(self._name(first)) == FASTER else node

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "output":
            self._output(node)
        elif node.op == "get_attr":
            path, value = str(node.target), attribute(self.root, str(node.target))
            own = has_attribute(self.module, path)
            self._constant(node, lambda root: attribute(root, path) if own else value, value)
        else:
            self._operation(node)

    def _placeholder(self, node: fx.Node) -> None:
        if not self.values:
            double = torch.cat([self.example, random_like(self.example)], self.axis)
            frames = self.example.shape[self.axis]
            self.values[node] = TracedValue(
                0, self.example, double, None, TimeDimension(self.axis), (frames, 2 * frames)
            )
            return
        if not node.args:
            raise ConversionError("a second input", hint="convert a module that takes one clip")
        self._constant(node, lambda root: node.args[0], node.args[0])

    def _constant(self, node: fx.Node, find: Callable[[nn.Module], Any], value: Any) -> None:
        number = self._add(lambda root: Call(lambda: find(root), (), {}), (), timed=False)
        self.values[node] = TracedValue(number, value, value, value)

    def _operation(self, node: fx.Node) -> None:
        inputs = [self.values[n] for n in node.all_input_nodes]
        if any(v.sequence for v in inputs):
            if node.target is not operator.getitem or node.args[1] != 0:
                raise ConversionError(
                    "takes the state of a recurrent layer or the weights of attention",
                    hint="take its outputs, [0]",
                )
            self.values[node] = replace(inputs[0], sequence=False)
            return
        if any(v.head for v in inputs):
            self._in_head(node)
            return
        if inputs and inputs[0].each:
            self._pick(node, inputs[0])
            return
        if any(v.axis for v in inputs):
            change = self._change(node)
            if change is not None:
                self._apply(node, change)
                return
        self._alone(node)

    def _pick(self, node: fx.Node, held: TracedValue) -> None:
        """Take one of a tuple of clips."""
        if node.target is not operator.getitem:
            raise ConversionError("it takes several clips", hint="take them one by one")
        make, _ = self._call(node, None)
        number, k = self._add(make, (held.number,)), int(node.args[1])  # type: ignore[arg-type]
        short, long, axis = held.short[k], held.long[k], held.each[k]
        self.values[node] = replace(held, number=number, short=short, long=long, axis=axis, each=())

    def _change(self, node: fx.Node) -> Any:
        """Return what the rule of a node says, if it has one."""
        module = None
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
        rule = rule_of(module, node.target)
        first = self.values.get(node.args[0]) if node.args else None  # type: ignore[arg-type]
        if rule is None or first is None or first.axis is None or first.axis.outer != 1:
            return None
        if first.short.shape[first.axis.dim] != first.frames[0]:
            return None
        given: list[tuple[Any, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        paths = {
            k: str(a.target)
            for k, a in given
            if isinstance(a, fx.Node)
            and a.op == "get_attr"
            and has_attribute(self.module, str(a.target))
        }
        operation = Operation(
            self.root,
            module,
            str(node.target) if module is not None else node.target,
            self._map(node.args, "short"),
            self._map(node.args, "long"),
            self._map(node.kwargs, "short"),
            self._map(node.kwargs, "long"),
            first.axis.dim,
            self.window or first.frames[0],
            self.allowed,
            paths,
        )
        return rule(operation)

    def _apply(self, node: fx.Node, change: Any) -> None:
        source = self.values[node.args[0]]  # type: ignore[index]
        if change.newest:
            self._note(node, "newest frame")
            self._in_head(node, newest=True)
            return
        sources = [source]
        if change.several:
            sources = [self.values[a] for a in node.args[:3]]  # type: ignore[index]
            if len({(s.axis, self.network.timing_of(s.number)) for s in sources}) > 1:
                raise ConversionError("queries, keys and values come at different steps")
        number = self._add(change.make, tuple(s.number for s in sources))
        part = self.network._nodes[-1].part
        try:
            short, long = (part(*[getattr(s, x) for s in sources]) for x in ("short", "long"))
        except RuntimeError as error:
            raise ConversionError(
                f"it does not take the example: {error}", hint="give a longer example clip"
            ) from error
        axis = TimeDimension(part.out_axis)
        frames = short.shape[axis.dim], long.shape[axis.dim]
        if frames[0] < 1 or frames[1] < 2:
            raise ConversionError("no frame arrives here", hint="give a longer example clip")
        value = TracedValue(number, short, long, None, axis, frames, once=change.once)
        value.sequence = several(node, self.root)
        self._note(node, _part_name(part), change)
        if not change.then:
            self.values[node] = value
            return
        first, self.values[node.args[0]] = source, value  # type: ignore[index]
        try:
            if change.index is not None:
                self._alone(node, arguments=(node.args[0], change.index))
            else:
                self._in_head(node)
        finally:
            self.values[node.args[0]] = first  # type: ignore[index]

    def _alone(self, node: fx.Node, arguments: Any = None) -> None:
        """Take an operation that treats every frame alone.

        ``arguments``: used instead of the node's.
        """
        make, inputs = self._call(node, arguments)
        numbers = tuple(v.number for v in inputs)
        timed = [v for v in inputs if v.axis is not None]
        if not timed:
            self._take_constant(node, make, inputs)
            return
        shared = (min(v.frames[0] for v in timed), min(v.frames[1] for v in timed))
        results = _results(make(self.root), inputs, shared)
        several = isinstance(results.short, tuple | list) and _are_tensors(results.short)
        if results.short is not None and not several and not isinstance(results.short, Tensor):
            number = self._add(make, numbers, timed=False)  # such as a size
            self.values[node] = TracedValue(number, *results)
            return
        axes = _axes(results, several, shared)
        if axes is None:
            if not all(v.is_one for v in timed):
                raise self._mixes_frames(node, shared[0])
            self._in_head(node)
            return
        number = self._add_per_frame(node, make, inputs, axes[0])
        once, each = all(v.once for v in timed), axes if several else ()
        short, long = results.short, results.long
        self.values[node] = TracedValue(
            number, short, long, None, axes[0], shared, once=once, each=each
        )

    def _take_constant(
        self, node: fx.Node, make: Callable[[nn.Module], Call], inputs: Sequence[TracedValue]
    ) -> None:
        """Take an operation on values that do not depend on the clip."""
        call = make(self.root)
        number = self._add(make, tuple(v.number for v in inputs), timed=False)
        values = (call(*[getattr(v, x) for v in inputs]) for x in ("short", "long", "frame"))
        self.values[node] = TracedValue(number, *values)

    def _mixes_frames(self, node: fx.Node, frames: int) -> ConversionError:
        """Return the error for an operation that does not treat every frame alone."""
        table = self._table(node, frames)
        if table is not None:
            return ConversionError(
                f"{table} has a row for each frame of the clip, and a stream has no end",
                hint="leave it out, or add co.RecyclingPositions to rows before it",
            )
        return ConversionError(
            "it does not treat every frame alone", hint=advice(self._name(self._cause(node)))
        )

    def _add_per_frame(
        self,
        node: fx.Node,
        make: Callable[[nn.Module], Call],
        inputs: Sequence[TracedValue],
        axis: TimeDimension,
    ) -> int:
        """Add a call on each frame; faster branches wait for the slowest. Return its number."""
        numbers = tuple(v.number for v in inputs)
        timings = [None if v.axis is None else self.network.timing_of(v.number) for v in inputs]
        if len({t for t in timings if t is not None}) <= 1:
            return self._add(make, numbers)
        if any(v.axis.outer > 1 for v in inputs if v.axis) or axis.outer > 1:
            raise ConversionError("branches of unequal delay whose time is merged")
        dims, out = [v.axis.dim if v.axis else 0 for v in inputs], axis.dim
        number = self._add(lambda root: Join(make(root), timings, dims, out), numbers)
        self._note(node, "waits for the slower branch")
        return number

    def _table(self, node: fx.Node, frames: int) -> str | None:
        """Return the name of parameters with a row for each frame that are combined with a clip."""
        for other in node.all_input_nodes:
            value = self.values[other]
            if value.axis is not None or not isinstance(value.short, Tensor):
                continue
            if frames not in value.short.shape:
                continue
            while other.op not in ("get_attr", "call_module") and other.all_input_nodes:
                other = other.all_input_nodes[0]
            return str(other.target) if isinstance(other.target, str) else None
        return None

    def _in_head(self, node: fx.Node, newest: bool = False, whole: bool = False) -> None:
        """Take an operation on one frame of the clip.

        ``whole``: take the newest frame of the node's result, which is in the network already.
        """
        make, inputs = (_same, [self.values[node]]) if whole else self._call(node, None)
        places, values = [], []
        for v in inputs:
            if v.head:
                places.append(("call", v.number))
                values.append(v.short)
                continue
            if not v.is_one and not newest:
                raise ConversionError(
                    "frames are combined with a value of the whole clip",
                    hint="keep its time dimension, with keepdim=True and 1x1 convolutions",
                )
            known = [k for k, held in enumerate(self.inputs) if held.number == v.number]
            if not known:
                self.inputs.append(v)
            places.append(("input", known[0] if known else len(self.inputs) - 1))
            last = v.frames[0] - 1
            values.append(v.short if v.axis is None else cut([v], "short", last + 1, last, 1)[0])
        self.calls.append((make, tuple(places)))
        out = make(self.root)(*values)
        self.values[node] = TracedValue(len(self.calls) - 1, out, head=True)

    def _call(
        self, node: fx.Node, arguments: Any
    ) -> tuple[Callable[[nn.Module], Call], list[TracedValue]]:
        """Return what makes the call of a node, and its inputs."""
        order: list[fx.Node] = []

        def place(a: fx.Node) -> Placeholder:
            if a not in order:
                order.append(a)
            return Placeholder(order.index(a))

        given = node.args if arguments is None else arguments
        args, kwargs = fx.node.map_arg(given, place), fx.node.map_arg(node.kwargs, place)
        args, kwargs = tuple(args), dict(kwargs)
        target, op = node.target, node.op

        def make(root: nn.Module) -> Call:
            function: Any = target
            if op == "call_module":
                function = root.get_submodule(str(target))
            elif op == "call_method":
                function = getattr(torch.Tensor, str(target), None) or method(str(target))
            return Call(function, args, kwargs)

        return make, [self.values[n] for n in order]

    def _map(self, spec: Any, name: str) -> Any:
        return fx.node.map_arg(spec, lambda n: getattr(self.values[n], name))

    def _add(
        self, make: Callable[[nn.Module], Part], inputs: tuple[int, ...], timed: bool = True
    ) -> int:
        self.plan.append((make, inputs, timed))
        return self.network.add(make(self.root), *inputs, timed=timed)

    def _note(self, node: fx.Node, became: str, change: Change | None = None) -> None:
        delay, change = self.network.timing.delay, change or Change(None)
        name = self._name(node)
        layer, _, operation = name.rpartition(": ") if ": " in name else name.partition(" ")
        operation = operation.strip("()")
        line = ConvertedLayer(layer, operation, became, delay, change.note, change.approximation)
        self.entries.append(line)
        self.changes.append(change)

    def _output(self, node: fx.Node) -> None:
        out = node.args[0]
        if not isinstance(out, fx.Node):
            raise ConversionError(
                "it returns several values", hint="convert a module that returns one tensor"
            )
        value = self.values[out]
        if value.is_one and self._is_merged(value):
            self._in_head(out, whole=True)
            value = self.values[out]
        if value.head:
            self._close_head(value)
            self.network._out_axis = 1
        elif value.axis is None:
            raise ConversionError("its output does not depend on the clip")
        elif self._is_merged(value):
            hint = advice(self._name(self._cause(node)))
            what = "time is merged with another dimension in its output"
            raise ConversionError(
                "it gives more frames than it takes" if hint == FASTER else what, hint=hint
            )
        else:
            self.network._out_axis = value.axis.dim
            if value.number != len(self.plan):
                self._add(_same, (value.number,))
        self.result, self.in_head = value.short, value.head
        if self.network.delay < 0:
            raise ConversionError("outputs come before frame 0: more is padded than is needed")

    @staticmethod
    def _is_merged(value: TracedValue) -> bool:
        if value.axis is None or not isinstance(value.short, Tensor):
            return False
        return value.short.shape[value.axis.dim] != value.frames[0]

    def _close_head(self, value: TracedValue) -> None:
        inputs, calls = self.inputs, self.calls[: value.number + 1]
        timings = [None if v.axis is None else self.network.timing_of(v.number) for v in inputs]
        axes = [v.axis for v in inputs]

        def make(root: nn.Module) -> Part:
            head = FrameHead(axes)
            lead = inputs[head.lead]
            assert lead.axis is not None
            head.merged = lead.short.shape[lead.axis.dim] // lead.frames[0]
            for build, places in calls:
                at = tuple(k + (len(inputs) if kind == "call" else 0) for kind, k in places)
                head.calls.append((build(root), at))
            if len({t for t in timings if t is not None}) > 1:
                return Join(head, timings, [a.dim if a else 0 for a in axes], 1)
            part = Call(head, tuple(map(Placeholder, range(len(inputs)))), {})
            part.axis = 1
            return part

        self._add(make, tuple(v.number for v in inputs))

    # The result.

    def build(self, root: nn.Module) -> Continual:
        """Return the network with the layers of ``root``."""
        frame = self.example.select(self.axis, 0)
        if frame.is_floating_point():
            frame = frame.to(torch.get_default_dtype())
        net = Continual(root, self.axis, torch.zeros_like(frame))
        planned = [Planned(make(root), inputs, timed) for make, inputs, timed in self.plan]
        for part, inputs, timed, writes in merged(planned):
            net.add(part, *inputs, timed=timed, writes=writes)
        net._out_axis = self.network._out_axis
        return net

    def check(self, net: Continual) -> ConversionReport:
        """Return the report; ConversionError unless the network does what it should."""
        report = ConversionReport(self.entries)
        wanted = self.root(self.example)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        exact = not any(e.approximation for e in self.entries)
        report.error = steps_against_clip(net, self.example)
        change = difference(*common(self.result, wanted, net.out_axis))
        report.change = None if exact else change
        off = change if exact else self._newest_off(wanted, net.out_axis)
        if math.isnan(report.error) or math.isnan(off):
            raise ConversionError(
                "its outputs for random numbers are not finite",
                hint="give an example of positive numbers if it takes only these",
            )
        if max(report.error, off) > TOLERANCE:
            raise ConversionError(
                f"the check failed: clip against steps {report.error:.1e}, against the network"
                f" itself {off:.1e}",
                hint="please report this network",
            )
        return report

    def _newest_off(self, wanted: Tensor, axis: int) -> float:
        """Return how far the last output is off; 0 where it need not be exact."""
        at = [k for k, change in enumerate(self.changes) if change.approximation]
        after = self.changes[at[0] + 1 :]
        if len(at) > 1 or not self.changes[at[0]].newest_agrees or any(c.make for c in after):
            return 0.0
        return difference(
            *(x if self.in_head else x.select(axis, -1) for x in (self.result, wanted))
        )


class _Results(NamedTuple):
    """Results of an operation; all None where it fails on cut clips."""

    short: Any  # for the example
    long: Any  # for twice as many frames
    frame: Any  # for the last frame of those


def _results(call: Call, inputs: Sequence[TracedValue], shared: tuple[int, int]) -> _Results:
    """Return the results of a call for the first ``shared`` frames of both clips."""
    few, many = shared
    try:
        return _Results(
            call(*cut(inputs, "short", few, 0, few)),
            call(*cut(inputs, "long", many, 0, many)),
            call(*cut(inputs, "long", many, many - 1, 1)),
        )
    except (RuntimeError, ValueError, IndexError, TypeError):
        return _Results(None, None, None)


def _are_tensors(values: Iterable[Any]) -> bool:
    return all(isinstance(x, Tensor) for x in values)


def _axes(
    results: _Results, several: bool, shared: tuple[int, int]
) -> tuple[TimeDimension, ...] | None:
    """Return where time is in the result, or in each of ``several``; None if frames are mixed."""
    axes = []
    for parts in zip(*results, strict=False) if several else [results]:
        axis = find_axis(*parts, shared) if _are_tensors(parts) else None
        if axis is None:
            return None
        axes.append(axis)
    return tuple(axes) or None


def _same(root: nn.Module) -> Call:
    """Return the identity."""
    return Call(lambda x: x, (Placeholder(0),), {})


def _part_name(part: Part) -> str:
    layer = part._nodes[-1].part if isinstance(part, PartGraph) else part
    return f"{type(layer).__name__}, {layer.receptive_field} frames"
