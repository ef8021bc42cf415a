"""Steps of networks as ONNX, with their state as explicit inputs and outputs.

The graph is one step of one stream: a token and the state before it, to the probabilities and the
state after it. States begin with zeros. Windows are shifted by a row in each step in place of being
written in a ring, which gives the same sums in another order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from costream.checkpoints.file import Weights
from costream.errors import ModelError, OutputError
from costream.models.build import build
from costream.models.int8 import to_float
from costream.models.oad.cooadtr import TokenClassifier
from costream.models.registry import read_model
from costream.nn.attention import SingleOutputAttention
from costream.nn.block import ACTIVATIONS, EncoderBlock
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder

OPSET, IR_VERSION = 20, 9  # the first with Gelu
_HIDDEN = -1e30  # logit of a slot that has no row yet


def export_step(name: str, output: Path) -> list[str]:
    """Write the step of a model's network as ONNX; return the names of its inputs.

    ``name``: as for ``find_weights``. The frontend is not part of it: the first input, ``x``
    [1, D], is its token. Further inputs are the state, each beside an output ``next_...``.
    Outputs are ``logits`` and ``probabilities`` [1, K]. Raises ModelError for networks whose step
    is not exported, and without the package onnx; OutputError.
    """
    try:
        import onnx
    except ImportError as error:
        hint = "pip install 'costream[onnx]'"
        raise ModelError("exporting needs the package onnx", hint=hint) from error
    stored = read_model(name)
    graph = _StepGraph()
    _classifier(graph, stored)
    card = stored.card
    model = graph.model(card.name)
    facts = {"labels": "\n".join(card.labels), "rate_hz": f"{card.rate_hz:g}"}
    facts |= {"weights_sha256": stored.sha256, "licence": card.licence}
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model)
    try:
        output.write_bytes(model.SerializeToString())
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=output) from error
    return [value.name for value in model.graph.input]


def _classifier(graph: _StepGraph, stored: Weights) -> None:
    """Add the step of a token classifier. ModelError for other networks."""
    card = stored.card
    facts = {k: v for k, v in card.compression.items() if k != "int8"}
    network = build(replace(card, compression=facts), to_float(stored.tensors))[0].eval()
    reason = _unsupported(network)
    if reason:
        raise ModelError(f"the step of {card.architecture} is not exported: {reason}")
    net: Any = network
    layer = net.input_projection
    width = net.encoder.embed_dim if layer is None else layer.in_features
    x = graph.input("x", (1, width))
    if layer is not None:
        x = graph.linear(x, layer.weight, layer.bias)
    steps = graph.input("steps", (1,), whole=True)
    graph.output("next_steps", graph.add("Add", steps, graph.whole([1])), (1,), whole=True)
    if net.positions is not None:
        table = net.positions.table
        row = graph.add("Mod", steps, graph.whole([len(table)]))
        x = graph.add("Add", x, graph.add("Gather", graph.constant(table), row))
    for k, block in enumerate(net.encoder._blocks):
        x = _block(graph, block, x, steps, str(k))
    if net.encoder.norm is not None:
        x = graph.norm(x, net.encoder.norm)
    logits = x if net.head is None else graph.linear(x, net.head.weight, net.head.bias)
    classes = len(card.labels)
    graph.output("logits", logits, (1, classes))
    scaled = graph.add("Div", logits, graph.constant(np.float32(card.temperature)))
    graph.output("probabilities", graph.add("Softmax", scaled, axis=-1), (1, classes))


def _unsupported(network: nn.Module) -> str:
    """Return why the step of a network is not exported; '' if it is."""
    if not isinstance(network, TokenClassifier):
        return "only classifiers of tokens with an encoder are (cooadtr, cotrans, deepcot)"
    encoder = network.encoder
    if isinstance(encoder, Encoder) and encoder.depth > 1:
        return "in a stack of blocks over one window a new row changes all rows"
    if not isinstance(encoder, Encoder | DeepEncoder):
        return "its attention has landmarks, whose state is not a window"
    if getattr(encoder, "rotary", None) is not None:
        return "its positions are rotations by an angle that float32 does not hold"
    kinds = [(type(b), type(b.self_attn)) for b in encoder._blocks]
    if any(kind != (EncoderBlock, SingleOutputAttention) for kind in kinds):
        return "its attention is not a softmax, or its blocks have no norms"
    return ""


def _block(graph: _StepGraph, block: Any, x: str, steps: str, k: str) -> str:
    attention = block.self_attn
    h, e, n = attention.num_heads, attention.head_dim, attention.window
    seen = graph.norm(x, block.norm1) if block.norm_first else x
    projected = graph.linear(seen, attention.in_proj_weight, attention.in_proj_bias)
    rows = graph.add("Reshape", projected, graph.whole([3, h, 1, e]))
    q, key, value = (graph.add("Squeeze", part, graph.whole([0])) for part in graph.split(rows, 3))
    key = graph.add("Mul", key, graph.constant(np.float32(1 / math.sqrt(e))))
    windows = []
    for name, row in (("keys", key), ("values", value)):
        past = graph.input(f"{name}_{k}", (h, n, e))
        kept = graph.add("Slice", past, graph.whole([1]), graph.whole([n]), graph.whole([1]))
        window = graph.add("Concat", kept, row, axis=1)
        graph.output(f"next_{name}_{k}", window, (h, n, e))
        windows.append(window)
    logits = graph.add("MatMul", q, graph.add("Transpose", windows[0], perm=[0, 2, 1]))
    first = graph.add("Sub", graph.whole([n - 1]), steps)  # slot of the stream's first row
    filled = graph.add("GreaterOrEqual", graph.whole(list(range(n))), first)
    logits = graph.add("Where", filled, logits, graph.constant(np.float32(_HIDDEN)))
    weights = graph.add("Softmax", logits, axis=-1)
    out = graph.add("MatMul", weights, windows[1])
    out = graph.add("Reshape", out, graph.whole([1, h * e]))
    y = graph.linear(out, attention.out_proj.weight, attention.out_proj.bias)
    y = graph.add("Add", y, x)
    if not block.norm_first:
        y = graph.norm(y, block.norm1)
    z = graph.norm(y, block.norm2) if block.norm_first else y
    z = graph.linear(z, block.linear1.weight, block.linear1.bias)
    z = _activate(graph, block, z)
    z = graph.linear(z, block.linear2.weight, block.linear2.bias)
    z = graph.add("Add", z, y)
    return z if block.norm_first else graph.norm(z, block.norm2)


def _activate(graph: _StepGraph, block: Any, x: str) -> str:
    kind = next(name for name, act in ACTIVATIONS.items() if act is block.activate)
    if kind == "none":
        return x
    if kind == "relu":
        return graph.add("Relu", x)
    return graph.add("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")


class _StepGraph:
    """An ONNX graph that is being made; values are known by their names."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self._helper, self._arrays = helper, numpy_helper
        self._types = {False: TensorProto.FLOAT, True: TensorProto.INT64}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, shape: tuple[int, ...], whole: bool = False) -> str:
        """Add an input, float32 or int64; return its name."""
        value = self._helper.make_tensor_value_info(name, self._types[whole], shape)
        self._inputs.append(value)
        return name

    def output(self, name: str, value: str, shape: tuple[int, ...], whole: bool = False) -> None:
        """Make a value an output of this name."""
        self._nodes.append(self._helper.make_node("Identity", [value], [name]))
        info = self._helper.make_tensor_value_info(name, self._types[whole], shape)
        self._outputs.append(info)

    def add(self, kind: str, *values: str, **attributes: Any) -> str:
        """Add an operation with one result; return its name."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, list(values), [name], **attributes))
        return name

    def split(self, value: str, count: int) -> list[str]:
        """Split a value into equal parts of its first dimension."""
        names = [f"v{len(self._nodes)}_{k}" for k in range(count)]
        node = self._helper.make_node("Split", [value], names, axis=0, num_outputs=count)
        self._nodes.append(node)
        return names

    def constant(self, value: Tensor | np.floating[Any]) -> str:
        """Add float32 numbers; return their name."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        return self._constant(np.ascontiguousarray(array, np.float32))

    def whole(self, values: list[int]) -> str:
        """Add whole numbers; return their name."""
        return self._constant(np.array(values, np.int64))

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """Add a linear layer of a row."""
        terms = [x, self.constant(weight)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Gemm", *terms, transB=1)

    def norm(self, x: str, layer: nn.LayerNorm) -> str:
        """Add a layer norm."""
        terms = [x, self.constant(layer.weight), self.constant(layer.bias)]
        return self.add("LayerNormalization", *terms, axis=-1, epsilon=layer.eps)

    def model(self, name: str) -> Any:
        """Return the whole as a model."""
        graph = self._helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, self._constants
        )
        opsets = [self._helper.make_opsetid("", OPSET)]
        return self._helper.make_model(
            graph, producer_name="costream", opset_imports=opsets, ir_version=IR_VERSION
        )

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._arrays.from_array(array, name))
        return name
