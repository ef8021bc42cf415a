"""Parts of continual networks: layers of ``torch.nn`` that also take a clip frame by frame.

A part is called as the layer of its name, on clips [B, C, T, ...]; in a stream it takes frames
[B, C, ...]. It has the layer's weights, under the same names; streams are in a state.

A layer with a finite memory is itself, without padding, over the frames that are remembered: if
it gives y_j = f(x_{js - p}, ..., x_{js - p + r - 1}) for receptive field r, padding p and stride s,
a stream remembers r - 1 frames and gives y_j when frame js - p + r - 1 arrives (``Windowed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.fast import use_kernels
from costream.nn.state import zeros
from costream.nn.timing import ClockedState, ContinualModule, Timing, check_shape, in_order, store

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

L = TypeVar("L", bound="Layer")

# States are made with full windows of blocks, whose steps cost less before.
FULL: ContextVar[bool] = ContextVar("FULL", default=False)


@dataclass
class PartState(ClockedState):
    """State of a part without a memory, and base of the others."""

    empty: Tensor  # no outputs, [B, C, 0, ...]


class Part(ContinualModule):
    """Base of all parts.

    ``axis``: dimension of time in clips, 2 but where a network of another layout was converted.
    Clips [B, C, T, ...] have time there, frames [B, C, ...] do not.

    A part has a ``forward``, a ``start`` and an ``advance``.
    """

    axis: int = 2
    timing = Timing()

    def init_state(self, batch_size: int = 1, frame: Tensor | None = None) -> Any:
        """Return the initial state of ``batch_size`` streams.

        ``frame``: any frame [*, C, ...]; the streams' frames must have its shape, dtype and device
        have. ValueError if it is needed and missing, and if no layer reaches back over the padding
        before the first frame, so that there would be outputs before it.
        """
        if self.first_step > self.delay:
            raise ValueError(
                f"output 0 would be due at step {self.delay}, before step {self.first_step}: the"
                " layer after a Pad has to reach back over it"
            )
        frame = self.example() if frame is None else frame
        if frame is None:
            raise ValueError(
                f"{type(self).__name__} does not know the size of its frames;"
                " give one: init_state(batch_size, frame)"
            )
        with torch.no_grad():
            return self.start(batch_size, frame[:1].unsqueeze(self.axis))

    @property
    def first_step(self) -> int:
        """The step of a stream with its first outputs."""
        return max(0, self.delay)

    def forward_step(self, x: Tensor, state: Any) -> Tensor | None:
        """Take a frame [B, C, ...] of every stream, return the newest output or None."""
        out = self.advance(x.unsqueeze(self.axis), state)
        return None if out is None else out.squeeze(self.out_axis)

    @property
    def out_axis(self) -> int:
        """Dimension of time in outputs for clips."""
        return self.axis

    def forward_steps(self, x: Tensor, state: Any) -> Tensor:
        """Take T frames [B, C, T, ...], return what T steps would, [B, C, T', ...]."""
        out = self.advance(x, state) if x.shape[self.axis] else None
        return cast(Tensor, state.empty.clone() if out is None else out)

    def count_macs(self, frame: Tensor | None = None) -> int:
        """Return the multiply-accumulates of a step of one stream, averaged over the stride.

        Counted by ``torch.utils.flop_counter``, with full windows: products of matrices and
        convolutions, not elementwise operations. ``frame``: as for ``init_state``.
        """
        frame = self.example() if frame is None else frame
        token = FULL.set(True)
        try:
            state = self.init_state(1, frame)
        finally:
            FULL.reset(token)
        zero = torch.zeros_like(cast(Tensor, frame)[:1])
        with torch.no_grad(), use_kernels(False):  # compiled loops are not counted
            for _ in range(max(0, self.delay)):
                self.forward_step(zero, state)
            with _counting() as counter:
                for _ in range(self.stride):
                    self.forward_step(zero, state)
        return int(counter.get_total_flops()) // 2 // self.stride

    def example(self) -> Tensor | None:
        """Return a frame of the only shape that this part takes, or None."""
        return None

    def start(self, batch_size: int, clip: Tensor) -> Any:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...].

        Its first dimension is longer where a converted network merges others with the batch.
        """
        return PartState(zeros(batch_size), self.empty(batch_size, clip))

    def advance(self, x: Tensor, state: Any) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, None if there are none.

        ``x`` has at least one frame.
        """
        raise NotImplementedError

    def empty(self, batch_size: int, clip: Tensor) -> Tensor:
        """Return no outputs, [B, C, 0, ...]; one output is computed, and forgotten.

        ``clip``: as for ``start``.
        """
        sizes = list(clip.shape)
        sizes[self.axis] = self.receptive_field
        return room(batch_size, self(clip.expand(sizes)), self.axis, 0, merged=True)


@contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Count operations, also those that torch does not count: of fused layers, and distances."""
    from torch.utils.flop_counter import FlopCounterMode

    aten, mha = torch.ops.aten, torch.backends.mha
    shapes: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
            2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])
        ),
        aten.mkldnn_rnn_layer: lambda x, inputs, hidden, *_, **__: (
            2 * x[0] * x[1] * (math.prod(inputs) + math.prod(hidden))
        ),
        aten._cudnn_rnn: lambda x, weights, *_, **__: (
            2 * x[0] * x[1] * sum(math.prod(w) for w in weights if len(w) == 2)
        ),
        aten._cdist_forward: lambda a, b, *_, **__: 2 * math.prod(a) * b[-2],
    }
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=shapes) as counter:
            yield counter
    finally:
        mha.set_fastpath_enabled(before)


def room(batch_size: int, clip: Tensor, axis: int, slots: int, merged: bool = False) -> Tensor:
    """Return zeros for ``slots`` frames of streams like the one of ``clip`` [1, C, T, ...].

    The shape is [B, C, n, ...]; [B, m, C, n, ...] if the first dimension of ``clip`` is m > 1, or
    with ``merged`` [B m, C, n, ...].
    """
    shape = [slots if k == axis else n for k, n in enumerate(clip.shape)]
    if shape[0] == 1:
        shape = shape[1:]
    elif merged:
        batch_size, shape = batch_size * shape[0], shape[1:]
    return blank((batch_size, *shape), clip)


def blank(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return zeros with the memory layout of ``like`` for frames [B, C, T, H, W]."""
    if len(shape) == like.dim() == 5 and like.stride(1) == 1:
        batch, channels, *rest = shape
        return zeros(batch, *rest, channels, like=like).permute(0, 4, 1, 2, 3)
    return zeros(*shape, like=like)


def frames_of(held: Tensor, dims: int) -> Tensor:
    """Return frames [B, C, n, ...] or [B, m, C, n, ...] as a view with so many dimensions."""
    return held if held.dim() == dims else held.flatten(0, 1)


class Stateless(Part):
    """A function of frames: it treats every frame of a clip alone.

    Args:
        function: from clips [B, C, T, ...] to clips, or a module, whose parameters keep their
            names below ``function.``
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of a clip [B, C, T, ...]."""
        return self.function(x)

    def advance(self, x: Tensor, state: PartState) -> Tensor:
        """Take T frames, return as many."""
        return self(x)  # type: ignore[no-any-return]


class Layer(Part):
    """A layer of ``torch.nn``: its arguments, and its parameters under their names.

    ``layer``: the ordinary layer, which is not a child, but has the same parameters. Its settings
    are attributes here too (``out_channels``, ``kernel_size``), but for ``stride`` and ``padding``,
    which are those in time.
    """

    kind: ClassVar[Any]
    layer: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._hold(self.kind(*arguments, **options))

    @classmethod
    def of(cls, layer: nn.Module, axis: int = 2) -> Any:
        """Return a part that shares the parameters of an ordinary layer.

        ``axis``: dimension of time in its clips.
        """
        part = cls.__new__(cls)
        Part.__init__(part)
        part.axis = axis
        part._hold(layer)
        return part

    def _hold(self, layer: Any) -> None:
        self.__dict__["layer"] = layer
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self._modules = layer._modules  # adapters of its weight
        self._check()

    def _check(self) -> None:
        """Raise ValueError for a layer that has no continual form."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            layer = self.__dict__.get("layer")  # not yet there while a copy is made
            if layer is None or name.startswith("_"):
                raise
            return getattr(layer, name)

    def train(self: L, mode: bool = True) -> L:
        """Set the mode, also of the ordinary layer, which may have dropout."""
        self.layer.training = mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """Return the ordinary layer of a clip [B, C, T, ...]."""
        return self.layer(x)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return the settings of the layer."""
        return cast(str, self.layer.extra_repr())

    def frame_of(self, *shape: int) -> Tensor:
        """Return a frame of zeros with the dtype and device of the weights."""
        return zeros(*shape, like=next(iter(self.parameters())))


