"""Programs of ``chain_kernels``: operations one after the other, and what they keep between calls.

All weights of a program are in one vector, and all maps in one buffer, in which maps that are no
longer read make room for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn import chain_kernels as kernels
from costream.nn.operation import ConversionError

_PLANAR = 16  # columns of a map from which on it is planar
_ALIGNED = 16  # numbers of a vector of AVX-512
_FEW = 32  # places; weights are read once for all of them
_LONG = 96  # channels of an input from which on this is faster
_PRODUCTS = (kernels.PLANAR, kernels.WIDE, kernels.DEEP)
FUNCTIONS: dict[Any, int] = {
    torch.relu: kernels.RELU,
    torch.relu_: kernels.RELU,
    F.relu: kernels.RELU,
    F.relu6: kernels.RELU6,
    F.hardswish: kernels.HARD_SWISH,
    F.silu: kernels.SWISH,
    torch.sigmoid: kernels.SIGMOID,
    Tensor.sigmoid: kernels.SIGMOID,
}
Columns: TypeAlias = dict[int, int]


class Map(NamedTuple):
    """Numbers that a program computes: a map, or a vector, which is a map of one place."""

    number: int
    channels: int  # a multiple of 4 if planar, but for the input, else of 16
    height: int
    width: int
    planar: bool

    @property
    def size(self) -> int:
        """Numbers of the map."""
        return self.channels * self.height * self.width


class Window(NamedTuple):
    """What a convolution reads and returns."""

    size: tuple[int, int]  # height and width of the output
    stride: int = 1
    above: int = 0  # rows of zeros above the map
    before: int = 0  # columns of zeros to its left


class HeldFrames(NamedTuple):
    """Numbers that a program keeps from one call to the next, in the form of frames."""

    begin: int  # in the buffer
    shape: tuple[int, int, int, int]  # frames, height, width, channels
    strides: tuple[int, int, int, int]

    def view(self, buffer: Tensor) -> Tensor:
        """Return the frames [B, n, H, W, C] in the buffers [B, N] of B streams."""
        strides = buffer.stride(0), *self.strides
        return buffer.as_strided((len(buffer), *self.shape), strides, self.begin)


class Program(NamedTuple):
    """What ``chain_kernels.run`` takes."""

    rows: Tensor  # int64 [operations, columns]
    weights: Tensor
    length: int  # of a buffer
    input: int  # where it begins in the buffer
    output: int
    rings: tuple[tuple[int, int], ...]  # rows with a ring, and which of what is held it is

    def arrays(self) -> tuple[Any, Any]:
        """Return a copy of the rows and the weights, for ``chain_kernels.run``."""
        return self.rows.clone().numpy().view("uint64"), self.weights.numpy()


class ProgramBuilder:
    """Appends operations to a program.

    Args:
        size: channels, height and width of the input, whose planes follow one another.

    Attributes:
        input: the map of the input.
        held: what is kept from call to call, in the order in which it was asked for.

    Raises ConversionError for what cannot be compiled.
    """

    def __init__(self, size: Sequence[int]) -> None:
        channels, height, width = size
        self.input = Map(0, channels, height, width, True)
        self.held: list[HeldFrames] = []
        self._weights: list[Tensor] = [torch.zeros(1)]  # the first number is not used
        self._length, self._scratch = 1, 0  # of the weights, and in the buffer
        self._kept = _ALIGNED  # where in the buffer that ends which is kept; 0 stands for nothing
        self._all = [self.input]
        self._fixed: dict[int, int] = {}  # where maps begin that are kept
        self._operations: list[Columns] = []
        self._inputs: list[list[int]] = []  # numbers of the maps that an operation reads
        self._outs: list[int] = []  # and that of the one it writes
        self._sources: dict[int, int] = {}  # operations by the map that they return
        self._rings: list[tuple[int, int]] = []

    def apply(self, x: Map, function: Callable[..., Tensor]) -> Map:
        """Let the operation that returns a map apply a function of PyTorch to it."""
        self._operations[self._source(x)][kernels.FUNCTION] = FUNCTIONS[function]
        return x

    def add(self, x: Map, other: Map) -> Map:
        """Let the product that returns ``x`` begin with ``other``."""
        source = self._source(x)
        product = self._operations[source][kernels.KIND] in _PRODUCTS
        first = self._sources.get(other.number, -1) < source and len(self._inputs[source]) == 1
        if not (product and first and x[1:] == other[1:]):
            raise ConversionError("a sum of these maps cannot be compiled")
        self._inputs[source].append(other.number)
        return x

    def mean(self, x: Map) -> Map:
        """Return the means of the channels."""
        return self._emit(kernels.MEAN, [x], (_filled(x.channels, False), 1, 1, False))

    def scale(self, x: Map, factors: Map) -> Map:
        """Return a map with each channel times its factor."""
        if factors.channels < x.channels:
            raise ConversionError("one factor of several channels cannot be compiled")
        return self._emit(kernels.SCALE, [x, factors], x[1:])

    def multiply(self, x: Map, weight: Tensor, bias: Tensor | None = None) -> Map:
        """Return the product of each place with a matrix [O, I]."""
        x = self._fill(x)
        outputs, kind = _filled(len(weight), x.planar), kernels.PLANAR
        matrix = weight.new_zeros(outputs, x.channels)
        matrix[: len(weight), : weight.shape[1]] = weight.detach()
        if not x.planar:
            few = x.height * x.width < (_FEW if x.channels >= _LONG else 4)
            deep = x.channels >= outputs or few
            kind = kernels.DEEP if deep else kernels.WIDE
        layer = self._store(matrix.T if kind == kernels.WIDE else matrix, bias, outputs)
        return self._emit(kind, [x], (outputs, *x[2:]), layer)

    def convolve(self, x: Map, weight: Tensor, bias: Tensor | None, window: Window) -> Map:
        """Return the convolution of all channels with weights [O, I, k, k]."""
        if (weight.shape[2], *window[1:]) != (1, 1, 0, 0):
            x = self._unfold(x, weight.shape[2], window)
        return self.multiply(x, weight.flatten(1), bias)

    def convolve_each(self, x: Map, weight: Tensor, bias: Tensor | None, window: Window) -> Map:
        """Return the convolution of each channel with weights [C, 1, k, k]."""
        return self._depthwise(x, weight.flatten(1)[None], bias, window)

    def convolve_in_time(self, x: Map, weight: Tensor, bias: Tensor, window: Window) -> Map:
        """Return the convolution of each channel with weights [C, K, k, k] over K > 1 frames.

        The newest frame is ``x``; sums of the next K - 1 outputs are held.
        """
        taps = weight.flatten(2).flip(1).transpose(0, 1)  # the newest first
        padded, (height, width) = _padded(x, weight.shape[2], window), window.size
        line, channels = padded[1], x.channels
        plane = _multiple(height * line, _ALIGNED)
        one = channels * (plane if x.planar else height * width)  # numbers of a sum of all places
        place = (line, 1, plane) if x.planar else (width * channels, channels, 1)
        shape = len(taps) - 1, height, width, weight.shape[0]
        more = {kernels.HELD: self._hold(shape, (one, *place)), kernels.TAPS: len(taps)}
        return self._depthwise(x, taps, bias, window, more)

    def convolve_over_time(self, x: Map, weight: Tensor, bias: Tensor) -> Map:
        """Return the convolution of each place of each channel with weights [C, K] over K frames.

        The newest frame is ``x``; the K - 1 before it are held, in a ring.
        """
        if not x.planar:
            raise ConversionError("a convolution over time of small maps cannot be compiled")
        channels, taps = weight.shape
        strides = x.size, x.width, 1, x.height * x.width
        more = {kernels.HELD: self._hold((taps - 1, *x[2:4], channels), strides)}
        self._rings.append((len(self._operations), len(self.held) - 1))
        more |= {kernels.TAPS: taps} | self._store(_rows(weight, x.channels), bias, x.channels)
        return self._emit(kernels.RING, [x], x[1:], more)

    def hold(self, channels: int, height: int, width: int) -> Map:
        """Return a map that is held: what ``keep`` wrote to it in the call before."""
        planar = width >= _PLANAR
        held = Map(len(self._all), _filled(channels, planar), height, width, planar)
        inner = (width, 1, height * width) if planar else (width * held.channels, held.channels, 1)
        self._fixed[held.number] = self._hold((1, height, width, channels), (held.size, *inner))
        self._all.append(held)
        return held

    def keep(self, x: Map, held: Map, stride: int = 1) -> None:
        """Write every ``stride``-th row and column of a map to one that is held."""
        more = {kernels.STRIDE: stride}
        if x.planar == held.planar:
            self._emit(kernels.COPY, [x], held[1:], more, held)
        else:
            form = x.channels, held.height, held.width, True
            part = x if stride == 1 else self._emit(kernels.COPY, [x], form, more)
            self._emit(kernels.INTERLEAVE, [part], held[1:], None, held)

    def program(self, result: Map) -> Program:
        """Return the program whose output is a map."""
        places, length = self._place(result)
        rows = torch.zeros(len(self._operations), kernels.COUNT, dtype=torch.int64)
        for row, columns, inputs, out in zip(
            rows, self._operations, self._inputs, self._outs, strict=True
        ):
            columns |= {kernels.X: places[inputs[0]], kernels.OUT: places[out]}
            columns |= {kernels.MORE: places[inputs[1]] if len(inputs) > 1 else 0}
            columns |= {kernels.SCRATCH: self._kept}
            row[[*columns]] = torch.tensor([*columns.values()])
        ends = places[0], places[result.number]
        return Program(rows, torch.cat(self._weights), length, *ends, tuple(self._rings))

    def _source(self, x: Map) -> int:
        """Return the number of the operation that returns a map, and has no function yet."""
        source = self._sources.get(x.number)
        if source is None or self._operations[source][kernels.FUNCTION] != kernels.NONE:
            raise ConversionError("a function of the input, or of a function, cannot be compiled")
        return source

    def _hold(self, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int]) -> int:
        """Make room for frames that are held, return where it begins; ``strides``: in it."""
        begin = self._kept
        self.held.append(HeldFrames(begin, shape, strides))
        self._kept += _multiple(shape[0] * strides[0], _ALIGNED)
        return begin

    def _depthwise(
        self,
        x: Map,
        taps: Tensor,
        bias: Tensor | None,
        window: Window,
        more: Columns | None = None,
    ) -> Map:
        """Return the convolution of each channel with ``taps`` [K, C, k k], the newest first."""
        channels, side = x.channels, round(taps.shape[2] ** 0.5)
        if not channels - _ALIGNED < taps.shape[1] <= channels:
            raise ConversionError("a convolution of groups cannot be compiled")
        each = torch.stack([_rows(tap, channels) for tap in taps])
        biases = taps.new_zeros(len(taps), channels)  # only the newest tap has some
        if bias is not None:
            biases[0, : len(bias)] = bias.detach()
        layer = self._store(each if x.planar else each.mT, biases.flatten(), biases.numel())
        kind = kernels.DEPTHWISE_PLANAR if x.planar else kernels.DEPTHWISE
        columns = self._window(x, side, window) | layer | {kernels.TAPS: 1} | (more or {})
        y = self._emit(kind, [x], (channels, *window.size, x.planar), columns)
        if y.planar and y.width < _PLANAR:
            form = _filled(y.channels, False), y.height, y.width, False
            y = self._emit(kernels.INTERLEAVE, [y], form)
        return y

    def _fill(self, x: Map) -> Map:
        """Return a map whose channels are as many as products read at a time, with zeros for more.

        The input may have fewer, and what is made of it channel by channel.
        """
        if x.channels == _filled(x.channels, x.planar):
            return x
        if x.width >= _PLANAR:
            return self._unfold(x, 1, Window((x.height, x.width)))
        form = _filled(x.channels, False), x.height, x.width, False
        return self._emit(kernels.INTERLEAVE, [x], form)

    def _unfold(self, x: Map, side: int, window: Window) -> Map:
        """Return what each place of a convolution reads as a map."""
        if not x.planar or window.size[1] < _PLANAR:
            raise ConversionError("a large kernel for a small map cannot be compiled")
        form = _filled(x.channels * side**2, True), *window.size, True
        return self._emit(kernels.UNFOLD, [x], form, self._window(x, side, window))

    def _window(self, x: Map, side: int, window: Window) -> Columns:
        """Return the columns of a window; make the scratch large enough for what it reads."""
        (high, wide), stride = window.size, window.stride
        if x.planar:  # the parts of a padded plane, and the rows of the output that are cut
            rows, line = _padded(x, side, window)
            size = stride**2 * rows * line + high * line + 2 * side + 2 * _ALIGNED
        else:
            size = ((high - 1) * stride + side) * ((wide - 1) * stride + side) * x.channels
        self._scratch = max(self._scratch, size)
        columns = {kernels.SIDE: side, kernels.STRIDE: stride}
        return columns | {kernels.ABOVE: window.above, kernels.BEFORE: window.before}

    def _store(self, weight: Tensor, bias: Tensor | None, channels: int) -> Columns:
        """Store weights and biases, return where they are."""
        biases = weight.new_zeros(channels)
        if bias is not None:
            biases[: len(bias)] = bias.detach()
        begin = self._length
        for part in (weight, biases):
            self._weights.append(part.reshape(-1))
            self._length += part.numel()
        return {kernels.WEIGHT: begin, kernels.BIAS: begin + weight.numel()}

    def _emit(
        self,
        kind: int,
        inputs: Sequence[Map],
        form: Sequence[Any],
        more: Columns | None = None,
        out: Map | None = None,
    ) -> Map:
        """Append an operation, return its output; ``form``: channels, height, width, planar.

        ``out``: a map that is held and written, in place of a new one.
        """
        if out is None:
            out = Map(len(self._all), *form)
            self._all.append(out)
        x = inputs[0]
        self._sources[out.number] = len(self._operations)
        columns = {kernels.KIND: kind, kernels.FUNCTION: kernels.NONE}
        columns |= {kernels.IN: x.channels, kernels.HEIGHT: x.height, kernels.WIDTH: x.width}
        columns |= {kernels.CHANNELS: out.channels, kernels.ROWS: out.height}
        columns |= {kernels.COLUMNS: out.width, kernels.IS_PLANAR: int(x.planar)}
        self._operations.append(columns | (more or {}))
        self._inputs.append([m.number for m in inputs])
        self._outs.append(out.number)
        return out

    def _place(self, result: Map) -> tuple[list[int], int]:
        """Return where maps begin in the buffer, each in the first gap, and its length."""
        last = {n: k for k, numbers in enumerate(self._inputs) for n in numbers}
        last[result.number] = len(self._operations)
        begin = length = self._kept + _multiple(self._scratch, _ALIGNED)
        places = [self._fixed.get(m.number, begin) for m in self._all]
        occupied: list[tuple[int, int, int]] = []  # begin, end, number of maps that are still read
        for k, number in enumerate([0, *self._outs], -1):
            if number in self._fixed:
                continue
            occupied = [each for each in occupied if last.get(each[2], -1) >= k]
            for start, stop, _ in sorted(occupied):
                if places[number] + self._all[number].size > start:
                    places[number] = max(places[number], stop)
            end = _multiple(places[number] + self._all[number].size, _ALIGNED)
            occupied.append((places[number], end, number))
            length = max(length, end)
        return places, length


def _padded(x: Map, side: int, window: Window) -> tuple[int, int]:
    """Return the rows and the columns of each part of a padded plane, see ``chain_kernels``."""
    more = (side - 1) // window.stride
    return window.size[0] + more, window.size[1] + more


def _filled(channels: int, planar: bool) -> int:
    """Return the channels of a map, those that only fill up included."""
    return _multiple(channels, 4 if planar else _ALIGNED)


def _rows(weight: Tensor, channels: int) -> Tensor:
    """Return weights [C, n] with rows of zeros for channels that only fill up."""
    return F.pad(weight.detach(), (0, 0, 0, channels - len(weight)))


def _multiple(count: int, of: int) -> int:
    """Return the smallest multiple of a number that is not less than ``count``."""
    return -(-count // of) * of
