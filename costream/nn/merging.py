"""Layers of converted networks that steps compute together.

A convolution, the batch norm after it and the activation after that are one operation in
evaluation, without gradients: the weights are multiplied with those of the norm, and the
activation overwrites its input. In networks with convolutions over time and space in each channel
alone (X3D, MoViNet), frames [B, C, T, H, W] lie in memory with their channels last: 1x1x1
convolutions are products of rows, and those in each channel are loops compiled for it
(``video3d.convolution``). In training, and with gradients, layers are called one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold
from operator import add, getitem, mul
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.continual import Call
from costream.nn.graph import scale_and_shift
from costream.nn.join import Join
from costream.nn.layers import Conv1d, Conv2d, Conv3d
from costream.nn.parts import Pad, Part, PartState
from costream.nn.state import zeros
from costream.nn.timing import check_shape
from costream.nn.video3d.convolution import FrameRingState, VolumeStep

_NEW = (add, mul, torch.add, torch.mul, Tensor.add, Tensor.mul)  # whose results nothing else uses
_SUMS = (add, torch.add, Tensor.add)
_PRODUCTS = (mul, torch.mul, Tensor.mul)
_SHAPES = (getitem, torch.transpose, Tensor.transpose, Tensor.unsqueeze, torch.unsqueeze)
_RELU, _SIGMOID = (nn.ReLU, F.relu, torch.relu), (nn.Sigmoid, torch.sigmoid, F.sigmoid)
_GATE = ["linear", "relu", "linear", "sigmoid"]
_GATES: dict[Any, str] = {nn.Linear: "linear", Tensor.relu: "relu", Tensor.sigmoid: "sigmoid"}
_GATES |= dict.fromkeys(_RELU, "relu") | dict.fromkeys(_SIGMOID, "sigmoid")
_IN_PLACE: dict[Any, Callable[[Tensor], Tensor]] = {}
for _names, _function in (
    ((*_RELU, Tensor.relu), torch.relu_),
    ((nn.SiLU, F.silu), partial(F.silu, inplace=True)),
    ((nn.Hardswish, F.hardswish), partial(F.hardswish, inplace=True)),
    ((*_SIGMOID, Tensor.sigmoid), torch.sigmoid_),
):
    _IN_PLACE |= dict.fromkeys(_names, _function)


class Planned(NamedTuple):
    """A node to be added to a network; see ``PartGraph.add``."""

    part: Part
    inputs: tuple[int, ...]
    timed: bool
    writes: int = 0


def merged(nodes: Sequence[Planned]) -> list[Planned]:
    """Return the nodes of a network with those together that steps compute together."""
    nodes, uses = _without_identities(nodes)
    last = any(_in_each_channel(node.part) for node in nodes)
    result: list[Planned] = []
    place = [0]  # of the value of each node in the result
    for node in nodes:
        inputs = tuple(place[k] for k in node.inputs)
        before = result[inputs[0] - 1].part if inputs and inputs[0] else None
        alone = len(inputs) == 1 and uses[node.inputs[0]] == 1
        if alone and before is not None and _absorb(before, node.part):
            place.append(inputs[0])
            continue
        if (gate := _squeeze(nodes, uses, node)) is not None:
            at = place[min(node.inputs)]
            if at and isinstance(result[at - 1].part, MergedConvolution):
                del result[at:]
                result.append(Planned(gate, (at,), node.timed))
                place.append(len(result))
                continue
        part, writes = node.part, 0
        if (layer := _convolution(part)) is not None:
            volume = last and _suits(layer)
            kind = MergedFrames if isinstance(part, Call) else MergedConvolution
            part = kind(part, layer, volume)
            if isinstance(part, MergedConvolution) and volume:
                source = place[_source(nodes, uses, node.inputs[0])]
                writes = source if source and _rectified(result[source - 1].part) else 0
        elif isinstance(part, Join) and (product := _last_product(result, part, inputs)):
            k = inputs.index(len(result))
            del part.reduce  # a child
            part.reduce, part.brief = _Sum(product, k), part.axes == [2, 2]
            inputs = tuple(result[-1].inputs[0] if n == len(result) else n for n in inputs)
            result.pop()
        result.append(Planned(part, inputs, node.timed, writes))
        place.append(len(result))
    return result


def _without_identities(nodes: Sequence[Planned]) -> tuple[list[Planned], list[int]]:
    """Return the nodes without paddings of nothing, and how often each value is used."""
    place, kept = [0], []
    for number, node in enumerate(nodes, 1):
        part, inputs = node.part, tuple(place[k] for k in node.inputs)
        nothing = (
            isinstance(part, Call)
            and part.function is F.pad
            and len(part.arguments) > 1
            and not any(part.arguments[1])
        )
        if nothing and number < len(nodes):
            place.append(inputs[0])
            continue
        kept.append(node._replace(inputs=inputs))
        place.append(len(kept))
    uses = [0] * (len(kept) + 1)
    for node in kept:
        for k in node.inputs:
            uses[k] += 1
    return kept, uses


def _convolution(part: Part) -> Any:
    """Return the layer of a convolution whose weights are its own, or None."""
    layer: Any = None
    if isinstance(part, Conv1d | Conv2d | Conv3d):
        layer = part.layer
    elif isinstance(part, Call) and part.plain and not part.options:
        layer = part.function
    known = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer if known and "weight" in layer._parameters else None


def _suits(layer: nn.Module) -> bool:
    """Return whether ``VolumeStep`` computes a convolution."""
    if not isinstance(layer, nn.Conv3d) or layer.padding_mode != "zeros":
        return False
    (time, height, width), padding = layer.kernel_size, layer.padding
    if isinstance(padding, str) or height != width or not height % 2:
        return False
    each = layer.groups == layer.in_channels == layer.out_channels
    pixels = layer.stride[1]
    return (
        layer.stride == (1, pixels, pixels)
        and layer.dilation == (1, 1, 1)
        and padding[1:] == (height // 2, height // 2)
        and (layer.groups == 1 if time == 1 else each and (height > 1 or pixels == 1))
    )


def _in_each_channel(part: Part) -> bool:
    layer = _convolution(part)
    over_both = isinstance(part, Conv3d) and part.axis == 2 and layer is not None
    return over_both and layer.kernel_size[0] > 1 and layer.kernel_size[1] > 1 and _suits(layer)


def _squeeze(nodes: Sequence[Planned], uses: Sequence[int], node: Planned) -> SqueezeGate | None:
    """Return a node that scales a value by a function of the means of its channels, as one part.

    The nodes between the two are those of the function; None for any other node.
    """
    if not isinstance(node.part, Call) or node.part.function not in _PRODUCTS:
        return None
    if not node.part.plain or len(node.inputs) != 2:
        return None
    source, last = sorted(node.inputs)
    calls: list[Call] = []
    at = last
    while at > source and uses[at] == 1:
        part = nodes[at - 1].part
        if not isinstance(part, Call) or nodes[at - 1].inputs != ((at - 1),):
            return None
        calls.insert(0, part)
        at -= 1
    if at != source or uses[source] != 2 or not calls:
        return None
    kinds = [type(c.function) if isinstance(c.function, nn.Module) else c.function for c in calls]
    if any(isinstance(c.function, nn.Linear) and c.function.bias is None for c in calls):
        return None
    middle = [k for k in kinds[1:] if k not in _SHAPES]
    means = kinds[0] in (Tensor.mean, torch.mean) and calls[0].arguments[1:] == ((3, 4),)
    gate = means and [_GATES.get(k) for k in middle] == _GATE
    return SqueezeGate(node.part, calls) if gate else None


def _source(nodes: Sequence[Planned], uses: Sequence[int], source: int) -> int:
    """Return the node whose frames a convolution of ``source`` alone takes, or pads; 0: none."""
    if uses[source] == 1 and source and isinstance(nodes[source - 1].part, Pad):
        source = nodes[source - 1].inputs[0]
    return source if uses[source] == 1 else 0


def _rectified(part: Part) -> bool:
    """Return whether this is a product of rows and ReLU."""
    if not isinstance(part, MergedFrames) or not part.volume:
        return False
    return bool(part.layer.kernel_size == (1, 1, 1)) and part.rectifies


def _last_product(
    result: Sequence[Planned], join: Join, inputs: Sequence[int]
) -> MergedFrames | None:
    """Return the newest node if it is a product of rows of which this is the sum with others."""
    reduce, last = join.reduce, len(result)
    if not isinstance(reduce, Call) or reduce.function not in _SUMS or not reduce.plain:
        return None
    if len(inputs) != 2 or reduce.options or inputs.count(last) != 1:
        return None
    part = result[-1].part
    if not isinstance(part, MergedFrames) or part.act is not None or join.slots[inputs.index(last)]:
        return None  # what waits would be wider
    return part if part.volume and part.layer.kernel_size == (1, 1, 1) else None


def _absorb(before: Part, part: Part) -> bool:
    """Make a part what one and the one after it are; return False if they stay apart."""
    if not isinstance(part, Call) or not part.plain:
        return False
    function: Any = part.function
    if isinstance(before, _Merged) and before.act is None and before.norm is None:
        norms = isinstance(function, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
        if norms and function.affine and function.track_running_stats:
            before.__dict__["norm"] = function
            return True
    kind = type(function) if isinstance(function, nn.Module) else function
    in_place = _IN_PLACE.get(kind)
    if in_place is None or part.options.keys() - {"inplace"}:
        return False
    if isinstance(before, _Merged) and before.act is None:
        before.act = _Activation(part, in_place)
        return True
    if isinstance(before, SqueezeGate):
        return _absorb(before.product, part)
    if isinstance(before, Call) and before.function in _NEW:
        then: Any = _Then(before.function, _Activation(part, in_place))
        before.function = then
        return True
    if isinstance(before, Join) and isinstance(before.reduce, _Sum) and not before.reduce.act:
        before.reduce.act = _Activation(part, in_place)
        return True
    if isinstance(before, Join) and isinstance(before.reduce, Call):
        return _absorb(before.reduce, part)
    return False


class _Activation(NamedTuple):
    plain: Call
    in_place: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of numbers that are not used again."""
        if fast.enabled() and not torch.is_grad_enabled():
            return self.in_place(x)
        return self.plain(x)  # type: ignore[no-any-return]


