"""Small networks of convolutions as one call for one input, float32 on a CPU, compiled by Numba.

PyTorch makes a hundred calls for such a network, which take longer than their arithmetic, and
oneDNN is slow for depthwise convolutions of single small maps. Here the calls of the readable form
are recorded once for each shape of the input, and become a program of ``chain_kernels``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from costream.nn import chain_kernels as kernels
from costream.nn import fast
from costream.nn.operation import ConversionError

_SHAPES = 8  # of inputs for which programs are kept
_TURNS = 5
_PLANAR = 16  # columns of a map from which on it is planar
_STRIDES = (1, 1), (2, 2)
_ALIGNED = 16  # numbers of a vector of AVX-512
_FUNCTIONS: dict[Any, int] = {
    torch.relu_: kernels.RELU,
    F.relu: kernels.RELU,
    F.relu6: kernels.RELU6,
    F.hardswish: kernels.HARD_SWISH,
    torch.sigmoid: kernels.SIGMOID,
    Tensor.sigmoid: kernels.SIGMOID,
}
_PRODUCTS = (kernels.PLANAR, kernels.WIDE, kernels.DEEP)
Columns: TypeAlias = dict[int, int]


class _Map(NamedTuple):
    """Numbers that a program computes: a map, or a vector, which is a map of one place."""

    number: int
    channels: int  # a multiple of 4, but for the input
    height: int
    width: int
    planar: bool

    @property
    def size(self) -> int:
        return self.channels * self.height * self.width


class _Call(NamedTuple):
    """A call of a function of PyTorch."""

    function: Any
    args: Sequence[Any]
    out: Any


class _Recorder(TorchFunctionMode):
    """Notes the calls of PyTorch's functions in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, out))
        return out


class Chain:
    """The program of a function of one input.

    Args:
        function: takes a tensor like ``example``, and returns one tensor. It may have convolutions,
            depthwise or of all channels, with activations; means of maps; linear layers; factors
            of channels; and products may be added to what was computed before, as in MobileNets.
        example: [1, C, H, W], or [1, H, W] if ``function`` makes a map of one channel of it.

    Raises ConversionError for other operations.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], example: Tensor) -> None:
        with fast.use_kernels(False), _Recorder() as recorder:
            out = function(example)
        finder = _Finder(recorder.calls, example)
        form = finder.maps.get(id(out))
        if form is None:
            raise ConversionError("its output is not a map or vector of the network")
        program, places, length = finder.program(form)
        weights = torch.cat([torch.zeros(1), *finder.weights])
        with torch.inference_mode(False):  # it is written to in any mode
            buffer = torch.zeros(length)
        self._arrays = program.numpy().view("uint64"), weights.numpy(), buffer.numpy()
        self._input = buffer[places[0] :][: example.numel()].view(example.shape)
        output = buffer[places[form.number] :][: form.size]
        output = output.view(form.channels, -1) if form.planar else output.view(-1, form.channels).T
        self._output, self._shape = output[: out.shape[1]], out.shape
        self._lock = threading.Lock()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for an input of the shape of the example."""
        with self._lock:
            self._input.copy_(x)
            kernels.run(*self._arrays)
            return self._output.reshape(self._shape).clone()


