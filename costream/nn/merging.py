"""Which layers of a converted network are computed together: a table of rules.

In networks with convolutions over time and space in each channel alone (X3D, MoViNet), frames
[B, C, T, H, W] lie in memory with their channels last, and 1x1x1 convolutions are products of rows
(``video3d.convolution``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add, getitem, mul
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.continual import Call
from costream.nn.join import Join
from costream.nn.layers import Conv1d, Conv2d, Conv3d
from costream.nn.merged_layers import (
    ActivatedCall,
    Activation,
    MergedConvolution,
    MergedFrames,
    MergedLayer,
    ShortcutSum,
    SqueezeGate,
)
from costream.nn.parts import Pad, Part

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
    """Return the nodes of a network, one for the layers that steps compute together."""
    return _Merging(nodes).run()


class _Merging:
    """One pass over the nodes of a network, in order: ``RULES`` says what each becomes.

    A rule takes a node and its inputs among the nodes of the result. It returns the number of the
    node of the result that has the node's value, or None where it does not apply.
    """

    def __init__(self, nodes: Sequence[Planned]) -> None:
        self.nodes, self.uses = _without_identities(nodes)
        self.channels_last = any(_in_each_channel(node.part) for node in self.nodes)
        self.result: list[Planned] = []
        self.place = [0]  # of the value of each node in the result

    def run(self) -> list[Planned]:
        """Return the nodes of the result."""
        for node in self.nodes:
            inputs = tuple(self.place[k] for k in node.inputs)
            found = (rule(self, node, inputs) for rule in RULES)
            self.place.append(next(number for number in found if number is not None))
        return self.result

    def _add(self, part: Part, inputs: tuple[int, ...], timed: bool, writes: int = 0) -> int:
        self.result.append(Planned(part, inputs, timed, writes))
        return len(self.result)

    def absorb(self, node: Planned, inputs: tuple[int, ...]) -> int | None:
        """A batch norm or an activation joins the layer before it, if nothing else uses that.

        Convolution: y = act(x W s + (b s + t)), with scale s and shift t of the norm.
        """
        if len(inputs) != 1 or not inputs[0] or self.uses[node.inputs[0]] > 1:
            return None
        return inputs[0] if _absorb(self.result[inputs[0] - 1].part, node.part) else None

    def squeeze_excitation(self, node: Planned, inputs: tuple[int, ...]) -> int | None:
        """The product x sigmoid(W2 relu(W1 mean(x))) of frames of a convolution is one part."""
        gate = _squeeze(self.nodes, self.uses, node)
        at = self.place[min(node.inputs)] if gate is not None else 0
        if gate is None or not at or not isinstance(self.result[at - 1].part, MergedConvolution):
            return None
        del self.result[at:]  # the calls from the means to the factors
        return self._add(gate, (at,), node.timed)

    def convolution(self, node: Planned, inputs: tuple[int, ...]) -> int | None:
        """A convolution may take a norm and an activation; see ``absorb``.

        Where channels are last, the layer before one over time writes its frames where that one
        keeps them.
        """
        layer = _convolution(node.part)
        if layer is None:
            return None
        volume = self.channels_last and _suits(layer)
        if isinstance(node.part, Call):
            return self._add(MergedFrames(node.part, layer, volume), inputs, node.timed)
        source = self.place[_source(self.nodes, self.uses, node.inputs[0])] if volume else 0
        writes = source if source and _rectified(self.result[source - 1].part) else 0
        return self._add(MergedConvolution(node.part, layer, volume), inputs, node.timed, writes)

    def shortcut(self, node: Planned, inputs: tuple[int, ...]) -> int | None:
        """The sum of a 1x1x1 convolution and a shortcut is y = act(x W + b + shortcut)."""
        join, last = node.part, len(self.result)
        if not isinstance(join, Join) or not _adds_product(self.result, join, inputs):
            return None
        convolution = self.result.pop()
        assert isinstance(convolution.part, MergedFrames)
        del join.reduce  # a child
        join.reduce = ShortcutSum(convolution.part, inputs.index(last))
        join.brief = join.axes == [2, 2]
        given = tuple(convolution.inputs[0] if k == last else k for k in inputs)
        return self._add(join, given, node.timed)

    def unchanged(self, node: Planned, inputs: tuple[int, ...]) -> int | None:
        """Any other node is taken as it is."""
        return self._add(node.part, inputs, node.timed)


RULES = (
    _Merging.absorb,
    _Merging.squeeze_excitation,
    _Merging.convolution,
    _Merging.shortcut,
    _Merging.unchanged,
)


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
    """Return the layer of a convolution, or None; one whose weight is computed does not count."""
    layer: Any = None
    if isinstance(part, Conv1d | Conv2d | Conv3d):
        layer = part.layer
    elif isinstance(part, Call) and part.plain and not part.options:
        layer = part.function
    is_convolution = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer if is_convolution and "weight" in layer._parameters else None


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
    """Return the part for a product of a value with a function of its channels' means, or None."""
    call = node.part
    if not isinstance(call, Call) or call.function not in _PRODUCTS:
        return None
    if not call.plain or len(node.inputs) != 2:
        return None
    source, last = sorted(node.inputs)
    calls = _chain(nodes, uses, source, last)
    if not calls or uses[source] != 2 or not _is_gate(calls):
        return None
    return SqueezeGate(call, calls)


