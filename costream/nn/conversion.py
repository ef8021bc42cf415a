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
from costream.nn.layers import RecurrentOutputs, _Recurrent
from costream.nn.merging import Planned, merged
from costream.nn.network import PartGraph
from costream.nn.operation import Change, ConversionError, Operation, check_arguments, untraceable
from costream.nn.parts import Pad, Part
from costream.nn.recurrence_rules import assigned, shift_of
from costream.nn.recycled_table import RecycledTable
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


_FILLED = ("new_zeros", "new_ones", "new_full")  # methods whose results have no numbers of a clip


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
            graph = trace(self.root, self.example)
        except Exception as error:
            raise untraceable(module, error) from error
        self.plan: _Plan = []
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
                last = list(used.users)[-1] is node and all(value is not v for v in self.inputs)
                if last and value.axis is not None:
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
            self._one_of_several(node, inputs[0])
            return
        if any(v.head for v in inputs):
            self._in_head(node)
            return
        if inputs and inputs[0].each:
            self._pick(node, inputs[0])
            return
        if node.target is assigned and self._shift(node):
            return
        if any(v.axis for v in inputs):
            change = self._change(node)
            if change is not None:
                self._apply(node, change)
                return
        self._alone(node)

    def _one_of_several(self, node: fx.Node, value: TracedValue) -> None:
        """Take the outputs of a layer that returns more, or the states of a recurrent one."""
        if node.target is operator.getitem and node.args[1] == 0:
            if value.states is None:
                self.values[node] = replace(value, sequence=False)
                return
            width = value.states.width
            number = self._add(
                lambda root: Call(lambda x: x[..., :width], (Placeholder(0),), {}), (value.number,)
            )
            short, long = value.short[..., :width], value.long[..., :width]
            self.values[node] = replace(
                value, number=number, short=short, long=long, sequence=False, states=None
            )
        elif node.target is operator.getitem and node.args[1] == 1 and value.states is not None:
            read = value.states.read
            call = lambda root: Call(read, (Placeholder(0),), {})  # noqa: E731
            self._in_head(node, newest=True, made=(call, [value]))
        else:
            raise ConversionError("takes the weights of attention", hint="take its outputs, [0]")

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
            _uses_states(node),
        )
        return rule(operation)

    def _apply(self, node: fx.Node, change: Any) -> None:
        source = self.values[node.args[0]]  # type: ignore[index]
        if change.newest:
            self._note(node, "newest frame")
            self._in_head(node, newest=True)
            return
        sources = [source]
        if change.several > 1:
            sources = [self.values[a] for a in node.args[: change.several]]  # type: ignore[index]
            _check_together(source, sources, [self.network.timing_of(s.number) for s in sources])
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
        if isinstance(part, _Recurrent) and part.with_states:
            value.states = RecurrentOutputs.of(part.layer)
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
        if node.target in ("view", "reshape"):
            arguments = self._open_sizes(node)
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
        if axes is None and node.target in _FILLED and results.short is not None:
            number = self._add(make, numbers, timed=False)  # without frames
            self.values[node] = TracedValue(number, *results)
            return
        if axes is None:
            if all(v.is_one for v in timed):
                self._in_head(node)
            elif not self._recycle(node, shared[0]):
                raise self._mixes_frames(node, shared[0])
            return
        number = self._add_per_frame(node, make, inputs, axes[0])
        once, each = all(v.once for v in timed), axes if several else ()
        short, long = results.short, results.long
        self.values[node] = TracedValue(
            number, short, long, None, axes[0], shared, once=once, each=each
        )

    def _open_sizes(self, node: fx.Node) -> tuple[Any, ...]:
        """Return the arguments of a view, with -1 for the size that has the number of frames.

        A size may be that of frames before a delay, which are not as many.
        """
        given = tuple(node.args[1]) if isinstance(node.args[1], tuple | list) else node.args[1:]
        changing = [
            k
            for k, size in enumerate(given)
            if isinstance(size, fx.Node)
            and isinstance(self.values[size].short, int)
            and self.values[size].short != self.values[size].long
        ]
        if len(changing) != 1 or -1 in given:
            return node.args
        sizes = [-1 if k in changing else size for k, size in enumerate(given)]
        return (node.args[0], *sizes)

    def _take_constant(
        self, node: fx.Node, make: Callable[[nn.Module], Call], inputs: Sequence[TracedValue]
    ) -> None:
        """Take an operation on values that do not depend on the clip."""
        call, values = make(self.root), []
        number = self._add(make, tuple(v.number for v in inputs), timed=False)
        for name in ("short", "long", "frame"):
            try:
                values.append(call(*[getattr(v, name) for v in inputs]))
            except (IndexError, RuntimeError, AttributeError, TypeError):
                if name != "long":
                    raise
                values.append(None)  # a table ends before the longer clip does
        self.values[node] = TracedValue(number, *values)

    def _mixes_frames(self, node: fx.Node, frames: int) -> ConversionError:
        """Return the error for an operation that does not treat every frame alone."""
        if (table := self._table(node, frames)) is not None:
            while table.op != "call_module" and (given := self._constants_in(table)):
                table = given[0]
            hint = "allow it to begin again: approximate=['recycling positions']"
            if table.target is torch.arange:
                hint = "count frames with torch.ones_like(x).cumsum(dim)"
            what = f"{title(table.target)} has a row for each frame of the clip"
            return ConversionError(f"{what}, and a stream has no end", hint=hint)
        hint = advice(self._name(self._cause(node)))
        if node.target in ("view", "reshape", "unflatten") and frames in node.args:
            hint = f"its {frames} is the number of frames of the example: give the batch, and -1"
        return ConversionError("it does not treat every frame alone", hint=hint)

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

    def _table(self, node: fx.Node, frames: int) -> fx.Node | None:
        """Return the node of a table with a row for each frame that is combined with a clip."""
        for other in node.all_input_nodes:
            value = self.values[other]
            if value.axis is not None or not isinstance(value.short, Tensor):
                continue
            if frames not in value.short.shape:
                continue
            return other
        return None

    def _constants_in(self, node: fx.Node) -> list[fx.Node]:
        """Return the inputs of a node that are tensors and do not depend on the clip."""
        given = [(n, self.values[n]) for n in node.all_input_nodes]
        return [n for n, v in given if v.axis is None and isinstance(v.short, Tensor)]

    def _recycle(self, node: fx.Node, frames: int) -> bool:
        """Let a table with a row for each frame begin again, if that is allowed."""
        table, given = self._table(node, frames), node.all_input_nodes
        if table is None or len(given) != 2 or "recycling positions" not in self.allowed:
            return False
        clip = self.values[given[0] if given[1] is table else given[1]]
        rows = self._constant_of(table)
        if clip.axis is None or clip.axis.outer > 1 or rows is None:
            return False
        axis, make = clip.axis.dim, self._call(node, None)[0]
        dim, first = axis - clip.short.dim(), given[0] is table
        if _size(self.values[table].short, dim) != frames:
            return False

        def build(root: nn.Module) -> Part:
            call = make(root)
            function = (lambda x, row: call(row, x)) if first else call
            return RecycledTable(function, lambda: rows(root), dim, axis)

        number = self._add(build, (clip.number,))
        part = self.network._nodes[-1].part
        self.values[node] = replace(
            clip, number=number, short=part(clip.short), long=part(clip.long)
        )
        note = f"begins again after {frames} rows"
        change = Change(build, note, "recycling positions", all_agree=True)
        self._note(node, "RecycledTable", change)
        return True

    def _constant_of(self, node: fx.Node) -> Callable[[nn.Module], Any] | None:
        """Return what computes a value that does not depend on the frames of a clip.

        Sizes are those of the example.
        """
        value = self.values[node]
        if value.axis is not None or value.head:
            return None
        if not isinstance(value.short, Tensor):
            return lambda root: value.short
        if node.op == "get_attr":
            path = str(node.target)
            own = has_attribute(self.module, path)
            return lambda root: attribute(root, path) if own else value.short
        make, _ = self._call(node, None)
        parts = [self._constant_of(n) for n in node.all_input_nodes]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return lambda root: make(root)(*[part(root) for part in known])

    def _shift(self, node: fx.Node) -> bool:
        """Take an assignment of a clip to later or earlier frames of zeros; False for others."""
        clip, value = (self.values.get(node.args[k]) for k in (0, 2))  # type: ignore[arg-type]
        if clip is None or clip.axis is None or clip.axis.outer > 1:
            return False
        items, longer = (self._map(node.args[1], name) for name in ("short", "long"))
        items, longer = (x if isinstance(x, tuple) else (x,) for x in (items, longer))
        k = clip.axis.dim
        if k >= len(items) or items[k] == slice(None) or Ellipsis in items[: k + 1]:
            return False
        if not isinstance(items[k], slice) or value is None or value.axis is None:
            raise ConversionError(
                "it writes single frames, or numbers, into a clip", hint="shift by slices"
            )
        before, after = shift_of(items[k], longer[k], clip.frames)
        frames, index = clip.frames[0], (*items[:k], slice(None), *items[k + 1 :])
        kept = clip.short[index]
        at = kept.dim() - clip.short[..., 0].dim() - 1 + k  # of time in what is written
        for start, count in ((0, before), (frames - after, after)):
            if kept.narrow(at, start, count).any():
                raise ConversionError(
                    "frames that it does not write are not zeros",
                    hint="write into torch.zeros_like(x)",
                )
        axis = value.axis.dim

        def make(root: nn.Module) -> Part:
            pad = Pad(before, after)
            pad.axis = axis
            return pad

        number = self._add(make, (value.number,))
        short, long = (make(self.root)(x) for x in (value.short, value.long))
        source = node.args[2]
        self.values[source] = replace(  # type: ignore[index]
            value, number=number, short=short, long=long, frames=clip.frames
        )
        try:
            self._alone(node, arguments=(node.args[0], index, source))
        finally:
            self.values[source] = value  # type: ignore[index]
        self._note(node, f"shift by {before or -after} frames")
        return True

    def _in_head(
        self, node: fx.Node, newest: bool = False, whole: bool = False, made: Any = None
    ) -> None:
        """Take an operation on one frame of the clip.

        ``whole``: take the newest frame of the node's result, which is in the network already.
        ``made``: what makes the call, and its inputs, if it is not that of the node.
        """
        make, inputs = made or self._call(node, None)
        if whole:
            make, inputs = _same, [self.values[node]]
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
                if target == "view" and not isinstance(args[1], torch.dtype):
                    function = torch.Tensor.reshape  # frames of a clip may lie apart
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
        planned = [Planned(make(root), inputs, timed) for make, inputs, timed in _used(self.plan)]
        for part, inputs, timed, writes in merged(planned):
            net.add(part, *inputs, timed=timed, writes=writes)
        net._out_axis = self.network._out_axis
        return net

    def check(self, net: Continual) -> ConversionReport:
        """Return the report; ConversionError unless the network does what it should."""
        report = ConversionReport(self.entries)
        try:
            wanted = self.root(self.example)
        except RuntimeError as error:
            raise ConversionError(
                f"its forward fails in double precision: {error}",
                hint="make tensors from others: x.new_zeros(...), torch.zeros_like(x)",
            ) from error
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        exact = not any(c.approximation and not c.all_agree for c in self.changes)
        report.error = steps_against_clip(net, self.example)
        change = difference(*common(self.result, wanted, net.out_axis))
        used = any(e.approximation for e in self.entries)
        report.change = change if used else None
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
        at = [k for k, c in enumerate(self.changes) if c.approximation and not c.all_agree]
        after = self.changes[at[0] + 1 :]
        if len(at) > 1 or not self.changes[at[0]].newest_agrees or any(c.make for c in after):
            return 0.0
        return difference(
            *(x if self.in_head else x.select(axis, -1) for x in (self.result, wanted))
        )