class _OverChannels(Layer):
    """A layer over the last dimension, here over the channels of clips [B, I, T, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, O, T, ...]."""
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)  # type: ignore[no-any-return]

    def advance(self, x: Tensor, state: PartState) -> Tensor:
        """Take T frames, return as many."""
        return self(x)  # type: ignore[no-any-return]

    def example(self) -> Tensor:
        """Return a frame [1, I]."""
        width = getattr(self.layer, "in_features", None) or self.layer.normalized_shape[0]
        return self.frame_of(1, width)


class Linear(_OverChannels):
    """``torch.nn.Linear`` over the channels of clips [B, I, T, ...]."""

    kind = nn.Linear


class LayerNorm(_OverChannels):
    """``torch.nn.LayerNorm`` over the channels of clips [B, C, T, ...], frame by frame.

    ValueError for one over several dimensions.
    """

    kind = nn.LayerNorm

    def _check(self) -> None:
        if len(self.layer.normalized_shape) > 1:
            raise ValueError(f"a norm over {self.layer.normalized_shape}: of channels alone")


# Finite memory.


@dataclass
class WindowedState(PartState):
    """The frames that later outputs need: frame i is in slot i mod (r - 1)."""

    frames: Tensor  # [B, C, r - 1, ...]
    seen: Tensor | None  # int64 [B], frames of each stream; where empty slots are not zeros


class Windowed(Part):
    """A layer with a finite memory.

    Below it, ``over`` is the layer itself over rows of frames, without padding in time; with
    ``taps`` they are only those that one output needs. ``before`` is what happens to each frame
    by itself, so that its result is remembered.
    """

    fill: ClassVar[float] = 0.0  # what the layer pads with
    dilation_of_time = 1

    def before(self, x: Tensor) -> Tensor:
        """Return the frames that are remembered."""
        return x

    def over(self, rows: Tensor, taps: bool) -> Tensor:
        """Return the outputs over ``rows`` [B, C, r + ..., ...], or one over its K taps."""
        raise NotImplementedError

    def start(self, batch_size: int, clip: Tensor) -> WindowedState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        frames = room(batch_size, self.before(clip), self.axis, self.receptive_field - 1)
        seen = zeros(batch_size) if self.fill else None
        return WindowedState(zeros(batch_size), self.empty(batch_size, clip), frames, seen)

    def advance(self, x: Tensor, state: WindowedState) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, if any."""
        x, axis, timing = self.before(x), self.axis, self.timing
        frames = frames_of(state.frames, x.dim())
        check_shape(
            [*x.shape[:axis], *x.shape[axis + 1 :]],
            [*frames.shape[:axis], *frames.shape[axis + 1 :]],
        )
        count, slots = x.shape[axis], frames.shape[axis]
        if state.seen is not None:
            for row in (row for row, n in enumerate(state.seen.tolist()) if not n):
                state.frames[row] = self.fill
            state.seen += count
        time = state.tick(count)
        first, stop = timing.next_output(time) - time, count
        if not slots:
            rows = x
        elif count == 1:
            rows = self._taps(x, frames, time) if not first else x
            frames.select(axis, time % slots).copy_(x.detach().select(axis, 0))
            return self.over(rows, True) if not first else None
        else:
            rows = torch.cat([in_order(frames, time, axis), x], axis)
            store(frames, rows.detach(), time + count, axis)
        if first >= stop:
            return None
        span = (stop - 1 - first) // timing.stride * timing.stride + 1 + slots
        return self.over(rows.narrow(axis, first, span), False)

    def _taps(self, x: Tensor, frames: Tensor, time: int) -> Tensor:
        """Return the K frames under the kernel whose newest is frame ``time``, the oldest first."""
        slots, axis = frames.shape[self.axis], self.axis
        ages = range(slots, 0, -self.dilation_of_time)
        if slots == 1:
            return torch.cat([frames, x], axis)
        return torch.cat([*(frames.narrow(axis, (time - n) % slots, 1) for n in ages), x], axis)


class Delay(Windowed):
    """The frame of ``steps`` steps ago. A clip stays as it is: numbers of outputs do not change.

    Branches of a composition wait for one another by themselves; this is for other delays.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"delay of {steps} steps: must be at least 0")
        self.timing = Timing(steps + 1)
        self.dilation_of_time = max(1, steps)

    def forward(self, x: Tensor) -> Tensor:
        """Return the clip."""
        return x

    def over(self, rows: Tensor, taps: bool) -> Tensor:
        """Return the oldest of the rows."""
        return rows.narrow(self.axis, 0, 1 if taps else rows.shape[self.axis] - self.delay)


