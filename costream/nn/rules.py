"""Rules of conversion: the continual form of each operation that takes more than one frame.

An operation without a rule is taken as it is if it treats every frame alone; ``conversion`` tests
that. A rule changes an operation, or says why it cannot be continual and what to change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import layers
from costream.nn.attention_rules import attention, encoder, multihead
from costream.nn.network import PartGraph, kind_of
from costream.nn.operation import Change, ConversionError, Operation
from costream.nn.parts import Pad, Part, Skip
from costream.nn.recurrence import scan
from costream.nn.recurrence_rules import recurrence, running_sum

Rule = Callable[[Operation], Change | None]


def _kernel(op: Operation, make: Callable[[nn.Module], Part]) -> Change | None:
    """A convolution or a pooling; with causal padding after as many zeros as it pads at the end."""
    part = make(op.root)
    if part.receptive_field == 1 and part.stride == 1:
        return None
    late = part.padding if "causal padding" in op.allowed else 0
    if not late:
        return Change(make)

    def padded(root: nn.Module) -> Part:
        pad, network = Pad(late), PartGraph()
        pad.axis = network.axis = op.axis
        network.add(make(root), network.add(pad, 0))
        return network

    return Change(padded, f"{late} frames later than trained", "causal padding")


def _layer(op: Operation) -> Change | None:
    """A layer of torch that is a part."""
    kind, path, axis, layer = kind_of(op.module), op.target, op.axis, op.module  # type: ignore[arg-type]

    def make(root: nn.Module) -> Part:
        return kind.of(root.get_submodule(path), axis)  # type: ignore[no-any-return]

    if isinstance(layer, nn.RNNBase):
        if op.clip.dim() != 3 or axis != int(layer.batch_first):
            return None
        if not all(_are_zeros(x) for x in (*op.args[1:], *op.kwargs.values())):
            raise ConversionError("it starts from a state", hint="leave the state out")
        kind.of(layer, axis)
        if op.with_states:
            return Change(lambda root: _with_states(make(root)), "with its states at every frame")
    elif not hasattr(layer, "kernel_size") or _has_no_time(op):
        return None
    else:
        return _pooling(op, kind, layer, make) if kind in _RUNNING else _kernel(op, make)
    return Change(make)


def _are_zeros(state: Any) -> bool:
    """Return whether the first state of a recurrent layer is left out, or zeros."""
    if isinstance(state, tuple | list):
        return all(_are_zeros(x) for x in state)
    return state is None or not bool(torch.as_tensor(state).any())


def _with_states(part: Any) -> Part:
    part.with_states = True
    return part  # type: ignore[no-any-return]


def _has_no_time(op: Operation) -> bool:
    """Return whether a convolution or pooling has all of its dimensions within a frame."""
    if op.axis == 1:
        raise ConversionError("time is its channels", hint="make time a separate dimension")
    return op.axis == 0


def _pooling(
    op: Operation,
    kind: Any,
    layer: Any,
    make: Callable[[nn.Module], Part],
    longer: Any = None,
) -> Change | None:
    """A pooling; with a kernel of all frames, F.avg_pool2d(x, x.size()[2:]), one over the clip.

    ``longer``: kernel for the longer clip, where it may be another one.
    """
    dims: int = kind.dimensions
    first = op.clip.dim() - dims
    k, sizes = op.axis - first, op.clip.shape[first:]
    kernel, padding = (_tuple(v, dims) for v in (layer.kernel_size, layer.padding))
    stride = kernel if layer.stride is None else _tuple(layer.stride, dims)
    grows = longer is not None and _tuple(longer, dims)[k] != kernel[k]
    over_all = kernel[k] == op.frames and not any(padding)
    if grows and not over_all:
        what = f"its kernel, here {kernel[k]} of {op.frames} frames, grows with the clip"
        raise ConversionError(what, hint="pool over a number of frames, or over all of them")
    if not grows and (not over_all or stride[k] == 1):
        return _kernel(op, make)
    if not grows and "running mean" not in op.allowed:
        note = f"an output every {stride[k]} frames; for one at each: approximate=['running mean']"
        return Change(make, note)
    if any(n not in (1, size) or s > n for n, size, s in zip(kernel, sizes, stride, strict=True)):
        what = f"it pools all frames, and {kernel} of {tuple(sizes)} in them"
        raise ConversionError(what, hint="pool within frames first")
    over = [first + i for i, n in enumerate(kernel) if n == sizes[i]]
    return _over(op, over, _RUNNING[kind], True)


_MEANS = (layers.AvgPool1d, layers.AvgPool2d, layers.AvgPool3d)
_MAXIMA = (layers.MaxPool1d, layers.MaxPool2d, layers.MaxPool3d)
_RUNNING: dict[Any, Any] = {
    **dict.fromkeys(_MEANS, layers.RunningMean),
    **dict.fromkeys(_MAXIMA, layers.RunningMax),
}


class _Convolving(SimpleNamespace):
    """A call of ``F.conv1d`` and its like, as a layer."""

    def __call__(self, x: Tensor) -> Tensor:
        sizes = (self.stride, self.padding, self.dilation, self.groups)
        out: Tensor = self.function(x, self.weight, self.bias, *sizes)
        return out


def _function(kind: Any, names: str) -> Rule:
    """Return the rule of a function that is a layer of torch with these arguments."""

    def rule(op: Operation) -> Change | None:
        if _has_no_time(op):
            return None
        if len(op.args) > 1 + len(names.split()):
            raise ConversionError(
                "it has positional arguments that the rule does not know", hint="pass them by name"
            )
        given: dict[str, Any] = dict(zip(names.split(), op.args[1:], strict=False)) | op.kwargs
        axis = op.axis
        if "weight" not in given:
            if given.pop("return_indices", False):
                raise ConversionError("it returns indices, too", hint="leave them out")
            layer = kind.kind(**given)
            longer = op.longer_kwargs.get("kernel_size", op.longer[1] if op.longer[1:] else None)
            return _pooling(op, kind, layer, lambda root: kind.of(layer, axis), longer)
        paths = {n: op.paths.get(k, op.paths.get(n)) for k, n in enumerate(names.split(), 1)}
        for name in ("weight", "bias"):
            if paths[name] is None and given.get(name) is not None:
                raise ConversionError(f"its {name} is computed", hint="make it a parameter")
        dims = given["weight"].dim() - 2
        rest = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | given
        settings = {k: _tuple(rest[k], dims) for k in ("stride", "padding", "dilation")}
        settings |= {"kernel_size": tuple(given["weight"].shape[2:]), "padding_mode": "zeros"}
        settings |= {
            "function": op.target,
            "groups": rest["groups"],
            "_parameters": {},
            "_buffers": {},
            "_modules": {},
        }

        def make(root: nn.Module) -> Part:
            weight, bias = (p and attribute(root, p) for p in (paths["weight"], paths["bias"]))
            layer: Any = _Convolving(weight=weight, bias=bias, **settings)
            return kind.of(layer, axis)  # type: ignore[no-any-return]

        return _kernel(op, make)

    return rule


def _tuple(value: Any, dims: int) -> Any:
    if isinstance(value, str):
        return value
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * dims if len(values) == 1 else values


def attribute(root: nn.Module, path: str) -> Any:
    """Return a parameter or a buffer by its path."""
    owner, _, name = path.rpartition(".")
    return getattr(root.get_submodule(owner), name)


def has_attribute(root: nn.Module, path: str) -> bool:
    """Return whether a network has this; what ``forward`` makes has only its traced copy."""
    try:
        attribute(root, path)
    except AttributeError:
        return False
    return True


def _over(op: Operation, dims: Any, kind: Any, keeps: bool) -> Change | None:
    """A mean or a maximum over dimensions of which time is one."""
    rank = op.clip.dim()
    every = range(rank) if dims is None else dims if isinstance(dims, tuple | list) else (dims,)
    reduced = {d % rank for d in every}
    if op.axis not in reduced:
        return None
    if 0 in reduced:
        raise ConversionError("it is over the streams of a batch", hint="name its dimensions")
    op.need("running mean", f"it is over all {op.frames} frames of the clip")
    others = tuple(sorted(d - rank for d in reduced if d != op.axis))
    axis, window = op.axis, op.frames

    def make(root: nn.Module) -> Part:
        part: Part = kind(window, others)
        part.axis = axis
        return part

    note = f"running over {window} frames"
    return Change(make, note, "running mean", then=not keeps, newest_agrees=True, once=True)


def _reduction(kind: Any) -> Rule:
    def rule(op: Operation) -> Change | None:
        dims = op.argument(1, "dim", op.kwargs.get("axis"))
        keeps = op.argument(2, "keepdim", op.kwargs.get("keepdims", False))
        return _over(op, dims, kind, bool(keeps))

    return rule


def _adaptive(kind: Any, dims: int) -> Rule:
    """Pooling to a fixed size."""

    def rule(op: Operation) -> Change | None:
        size = op.module.output_size if op.module is not None else op.argument(1, "output_size")
        sizes, first = _tuple(size, dims), op.clip.dim() - dims
        k = op.axis - first
        if k < 0 or sizes[k] is None:
            return None
        if sizes[k] != 1 or any(
            n not in (1, op.clip.shape[first + i]) for i, n in enumerate(sizes)
        ):
            raise ConversionError(f"it pools to {sizes}", hint="pool to 1, or with a kernel")
        ones = tuple(first + i for i, n in enumerate(sizes) if n == 1)
        return _over(op, ones, kind, True)

    return rule


def _pad(op: Operation) -> Change | None:
    """Padding: in time it is part of the next layer's."""
    layer: Any = op.module
    sides = list(layer.padding if layer is not None else op.argument(1, "pad"))
    mode = op.argument(2, "mode", "constant") if layer is None else "constant"
    value = layer.value if layer is not None else op.argument(3, "value") or 0.0
    k = op.clip.dim() - 1 - op.axis
    left, right = sides[2 * k : 2 * k + 2] if 2 * k < len(sides) else (0, 0)
    if not left and not right:
        return None
    if mode != "constant" or value or any(sides[: 2 * k] + sides[2 * k + 2 :]):
        raise ConversionError("it pads more than zeros in time", hint="pad other dimensions apart")
    skip, axis = max(0, -left), op.axis

    def make(root: nn.Module) -> Part:
        part = Skip(skip) if skip else Pad(left, right)
        part.axis = axis
        return part

    return Change(make)


