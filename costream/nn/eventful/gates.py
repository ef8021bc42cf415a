"""Token gates: only tokens that differ from what was last computed are passed on.

Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023), section 4. A gate keeps a reference for
each token: its value when it last passed. Tokens are selected by their distance from that, not
from the last frame, so slow changes add up until they are noticed. Results computed from the
passed tokens go to a buffer that still holds the earlier results of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from costream.nn.timing import check_shape


@dataclass(frozen=True)
class ChosenTokens:
    """The tokens of every stream that are computed in this step."""

    tokens: tuple[Tensor, ...]  # of each stream, int64 [M], ascending
    fresh: tuple[bool, ...]  # of each stream: it starts, all tokens are chosen that may be
    places: Tensor | None  # of all of them in the rows of all streams; None: every row
    # Those of a stream that may be chosen at all, int64 [n], ascending; None: every one.
    allowed: Tensor | None = None

    @property
    def counts(self) -> list[int]:
        """Number of chosen tokens of each stream."""
        return [len(tokens) for tokens in self.tokens]

    def take(self, x: Tensor) -> Tensor:
        """Return the chosen rows [M, C] of ``x`` [B, N, C]."""
        rows = x.flatten(0, 1)
        return rows if self.places is None else rows.index_select(0, self.places)

    def put(self, rows: Tensor, buffer: Tensor) -> None:
        """Write rows [M, C] to their places in ``buffer`` [B, N, C]."""
        if self.places is None:
            buffer.copy_(rows.view(buffer.shape))
        else:
            places = self.places.to(buffer.device)  # those of meta tensors are elsewhere
            buffer.view(-1, buffer.shape[2]).index_copy_(0, places, rows)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of each stream."""
        return torch.split(rows, self.counts)


def pass_tokens(
    x: Tensor,
    reference: Tensor,
    fresh: Sequence[bool],
    policy: Policy,
    operations: Operations,
    remember_all: bool = False,
) -> ChosenTokens:
    """Choose tokens of ``x`` [B, N, C] and make them the new ``reference`` [B, N, C].

    All tokens of a fresh stream pass, or those that a ``StartPolicy`` names. ``remember_all``: the
    reference of every token becomes its value in this frame, as in STGT (Li et al.,
    "Spatio-temporal gated transformers", 2021), which therefore misses slow changes. ValueError for
    tokens that do not fit the reference.
    """
    check_shape(x.shape, reference.shape)
    count = x.shape[1]
    device = "cpu" if x.is_meta else x.device  # indices must have values even if tokens have none
    tokens, allowed = [], start_tokens(policy, count, device)
    for stream, begins in enumerate(fresh):
        if begins:
            tokens.append(allowed)
            if len(allowed) < count:  # those that are never computed have not changed either
                reference[stream] = x[stream]
        else:
            tokens.append(policy.choose(distances(x[stream], reference[stream])))
            operations.gate += x[stream].numel()
    if all(len(t) == count for t in tokens):
        places = None
    elif len(tokens) == 1:
        places = tokens[0]
    else:
        places = torch.cat([t + stream * count for stream, t in enumerate(tokens)])
    chosen = ChosenTokens(tuple(tokens), tuple(fresh), places, allowed)
    if remember_all:
        reference.copy_(x)
    else:
        chosen.put(chosen.take(x), reference)
    return chosen


def pass_difference(
    x: Tensor, reference: Tensor, columns: Tensor, operations: Operations
) -> tuple[Tensor, Tensor]:
    """Return these columns of ``x`` [..., N, C], and the change of each from its reference.

    A delta gate with given columns: the ``reference`` [..., N, C] of these columns becomes their
    new value. The difference is computed over all of ``x``, as the paper counts it.
    """
    operations.gate += x.numel()
    change = (x - reference)[..., columns, :]
    values = x[..., columns, :]
    reference[..., columns, :] = values
    return values, change


def distances(x: Tensor, reference: Tensor) -> Tensor:
    """Return the Euclidean distance [..., N] of each token [..., N, C] from its reference."""
    result: Tensor = torch.linalg.vector_norm(x - reference, dim=-1)
    return result


# Operation counts of a step, recorded where the operations are computed.


@dataclass
class Operations:
    """Return the multiply-accumulates of one step by kind, all streams together.

    The bookkeeping is that of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023): a
    multiply-accumulate counts 1 and so does a separate addition; layer norms, softmax,
    activations, scaling, norms of errors and the selection of tokens count nothing.
    """

    linear: int = 0  # rows times weights, convolutions
    bias: int = 0
    product: int = 0  # queries times keys, weights times values
    position: int = 0  # queries times relative positions
    add: int = 0  # skips, and positions added to tokens or scores
    gate: int = 0  # differences computed by gates
    accumulate: int = 0  # additions to running sums

    @property
    def total(self) -> int:
        """Sum of all kinds."""
        return sum(getattr(self, field.name) for field in fields(self))

    def add_all(self, other: Operations) -> None:
        """Add the counts of ``other``."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def count_linear(self, rows: int, layer: nn.Linear | nn.Conv2d) -> None:
        """Count ``rows`` rows, or output pixels, of a layer, including its bias."""
        self.linear += rows * layer.weight.numel()
        if layer.bias is not None:
            self.bias += rows * layer.bias.numel()


# Policies that select which tokens of a frame are updated.


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
            raise ValueError(f"{self.count} tokens: a whole number, at least 0")

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
    """Those of ``tokens``, int64 [n] and ascending, that ``policy`` chooses among them."""

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
    """Chooses as ``policy`` does and records the first choice, that among the input tokens.

    Without any choice the stream started.
    """

    def __init__(self, policy: Policy, count: int) -> None:
        self._policy, self._count = policy, count
        self._first: Tensor | None = None
        self._start = torch.arange(count)

    def choose(self, errors: Tensor) -> Tensor:
        """Return the chosen indices."""
        chosen = self._policy.choose(errors)
        self._first = chosen if self._first is None else self._first
        return chosen

    def start(self, count: int) -> Tensor:
        """Return the tokens to compute where the stream starts."""
        self._start = start_tokens(self._policy, count)
        return self._start

    @property
    def updated(self) -> Tensor:
        """Mask of the tokens that were computed, bool [N]."""
        tokens = self._start if self._first is None else self._first
        return torch.zeros(self._count, dtype=torch.bool).index_fill_(0, tokens.cpu(), True)


def _largest(errors: Tensor, count: int) -> Tensor:
    count = min(max(count, 0), len(errors))
    if count == len(errors):
        return torch.arange(count, device=errors.device)
    chosen = torch.topk(errors, count, sorted=False).indices
    return chosen if chosen.is_cuda else chosen.sort().values  # there, order gains nothing