class Skip(Part):
    """All frames but the first ``count``, and of these every ``stride``-th.

    In a sum with a convolution of K frames without padding, (K - 1) / 2 of them are skipped.
    ``last``: frames that are left out at the end of a clip, too; a stream has none.
    """

    def __init__(self, count: int, stride: int = 1, last: int = 0) -> None:
        super().__init__()
        if min(count, last) < 0 or stride < 1:
            raise ValueError(f"skip of {count} frames (minimum 0), stride {stride} (minimum 1)")
        self.timing, self.last = Timing(1, -count, stride), last

    def forward(self, x: Tensor) -> Tensor:
        """Return the frames [B, C, T', ...] that are left of a clip."""
        end = max(0, x.shape[self.axis] - self.last)
        return x[(slice(None),) * self.axis + (slice(self.delay, end, self.stride),)]

    def start(self, batch_size: int, clip: Tensor) -> PartState:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        return PartState(zeros(batch_size), room(batch_size, clip, self.axis, 0, merged=True))

    def advance(self, x: Tensor, state: PartState) -> Tensor | None:
        """Take T frames, return those that are not skipped."""
        count = x.shape[self.axis]
        time = state.tick(count)
        first = self.timing.next_output(time) - time
        if first >= count:
            return None
        if not first and (count == 1 or self.stride == 1):
            return x
        return x[(slice(None),) * self.axis + (slice(first, None, self.stride),)]


class Pad(Skip):
    """``count`` frames of zeros before the first, and ``right`` after the last of a clip.

    A stream has no end: what depends on the frames after it never comes. The layer that follows
    has to reach back over the zeros, so that no output precedes frame 0.
    """

    def __init__(self, count: int, right: int = 0, value: float = 0.0) -> None:
        super().__init__(0)
        if count < 0:
            raise ValueError(f"padding of {count} frames: must be at least 0")
        self.timing, self.right, self.value = Timing(1, count), right, value

    def forward(self, x: Tensor) -> Tensor:
        """Return the padded clip."""
        sides = [0, 0] * (x.dim() - self.axis - 1) + [self.padding, self.right]
        return F.pad(x, sides, value=self.value)

    def advance(self, x: Tensor, state: PartState) -> Tensor:
        """Take T frames, return them; the first time after the zeros."""
        if state.tick(x.shape[self.axis]):
            return x
        return torch.cat([self.zeros(self.padding, state), x], self.axis)

    def zeros(self, count: int, state: PartState) -> Tensor:
        """Return ``count`` frames of padding."""
        sides = [0, 0] * (state.empty.dim() - self.axis - 1) + [count, 0]
        return F.pad(state.empty, sides, value=self.value)
