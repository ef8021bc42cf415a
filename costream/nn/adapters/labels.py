"""Labels of the channels in the values of a traced network: see ``channels``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from costream.nn.adapters.atoms import Atoms
from costream.nn.adapters.parameters import ParameterPlaces
from costream.nn.tracing import title


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of functions, methods and, in small letters, modules.
_MOVES = _names(
    "view reshape flatten unflatten permute transpose t movedim swapaxes unsqueeze squeeze expand"
    " expand_as contiguous flip roll cat concat stack chunk split unbind narrow select getitem"
)
_ELEMENTWISE = _names(
    "relu relu_ relu6 leaky_relu leakyrelu prelu elu selu gelu mish silu silu_ sigmoid logsigmoid"
    " tanh hardswish hardsigmoid hardtanh softplus softsign dropout dropout1d dropout2d dropout3d"
    " identity abs neg exp log sqrt rsqrt square pow clamp float double to detach clone"
)
_PAIRS = _names("add add_ iadd sub sub_ isub mul mul_ imul truediv itruediv div maximum minimum")
_OVER_SPACE = ("pool", "interpolate", "upsample", "pad", "temporalmean")  # parts of names
_REDUCTIONS = frozenset(
    ["mean", "amax", "amin", "sum", "var", "std", "max", "min", "softmax", "log_softmax"]
)
_PRODUCTS = frozenset(("matmul", "bmm", "mm"))
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS)
_FUNCTIONS = (F.linear, torch.conv1d, torch.conv2d, torch.conv3d)  # the same, called


class _Call(NamedTuple):
    """An operation of the traced network whose labels are wanted."""

    node: fx.Node
    name: str  # of the function, the method or, in small letters, the module
    module: Any  # None for functions and methods
    inputs: list[Any]  # labels of its inputs
    value: Any  # its result

    def is_layer(self, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
        """Return whether it is a module of this kind."""
        return isinstance(self.module, kind)

    @property
    def moves_numbers(self) -> bool:
        """Whether the result has the numbers of the inputs, in other places."""
        return self.name in ("flatten", "unflatten") or (
            self.module is None and self.name in _MOVES
        )


class Labeller(fx.Interpreter):
    """Runs a network and computes the labels of every value, by ``RULES``.

    ``sides``: for each module, parameter and dimension the labels along it.
    """

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.atoms = Atoms()
        self.labels: dict[fx.Node, Any] = {}
        self.sides: dict[tuple[str, str, int], Tensor] = {}
        self.parameters = ParameterPlaces(root)
        # Places of values computed from parameters; of a sum, one tensor for each of its terms.
        self.places: dict[fx.Node, list[Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Return the value of a node, and note its labels."""
        value = super().run_node(n)
        self.labels[n] = self._label(n, value)
        return value

    def _label(self, node: fx.Node, value: Any) -> Any:
        if node.op == "output":
            self._fix(node, "it is an output of the network")
            return None
        self._place(node, title(node.target).lower())
        if isinstance(node.target, type) and isinstance(value, tuple):  # such as a named tuple
            return tuple(self.labels.get(a) for a in node.args if isinstance(a, fx.Node))
        call = self._described(node, value)
        if node.target in _FUNCTIONS and (weight := self._weight(node)) is not None:
            return self._function(node, weight, call.inputs[0], value)
        if not any(map(_any, call.inputs)) and not call.is_layer(_LAYERS):
            return _none(value)
        for applies, rule in RULES:
            if applies(call):
                return rule(self, call)
        if isinstance(value, Tensor) and not call.name.startswith("new_"):
            self._fix(node, f"{call.name} takes them")
        return _none(value)

    def _described(self, node: fx.Node, value: Any) -> _Call:
        name, module = title(node.target).lower(), None
        if node.op == "call_module":
            module = self.fetch_attr(str(node.target))
            name = type(module).__name__.lower().removeprefix("parametrized")
        return _Call(node, name, module, [self.labels[a] for a in node.all_input_nodes], value)

    # Layers.

    def linear(self, call: _Call) -> Tensor:
        """A linear layer: its outputs are channels; its columns are the channels of its input."""
        path, layer, labels, value = str(call.node.target), call.module, call.inputs[0], call.value
        if (columns := self._along(labels, labels.dim() - 1)) is not None:
            self._note(path, "weight", 1, columns)
        return self._rows(path, layer).expand(value.shape)

    def convolution(self, call: _Call) -> Tensor:
        """A convolution: as a linear layer. In groups, channels of a group are removed together."""
        path, layer, labels, value = str(call.node.target), call.module, call.inputs[0], call.value
        dim, groups = value.dim() - layer.weight.dim() + 1, layer.groups
        columns = self._along(labels, dim)
        known = (path, "weight", 0) in self.sides
        rows = self._rows(path, layer)
        if groups > 1:
            own = rows.view(groups, -1)
            if not known:  # all rows of a group go together
                self.atoms.unite(own, own[:, :1].expand_as(own))
            if columns is None or not (columns > 0).all():
                self.atoms.fix(rows, "its groups take inputs that stay")
            else:
                inside = columns.view(groups, -1)
                self.atoms.unite(inside, own[:, :1].expand_as(inside))
        elif columns is not None:
            self._note(path, "weight", 1, columns)
        shape = [1] * value.dim()
        shape[dim] = -1
        return rows.view(shape).expand(value.shape)

    def _rows(self, path: str, layer: nn.Module) -> Tensor:
        """Return the channels of a layer's outputs, new ones when it is called first."""
        if (path, "weight", 0) not in self.sides:
            weight: Any = layer.weight
            self._note(path, "weight", 0, self.atoms.new(len(weight)))
            if layer.bias is not None:
                self._note(path, "bias", 0, self.sides[path, "weight", 0])
        return self.sides[path, "weight", 0]

    def batch_norm(self, call: _Call) -> Tensor:
        """A batch norm: its parameters and statistics go with the channels, dimension 1."""
        return self._vectors(call, ("weight", "bias", "running_mean", "running_var"))

    def prelu(self, call: _Call) -> Tensor:
        """A PReLU with a slope for each channel, dimension 1."""
        return self._vectors(call, ("weight",))

    def _vectors(self, call: _Call, names: Iterable[str]) -> Tensor:
        """Return the labels after a layer with numbers for each channel, dimension 1."""
        labels: Tensor = call.inputs[0]
        channels = self._along(labels, 1)
        if channels is not None:
            for name in names:
                if getattr(call.module, name) is not None:
                    self._note(str(call.node.target), name, 0, channels)
        return labels

    def _weight(self, node: fx.Node) -> Tensor | None:
        """Return the places of the weight of a layer that is called as a function."""
        weight, groups = (
            self._argument_node(node, 1, "weight"),
            self._argument(node, 6, "groups", 1),
        )
        places = self.places.get(weight, []) if isinstance(weight, fx.Node) else []
        return places[0] if len(places) == 1 and groups == 1 and places[0].dim() > 1 else None

    def _function(self, node: fx.Node, weight: Tensor, labels: Tensor, value: Tensor) -> Tensor:
        """Return the channels of the outputs of a layer that is called as a function."""
        dim = value.dim() - 1 if node.target is F.linear else value.dim() - weight.dim() + 1
        rows = weight.flatten(2)[..., 0] if weight.dim() > 2 else weight
        if (columns := self._along(labels, dim)) is not None:
            self._note_places(weight, columns.view(1, -1, *[1] * (weight.dim() - 2)), 1)
        atoms = self.atoms.new(len(weight))
        self._note_places(rows, atoms[:, None], 0)
        bias = self._argument_node(node, 2, "bias")
        if isinstance(bias, fx.Node) and not self._note_vector(bias, atoms):
            self.atoms.fix(atoms, "their bias is computed")
        shape = [1] * value.dim()
        shape[dim] = -1
        return atoms.view(shape).expand(value.shape)

    def _note_places(self, places: Tensor, labels: Tensor, dim: int) -> None:
        """Note labels, of a shape that broadcasts, along ``dim`` of the parameters at places."""
        for found in self.parameters.along(places, labels.expand(places.shape), dim):
            vector = torch.zeros(found.size, dtype=torch.int64)
            vector[found.indices] = found.labels
            self.atoms.unite(vector[found.indices], found.labels)  # of an index with several
            self._note(found.path, found.name, dim, vector)

    def _note_vector(self, node: fx.Node, channels: Tensor) -> bool:
        """Note the channels of a vector of parameters; return whether it is one."""
        terms = self.places.get(node, [])
        for places in terms:
            if places.numel() != len(channels):
                return False
            self._note_places(places.flatten(), channels, 0)
        return bool(terms)

    def _note(self, path: str, name: str, dim: int, labels: Tensor) -> None:
        before = self.sides.setdefault((path, name, dim), labels)
        if before is not labels:
            self._align(before, labels, "a layer is called with other channels")

    # Operations.

    def _place(self, node: fx.Node, name: str) -> None:
        """Note the places of a parameter, or of what an operation makes of parameters."""
        if node.op == "get_attr":
            places = self.parameters.of(str(node.target))
            if places is not None:
                self.places[node] = [places]
            return
        given = [self.places[a] for a in node.all_input_nodes if a in self.places]
        if not given or node.op == "call_module" or max(map(len, given)) > 1:
            return
        if name in _MOVES:
            moved = self._move(node, None, {a: p[0] for a, p in self.places.items()})
            if isinstance(moved, Tensor):
                self.places[node] = [moved]
        elif name == "sum" and isinstance(dim := self._argument(node, 1, "dim", None), int):
            self.places[node] = list(given[0][0].unbind(dim))

    def move(self, call: _Call) -> Any:
        """A view, a slice, a concatenation, ...: the labels move as the numbers do."""
        return self._move(call.node, call.module)

    def elementwise(self, call: _Call) -> Any:
        """An activation, dropout, ...: the labels stay."""
        return call.inputs[0]

    def pool(self, call: _Call) -> Tensor:
        """Pooling, padding, interpolation: sizes change, but not over channels."""
        return self._spread(call.inputs[0], call.value.shape, f"{call.name} over channels")

    def glu(self, call: _Call) -> Tensor:
        """A gated linear unit: the channels of both halves are removed together."""
        module = call.module
        dim = module.dim if module is not None else self._argument(call.node, 1, "dim", -1)
        first, second = call.inputs[0].chunk(2, dim)
        self.atoms.unite(first, second)
        return first  # type: ignore[no-any-return]

    def _move(self, node: fx.Node, module: nn.Module | None, table: Any = None) -> Any:
        """Run an operation that only moves numbers on the labels, or on what is in a table."""
        if module is not None:
            return module(self.labels[node.all_input_nodes[0]])
        table = self.labels if table is None else table

        def mixed(a: fx.Node) -> Any:
            index = node.target is operator.getitem and a is not node.args[0]
            labels = None if index else table.get(a)
            return self.env[a] if labels is None else labels

        args, kwargs = fx.node.map_arg(node.args, mixed), fx.node.map_arg(node.kwargs, mixed)
        if node.op == "call_method":
            name = str(node.target).replace("view", "reshape")  # labels are spread out
            return getattr(args[0], name)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def combine(self, call: _Call) -> Tensor:
        """Sums, products, ... of two values, number by number: their channels are united."""
        node, value = call.node, call.value
        out = torch.zeros(value.shape, dtype=torch.int64)
        found = [x for a in node.all_input_nodes if isinstance(x := self.labels[a], Tensor)]
        for k, labels in enumerate(found):
            if _any(labels) and _is_spread(labels, [*found[:k], *found[k + 1 :]], value.shape):
                self.atoms.fix(labels, "it is combined with several channels")
            elif _any(labels):
                labels = labels.expand(value.shape)
                self.atoms.unite(out, labels)
                out = torch.where(out > 0, out, labels)
        for a in node.all_input_nodes:
            other = self.env[a]
            if isinstance(other, Tensor):
                self._cover(a, other.shape, self.labels[a], out)
        return out

    def _cover(self, node: fx.Node, shape: torch.Size, labels: Tensor, out: Tensor) -> None:
        """Note a parameter that is combined with channels; fix those combined with a constant."""
        behind = out.dim() - len(shape)
        uncovered = torch.where(labels.expand(out.shape) > 0, 0, out)
        wide = [d for d, n in enumerate(shape) if n > 1 and _varies(uncovered, behind + d)]
        if not wide:
            return
        channels = self._along(out, behind + wide[0]) if len(wide) == 1 else None
        if channels is None or not self._note_vector(node, channels):
            self.atoms.fix(uncovered, "they are combined with numbers that are not channels")

    def _spread(self, labels: Tensor, shape: torch.Size, reason: str) -> Tensor:
        """Return the labels behind an operation that changes sizes, but not of channels."""
        for dim, (a, b) in enumerate(zip(labels.shape, shape, strict=True)):
            if a == b:
                continue
            if _varies(labels, dim):
                self.atoms.fix(labels, reason)
                return torch.zeros(shape, dtype=torch.int64)
            labels = labels.narrow(dim, 0, 1)
        return labels.expand(shape)

    def reduce(self, call: _Call) -> Tensor | None:
        """A sum, mean, maximum or softmax: over channels they are fixed, or, in a sum, united."""
        node, name, module, (labels, *_), value = call
        dims = module.dim if module is not None else self._argument(node, 1, "dim", None)
        every = range(labels.dim()) if dims is None else dims if _several(dims) else (dims,)
        dims = sorted({int(d) % labels.dim() for d in every})
        if not isinstance(value, Tensor) or (
            name != "sum" and any(_varies(labels, d) for d in dims)
        ):
            self.atoms.fix(labels, f"{name} is over channels")
            return _none(value)  # type: ignore[no-any-return]
        if "softmax" in name:
            return labels  # type: ignore[no-any-return]
        out = self._sum(labels, dims)
        return out if out.dim() == value.dim() else out.squeeze(tuple(dims))

    def product(self, call: _Call) -> Tensor:
        """A product of matrices, or ``einsum``: channels that are summed over are united."""
        node, name, value = call.node, call.name, call.value
        operands, (terms, result) = list(node.all_input_nodes), self._equation(call)
        if "." in result or len(terms) != len(operands) or value.dim() != len(result):
            self._fix(node, f"{name} takes them")
            return torch.zeros(value.shape, dtype=torch.int64)
        summed = sorted({c for term in terms for c in term} - set(result))
        order = result + "".join(summed)
        out = torch.zeros([1] * len(order), dtype=torch.int64)
        for term, a in zip(terms, operands, strict=True):
            labels = self.labels[a]
            for d in range(labels.dim()):
                if not _varies(labels, d):
                    labels = labels.narrow(d, 0, 1)
            labels = labels.permute([term.index(c) for c in order if c in term])
            shape = iter(labels.shape)
            labels = labels.reshape([next(shape) if c in term else 1 for c in order])
            first, second = torch.broadcast_tensors(out, labels)  # type: ignore[no-untyped-call]
            self.atoms.unite(first, second)
            out = torch.where(first > 0, first, second)
        out = self._sum(out, range(len(result), len(order)))
        return out.reshape(out.shape[: len(result)]).expand(value.shape)

    def _equation(self, call: _Call) -> tuple[list[str], str]:
        """Return the letters of each operand's dimensions, and of the result's, as in einsum."""
        if call.name == "einsum":
            equation = str(call.node.args[0]).replace(" ", "")
            inputs, _, result = equation.partition("->")
            return inputs.split(","), result
        ranks = [labels.dim() for labels in call.inputs]
        batch = "abcdefgh"[: max(ranks) - 2]
        pairs = zip(ranks, ("xy", "yz"), strict=True)
        return [f"{batch[len(batch) - rank + 2 :]}{pair}" for rank, pair in pairs], f"{batch}xz"

    def attention(self, call: _Call) -> Tensor:
        """Attention: in each head channels of queries, keys, values [..., n, e] are united."""
        q, k, v = call.inputs[:3]
        if any(_varies(x, x.dim() - 2) for x in (q, k, v)) or q.shape[:-2] != v.shape[:-2]:
            for x in (q, k, v):
                self.atoms.fix(x, "attention whose heads differ")
            return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.int64)
        rows = torch.cat([x[..., :1, :] for x in (q, k, v)], -1)
        self.atoms.unite(rows, rows[..., :1].expand_as(rows))
        return v[..., :1, :].expand(*q.shape[:-1], v.shape[-1])  # type: ignore[no-any-return]

    def _sum(self, labels: Tensor, dims: Iterable[int]) -> Tensor:
        """Return the labels, in these dimensions of size 1, of sums over them."""
        for d in dims:
            first = labels.amax(d, keepdim=True)
            if _varies(labels, d):
                self.atoms.unite(labels, first.expand_as(labels))
            labels = first
        return labels

    # Helpers.

    def _along(self, labels: Tensor, dim: int) -> Tensor | None:
        """Return the labels along a dimension, or None, fixed, if they also depend on others."""
        rows = labels.movedim(dim, 0).flatten(1)
        channels = rows.amax(1)  # zeros are constants: before the first frame
        if bool(((rows != channels[:, None]) & (rows > 0)).any()):
            self.atoms.fix(labels, "a layer takes them in several places")
            return None
        return channels

    def _align(self, a: Tensor, b: Tensor, reason: str) -> None:
        both = (a > 0) & (b > 0)
        self.atoms.unite(a, b)
        self.atoms.fix(torch.where(both, 0, torch.maximum(a, b)), reason)

    def _fix(self, node: fx.Node, reason: str) -> None:
        for a in node.all_input_nodes:
            for labels in _flat(self.labels[a]):
                self.atoms.fix(labels, reason)

    def _argument(self, node: fx.Node, k: int, name: str, default: Any) -> Any:
        found = self._argument_node(node, k, name, default)
        return fx.node.map_arg(found, lambda a: self.env[a])

    @staticmethod
    def _argument_node(node: fx.Node, k: int, name: str, default: Any = None) -> Any:
        return node.args[k] if len(node.args) > k else node.kwargs.get(name, default)


