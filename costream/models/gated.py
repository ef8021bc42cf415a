"""Base classes of token-gated models and their states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.places import Place
from costream.core.records import Data, SourceInfo, VideoFrame
from costream.models.base import ModelHead, ModelInfo, StepResult
from costream.models.compatibility import check_source
from costream.models.devices import find_device, find_dtype, synchronize
from costream.nn.eventful.block import use_bfloat16_products
from costream.nn.eventful.policies import (
    AboveThreshold,
    Importance,
    OnlyTokens,
    PerGateTokens,
    Policy,
    RecordedPolicy,
    TopShare,
    TopTokens,
)
from costream.nn.state import State
from costream.weights_io.card import Card

Pace: TypeAlias = Callable[[int], int]  # index of a gate -> tokens that it may pass
Choice: TypeAlias = Literal["learned", "distance"]
PolicyName: TypeAlias = Literal["learned", "distance", "change"]


@dataclass(kw_only=True)
class TokenState(State):
    """State of one stream, and which tokens to update.

    ``tokens``: the most of them per step, a share ("25%"), or those that have changed by more than
    a distance (">0.5"); None: all. ``choice``: which of them, those that the network's learned
    policy chooses or those that have changed most; None: "learned" where there is one. ``pace``:
    returns their number at every gate, in place of ``tokens``. ``masks``: hidden parts of the
    picture. These are settings, not memory: copies have them, and they stay when the state is reset
    or the state of another stream is copied into it.
    """

    tokens: int | str | None = None
    choice: Choice | None = None
    pace: Pace | None = None
    masks: frozenset[Place] = frozenset()

    def policy(
        self,
        count: int,
        seen: Tensor | None = None,
        every: bool = False,
        importance: Importance | None = None,
    ) -> RecordedPolicy:
        """Return the policy that selects among the ``count`` tokens of a step.

        ``seen``: tokens that may be selected, int64 [n], ascending; None: all. ``every``: select
        all of these, whatever ``tokens`` is. ``importance``: the learned policy of the network,
        by which as many tokens as ``tokens`` or ``pace`` says are selected.
        """
        policy: Policy
        if self.pace is not None:
            policy = PerGateTokens(self.pace)
        else:
            policy = _policy(count if self.tokens is None or every else self.tokens)
        if self.choice == "distance" or isinstance(policy, AboveThreshold):
            importance = None
        policy = policy if seen is None else OnlyTokens(policy, seen)
        return RecordedPolicy(policy, count, importance)

    def policy_name(self, importance: Importance | None) -> PolicyName | None:
        """Return how the tokens of a step are selected, as in records; None: all are computed."""
        if self.pace is None:
            if self.tokens in (None, "100%"):
                return None
            if least_change(self.tokens) is not None:
                return "change"
        return "distance" if importance is None or self.choice == "distance" else "learned"


def least_change(tokens: int | str | None) -> float | None:
    """Return the change of the tokens ``>0.5``; None for a number, a share, or all."""
    return float(tokens[1:]) if isinstance(tokens, str) and tokens.startswith(">") else None


def _policy(tokens: int | str) -> Policy:
    """Return the policy of ``TokenState.tokens``."""
    if isinstance(tokens, int):
        return TopTokens(tokens)
    change = least_change(tokens)
    if change is not None:
        return AboveThreshold(change)
    return TopShare(float(tokens.removesuffix("%")) / 100)


N = TypeVar("N", bound=nn.Module)
F = TypeVar("F", bound=Any)
S = TypeVar("S", bound=TokenState)


class GatedModelBase(ABC, Generic[N, F, S]):
    """Network and frontend of one weight file for video; base class of each ``GatedModel``.

    A state is that of one stream. ``network`` and ``frontend`` are in ``eval`` mode on ``device``.
    ``dtype``: "float32" or "float64", or "bfloat16" for the matrix products of blocks only, see
    ``use_bfloat16_products``. ``all_tokens``: compute all tokens, whatever the states' settings,
    where that is faster.
    """

    frontend_type: ClassVar[type]
    all_tokens = False

    def __init__(
        self,
        card: Card,
        network: N,
        frontend: F | None,
        *,
        weights_sha256: str = "",
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Move the modules to the device.

        Raises ModelError for an unavailable device or dtype, and for modules that do not fit the
        card or each other.
        """
        if not isinstance(frontend, self.frontend_type):
            wanted = self.frontend_type.__name__.lower()
            raise ModelError(
                f"{card.name} takes video, but its card does not name the frontend {wanted}",
                hint="import its checkpoint again",
            )
        classes = self.count_classes(network)
        if len(card.labels) != classes:
            raise ModelError(f"{card.name} has {len(card.labels)} labels for {classes} classes")
        self.device = find_device(device)
        find_dtype(dtype, ("float32", "float64", "bfloat16"))
        of_weights = torch.float64 if dtype == "float64" else torch.float32
        self.network: N = network.to(self.device, of_weights).eval().requires_grad_(False)
        self.frontend = cast(F, frontend).to(self.device, of_weights)
        if dtype == "bfloat16":
            use_bfloat16_products(self.network)
        self.info = ModelInfo(
            card,
            weights_sha256,
            (ModelHead(card, weights_sha256, slice(None)),),
            stride=int(getattr(network, "stride", 1)),
            delay=int(getattr(network, "delay", 0)),
            box=self.frontend.box,
            learned=getattr(network, "token_gate", None) is not None,
            in_time=True,  # streams may differ in size and start at different times
        )

    @staticmethod
    @abstractmethod
    def count_classes(network: N) -> int:
        """Return the number of classes of a network."""

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return no entries for the header. Raises SourceError if the source is not video."""
        check_source(self.info.card, self.frontend, source)
        return {}

    @abstractmethod
    def step(self, items: Sequence[Data], state: S) -> StepResult:
        """Take the next frame of the stream, return its result."""

    def prepare(self, items: Sequence[Data]) -> tuple[VideoFrame, Tensor]:
        """Return the one frame of a step, and the frontend's output for it."""
        (frame,) = items
        if not isinstance(frame, VideoFrame):
            raise TypeError(f"expected a VideoFrame, not a {type(frame).__name__}")
        prepared = torch.from_numpy(self.frontend.prepare(frame.rgb))
        images: Tensor = self.frontend(prepared[None].to(self.device))
        synchronize(self.device)
        return frame, images

    def steps(self, items: Sequence[Data], state: S) -> list[StepResult]:
        """Take consecutive frames, return their results."""
        return [self.step([item], state) for item in items]


def check_single_stream(batch_size: int) -> None:
    """Raise ValueError for more than one stream in a state."""
    if batch_size != 1:
        raise ValueError(f"a state holds one stream, not {batch_size}")
