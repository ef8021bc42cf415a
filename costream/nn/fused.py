"""Convolutions with bias and activation in one operation, for inference on a CPU.

``torch.conv2d`` reorders its weights in every call, and the activation is another pass over the
output. With oneDNN's operators, those of PyTorch's compiler, weights are reordered once and the
activation is part of the convolution. Pointwise convolutions with a small output may be products of
matrices, which start faster: that is measured. Elsewhere (gradients, other types, devices and
processors) the layer and its activation are called, which is also the readable form.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.choices import choices

Pads: TypeAlias = tuple[int, int, int, int]  # zeros to the left, to the right, above and below

# Numbers of an output up to which a pointwise convolution may be a product of matrices: bias and
# activation find it in the processor's cache.
_SMALL = 1 << 17
_SHAPES = 8  # of inputs for which a layer keeps weights
_OPERATORS = (
    "_convolution_pointwise",
    "_reorder_convolution_weight",
    "_is_mkldnn_bf16_supported",
)
_forms: WeakKeyDictionary[nn.Conv2d, _Form] = WeakKeyDictionary()


class FusedActivation(NamedTuple):
    """An activation: its name in oneDNN and its constants there, and a function in place."""

    name: str
    constants: list[float]
    apply: Callable[[Tensor], Tensor]


IDENTITY = FusedActivation("none", [], lambda x: x)
RELU = FusedActivation("relu", [], torch.relu_)
RELU6 = FusedActivation("hardtanh", [0.0, 6.0], lambda x: F.relu6(x, inplace=True))
HARD_SWISH = FusedActivation("hardswish", [], lambda x: F.hardswish(x, inplace=True))


def leaky_relu(slope: float) -> FusedActivation:
    """Return the leaky ReLU with this slope below zero."""
    return FusedActivation("leaky_relu", [slope], lambda x: F.leaky_relu(x, slope, inplace=True))


def convolve(
    layer: nn.Conv2d, x: Tensor, activation: FusedActivation = IDENTITY, pads: Pads | None = None
) -> Tensor:
    """Return the activated output [B, O, h', w'] of a convolution for maps [B, C, h, w].

    Maps whose channels are innermost in memory need no copy. ``pads``: zeros around the maps in
    place of the layer's padding, which is 0 then; not more to the left than to the right, and not
    more above than below.
    """
    if not _applies(layer, x):
        return activation.apply(layer(x if pads is None else F.pad(x, pads)))
    form = _forms.get(layer)
    if form is None or form.source != _source(layer, pads):
        form = _forms[layer] = _Form(layer, pads)
    return form(x, activation)


@cache
def available() -> bool:
    """Return whether this PyTorch has the operators of oneDNN on a processor it is made for."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    )


@cache
def _types() -> frozenset[torch.dtype]:
    """Return the types of numbers for which there are operators here."""
    if not available():
        return frozenset()
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return frozenset([torch.float32])
    return frozenset([torch.float32, torch.bfloat16])


def applies(x: Tensor) -> bool:
    """Return whether there are operators of oneDNN for this input now."""
    return (
        not torch.is_grad_enabled()
        and type(x) is Tensor  # not a symbol of a traced network
        and fast.enabled()
        and x.is_cpu
        and x.dtype in _types()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def _applies(layer: nn.Conv2d, x: Tensor) -> bool:
    return (
        applies(x)
        and type(layer) is nn.Conv2d  # without adapter
        and not layer._forward_hooks
        and cast(Tensor, layer._parameters["weight"]).dtype == x.dtype
    )


class PackedConvolution:
    """A convolution of two or three dimensions, with weights packed for the shapes of its inputs.

    Args:
        weight, bias: [O, I / groups, *kernel] and [O] or None.
        padding, stride, dilation: a number for each dimension.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        padding: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
    ) -> None:
        self._weight, self._bias = weight, bias
        self._arguments = [*padding], [*stride], [*dilation], groups
        self._packed: dict[torch.Size, Tensor] = {}

    def __call__(self, x: Tensor, activation: FusedActivation = IDENTITY) -> Tensor:
        """Return the activated output [B, O, ...] for maps or volumes [B, I, ...]."""
        if applies(x) and self._weight.dtype == x.dtype:
            return self.fused(x, activation)
        padding, stride, dilation, groups = self._arguments
        layer = F.conv2d if len(padding) == 2 else F.conv3d
        weight, bias = self._weight, self._bias
        return activation.apply(layer(x, weight, bias, stride, padding, dilation, groups))

    def fused(self, x: Tensor, activation: FusedActivation) -> Tensor:
        """Return the activated output for an input to which oneDNN's operator ``applies``."""
        name, constants, _ = activation
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._packed_for(x.shape), self._bias, *self._arguments, name, constants, ""
        )
        return out

    def _packed_for(self, shape: torch.Size) -> Tensor:
        """Return the weights in the order for this shape; with another one's, oneDNN is slow."""
        packed = self._packed.get(shape)
        if packed is None:
            if len(self._packed) == _SHAPES:
                self._packed.clear()
            pack = torch.ops.mkldnn._reorder_convolution_weight
            packed = self._packed[shape] = pack(self._weight, *self._arguments, [*shape])
        return packed


