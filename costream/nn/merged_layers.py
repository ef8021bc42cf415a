"""Layers of converted networks that steps compute together.

A convolution, the batch norm after it and the activation after that are one operation in
evaluation, without gradients: the weights are multiplied with the norm's scales, and the
activation overwrites its input. In training, and with gradients, layers are called one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.continual import Call
from costream.nn.graph import scale_and_shift
from costream.nn.parts import Part, PartState
from costream.nn.state import zeros
from costream.nn.timing import check_shape
from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video3d.frame_ring import FrameRingState


class Activation(NamedTuple):
    """An activation as a call and as a function that overwrites its argument."""

    plain: Call
    in_place: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of numbers that are not used again."""
        if fast.enabled() and not torch.is_grad_enabled():
            return self.in_place(x)
        return self.plain(x)  # type: ignore[no-any-return]


class ActivatedCall(NamedTuple):
    """A function and the activation of its result."""

    function: Callable[..., Tensor]
    act: Activation

    def __call__(self, *values: Any, **options: Any) -> Tensor:
        """Return the activation of the function's result."""
        return self.act(self.function(*values, **options))


class _FoldedWeights(NamedTuple):
    """A convolution multiplied with its norm."""

    versions: list[tuple[int, int]]  # of what it is computed from
    part: Any  # the convolution as a part, or the layer
    step: VolumeStep | None


class MergedLayer(Part):
    """A convolution, the norm after it and the activation after that, if there are.

    ``volume``: whether ``VolumeStep`` computes it.
    """

    conv: Any
    layer: Any
    norm: Any
    act: Activation | None

    def __init__(self, conv: Part, layer: Any, volume: bool) -> None:
        super().__init__()
        # They are children of the network, not of this part.
        self.__dict__ |= {"conv": conv, "layer": layer, "norm": None, "act": None}
        self.volume, self.axis, self.timing = volume, conv.axis, conv.timing
        self._weights: _FoldedWeights | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the layers of a clip, one by one."""
        return self._after(self.conv(x))

    def _after(self, x: Tensor) -> Tensor:
        """Return the norm and the activation of what a convolution has returned."""
        y = x if self.norm is None else self.norm(x)
        return y if self.act is None else self.act.plain(y)

    @property
    def rectifies(self) -> bool:
        """Whether the activation is ReLU."""
        return self.act is not None and self.act.in_place is torch.relu_

    def _folds(self) -> bool:
        """Return whether folded weights are used: in evaluation, without gradients."""
        if torch.is_grad_enabled() or not fast.enabled():
            return False
        return self.norm is None or not self.norm.training

    def _folded(self) -> _FoldedWeights:
        """Return the weights multiplied with the norm's scales; computed again if they changed."""
        layer, norm = self.layer, self.norm
        sources = list(layer._parameters.values())
        if norm is not None:
            sources += [*norm._parameters.values(), *norm._buffers.values()]
        versions = [
            (t.data_ptr(), 0 if t.is_inference() else t._version) for t in sources if t is not None
        ]
        if self._weights is None or self._weights.versions != versions:
            with torch.inference_mode(False), torch.no_grad():
                self._weights = self._fold(versions)
        return self._weights

    def _fold(self, versions: list[tuple[int, int]]) -> _FoldedWeights:
        layer, norm, part = self.layer, self.norm, self.conv
        if norm is not None:
            scale, shift = scale_and_shift(norm)
            weight, bias = layer.weight.detach(), layer.bias
            layer = copy.copy(layer)
            layer._parameters = {
                "weight": nn.Parameter(
                    weight * scale.view(-1, *[1] * (weight.dim() - 1)), requires_grad=False
                ),
                "bias": nn.Parameter(
                    shift if bias is None else bias.detach() * scale + shift, requires_grad=False
                ),
            }
            part = layer if isinstance(part, Call) else type(part).of(layer, part.axis)
        return _FoldedWeights(versions, part, VolumeStep(layer) if self.volume else None)


class MergedFrames(MergedLayer):
    """Convolutions of single frames."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, O, T, ...] of frames [B, C, T, ...]."""
        if not self._folds():
            return super().forward(x)
        part, step = self._folded()[1:]
        if step is None or (x.shape[2] > 1 and not step.pointwise):
            y = part(x)
        elif step.pointwise:
            return self._rows(x, step)
        else:
            frame = step.convolve(x.squeeze(2).contiguous(memory_format=torch.channels_last))
            y = frame.unsqueeze(2)
        return y if self.act is None else self.act.in_place(y)

    def _rows(self, x: Tensor, step: VolumeStep) -> Tensor:
        """Return the result for 1x1x1 kernels: a product of the rows of all positions."""
        last = x.permute(0, 2, 3, 4, 1)
        y = step.product(last.flatten(0, 1), relu=self.rectifies)
        if self.act is not None and not self.rectifies:
            self.act.in_place(y)
        return y.view(*last.shape[:2], *y.shape[1:]).permute(0, 4, 1, 2, 3)

    def write(self, x: Tensor, state: Any) -> Tensor:
        """Return the outputs; the output for a single frame is in the next slot of ``state``."""
        step = self._folded().step if self._folds() and x.shape[2] == 1 else None
        if step is None or not isinstance(state, VolumeState):
            return self.forward(x)
        slot = state.slots[state.peek() % len(state.slots)]
        step.product(x.squeeze(2).permute(0, 2, 3, 1), slot)
        return slot.permute(0, 3, 1, 2).unsqueeze(2)

    def plus(self, x: Tensor, other: Tensor, act: Activation | None) -> Tensor:
        """Return act(x W + b + other) for frames ``x``: a 1x1x1 convolution and a shortcut."""
        step = self._folded().step if self._folds() else None
        relu = act is not None and act.in_place is torch.relu_
        if step is None or not relu or x.shape[2] > 1:
            y = self(x) + other
            return y if act is None else act(y)
        frame, beside = (part.squeeze(2).permute(0, 2, 3, 1) for part in (x, other))
        return step.product(frame, None, beside.contiguous()).permute(0, 3, 1, 2).unsqueeze(2)


