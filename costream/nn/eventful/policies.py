"""Policies: which tokens of a frame a gate passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from costream.nn.eventful.counts import Operations


class Policy(Protocol):
    """Selects tokens by their distance from their references.

    Every step receives a policy, so a budget may change from frame to frame.
    """

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices, int64 [M], ascending, for errors [N] of a stream's tokens."""


@runtime_checkable
class StartPolicy(Policy, Protocol):
    """A policy that leaves tokens out where a stream starts, too."""

    def start(self, count: int) -> Tensor:
        """Return the tokens to compute, int64 [M], ascending, of ``count``."""


class Importance(Protocol):
    """Scores tokens by how much depends on computing them; see ``TokenGate``."""

    def __call__(self, change: Tensor, tokens: Tensor) -> Tensor:
        """Return scores [N] of tokens [N, D] and their changes since they were computed."""

    def count(self, tokens: int, operations: Operations) -> None:
        """Count the operations of that."""


@runtime_checkable
class ScoringPolicy(Policy, Protocol):
    """A policy that chooses by other scores than distances."""

    def scores(self, x: Tensor, reference: Tensor, operations: Operations) -> Tensor:
        """Return the scores [N] of a stream's tokens [N, D] with their references [N, D]."""


def start_tokens(policy: Policy, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the tokens that a policy computes where a stream starts: all, or fewer."""
    if isinstance(policy, StartPolicy):
        return policy.start(count).to(device)
    return torch.arange(count, device=device)


@dataclass(frozen=True)
class TopTokens:
    """The ``count`` tokens with the largest errors, or all when there are fewer."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0 or self.count != int(self.count):
            raise ValueError(f"{self.count} tokens: an integer of at least 0")

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return _largest(errors, self.count)


@dataclass(frozen=True)
class TopShare:
    """The share of the tokens, 0 to 1 and rounded down, with the largest errors."""

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"a share of {self.share} of the tokens: 0 to 1")

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        return _largest(errors, int(self.share * len(errors)))


@dataclass(frozen=True)
class AboveThreshold:
    """The tokens whose error is above ``threshold``."""

    threshold: float

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise ValueError(f"a threshold of {self.threshold}: at least 0")

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


@dataclass(frozen=True)
class OnlyTokens:
    """The tokens that ``policy`` chooses among ``tokens``, int64 [n], ascending."""

    policy: Policy
    tokens: Tensor

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        tokens = self.tokens.to(errors.device)
        return tokens[self.policy.choose(errors[tokens])]

    def start(self, count: int) -> Tensor:
        """Return all of ``tokens``."""
        return self.tokens


class RecordedPolicy:
    """Chooses as ``policy`` does and records its first choice, which is among the input tokens.

    There is no choice in the first frame of a stream, where ``start`` is called. ``importance``:
    all gates of the frame choose by its scores at the first one; None: by distances.
    """

    def __init__(self, policy: Policy, count: int, importance: Importance | None = None) -> None:
        self._policy, self._count = policy, count
        self._importance, self._scores = importance, torch.zeros(0)
        self._first: Tensor | None = None
        self._start = torch.arange(count)

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        chosen = self._policy.choose(errors)
        self._first = chosen if self._first is None else self._first
        return chosen

    def scores(self, x: Tensor, reference: Tensor, operations: Operations) -> Tensor:
        """Return the scores [N] of a stream's tokens [N, D] with their references [N, D]."""
        if self._importance is None:
            return distances(x, reference, operations)
        if not len(self._scores):
            self._importance.count(len(x), operations)
            self._scores = self._importance(x - reference, x)
        return self._scores

    def start(self, count: int) -> Tensor:
        """Return the tokens to compute where the stream starts."""
        self._start = start_tokens(self._policy, count)
        return self._start

    @property
    def updated(self) -> Tensor:
        """Mask of the tokens that were computed, bool [N]."""
        tokens = self._start if self._first is None else self._first
        return torch.zeros(self._count, dtype=torch.bool).index_fill_(0, tokens.cpu(), True)


def distances(x: Tensor, reference: Tensor, operations: Operations | None = None) -> Tensor:
    """Return the Euclidean distance [..., N] of each token [..., N, C] from its reference."""
    if operations is not None:
        operations.gate += x.numel()
    result: Tensor = torch.linalg.vector_norm(x - reference, dim=-1)
    return result


def _largest(errors: Tensor, count: int) -> Tensor:
    count = min(max(count, 0), len(errors))
    if count == len(errors):
        return torch.arange(count, device=errors.device)
    chosen = torch.topk(errors, count, sorted=False).indices
    return chosen if chosen.is_cuda else chosen.sort().values  # there, order gains nothing
