"""Which number of which parameter stands where in a value that was computed from parameters.

Layers that are called as functions (``F.linear(x, weight)``) may take a weight that was viewed,
joined from several parameters, or, as a bias, summed. Such values have *places*: for
each number where it comes from. Operations that move numbers are run on the places themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Coordinates(NamedTuple):
    """Indices along one dimension of a parameter, and what belongs to each."""

    path: str  # of the module
    name: str
    dim: int
    size: int
    indices: Tensor  # int64 [n]
    labels: Tensor  # int64 [n]


class ParameterPlaces:
    """Numbers of all parameters of a network, counted through."""

    def __init__(self, root: nn.Module) -> None:
        self._starts, self._names, self._shapes = list[int](), list[str](), list[torch.Size]()
        count = 0
        for name, parameter in root.named_parameters():
            self._starts.append(count)
            self._names.append(name)
            self._shapes.append(parameter.shape)
            count += parameter.numel()

    def of(self, name: str) -> Tensor | None:
        """Return the places of a parameter by its name, None for a buffer."""
        if name not in self._names:
            return None
        k = self._names.index(name)
        shape = self._shapes[k]
        return torch.arange(self._starts[k], self._starts[k] + shape.numel()).view(shape)

    def along(self, places: Tensor, labels: Tensor, dim: int) -> Iterator[Coordinates]:
        """Yield the indices along ``dim`` of the parameters that stand at ``places``.

        ``labels``: of the same shape; each pair of index and label comes once.
        """
        first, last = int(places.min()), int(places.max())
        for k in range(bisect_right(self._starts, first) - 1, bisect_right(self._starts, last)):
            shape = self._shapes[k]
            if dim >= len(shape):
                continue
            index = places - self._starts[k]
            inside = (index >= 0) & (index < shape.numel())
            if not inside.any():
                continue
            below = shape[dim + 1 :].numel()
            found = torch.stack([index[inside] // below % shape[dim], labels[inside]])
            indices, held = torch.unique(found, dim=1)
            path, _, name = self._names[k].rpartition(".")
            yield Coordinates(path, name, dim, shape[dim], indices, held)