class _Finder:
    """Goes through recorded calls, and finds the operations of a program.

    Attributes:
        maps: those that tensors have become, by their ids.
        weights: those of all operations, behind one number that is not used.
    """

    def __init__(self, calls: Sequence[_Call], example: Tensor) -> None:
        channels = example.shape[1] if example.dim() == 4 else 1
        height, width = example.shape[-2:]
        first = _Map(0, channels, height, width, True)
        self.maps = {id(example): first}
        self.weights: list[Tensor] = []
        self._length, self._scratch = 1, 0  # of the weights, and in the buffer
        self._all = [first]
        self._operations: list[Columns] = []
        self._inputs: list[list[int]] = []  # numbers of the maps that an operation reads
        self._sources: dict[int, int] = {}  # operations by the map that they return
        self._pads: dict[int, tuple[int, int]] = {}  # zeros to the left and above
        self._last = {id(arg): k for k, call in enumerate(calls) for arg in call.args}
        for k, call in enumerate(calls):
            known = [self.maps[id(arg)] for arg in call.args if id(arg) in self.maps]
            if known and isinstance(call.out, Tensor):
                ends = call.out is call.args[0] or self._last[id(call.args[0])] == k
                self.maps[id(call.out)] = self._found(call, known, ends)

    def _found(self, call: _Call, known: Sequence[_Map], ends: bool) -> _Map:
        """Return the map that a call returns.

        ``known``: maps among its arguments; ``ends``: whether the first argument is not used again.
        """
        function, args, out = call
        x = known[0]
        if function in _FUNCTIONS and ends:
            return self._apply(x, _FUNCTIONS[function])
        if function in (Tensor.add_, Tensor.add) and ends and len(known) == 2:
            return self._add(*known)
        if function in (Tensor.mul, torch.mul) and len(known) == 2 and known[1].size == x.channels:
            return self._emit(kernels.SCALE, known, x[1:])
        if function in (torch.conv2d, F.pad):
            return self._convolve(x, args, out) if function is torch.conv2d else self._pad(x, call)
        if function is F.linear:
            return self._multiply(x, *args[1:])
        if function is Tensor.mean and args[1:] == ((2, 3),):
            return self._emit(kernels.MEAN, [x], (x.channels, 1, 1, False))
        same = function in (Tensor.__getitem__, Tensor.contiguous, Tensor.to)
        if same and out.numel() == args[0].numel():
            return x
        raise ConversionError(f"{getattr(function, '__name__', function)} cannot be compiled")

    def _source(self, x: _Map) -> int:
        """Return the number of the operation that returns a map, and has no function yet."""
        source = self._sources.get(x.number)
        if source is None or self._operations[source][kernels.FUNCTION] != kernels.NONE:
            raise ConversionError("a function of the input, or of a function, cannot be compiled")
        return source

    def _apply(self, x: _Map, function: int) -> _Map:
        """Let the operation that returns a map apply a function to it."""
        self._operations[self._source(x)][kernels.FUNCTION] = function
        return x

    def _add(self, x: _Map, other: _Map) -> _Map:
        """Let the product that returns ``x`` begin with ``other``."""
        source = self._source(x)
        product = self._operations[source][kernels.KIND] in _PRODUCTS
        first = self._sources.get(other.number, -1) < source and len(self._inputs[source]) == 1
        if not (product and first and x[1:] == other[1:]):
            raise ConversionError("a sum of these maps cannot be compiled")
        self._inputs[source].append(other.number)
        return x

    def _pad(self, x: _Map, call: _Call) -> _Map:
        """Note the zeros around a map for the convolution that reads it."""
        left, _, above, _ = call.args[1]
        self._pads[id(call.out)] = left, above
        return x

    def _convolve(self, x: _Map, args: Any, out: Tensor) -> _Map:
        image, weight, bias, stride, padding, dilation, groups = args
        left, above = self._pads.get(id(image), (0, 0))
        side, above, left = weight.shape[3], above + padding[0], left + padding[1]
        if side != weight.shape[2] or stride not in _STRIDES or dilation != (1, 1):
            raise ConversionError("a convolution of this kind cannot be compiled")
        window = {kernels.SIDE: side, kernels.STRIDE: stride[0]}
        window |= {kernels.ABOVE: above, kernels.BEFORE: left}
        if groups == 1:
            if (side, stride[0], above, left) != (1, 1, 0, 0):
                x = self._unfold(x, window, out)
            return self._multiply(x, weight.flatten(1), bias)
        if not groups == weight.shape[0] == image.shape[1] == x.channels:
            raise ConversionError("a convolution of groups cannot be compiled")
        flat = weight.detach().flatten(1)
        window |= self._store(flat if x.planar else flat.T, bias, x.channels)
        kind = kernels.DEPTHWISE_PLANAR if x.planar else kernels.DEPTHWISE
        self._need(x, window, out)
        y = self._emit(kind, [x], (x.channels, *out.shape[2:], x.planar), window)
        if y.planar and y.width < _PLANAR:
            y = self._emit(kernels.INTERLEAVE, [y], (*y[1:4], False))
        return y

    def _need(self, x: _Map, window: Columns, out: Tensor) -> None:
        """Make the scratch large enough for what a convolution reads."""
        side, stride, (high, wide) = window[kernels.SIDE], window[kernels.STRIDE], out.shape[2:]
        more = (side - 1) // stride
        if x.planar:  # the parts of a padded plane, and the rows of the output that are cut
            size = (stride**2 * (high + more) + high) * (wide + more) + 2 * side
        else:
            size = ((high - 1) * stride + side) * ((wide - 1) * stride + side) * x.channels
        self._scratch = max(self._scratch, size)

    def _unfold(self, x: _Map, window: Columns, out: Tensor) -> _Map:
        """Return what each place of a convolution reads as a map."""
        if not x.planar or out.shape[3] < _PLANAR:
            raise ConversionError("a large kernel for a small map cannot be compiled")
        self._need(x, window, out)
        channels = _multiple(x.channels * window[kernels.SIDE] ** 2, 4)
        return self._emit(kernels.UNFOLD, [x], (channels, *out.shape[2:], True), window)

    def _multiply(self, x: _Map, weight: Tensor, bias: Tensor | None = None) -> _Map:
        outputs, kind = _multiple(len(weight), 4), kernels.PLANAR
        matrix = weight.new_zeros(outputs, x.channels)
        matrix[: len(weight), : weight.shape[1]] = weight.detach()
        if not x.planar:
            deep = x.channels >= outputs or x.height * x.width < 4
            kind = kernels.DEEP if deep else kernels.WIDE
        layer = self._store(matrix.T if kind == kernels.WIDE else matrix, bias, outputs)
        return self._emit(kind, [x], (outputs, *x[2:]), layer)

    def _store(self, weight: Tensor, bias: Tensor | None, channels: int) -> Columns:
        """Store weights and biases, return where they are."""
        biases = weight.new_zeros(channels)
        if bias is not None:
            biases[: len(bias)] = bias.detach()
        begin = self._length
        for part in (weight, biases):
            self.weights.append(part.reshape(-1))
            self._length += part.numel()
        return {kernels.WEIGHT: begin, kernels.BIAS: begin + weight.numel()}

    def _emit(
        self, kind: int, inputs: Sequence[_Map], form: Sequence[Any], more: Columns | None = None
    ) -> _Map:
        """Append an operation, return its output; ``form``: channels, height, width, planar."""
        out, x = _Map(len(self._all), *form), inputs[0]
        self._all.append(out)
        self._sources[out.number] = len(self._operations)
        columns = {kernels.KIND: kind, kernels.FUNCTION: kernels.NONE}
        columns |= {kernels.IN: x.channels, kernels.HEIGHT: x.height, kernels.WIDTH: x.width}
        columns |= {kernels.CHANNELS: out.channels, kernels.ROWS: out.height}
        columns |= {kernels.COLUMNS: out.width, kernels.IS_PLANAR: int(x.planar)}
        self._operations.append(columns | (more or {}))
        self._inputs.append([m.number for m in inputs])
        return out

    def program(self, result: _Map) -> tuple[Tensor, list[int], int]:
        """Return the program, where its maps begin in the buffer, and the buffer's length.

        ``result``: the map that is read at the end.
        """
        places, length = self._place(result)
        rows = torch.zeros(len(self._operations), kernels.COUNT, dtype=torch.int64)
        for row, columns, inputs, out in zip(
            rows, self._operations, self._inputs, self._all[1:], strict=True
        ):
            columns |= {kernels.X: places[inputs[0]], kernels.OUT: places[out.number]}
            columns |= {kernels.MORE: places[inputs[1]] if len(inputs) > 1 else 0}
            columns |= {kernels.SCRATCH: _ALIGNED}  # 0 is for no second input
            row[[*columns]] = torch.tensor([*columns.values()])
        return rows, places, length

    def _place(self, result: _Map) -> tuple[list[int], int]:
        """Return where maps begin in the buffer, each in the first gap, and its length."""
        last = {n: k for k, numbers in enumerate(self._inputs) for n in numbers}
        last[result.number] = len(self._operations)
        begin = length = _ALIGNED + _multiple(self._scratch, _ALIGNED)
        places = [begin] * len(self._all)
        held: list[tuple[int, int, int]] = []  # begin, end and number of maps that are still read
        for k, out in enumerate(self._all, -1):
            held = [h for h in held if last.get(h[2], -1) >= k]
            for start, stop, _ in sorted(held):
                if places[out.number] + out.size > start:
                    places[out.number] = max(places[out.number], stop)
            end = _multiple(places[out.number] + out.size, _ALIGNED)
            held.append((places[out.number], end, out.number))
            length = max(length, end)
        return places, length


