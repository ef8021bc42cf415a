"""Layers of ``torch.nn`` as parts: convolutions, pooling, recurrent layers, blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.parts import FULL, Layer, Part, PartState, Windowed, frames_of, room
from costream.nn.pooling import TemporalMean
from costream.nn.state import State, zeros
from costream.nn.timing import Timing, check_shape, in_order, kernel_timing, store


class _Convolution(Layer, Windowed):
    """Convolution with time as one of its dimensions, the first but where ``axis`` differs."""

    _over: ClassVar[Callable[..., Tensor]]

    def _check(self) -> None:
        layer, k = self.layer, self.axis - 2
        kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
        sides = _numbers(layer.padding, kernel, dilation)
        self.timing, _ = kernel_timing(kernel[k], stride[k], dilation[k], sides[k])
        self.dilation_of_time = dilation[k]
        if any(sides) and layer.padding_mode != "zeros":
            raise ValueError(f"padding_mode {layer.padding_mode!r}; use 'zeros'")
        self._sides = tuple(0 if i == k else n for i, n in enumerate(sides))

    def over(self, rows: Tensor, taps: bool) -> Tensor:
        """Return the convolution of ``rows``, without padding in time."""
        layer, k, weight = self.layer, self.axis - 2, self.layer.weight
        if taps and k == 0 and weight.dim() == 5 and layer.groups == weight.shape[0] > 1:
            # Depthwise: K convolutions of a frame, up to 12 times as fast as conv3d.
            frames, parts = rows.unbind(2), weight.unbind(2)
            sizes = (layer.stride[1:], self._sides[1:], layer.dilation[1:], layer.groups)
            out = F.conv2d(frames[0], parts[0], layer.bias, *sizes)
            for frame, part in zip(frames[1:], parts[1:], strict=True):
                out += F.conv2d(frame, part, None, *sizes)
            return out.unsqueeze(2)
        if taps and k == 0 and weight.dim() > 3 and layer.groups == 1:
            # K frames of C channels are one frame of C K: up to 2.5 times as fast as conv3d.
            out = _WITHOUT_TIME[weight.dim()](
                rows.flatten(1, 2),
                weight.flatten(1, 2),
                layer.bias,
                layer.stride[1:],
                self._sides[1:],
                layer.dilation[1:],
                layer.groups,
            )
            return out.unsqueeze(2)
        dilation = list(layer.dilation)
        if taps:
            dilation[k] = 1
        return self._over(
            rows,
            weight,
            layer.bias,
            layer.stride,
            self._sides,
            tuple(dilation),
            layer.groups,
        )


_WITHOUT_TIME: dict[int, Callable[..., Tensor]] = {4: F.conv1d, 5: F.conv2d}


def _numbers(
    padding: str | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the zeros on both sides of every dimension."""
    if not isinstance(padding, str):
        return padding
    reach = [(k - 1) * d if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
    if any(n % 2 for n in reach):
        raise ValueError("padding='same' of an even kernel differs on both sides; pad before it")
    return tuple(n // 2 for n in reach)


class Conv1d(_Convolution):
    """``torch.nn.Conv1d`` over time."""

    kind, _over = nn.Conv1d, staticmethod(F.conv1d)

    def example(self) -> Tensor:
        """Return a frame [1, I]."""
        return self.frame_of(1, self.layer.in_channels)


class Conv2d(_Convolution):
    """``torch.nn.Conv2d`` over time and one dimension of space, joints or frequency."""

    kind, _over = nn.Conv2d, staticmethod(F.conv2d)


class Conv3d(_Convolution):
    """``torch.nn.Conv3d`` over time, height and width."""

    kind, _over = nn.Conv3d, staticmethod(F.conv3d)


class _Pooling(Layer, Windowed):
    """Pooling of each frame in space, whose result is remembered, then in time."""

    dimensions: ClassVar[int]
    _pool: ClassVar[Callable[..., Tensor]]

    def _check(self) -> None:
        layer, k = self.layer, self.axis - 2
        kernel, stride, padding, dilation = (
            self._sizes(getattr(layer, name, 1))
            for name in ("kernel_size", "stride", "padding", "dilation")
        )
        self.timing, _ = kernel_timing(kernel[k], stride[k], dilation[k], padding[k])
        self.dilation_of_time = dilation[k]
        if padding[k] and not getattr(layer, "count_include_pad", True):
            raise ValueError("count_include_pad=False with padding in time; use True")
        self._in_space = [[1 if i == k else n for i, n in enumerate(v)] for v in (kernel, stride)]
        self._in_space.append([0 if i == k else n for i, n in enumerate(padding)])
        self._gaps = [1 if i == k else n for i, n in enumerate(dilation)]

    def _sizes(self, value: Any) -> list[int]:
        return list(value) if isinstance(value, tuple) else [value] * self.dimensions

    def before(self, x: Tensor) -> Tensor:
        """Return the frames pooled in space."""
        return self._frames(x, *self._in_space)

    def _frames(
        self, x: Tensor, kernel: list[int], stride: list[int], padding: list[int]
    ) -> Tensor:
        raise NotImplementedError

    def over(self, rows: Tensor, taps: bool) -> Tensor:
        """Return the pooled ``rows``."""
        if self.receptive_field == 1:
            return rows[(slice(None),) * self.axis + (slice(None, None, self.stride),)]
        if taps:
            return self._reduce(rows, self.axis).unsqueeze(self.axis)
        windows = rows.unfold(self.axis, self.receptive_field, self.stride)
        return self._reduce(windows[..., :: self.dilation_of_time], -1)

    _reduce: ClassVar[Callable[..., Tensor]]


class _MaxPool(_Pooling):
    fill = -torch.inf
    _reduce = staticmethod(torch.amax)

    def _frames(
        self, x: Tensor, kernel: list[int], stride: list[int], padding: list[int]
    ) -> Tensor:
        return self._pool(x, kernel, stride, padding, self._gaps, self.layer.ceil_mode)


class _AvgPool(_Pooling):
    _reduce = staticmethod(torch.mean)

    def _check(self) -> None:
        super()._check()
        if getattr(self.layer, "divisor_override", None):
            raise ValueError("divisor_override has no continual form; leave it out")

    def _frames(
        self, x: Tensor, kernel: list[int], stride: list[int], padding: list[int]
    ) -> Tensor:
        ceil, counts = self.layer.ceil_mode, self.layer.count_include_pad
        return self._pool(x, kernel, stride, padding, ceil, counts)


class MaxPool1d(_MaxPool):
    """``torch.nn.MaxPool1d`` over time."""

    kind, dimensions, _pool = nn.MaxPool1d, 1, staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """``torch.nn.MaxPool2d`` over time and one other dimension."""

    kind, dimensions, _pool = nn.MaxPool2d, 2, staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """``torch.nn.MaxPool3d`` over time, height and width."""

    kind, dimensions, _pool = nn.MaxPool3d, 3, staticmethod(F.max_pool3d)


class AvgPool1d(_AvgPool):
    """``torch.nn.AvgPool1d`` over time."""

    kind, dimensions, _pool = nn.AvgPool1d, 1, staticmethod(F.avg_pool1d)


class AvgPool2d(_AvgPool):
    """``torch.nn.AvgPool2d`` over time and one other dimension."""

    kind, dimensions, _pool = nn.AvgPool2d, 2, staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """``torch.nn.AvgPool3d`` over time, height and width."""

    kind, dimensions, _pool = nn.AvgPool3d, 3, staticmethod(F.avg_pool3d)


# Memory without an end.


@dataclass
class MeanPoolState(PartState):
    """State of a running mean."""

    mean: State


class RunningMean(Part):
    """Mean over the last ``window`` frames, from the first frame on, and over ``dims``.

    The continual form of a mean over all of a clip with ``window`` frames; exact for its last
    frame. ``dims``: other dimensions of the mean, negative; they stay, with size 1.
    """

    def __init__(self, window: int, dims: tuple[int, ...] = (), *, partial: bool = True) -> None:
        super().__init__()
        self.mean, self.dims = TemporalMean(window, partial=partial), dims
        self.timing = self.mean.timing

    def forward(self, x: Tensor) -> Tensor:
        """Return the means [B, C, T, ...] at every frame of a clip."""
        return self.mean(self._in_space(x).movedim(self.axis, 1)).movedim(1, self.axis)  # type: ignore[no-any-return]

    def start(self, batch_size: int, clip: Tensor) -> MeanPoolState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        clip = self._in_space(clip)
        shape = self._rows(clip, len(clip)).shape[2:]
        mean = self.mean.init_state(batch_size, shape, clip)
        return MeanPoolState(
            zeros(batch_size), room(batch_size, clip, self.axis, 0, merged=True), mean
        )

    def advance(self, x: Tensor, state: MeanPoolState) -> Tensor | None:
        """Take T frames, return the means at each."""
        x = self._in_space(x)
        rows = self._rows(x, len(x) // len(state.clock))
        out = self.mean.forward_steps(rows, state.mean)  # type: ignore[arg-type]
        if not out.shape[1]:
            return None
        if out.dim() > x.dim():
            return out.movedim(1, self.axis + 1).flatten(0, 1)
        return out.movedim(1, self.axis)

    def _rows(self, x: Tensor, merged: int) -> Tensor:
        """Return clips [B m, C, T, ...] as rows [B, T, m, C, ...], without m if it is 1."""
        if merged == 1:
            return x.movedim(self.axis, 1)
        return torch.unflatten(x, 0, (-1, merged)).movedim(self.axis + 1, 1)

    def _in_space(self, x: Tensor) -> Tensor:
        return x.mean(self.dims, keepdim=True) if self.dims else x


@dataclass
class RecurrentState(PartState):
    """State of a recurrent layer: h, or h and c, of its L layers."""

    hidden: tuple[Tensor, ...]  # [B, m, L, H]; m: rows that are merged with the batch, or 1


class _Recurrent(Layer):
    """A recurrent layer over clips [B, I, T]; it counts as having a receptive field of 1.

    ``with_states``: outputs are followed by h, or h and c, of all layers after each frame; clips
    are then computed frame by frame.
    """

    with_states = False

    def _check(self) -> None:
        if self.layer.bidirectional:
            raise ValueError(
                "a bidirectional layer reads the end of the clip first; use bidirectional=False"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, H, T] of a clip [B, I, T]."""
        return self._run(x, None)[0]

    def example(self) -> Tensor | None:
        """Return a frame [1, I]."""
        return self.frame_of(1, self.layer.input_size)

    def start(self, batch_size: int, clip: Tensor) -> RecurrentState:
        """Return the initial state; ``clip``: one frame of one stream, [1, I, 1]."""
        out, hidden = self._run(clip, None)
        held = [zeros(batch_size, h.shape[1], h.shape[0], h.shape[2], like=h) for h in hidden]
        if self.axis:
            empty = room(batch_size, out, self.axis, 0, merged=True)
        else:  # streams first, as in all states
            empty = zeros(batch_size, 0, out.shape[-1], like=out)
        return RecurrentState(zeros(batch_size), empty, tuple(held))

    def advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        """Take T frames, return as many."""
        views = [h.flatten(0, 1).transpose(0, 1) for h in state.hidden]
        out, hidden = self._run(x, tuple(view.contiguous() for view in views))
        for view, new in zip(views, hidden, strict=True):
            view.copy_(new.detach())
        return out

    def _run(
        self, x: Tensor, hidden: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        layer, axis = self.layer, self.axis
        if self.with_states and x.shape[axis] > 1:
            outs = []
            for frame in torch.split(x, 1, axis):
                out, hidden = self._run(frame, hidden)
                outs.append(out)
            return torch.cat(outs, axis), cast(tuple[Tensor, ...], hidden)
        rows = x.transpose(1, 2) if axis == 2 else x  # [B, T, I], or [T, B, I]
        if layer.batch_first != bool(axis):
            rows = rows.transpose(0, 1)
        given: Any = hidden if hidden is None or len(hidden) > 1 else hidden[0]
        out, new = layer(rows, given)
        if layer.batch_first != bool(axis):
            out = out.transpose(0, 1)
        new = new if isinstance(new, tuple) else (new,)
        if self.with_states:
            states = [h.transpose(0, 1).flatten(1).unsqueeze(int(axis > 0)) for h in new]
            out = torch.cat([out, *states], -1)
        return out.transpose(1, 2) if axis == 2 else out, new


class RecurrentOutputs(NamedTuple):
    """What the last dimension of outputs of a recurrent layer with its states has."""

    width: int  # of the outputs, which are first
    layers: int
    sizes: tuple[int, ...]  # of h, or of h and c, in a layer

    @classmethod
    def of(cls, layer: nn.RNNBase) -> RecurrentOutputs:
        """Return those of a layer."""
        width = layer.proj_size or layer.hidden_size
        cells = (layer.hidden_size,) if isinstance(layer, nn.LSTM) else ()
        return cls(width, layer.num_layers, (width, *cells))

    def read(self, frame: Tensor) -> Any:
        """Return h [L, B, H], or h and c, of the newest frame, [B, 1, F] or [1, B, F]."""
        parts = torch.split(frame, [self.width, *(n * self.layers for n in self.sizes)], -1)[1:]
        states = [part.reshape(-1, self.layers, part.shape[-1] // self.layers) for part in parts]
        states = [state.transpose(0, 1).contiguous() for state in states]
        return tuple(states) if len(states) > 1 else states[0]


class RNN(_Recurrent):
    """``torch.nn.RNN`` over clips [B, I, T]."""

    kind = nn.RNN


class GRU(_Recurrent):
    """``torch.nn.GRU`` over clips [B, I, T]."""

    kind = nn.GRU


class LSTM(_Recurrent):
    """``torch.nn.LSTM`` over clips [B, I, T]."""

    kind = nn.LSTM


@dataclass
class BlockState(PartState):
    """State of a block with a state."""

    block: State


class Rows(Part):
    """A block over rows of features [B, T, d], such as an encoder, as a part of clips [B, d, T].

    ``block``: has ``forward``, ``init_state(batch_size)``, ``forward_step``, ``forward_steps``, a
    delay of 0 and a stride of 1.
    """

    def __init__(self, block: Any, axis: int = 2) -> None:
        super().__init__()
        self.block, self.axis = block, axis
        self.timing = Timing(block.receptive_field, block.receptive_field - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's outputs [B, d', T] for a clip [B, d, T]."""
        return self.block(x.movedim(self.axis, 1)).movedim(1, self.axis)  # type: ignore[no-any-return]

    def example(self) -> Tensor | None:
        """Return a frame [1, d]."""
        width = getattr(self.block, "embed_dim", None)
        like = next(iter(self.parameters()), None)
        return None if width is None or like is None else zeros(1, width, like=like)

    def start(self, batch_size: int, clip: Tensor) -> BlockState:
        """Return the initial state; ``clip``: one frame of one stream, [1, d, 1]."""
        empty, block = room(batch_size, self(clip), self.axis, 0), self.block.init_state(batch_size)
        if FULL.get() and (past := self.receptive_field - 1):
            self.block.forward_steps(clip.movedim(self.axis, 1).expand(batch_size, past, -1), block)
        return BlockState(zeros(batch_size), empty, block)

    def advance(self, x: Tensor, state: BlockState) -> Tensor:
        """Take T frames, return as many."""
        if x.shape[self.axis] == 1:
            out = self.block.forward_step(x.squeeze(self.axis), state.block)
            return cast(Tensor, out.unsqueeze(self.axis))
        out = self.block.forward_steps(x.movedim(self.axis, 1), state.block)
        return cast(Tensor, out.movedim(1, self.axis))


class RunningMax(Windowed):
    """Maximum over the last ``window`` frames, from the first frame on; as ``RunningMean``.

    ValueError for a window below 1.
    """

    fill = -torch.inf

    def __init__(self, window: int, dims: tuple[int, ...] = ()) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"a window of {window} frames: 1 or more")
        self.dims, self.timing = dims, Timing(window, window - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima [B, C, T, ...] at every frame of a clip."""
        x = self.before(x)
        sides = [0, 0] * (x.dim() - self.axis - 1) + [self.padding, 0]
        return self.over(F.pad(x, sides, value=self.fill), False)

    def before(self, x: Tensor) -> Tensor:
        """Return the maxima of each frame."""
        return x.amax(self.dims, keepdim=True) if self.dims else x

    def over(self, rows: Tensor, taps: bool) -> Tensor:
        """Return the maxima of the windows of ``rows``."""
        return rows.unfold(self.axis, self.receptive_field, 1).amax(-1)


@dataclass
class KeysState(PartState):
    """Keys and values of the last n steps, and queries if they wait: step t is in slot t mod n."""

    rows: Tensor  # [B, h, n, 2 e], with queries 3 e, or [B, m, h, n, ...]: see ``room``
    steps: Tensor  # int64 [B]


class WindowedAttention(Part):
    """``F.scaled_dot_product_attention`` of each step to ``window`` of them, by default the last.

    Queries, keys and values are clips [B, h, T, e]. ``query_index``: place of the step in its
    window, 0 for the oldest row, which waits for those after it; negative from the newest.
    ValueError for one outside. ``scale``: of products, 1 / sqrt(e) if left out.
    """

    axis = 2

    def __init__(self, window: int, query_index: int = -1, *, scale: float | None = None) -> None:
        super().__init__()
        place = query_index + window if query_index < 0 else query_index
        if not 0 <= place < window:
            raise ValueError(f"query_index {query_index} is outside a window of {window}")
        self.window, self.timing, self.scale = window, Timing(window, place), scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the rows [B, h, T, e] of a clip."""
        age = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2]) + self.delay
        seen = (age >= 0) & (age < self.window)
        return self._attend(q, k, v, seen.to(q.device))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)

    def start(  # type: ignore[override]
        self, batch_size: int, q: Tensor, k: Tensor, v: Tensor
    ) -> KeysState:
        """Return the initial state; queries, keys, values: one frame of one stream."""
        held = [k, v, q] if self.delay else [k, v]
        rows = room(batch_size, torch.cat(held, -1), self.axis, self.window)
        empty = room(batch_size, q, self.axis, 0, merged=True)
        return KeysState(zeros(batch_size), empty, rows, zeros(batch_size))

    def advance(  # type: ignore[override]
        self, q: Tensor, state: KeysState, k: Tensor, v: Tensor
    ) -> Tensor | None:
        """Take T frames, return as many, at first less by those that wait."""
        axis, n, count, late = self.axis, self.window, q.shape[self.axis], self.delay
        parts = [k, v, q] if late else [k, v]
        held, new = frames_of(state.rows, q.dim()), torch.cat(parts, -1).detach()
        check_shape(new.shape[:1], held.shape[:1])
        time, before = state.tick(count), state.steps.clone()
        state.steps += count
        if count == 1:
            held.narrow(axis, time % n, 1).copy_(new)
            rows, mask = held, None
            if int(before.min()) + 1 < n:
                age = (time - torch.arange(n)) % n
                mask = (age <= before[:, None])[:, None]  # [B, 1, n]
        else:
            rows = torch.cat([in_order(held, time, axis), new], axis)
            store(held, rows, time + count, axis)
            age = n + torch.arange(count)[:, None] - torch.arange(n + count)
            start = n - before[:, None, None]
            mask = (age >= 0) & (age < n) & (torch.arange(n + count) >= start)
        if mask is not None:
            merged = len(q) // len(before)
            mask = mask.repeat_interleave(merged, 0)
            mask = mask.view(len(mask), *[1] * (q.dim() - 3), *mask.shape[1:])
            mask = mask.to(q.device)
        keys, values, *queries = torch.split(rows, [x.shape[-1] for x in parts], -1)
        if not late:
            return self._attend(q, keys, values, mask)
        if time + count <= late:
            return None
        q = queries[0].narrow(axis, (time - late) % n if count == 1 else n - late, count)
        out = self._attend(q, keys, values, mask)
        first = max(0, late - time)
        return out.narrow(axis, first, count - first)
