"""Policies that select which tokens of a frame are updated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Policy(Protocol):
    """Selects tokens by their distance from their references.

    Every step receives a policy, so a budget may change from frame to frame.
    """

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices, int64 [M], ascending, for errors [N] of a stream's tokens."""


@dataclass(frozen=True)
class TopTokens:
    """The ``count`` tokens with the largest errors, or all when there are fewer."""

    count: int

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return _largest(errors, self.count)


@dataclass(frozen=True)
class TopShare:
    """The share of the tokens, 0 to 1 and rounded down, with the largest errors."""

    share: float

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return _largest(errors, int(self.share * len(errors)))


@dataclass(frozen=True)
class AboveThreshold:
    """The tokens whose error is above ``threshold``."""

    threshold: float

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return (errors > self.threshold).nonzero().flatten()


class PerGateTokens:
    """The tokens with the largest errors, ``pace(k)`` of them at gate k, counted from 0.

    For one frame: gates are counted by their calls.
    """

    def __init__(self, pace: Callable[[int], int]) -> None:
        self._pace, self._gate = pace, 0

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        count = self._pace(self._gate)
        self._gate += 1
        return _largest(errors, count)


class RecordedPolicy:
    """Chooses as ``policy`` does and records the first choice, that among the input tokens.

    Without any choice all tokens were computed: the stream started.
    """

    def __init__(self, policy: Policy, count: int) -> None:
        self._policy, self._count = policy, count
        self._first: Tensor | None = None

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        chosen = self._policy.choose(errors)
        self._first = chosen if self._first is None else self._first
        return chosen

    @property
    def updated(self) -> Tensor:
        """Mask of the tokens that were computed, bool [N]."""
        if self._first is None:
            return torch.ones(self._count, dtype=torch.bool)
        return torch.zeros(self._count, dtype=torch.bool).index_fill_(0, self._first.cpu(), True)


def _largest(errors: Tensor, count: int) -> Tensor:
    count = min(max(count, 0), len(errors))
    if count == len(errors):
        return torch.arange(count, device=errors.device)
    return torch.topk(errors, count, sorted=False).indices.sort().values