def _multiple(count: int, of: int) -> int:
    """Return the smallest multiple of a number that is not less than ``count``."""
    return -(-count // of) * of


class Chains:
    """The programs of a network for some shapes of its input.

    Args:
        network: its parameters are stored.
    """

    def __init__(self, network: nn.Module) -> None:
        self._made: dict[tuple[int, ...], Chain | None] = {}
        self._parameters = [
            (module._parameters, name, tensor, tensor.data_ptr(), _changes(tensor))
            for module in network.modules()
            for name, tensor in module._parameters.items()
            if tensor is not None
        ]

    def fit(self) -> bool:
        """Return whether the parameters are those that were stored.

        Modules that were exchanged, and changes through ``.data`` in place, are not noticed.
        """
        for held, name, tensor, place, changes in self._parameters:
            if held.get(name) is not tensor or tensor.data_ptr() != place:
                return False
            if changes >= 0 and tensor._version != changes:
                return False
        return True

    def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return ``function(x)``, by a program if there is one and it is faster."""
        if x.shape not in self._made:
            if len(self._made) == _SHAPES:
                self._made.clear()
            self._made[x.shape] = _faster(function, x)
        return (self._made[x.shape] or function)(x)


def _changes(tensor: Tensor) -> int:
    """Return how often a tensor was changed, or -1 if that is not counted."""
    return -1 if tensor.is_inference() else tensor._version


def _faster(function: Callable[[Tensor], Tensor], x: Tensor) -> Chain | None:
    """Return the program of a function, or None without one or if it takes longer."""
    try:
        chain = Chain(function, x)
    except ConversionError:
        return None
    times = [min(_time(way, x) for _ in range(_TURNS)) for way in (chain, function)]
    return chain if times[0] < times[1] else None


def _time(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    function(x)
    return time.perf_counter() - begun


_chains: WeakKeyDictionary[nn.Module, Chains] = WeakKeyDictionary()


def chained(network: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function(x)`` for one input, float32, without gradients.

    ``function``: computes with the parameters of ``network`` and no others. The first call for a
    shape takes a tenth of a second.
    """
    chains = _chains.get(network)
    if chains is None or not chains.fit():
        chains = _chains[network] = Chains(network)
    return chains(function, x)