class _Indices(NamedTuple):
    """The argument of ``clip[...]`` for the example and for a longer clip, without ellipses."""

    short: tuple[Any, ...]
    long: tuple[Any, ...]
    time: int  # number of the index of time


def _indices(op: Operation) -> _Indices | None:
    """Return the indices of a clip, or None where none of them is of time or one is a tensor."""
    short, long = (x if isinstance(x, tuple) else (x,) for x in (op.args[1], op.longer[1]))
    if any(isinstance(i, Tensor) for i in short):
        return None
    missing = op.clip.dim() - sum(i is not None and i is not Ellipsis for i in short)
    short, long = (_without_ellipsis(x, missing) for x in (short, long))
    dims = [k for k, i in enumerate(short) if i is not None]
    return _Indices(short, long, dims[op.axis]) if op.axis < len(dims) else None


def _without_ellipsis(indices: tuple[Any, ...], missing: int) -> tuple[Any, ...]:
    """Return indices with slices of ``missing`` whole dimensions in place of an ellipsis."""
    at = next((k for k, i in enumerate(indices) if i is Ellipsis), None)
    if at is None:
        return indices
    return (*indices[:at], *(slice(None),) * missing, *indices[at + 1 :])


def _from_end(stop: int | None, frames: int) -> int:
    """Return the end of a slice of ``frames`` frames, counted from their end: 0 or less."""
    if stop is None:
        return 0
    return stop if stop < 0 else stop - frames