class _Form:
    """The weights of a layer in the order of oneDNN, and as a matrix if the layer is pointwise."""

    def __init__(self, layer: nn.Conv2d, pads: Pads | None) -> None:
        self.source = _source(layer, pads)
        # They are kept, so that no other tensor gets their addresses, which are part of the source.
        self._weight = layer.weight.detach()
        self._bias = None if layer.bias is None else layer.bias.detach()
        padding, kernel = [*cast("tuple[int, int]", layer.padding)], self._weight
        if pads is not None:
            left, right, top, bottom = pads
            # The operator pads both sides alike, so zeros of the kernel fall on what is too much.
            padding, kernel = [bottom, right], F.pad(kernel, (right - left, 0, bottom - top, 0))
        arguments = padding, layer.stride, layer.dilation, layer.groups
        self._packed = PackedConvolution(kernel, self._bias, *arguments)
        # oneDNN multiplies bfloat16 faster than the libraries of matrix products.
        simple = (self._weight.dtype, layer.kernel_size, layer.stride, padding, layer.groups)
        pointwise = simple == (torch.float32, (1, 1), (1, 1), [0, 0], 1)
        self._matrix = self._weight[:, :, 0, 0].t().contiguous() if pointwise else None
        self._biases: dict[int, Tensor] = {}  # of a row of a map, by its width
        self._multiplies: dict[tuple[int, str], bool] = {}  # by pixels, about, and activation

    def __call__(self, x: Tensor, activation: FusedActivation) -> Tensor:
        """Return the activated output for maps."""
        count, _, height, width = x.shape
        pixels = count * height * width
        if self._matrix is None or pixels * len(self._weight) > _SMALL:
            return self._packed.fused(x, activation)
        key = pixels.bit_length(), activation.name
        multiplies = self._multiplies.get(key)
        if multiplies is None:
            multiplies = self._multiplies[key] = self._measured(pixels, activation, self._matrix)
        if multiplies:
            return activation.apply(self._multiplied(x, self._matrix))
        return self._packed.fused(x, activation)

    def _measured(self, pixels: int, activation: FusedActivation, matrix: Tensor) -> bool:
        """Return whether products of matrices are faster for about so many pixels."""
        side = math.isqrt(3 << pixels.bit_length() >> 2)  # in the middle between powers of two
        inner, columns = matrix.shape
        x = torch.zeros(1, side, side, inner).permute(0, 3, 1, 2)
        ways = {
            "oneDNN": lambda: self._packed.fused(x, activation),
            "product": lambda: activation.apply(self._multiplied(x, matrix)),
        }
        work = f"pointwise, {side * side} x {inner} x {columns}, {activation.name}"
        return choices.fastest(work, ways) == "product"

    def _multiplied(self, x: Tensor, matrix: Tensor) -> Tensor:
        count, channels, height, width = x.shape
        out = torch.mm(x.permute(0, 2, 3, 1).reshape(-1, channels), matrix)
        if self._bias is not None:
            bias = self._biases.get(width)
            if bias is None:  # adding rows of maps takes less time than adding few channels
                bias = self._biases[width] = self._bias.repeat(width)
            out.view(-1, len(bias)).add_(bias)
        return out.view(count, height, width, -1).permute(0, 3, 1, 2)


def _source(layer: nn.Conv2d, pads: Pads | None) -> tuple[object, ...]:
    """Return what a form is made of; changes through ``.data`` in place are not noticed."""
    return (pads, *[_version(t) for t in layer._parameters.values()])


def _version(tensor: Tensor | None) -> tuple[int, int] | None:
    if tensor is None:
        return None
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