def _varies(labels: Tensor, dim: int) -> bool:
    """Return whether labels differ along a dimension."""
    if labels.shape[dim] < 2 or labels.stride(dim) == 0:
        return False
    return bool((labels != labels.narrow(dim, 0, 1)).any())


def _is_spread(labels: Tensor, others: Iterable[Tensor], shape: torch.Size) -> bool:
    """Return whether one channel of a value is combined with several of others."""
    sizes = [*[1] * (len(shape) - labels.dim()), *labels.shape]
    wide = [d for d, (n, m) in enumerate(zip(sizes, shape, strict=True)) if n == 1 < m]
    return any(_varies(x.expand(shape), d) for x in others for d in wide)


def _none(value: Any) -> Any:
    """Return labels for a value without channels; None for a value that is not a tensor."""
    if isinstance(value, Tensor):
        return torch.zeros((), dtype=torch.int64).expand(value.shape)
    if isinstance(value, tuple | list) and any(isinstance(v, Tensor) for v in value):
        return tuple(_none(v) for v in value)
    return None


def _flat(labels: Any) -> list[Tensor]:
    if isinstance(labels, Tensor):
        return [labels]
    return [x for part in labels for x in _flat(part)] if isinstance(labels, tuple | list) else []


def _any(labels: Any) -> bool:
    return any(bool((x > 0).any()) for x in _flat(labels))