def _index(op: Operation) -> Change | None:
    """Slices and indices: frames are left out from the beginning; the end comes in clips only."""
    indices = _indices(op)
    if indices is None:
        return None
    k = indices.time
    item, longer = indices.short[k], indices.long[k]
    if item == slice(None):
        return None
    frames, more = op.frames, op.longer[0].shape[op.axis]
    if isinstance(item, int):
        if item == -1 or item - frames == longer - more == -1:
            return Change(None, newest=True)
        raise ConversionError(f"it takes frame {item} of the clip", hint="take the newest, -1")
    start, step, end = item.start or 0, item.step or 1, _from_end(item.stop, frames)
    grows = start == (longer.start or 0) and end == _from_end(longer.stop, more)
    if start < 0 or step < 0 or not grows:
        raise ConversionError(
            f"it takes frames {item.start}:{item.stop} of the clip",
            hint="a stream has no end: leave out frames from the beginning only",
        )
    others = (*indices.short[:k], slice(None), *indices.short[k + 1 :])
    axis = op.axis

    def make(root: nn.Module) -> Part:
        part = Skip(start, step, -end)
        part.axis = axis
        return part

    only_time = all(i == slice(None) for i in others)
    return Change(make, then=not only_time, index=None if only_time else others)


_POOL = "kernel_size stride padding"
_MAX, _MEAN = f"{_POOL} dilation ceil_mode return_indices", f"{_POOL} ceil_mode count_include_pad"
_CONV = "weight bias stride padding dilation groups"
LAYERS: dict[type[nn.Module], Rule] = {
    nn.AdaptiveAvgPool1d: _adaptive(layers.RunningMean, 1),
    nn.AdaptiveAvgPool2d: _adaptive(layers.RunningMean, 2),
    nn.AdaptiveAvgPool3d: _adaptive(layers.RunningMean, 3),
    nn.AdaptiveMaxPool1d: _adaptive(layers.RunningMax, 1),
    nn.AdaptiveMaxPool2d: _adaptive(layers.RunningMax, 2),
    nn.AdaptiveMaxPool3d: _adaptive(layers.RunningMax, 3),
    nn.ConstantPad1d: _pad,
    nn.ConstantPad2d: _pad,
    nn.ConstantPad3d: _pad,
    nn.MultiheadAttention: multihead,
    nn.TransformerEncoder: encoder,
    nn.TransformerEncoderLayer: encoder,
}
FUNCTIONS: dict[Any, Rule] = {
    F.conv1d: _function(layers.Conv1d, _CONV),
    F.conv2d: _function(layers.Conv2d, _CONV),
    F.conv3d: _function(layers.Conv3d, _CONV),
    F.max_pool1d: _function(layers.MaxPool1d, _MAX),
    F.max_pool2d: _function(layers.MaxPool2d, _MAX),
    F.max_pool3d: _function(layers.MaxPool3d, _MAX),
    F.avg_pool1d: _function(layers.AvgPool1d, _MEAN),
    F.avg_pool2d: _function(layers.AvgPool2d, f"{_MEAN} divisor_override"),
    F.avg_pool3d: _function(layers.AvgPool3d, f"{_MEAN} divisor_override"),
    F.adaptive_avg_pool1d: _adaptive(layers.RunningMean, 1),
    F.adaptive_avg_pool2d: _adaptive(layers.RunningMean, 2),
    F.adaptive_avg_pool3d: _adaptive(layers.RunningMean, 3),
    F.adaptive_max_pool1d: _adaptive(layers.RunningMax, 1),
    F.adaptive_max_pool2d: _adaptive(layers.RunningMax, 2),
    F.adaptive_max_pool3d: _adaptive(layers.RunningMax, 3),
    F.scaled_dot_product_attention: attention,
    F.pad: _pad,
    operator.getitem: _index,
    scan: recurrence,
    torch.cumsum: running_sum,
    "cumsum": running_sum,
    torch.mean: _reduction(layers.RunningMean),
    torch.amax: _reduction(layers.RunningMax),
    "mean": _reduction(layers.RunningMean),
    "amax": _reduction(layers.RunningMax),
}
FASTER = "frames cannot come faster than they are taken; make more of them behind the network"
_ADVICE = (
    (("interpolate", "upsample", "convtranspose", "conv_transpose"), FASTER),
    (("norm",), "its statistics are over time; use a batch norm, or a layer norm over channels"),
    (("softmax", "matmul", "bmm", "einsum", "attention"), "for attention use"
     " F.scaled_dot_product_attention or nn.MultiheadAttention with approximate="
     "['windowed attention'], or co.to_deepcot"),
    (("view", "reshape", "flatten", "permute", "transpose", "unfold"), "it mixes time with other"
     " dimensions; keep time a separate dimension"),
    (("cumprod", "cummax", "cummin", "logcumsumexp"), "it remembers all frames; of these, sums"
     " (cumsum) and recurrences (co.scan) have a continual form"),
    (("flip", "roll", "sort"), "it does not read a clip from the beginning on; shift by slices and"
     " zeros"),
    (("mean", "sum", "std", "var", "max", "min", "norm"), "it is over a clip; use a mean,"
     " with approximate=['running mean']"),
)  # fmt: skip


def rule_of(module: nn.Module | None, target: Any) -> Rule | None:
    """Return the rule of a layer, a function or the name of a method."""
    if module is None:
        return FUNCTIONS.get(target)
    if kind_of(module) is not None:
        return _layer
    return next((rule for kind, rule in LAYERS.items() if _is_plain(module, kind)), None)


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is of this kind and computes what the kind does."""
    own = ("forward", "_sa_block", "_ff_block")
    if not isinstance(module, kind) or any(
        getattr(type(module), name, None) is not getattr(kind, name, None) for name in own
    ):
        return False
    parts = [module.self_attn] if isinstance(module, nn.TransformerEncoderLayer) else []
    parts += module.layers if isinstance(module, nn.TransformerEncoder) else []
    return all(rule_of(part, None) is not None for part in parts)


def advice(name: str) -> str:
    """Return what to change where an operation of this name mixes frames."""
    found = (text for names, text in _ADVICE if any(part in name.lower() for part in names))
    return next(found, "use layers that treat frames alone, convolutions, pooling or attention")
