"""Mean and standard deviation over time, ordinary and continual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from costream.nn.pooling import MeanState, TemporalMean
from costream.nn.timing import ContinualModule

_LEAST = 1e-4  # minimum standard deviation: less is rounding error


class TemporalStatistics(ContinualModule):
    """Mean and standard deviation of each number over the last ``window`` features.

    Statistics pooling: Snyder et al., "X-vectors: Robust DNN embeddings for speaker recognition"
    (ICASSP 2018). Until there are ``window`` features they are those of the features so far, and
    each stream has its own count. Computed in double precision: the variance is a difference of
    means, in which half of the digits are lost.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.mean = TemporalMean(window, partial=True)
        self.timing = self.mean.timing

    def forward(self, x: Tensor) -> Tensor:
        """Return means and deviations [B, T, ..., 2 C] at every step of a clip [B, T, ..., C]."""
        return _describe(self.mean(_powers(x))).to(x.dtype)

    def init_state(self, batch_size: int, shape: Sequence[int], like: Tensor) -> MeanState:
        """Return the initial state of ``batch_size`` streams.

        ``shape``: of a feature of one stream, (..., C). ``like``: a tensor on its device.
        """
        return self.mean.init_state(batch_size, (*shape[:-1], 2 * shape[-1]), like.double())

    def forward_step(self, x: Tensor, state: MeanState) -> Tensor:
        """Take a feature [B, ..., C] of every stream, return [B, ..., 2 C]."""
        means = cast(Tensor, self.mean.forward_step(_powers(x), state))
        return _describe(means).to(x.dtype)

    def forward_steps(self, x: Tensor, state: MeanState) -> Tensor:
        """Take T features [B, T, ..., C], return what T steps would, [B, T, ..., 2 C]."""
        return _describe(self.mean.forward_steps(_powers(x), state)).to(x.dtype)


def _powers(x: Tensor) -> Tensor:
    double = x.double()
    return torch.cat([double, double.square()], -1)


def _describe(means: Tensor) -> Tensor:
    mean, square = means.chunk(2, -1)
    variance = torch.addcmul(square, mean, mean, value=-1)
    return torch.cat([mean, variance.clamp(min=_LEAST**2).sqrt()], -1)