def _several(dims: Any) -> bool:
    return isinstance(dims, tuple | list)


_Rule = Callable[[Labeller, _Call], Any]
# The first rule that applies is used; operations without one fix the channels that they take.
RULES: tuple[tuple[Callable[[_Call], bool], _Rule], ...] = (
    (lambda call: call.is_layer(nn.Linear), Labeller.linear),
    (lambda call: call.is_layer(_CONVOLUTIONS), Labeller.convolution),
    (lambda call: call.is_layer(nn.modules.batchnorm._BatchNorm), Labeller.batch_norm),
    (lambda call: call.is_layer(nn.PReLU) and call.module.num_parameters > 1, Labeller.prelu),
    (lambda call: call.moves_numbers, Labeller.move),
    (lambda call: call.name in _ELEMENTWISE, Labeller.elementwise),
    (lambda call: call.name in _PAIRS, Labeller.combine),
    (lambda call: any(part in call.name for part in _OVER_SPACE), Labeller.pool),
    (lambda call: call.name in _REDUCTIONS, Labeller.reduce),
    (lambda call: call.name in _PRODUCTS or call.name == "einsum", Labeller.product),
    (lambda call: call.name == "scaled_dot_product_attention", Labeller.attention),
    (lambda call: call.name == "glu", Labeller.glu),
)
