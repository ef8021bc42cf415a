"""A graph of operations, named and defined as ONNX's, that is written as ONNX or run by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.graph import scale_and_shift

OPSET, IR_VERSION = 20, 9  # the first with Gelu
FLOAT, WHOLE, DOUBLE = 1, 7, 11  # types of "Cast": float32, int64, float64


@dataclass(frozen=True)
class GraphInput:
    """An input or output: float32, or int64 if ``whole``.

    ``free``: names of the dimensions that may be different in ONNX; programs of torch have
    ``shape``.
    """

    shape: tuple[int, ...]
    whole: bool = False
    free: Mapping[int, str] = field(default_factory=dict)

    def dimensions(self) -> list[int | str]:
        """Return the shape, with the names of what is free."""
        return [self.free.get(k, size) for k, size in enumerate(self.shape)]


@dataclass(frozen=True)
class _Operation:
    kind: str
    values: tuple[str, ...]
    results: tuple[str, ...]
    attributes: dict[str, Any]


class StepGraph:
    """The operations of a step, which is built one by one; values have names.

    State is an input with an output ``next_...``; see ``keep``.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, GraphInput] = {}
        self.outputs: dict[str, tuple[str, GraphInput]] = {}
        self.operations: list[_Operation] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}
        self.facts: dict[str, Any] = {}  # of the network, for those who run the step
        self.prefix = ""  # of the names of what is kept
        self._before, self._count = "", 0
        self._names: dict[tuple[Any, ...], str] = {}  # of constants: those that are equal are one

    def input(self, name: str, shape: tuple[int, ...], whole: bool = False, **more: Any) -> str:
        """Add an input, see ``GraphInput``; return its name."""
        self.inputs[name] = GraphInput(shape, whole, **more)
        return name

    def output(
        self, name: str, value: str, shape: tuple[int, ...], whole: bool = False, **more: Any
    ) -> None:
        """Make a value an output of this name, see ``GraphInput``."""
        self.outputs[name] = value, GraphInput(shape, whole, **more)

    def steps_before(self) -> str:
        """Return the number of steps before this one, int64 [1]; it is part of the state."""
        if not self._before:
            self._before = self.input("steps", (1,), whole=True)
            more = self.add("Add", self._before, self.whole([1]))
            self.output("next_steps", more, (1,), whole=True)
        return self._before

    def keep(
        self,
        name: str,
        new: str,
        shape: tuple[int, ...],
        axis: int,
        size: int,
        when: str = "",
        start: str = "",
    ) -> str:
        """Return the newest values along ``axis``: those of the state ``name``, then ``new``.

        ``shape``: of the state, which is initially zeros or, with ``start``, that value. The
        ``size`` oldest values leave it. Where ``when``, a value bool [1], is false, it stays.
        """
        name = self.prefix + name
        before = self.input(name, shape)
        if start:
            first = self.add("Equal", self.steps_before(), self.whole([0]))
            before = self.add("Where", first, start, before)
        joined = self.add("Concat", before, new, axis=axis)
        after = self.slice(joined, axis, size, shape[axis] + size)
        if when:
            after = self.add("Where", when, after, before)
        self.output(f"next_{name}", after, shape)
        return joined

    def add(self, kind: str, *values: str, **attributes: Any) -> str:
        """Add an operation with one result; return its name."""
        return self._add(kind, values, 1, attributes)[0]

    def choose(self, condition: str, compute: Callable[[], str], otherwise: str) -> str:
        """Return the value that ``compute`` adds if a value bool [1] is true, else ``otherwise``.

        ONNX computes it only if it is needed, the module of torch always.
        """
        start = len(self.operations)
        value = compute()
        branch = tuple(self.operations[start:])
        del self.operations[start:]
        attributes = {"branch": branch, "value": value}
        return self._add("If", (condition, otherwise), 1, attributes)[0]

    def split(self, value: str, count: int) -> list[str]:
        """Split a value into equal parts of its first dimension."""
        return self._add("Split", (value,), count, {"axis": 0, "num_outputs": count})

    def slice(self, value: str, axis: int, start: int, end: int) -> str:
        """Return the part of a value from ``start`` to ``end`` along an axis."""
        return self.add("Slice", value, *(self.whole([k]) for k in (start, end, axis)))

    def reshape(self, value: str, *shape: int) -> str:
        """Return the numbers of a value in another shape."""
        return self.add("Reshape", value, self.whole(shape))

    def reduce(self, kind: str, value: str, axes: Sequence[int], keep: bool = False) -> str:
        """Add "ReduceMean", "ReduceSum" or "ReduceMax" over axes."""
        return self.add(kind, value, self.whole(axes), keepdims=int(keep))

    def constant(self, value: Tensor | float) -> str:
        """Add float32 numbers; return their name."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return self._constant(np.ascontiguousarray(array, np.float32))

    def double(self, value: Tensor) -> str:
        """Add float64 numbers; return their name."""
        return self._constant(value.detach().cpu().numpy().astype(np.float64))

    def whole(self, values: Sequence[int]) -> str:
        """Add whole numbers; return their name."""
        return self._constant(np.array(values, np.int64))

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """Add a linear layer of rows [n, D]."""
        terms = [x, self.constant(weight)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Gemm", *terms, transB=1)

    def norm(self, x: str, layer: nn.LayerNorm) -> str:
        """Add a layer norm."""
        terms = [x, self.constant(layer.weight), self.constant(layer.bias)]
        return self.add("LayerNormalization", *terms, axis=-1, epsilon=layer.eps)

    def convolve(
        self,
        x: str,
        weight: Tensor,
        bias: Tensor | None,
        strides: Sequence[int] = (1, 1),
        pads: Sequence[int] = (0, 0),
        ends: Sequence[int] | None = None,
        groups: int = 1,
    ) -> str:
        """Add a convolution of images [1, I, h, w] or volumes.

        ``pads``: zeros before each of these dimensions; ``ends``: behind them, by default as many.
        """
        terms = [x, self.constant(weight)] + ([] if bias is None else [self.constant(bias)])
        around = [*pads, *(pads if ends is None else ends)]
        return self.add("Conv", *terms, strides=list(strides), pads=around, group=groups)

    def layer(self, x: str, layer: Any, pads: Sequence[int] | None = None, ends: Any = None) -> str:
        """Add a convolution without a norm; ``pads``: default as in the layer."""
        pads = layer.padding if pads is None else pads
        return self.convolve(
            x, layer.weight, layer.bias, layer.stride, pads, ends=ends, groups=layer.groups
        )

    def normed(self, x: str, layer: Any, norm: Any) -> str:
        """Add a convolution with the batch norm behind it folded in."""
        scale, shift = scale_and_shift(norm)
        weight = layer.weight.detach()
        weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
        return self.convolve(x, weight, shift, layer.stride, layer.padding, groups=layer.groups)

    def _add(
        self, kind: str, values: tuple[str, ...], count: int, attributes: dict[str, Any]
    ) -> list[str]:
        names = [f"v{self._count}_{k}" for k in range(count)]
        self._count += 1
        self.operations.append(_Operation(kind, values, tuple(names), attributes))
        return names

    def _constant(self, array: npt.NDArray[Any]) -> str:
        key = array.dtype.str, array.shape, sha256(array.tobytes()).digest()
        name = self._names.setdefault(key, f"c{len(self.constants)}")
        self.constants.setdefault(name, array)
        return name


def to_onnx(graph: StepGraph, name: str, facts: Mapping[str, str]) -> bytes:
    """Return a checked ONNX model with this metadata. Needs the package onnx."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, value: GraphInput) -> Any:
        kind = TensorProto.INT64 if value.whole else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, value.dimensions())

    def branch(nodes: Sequence[Any], value: str, result: str) -> Any:
        # The name of its output must not occur outside of the branch.
        nodes = [*nodes, helper.make_node("Identity", [value], [result])]
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        return helper.make_graph(nodes, result, [], [output])

    def node(operation: _Operation) -> Any:
        kind, values, results = operation.kind, operation.values, operation.results
        if kind != "If":
            return helper.make_node(kind, values, results, **operation.attributes)
        inside = [node(o) for o in operation.attributes["branch"]]
        branches = {
            "then_branch": branch(inside, operation.attributes["value"], f"{results[0]}_then"),
            "else_branch": branch([], values[1], f"{results[0]}_else"),
        }
        return helper.make_node(kind, values[:1], results, **branches)

    nodes = [node(operation) for operation in graph.operations]
    nodes += [helper.make_node("Identity", [v], [k]) for k, (v, _) in graph.outputs.items()]
    whole = helper.make_graph(
        nodes,
        name,
        [info(k, v) for k, v in graph.inputs.items()],
        [info(k, v) for k, (_, v) in graph.outputs.items()],
        [numpy_helper.from_array(array, k) for k, array in graph.constants.items()],
    )
    model = helper.make_model(
        whole,
        producer_name="costream",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


class TorchStep(nn.Module):
    """A graph as a module of torch: takes a dict of its inputs, returns a dict of its outputs."""

    def __init__(self, graph: StepGraph) -> None:
        super().__init__()
        self._graph = graph
        for name, array in graph.constants.items():
            if array.dtype != np.int64:
                self.register_buffer(name, torch.from_numpy(array))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by their names."""
        values: dict[str, Any] = dict(inputs)
        for name, array in self._graph.constants.items():
            floats = array.dtype != np.int64
            values[name] = getattr(self, name) if floats else array.tolist()
        values[""] = None  # an argument left out
        for operation in self._graph.operations:
            self._run(operation, values)
        # An output may be an input as it is, which a program may not return.
        return {name: values[value].clone() for name, (value, _) in self._graph.outputs.items()}

    def _run(self, operation: _Operation, values: dict[str, Any]) -> None:
        given = [values[name] for name in operation.values]
        if operation.kind == "If":
            for inside in operation.attributes["branch"]:
                self._run(inside, values)
            out: Any = torch.where(given[0], values[operation.attributes["value"]], given[1])
        else:
            out = OPERATIONS[operation.kind](*given, **operation.attributes)
        outs = out if isinstance(out, tuple) else (out,)
        values.update(zip(operation.results, outs, strict=True))

    def example(self) -> dict[str, Tensor]:
        """Return inputs of zeros."""
        return {
            name: torch.zeros(value.shape, dtype=torch.int64 if value.whole else torch.float32)
            for name, value in self._graph.inputs.items()
        }


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, device=like.device)


def _pair(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return an operation on two values, one of which may be whole numbers."""

    def run(a: Any, b: Any) -> Any:
        like = a if isinstance(a, Tensor) else b
        return operation(_tensor(a, like), _tensor(b, like))

    return run


def _padded(x: Tensor, pads: Sequence[int]) -> Tensor:
    """Return images or volumes with zeros before and behind each dimension."""
    half = len(pads) // 2
    sides = [n for pair in zip(pads[:half], pads[half:], strict=True) for n in pair[::-1]]
    return F.pad(x, sides[::-1])


def _convolve(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, strides: Any, pads: Any, group: int
) -> Tensor:
    operation = F.conv3d if x.dim() == 5 else F.conv2d
    return operation(_padded(x, pads), w, b, strides, 0, 1, group)


def _average(x: Tensor, kernel_shape: Any, strides: Any, pads: Any) -> Tensor:
    """Return the mean of a picture in each window; places outside of it do not count."""
    parts = (
        F.avg_pool2d(_padded(y, pads), kernel_shape, strides) for y in (x, x.new_ones(x.shape))
    )
    total, share = parts
    return total / share


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="floor")


