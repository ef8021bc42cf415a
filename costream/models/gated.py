"""Base class of token-gated models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from costream.checkpoints.card import Card
from costream.errors import ModelError
from costream.models.base import ModelHead, Pace, StepResult
from costream.models.fitting import check_source
from costream.models.streaming import DTYPES, find_device
from costream.nn.eventful.block import use_bfloat16_products
from costream.nn.eventful.gates import PerGateTokens, RecordedPolicy, TopTokens
from costream.records import Data, SourceInfo


class _GatedState(Protocol):
    """Settings of a stream, which are retained by a reset."""

    tokens: int | None  # computed at most; None: all
    pace: Pace | None  # sets the number at every gate

    def reset(self, rows: Sequence[int] | None = None) -> None: ...


N = TypeVar("N", bound=nn.Module)
F = TypeVar("F", bound=Any)
S = TypeVar("S", bound=_GatedState)


class GatedModelBase(ABC, Generic[N, F, S]):
    """Network and frontend of one weight file for video; base class of each ``GatedModel``.

    Each stream has a state of its own. ``network`` and ``frontend`` are in ``eval`` mode on
    ``device``. ``dtype``: "float32" or "float64", or "bfloat16" for the matrix products of blocks
    only, see ``compute_in_half``. Raises ModelError for an unavailable device or dtype, and if
    the number of labels is not ``classes``.
    """

    sound = None
    beside = None
    frames = 1
    chunk = 1
    in_time = True  # streams may differ in size and start at different times

    def __init__(
        self,
        card: Card,
        network: N,
        frontend: F,
        classes: int,
        weights_sha256: str,
        device: str,
        dtype: str,
    ) -> None:
        if len(card.labels) != classes:
            raise ModelError(f"{card.name} has {len(card.labels)} labels for {classes} classes")
        self.card, self.weights_sha256 = card, weights_sha256
        self.heads = (ModelHead(card, weights_sha256, slice(None)),)
        self.device = find_device(device)
        known = ("float32", "float64", "bfloat16")
        if dtype not in known:
            raise ModelError(f"unknown type {dtype!r}", hint=f"known are {', '.join(known)}")
        of_weights = torch.float32 if dtype == "bfloat16" else DTYPES[dtype]
        self.network: N = network.to(self.device, of_weights).eval().requires_grad_(False)
        self.frontend: F = frontend.to(self.device, of_weights)
        if dtype == "bfloat16":
            use_bfloat16_products(self.network)

    @property
    def box(self) -> tuple[int, int]:
        """Width and height that frames should be fitted into."""
        box: tuple[int, int] = self.frontend.box
        return box

    def check(self, info: SourceInfo) -> None:
        """Raise SourceError if this source is not video."""
        check_source(self.card, self.frontend, info)

    def notes(self, info: SourceInfo) -> dict[str, Any]:
        """Return entries for the run's header on how this source reaches the network."""
        return {}

    def reset(self, state: S, rows: Sequence[int]) -> None:
        """Reset the stream."""
        state.reset(rows)

    def set_tokens(self, state: S, count: int | None, pace: Pace | None = None) -> None:
        """Set the largest number of tokens updated from now on; None: all.

        A ``pace`` is called for the number at every gate instead.
        """
        state.tokens, state.pace = count, pace

    @abstractmethod
    def step(self, items: Sequence[Data], state: S) -> StepResult:
        """Take the next frame of the stream, return its result."""

    def steps(self, items: Sequence[Data], state: S) -> list[StepResult]:
        """Take consecutive frames, return their results."""
        return [self.step([item], state) for item in items]


def gate_policy(state: _GatedState, count: int) -> RecordedPolicy:
    """Return the policy that selects among the ``count`` tokens of a step, by its settings."""
    if state.pace is not None:
        return RecordedPolicy(PerGateTokens(state.pace), count)
    return RecordedPolicy(TopTokens(count if state.tokens is None else state.tokens), count)


def check_single_stream(batch_size: int) -> None:
    """Raise ValueError for more than one stream in a state."""
    if batch_size != 1:
        raise ValueError(f"a state holds one stream, not {batch_size}")