class SqueezeGate(Part):
    """Frames whose channels are scaled by a function of their means (squeeze-excitation).

    ``product``: the call that scales them. ``calls``: from the means to the factors.
    """

    product: Call
    calls: list[Call]

    def __init__(self, product: Call, calls: list[Call]) -> None:
        super().__init__()
        linear = [c.function for c in calls if isinstance(c.function, nn.Linear)]
        # They are children of the network, not of this part.
        self.__dict__ |= {"product": product, "calls": calls, "linear": linear}
        self.axis = product.axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled frames [B, C, T, H, W]; a single frame is overwritten."""
        if x.shape[2] > 1 or torch.is_grad_enabled() or not fast.enabled():
            return self.product(x, fold(lambda y, call: call(y), self.calls, x))  # type: ignore
        first, last = self.__dict__["linear"]
        sums, share = x.sum((2, 3, 4)), 1 / (x.shape[3] * x.shape[4])
        hidden = torch.addmm(first.bias, sums, first.weight.t(), alpha=share).relu_()
        gate = torch.addmm(last.bias, hidden, last.weight.t()).sigmoid_()
        x.mul_(gate[:, :, None, None, None])
        then = self.product.function
        return then.act.in_place(x) if isinstance(then, ActivatedCall) else x


class ShortcutSum:
    """The sum of a product of rows and other frames, and the activation after it.

    ``place``: of the frames to be multiplied among the two that it is called with.
    """

    def __init__(self, product: MergedFrames, place: int) -> None:
        self.product, self.place = product, place
        self.act: Activation | None = None

    def __call__(self, *values: Tensor) -> Tensor:
        """Return the sum of two values, one of them multiplied."""
        return self.product.plus(values[self.place], values[1 - self.place], self.act)


@dataclass
class VolumeState(PartState, FrameRingState):
    """The newest frames under a kernel, channels last: frame t is in slot t mod K."""


class MergedConvolution(MergedLayer):
    """Convolutions over time."""

    def start(self, batch_size: int, clip: Tensor) -> Any:
        """Return the initial state; ``clip``: one frame of one stream, [1, C, 1, ...]."""
        if not self.volume or len(clip) > 1:
            return self.conv.start(batch_size, clip)
        channels, _, height, width = clip.shape[1:]
        ring = zeros(batch_size, self.receptive_field, height, width, channels, like=clip)
        sizes = self.empty(batch_size, clip).shape
        empty = zeros(batch_size, 0, *sizes[3:], sizes[1], like=clip).permute(0, 4, 1, 2, 3)
        return VolumeState(clock=zeros(batch_size), frames=ring, empty=empty)

    def advance(self, x: Tensor, state: Any) -> Tensor | None:
        """Take T frames [B, C, T, ...], return the outputs of these steps, if any."""
        folds = self._folds()
        if isinstance(state, VolumeState):
            outs = [self._step(frame, state, folds) for frame in x.unbind(2)]
            given = [out for out in outs if out is not None]
            return None if not given else torch.cat(given, 2) if len(given) > 1 else given[0]
        part = self._folded().part if folds else self.conv
        y = part.advance(x, state)
        if y is None or not folds:
            return None if y is None else self._after(y)
        return y if self.act is None else self.act.in_place(y)

    def _step(self, x: Tensor, state: VolumeState, folds: bool) -> Tensor | None:
        """Take a frame [B, C, H, W], return the output [B, O, 1, H', W'] of this step, or None."""
        frame, size = x.permute(0, 2, 3, 1), self.receptive_field
        check_shape(frame.shape, state.slots[0].shape)
        time = state.tick()
        slot = state.slots[time % size]
        if slot.data_ptr() != frame.data_ptr():  # else it was written there
            slot.copy_(frame.detach())
        if time < self.delay:
            return None
        if not folds:
            past = [state.slots[(time + 1 + k) % size].permute(0, 3, 1, 2) for k in range(size - 1)]
            return self._after(self.conv.over(torch.stack([*past, x], 2), True))
        step = self._folded().step
        assert step is not None
        rectifies = self.rectifies
        if step.pointwise:
            y = step.weigh(state, time)
            y = step.rectify(y) if rectifies else y.add_(step.bias)
        else:
            y = step.over_time(state, time).squeeze(1)
        y = y.unsqueeze(1).permute(0, 4, 1, 2, 3)
        if self.act is None or (step.pointwise and rectifies):
            return y
        return self.act.in_place(y)