_TYPES = {FLOAT: torch.float32, WHOLE: torch.int64, DOUBLE: torch.float64}
_ON_PAIRS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Mod": torch.remainder,
    "Equal": torch.eq,
    "GreaterOrEqual": torch.ge,
    "Min": torch.minimum,
    "Max": torch.maximum,
}
# The operations of ONNX in torch; constants of whole numbers are lists.
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _pair(operation) for name, operation in _ON_PAIRS.items()},
    "Div": _pair(_divide),
    "Gemm": lambda x, w, b=None, transB=1: F.linear(x, w, b),  # noqa: N803
    "MatMul": torch.matmul,
    "Relu": torch.relu,
    "Clip": torch.clamp,
    "Gelu": lambda x, approximate: F.gelu(x, approximate=approximate),
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Cos": torch.cos,
    "Sin": torch.sin,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Cast": lambda x, to: x.to(_TYPES[to]),
    "Softmax": lambda x, axis: x.softmax(axis),
    "LayerNormalization": lambda x, w, b, axis, epsilon: F.layer_norm(x, w.shape, w, b, epsilon),
    "Conv": _convolve,
    "AveragePool": _average,
    "MaxPool": lambda x, kernel_shape, strides, pads: F.max_pool2d(
        x, kernel_shape, strides, pads[:2]
    ),
    "HardSwish": F.hardswish,
    "HardSigmoid": lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
    "Resize": lambda x, roi, scales, size, mode: F.interpolate(x, size[2:], mode="bilinear"),
    "LeakyRelu": lambda x, alpha: F.leaky_relu(x, alpha),
    "Shape": lambda x: list(x.shape),
    "CumSum": lambda x, axis: x.cumsum(axis[0]),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Squeeze": lambda x, axes: x.squeeze(axes),
    "Transpose": lambda x, perm: x.permute(perm),
    "Concat": lambda *x, axis: torch.cat(x, axis),
    "Slice": lambda x, start, end, axis: x.narrow(axis[0], start[0], end[0] - start[0]),
    "Split": lambda x, axis, num_outputs: x.chunk(num_outputs, axis),
    "Gather": lambda x, index, axis=0: x.index_select(axis, _tensor(index, x)),
    "Where": torch.where,
    "ReduceMean": lambda x, axes, keepdims: x.mean(axes, keepdim=bool(keepdims)),
    "ReduceSum": lambda x, axes, keepdims: x.sum(axes, keepdim=bool(keepdims)),
    "ReduceMax": lambda x, axes, keepdims: x.amax(axes, keepdim=bool(keepdims)),
}