_Plan = list[tuple[Callable[[nn.Module], Part], tuple[int, ...], bool]]


def _used(plan: _Plan) -> _Plan:
    """Return the nodes whose values are used, with their new numbers as inputs; the last is."""
    used = {len(plan)}
    for number in range(len(plan), 0, -1):
        if number in used:
            used.update(plan[number - 1][1])
    numbers = [0, *sorted(used - {0})]
    place = {number: k for k, number in enumerate(numbers)}
    nodes = (plan[number - 1] for number in numbers[1:])
    return [(make, tuple(place[k] for k in inputs), timed) for make, inputs, timed in nodes]


def _size(x: Tensor, dim: int) -> int:
    """Return the size of a dimension, negative, of a tensor that is broadcast."""
    return x.shape[dim] if -dim <= x.dim() else 1


def _uses_states(node: fx.Node) -> bool:
    """Return whether the second of several values is used."""
    return any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)


def _check_together(
    first: TracedValue, sources: Sequence[TracedValue], timings: Sequence[Any]
) -> None:
    """Raise ConversionError unless clips come at the same steps, and others have no frames."""
    for source, timing in zip(sources, timings, strict=True):
        if source.axis is not None:
            if (source.axis, timing) != (first.axis, timings[0]):
                raise ConversionError(
                    "its inputs come at different steps",
                    hint="compute them from the same clip, by layers without padding at the end",
                )
        elif first.axis is not None and _size(source.short, first.axis.dim - first.short.dim()) > 1:
            raise ConversionError(
                "one of its inputs has a row for each frame, and is not computed from the clip",
                hint="compute it from the frames, or let it be constant",
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