class _Then(NamedTuple):
    function: Callable[..., Tensor]
    act: _Activation

    def __call__(self, *values: Any, **options: Any) -> Tensor:
        return self.act(self.function(*values, **options))


class _Weights(NamedTuple):
    """A convolution multiplied with its norm."""

    versions: list[tuple[int, int]]  # of what it is computed from
    part: Any  # the convolution as a part, or the layer
    step: VolumeStep | None


class _Merged(Part):
    """A convolution, the norm after it and the activation after that, if there are.

    ``volume``: whether ``VolumeStep`` computes it.
    """

    conv: Any
    layer: Any
    norm: Any
    act: _Activation | None

    def __init__(self, conv: Part, layer: Any, volume: bool) -> None:
        super().__init__()
        # They are children of the network, not of this part.
        self.__dict__ |= {"conv": conv, "layer": layer, "norm": None, "act": None}
        self.volume, self.axis, self.timing = volume, conv.axis, conv.timing
        self._weights: _Weights | None = None

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

    def _folded(self) -> _Weights:
        """Return the weights multiplied with those of the norm, anew where they have changed."""
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

    def _fold(self, versions: list[tuple[int, int]]) -> _Weights:
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
        return _Weights(versions, part, VolumeStep(layer) if self.volume else None)


class MergedFrames(_Merged):
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
        """Return the outputs, those of a single frame in the next slot of ``state``."""
        step = self._folded().step if self._folds() and x.shape[2] == 1 else None
        if step is None or not isinstance(state, VolumeState):
            return self.forward(x)
        slot = state.slots[state.peek() % len(state.slots)]
        step.product(x.squeeze(2).permute(0, 2, 3, 1), slot)
        return slot.permute(0, 3, 1, 2).unsqueeze(2)

    def plus(self, x: Tensor, other: Tensor, act: _Activation | None) -> Tensor:
        """Return the activation of the sum of the product of frames and ``other`` frames."""
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
        return then.act.in_place(x) if isinstance(then, _Then) else x


class _Sum:
    """The sum of a product of rows and other frames, and the activation after it.

    ``place``: of the frames to be multiplied among the two that it is called with.
    """

    def __init__(self, product: MergedFrames, place: int) -> None:
        self.product, self.place = product, place
        self.act: _Activation | None = None

    def __call__(self, *values: Tensor) -> Tensor:
        return self.product.plus(values[self.place], values[1 - self.place], self.act)


@dataclass
class VolumeState(PartState, FrameRingState):
    """The newest frames under a kernel, channels last: frame t is in slot t mod K."""


class MergedConvolution(_Merged):
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