def _chain(
    nodes: Sequence[Planned], uses: Sequence[int], source: int, last: int
) -> list[Call] | None:
    """Return the calls from ``source`` to ``last``, each on the one before alone, or None."""
    calls: list[Call] = []
    for at in range(last, source, -1):
        part = nodes[at - 1].part
        if uses[at] != 1 or not isinstance(part, Call) or nodes[at - 1].inputs != (at - 1,):
            return None
        calls.insert(0, part)
    return calls


def _is_gate(calls: Sequence[Call]) -> bool:
    """Return whether calls are squeeze-excitation, from means of frames to factors."""
    kinds = [type(c.function) if isinstance(c.function, nn.Module) else c.function for c in calls]
    if any(isinstance(c.function, nn.Linear) and c.function.bias is None for c in calls):
        return False
    means = kinds[0] in (Tensor.mean, torch.mean) and calls[0].arguments[1:] == ((3, 4),)
    middle = [_GATES.get(k) for k in kinds[1:] if k not in _SHAPES]
    return means and middle == _GATE


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


def _adds_product(result: Sequence[Planned], join: Join, inputs: Sequence[int]) -> bool:
    """Return whether a join is the sum of the newest node, a product of rows, with frames."""
    reduce, last = join.reduce, len(result)
    if not isinstance(reduce, Call) or reduce.function not in _SUMS or not reduce.plain:
        return False
    if len(inputs) != 2 or reduce.options or inputs.count(last) != 1:
        return False
    part = result[-1].part
    if not isinstance(part, MergedFrames) or part.act is not None or join.slots[inputs.index(last)]:
        return False  # what waits would be wider
    return bool(part.volume and part.layer.kernel_size == (1, 1, 1))


def _absorb(before: Part, part: Part) -> bool:
    """Make ``before`` compute ``part``, too; return False if they stay apart."""
    if not isinstance(part, Call) or not part.plain:
        return False
    if isinstance(before, MergedLayer) and before.act is None and _absorb_norm(before, part):
        return True
    function: Any = part.function
    in_place = _IN_PLACE.get(type(function) if isinstance(function, nn.Module) else function)
    if in_place is None or part.options.keys() - {"inplace"}:
        return False
    return _activate(before, Activation(part, in_place))


def _absorb_norm(before: MergedLayer, part: Call) -> bool:
    norm: Any = part.function
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if before.norm is not None or not isinstance(norm, kinds):
        return False
    if not norm.affine or not norm.track_running_stats:
        return False
    before.__dict__["norm"] = norm  # a child of the network, not of this part
    return True


def _activate(before: Any, activation: Activation) -> bool:
    """Make ``before`` apply an activation to its result; return False if it cannot."""
    if isinstance(before, MergedLayer | ShortcutSum):
        if before.act is not None:
            return False
        before.act = activation
        return True
    if isinstance(before, SqueezeGate):
        return _activate(before.product, activation)
    if isinstance(before, Join):
        return _activate(before.reduce, activation)
    if isinstance(before, Call) and before.function in _NEW:
        then: Any = ActivatedCall(before.function, activation)
        before.function = then
        return True
    return False
