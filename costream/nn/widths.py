"""Networks whose layers are narrower than their arguments say, as pruning leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn


def resize(root: nn.Module) -> None:
    """Set the sizes that the layers of a network store to those of their weights, in place.

    Layers of costream do it by their method ``resize``.
    """
    for layer in [*root.modules()][::-1]:  # a layer before those that hold it
        own: Any = getattr(layer, "resize", None)
        if own is not None:
            own()
        else:
            _resize(layer)


def narrow(root: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make parameters and buffers of a network as narrow as tensors of the same names, in place.

    Raises ValueError for a tensor that is empty, wider in a dimension, or has more or fewer of
    them. Values are undefined until they are loaded.
    """
    for name, held in root.state_dict(keep_vars=True).items():
        shape = tensors[name].shape if name in tensors else held.shape
        if shape == held.shape:
            continue
        both = list(zip(shape, held.shape, strict=False))
        if len(shape) != held.dim() or any(not 0 < n <= m for n, m in both):
            raise ValueError(f"{name} is {tuple(shape)}, not within {tuple(held.shape)}")
        part = empty_like(held.detach(), shape)
        path, _, own = name.rpartition(".")
        owner = root.get_submodule(path)
        if own in owner._parameters:
            owner._parameters[own] = nn.Parameter(part)
        else:
            owner._buffers[own] = part
    resize(root)


def empty_like(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor of a shape whose dimensions lie in memory as a tensor's do."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    laid = tensor.new_empty([shape[d] for d in order])
    return laid.permute([order.index(d) for d in range(tensor.dim())])


def _resize(layer: Any) -> None:
    """Set the sizes that a layer of torch stores to those of its weight."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        rows = layer.out_channels // layer.groups
        if layer.groups > 1:
            layer.groups = layer.weight.shape[0] // rows
        layer.out_channels = layer.weight.shape[0]
        layer.in_channels = layer.weight.shape[1] * layer.groups
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
        held = layer.running_mean if layer.running_mean is not None else layer.weight
        layer.num_features = layer.num_features if held is None else len(held)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = len(layer.weight)
