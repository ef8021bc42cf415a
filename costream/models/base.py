"""The seam between a run and a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from costream.models.card import Card
from costream.records import Box, Data, SkeletonFrame
from costream.sources.base import Sound, SourceInfo


@dataclass(frozen=True)
class StepResult:
    """One step of every stream of a batch (B streams, C classes, A future steps)."""

    probabilities: npt.NDArray[np.float32] | None  # [B, C]; None: no output at this step
    anticipation: npt.NDArray[np.float32] | None  # [B, A, C]
    warmup: tuple[bool, ...]  # [B], True while that stream's window is not full
    macs: int  # really spent, all streams together, frontend included
    dense_macs: int  # the same answer with the whole window computed anew
    frontend_s: float
    network_s: float
    skeletons: tuple[SkeletonFrame, ...] | None = None  # [B], where the model looks at such
    spectra: tuple[npt.NDArray[np.float32], ...] | None = None  # [B] of [frames, bands], ln
    objects: tuple[tuple[Box, ...], ...] | None = None  # [B], where the model finds such
    # [B] of [h, w], token-gated models whose tokens cover the picture
    updated: tuple[npt.NDArray[np.bool_], ...] | None = None
    tokens: tuple[int, ...] | None = None  # [B], computed; None: no gates, or no output

    def row(self, k: int) -> StepResult:
        """Give what one stream of the batch has got (B = 1), and its share of what it cost."""
        rows, one = len(self.warmup), slice(k, k + 1)
        return StepResult(
            None if self.probabilities is None else self.probabilities[one],
            None if self.anticipation is None else self.anticipation[one],
            self.warmup[one],
            self.macs // rows,
            self.dense_macs // rows,
            self.frontend_s / rows,
            self.network_s / rows,
            None if self.skeletons is None else self.skeletons[one],
            None if self.spectra is None else self.spectra[one],
            None if self.objects is None else self.objects[one],
            None if self.updated is None else self.updated[one],
            None if self.tokens is None else self.tokens[one],
        )


@dataclass(frozen=True)
class ModelHead:
    """One classifier of a model: where its probabilities stand among all."""

    card: Card
    weights_sha256: str
    columns: slice


class Model(Protocol):
    """Frontend, continual network, labels and post-processing.

    Models hold weights only; what a stream has seen is in the state that ``init_state`` gives.
    """

    card: Card
    weights_sha256: str

    @property
    def heads(self) -> tuple[ModelHead, ...]:
        """Its classifiers, at least one; each has its own labels and timeline."""

    @property
    def stride(self) -> int:
        """Steps from one output to the next."""

    @property
    def box(self) -> tuple[int, int] | None:
        """Width, height pictures should be fitted into; None when no pictures are taken."""

    @property
    def frames(self) -> int:
        """Pictures that a step takes."""

    @property
    def sound(self) -> Sound | None:
        """The sound it takes; None when it takes none."""

    @property
    def beside(self) -> Sound | None:
        """The sound it takes beside pictures; None when it takes none."""

    @property
    def chunk(self) -> int:
        """How many items of one stream ``steps`` is best given at once; 1: it gains nothing."""

    @property
    def in_time(self) -> bool:
        """Whether the streams of a batch have to take the same steps; else each has its own."""

    def check(self, info: SourceInfo) -> None:
        """Raise SourceError when what this source gives does not fit."""

    def notes(self, info: SourceInfo) -> dict[str, Any]:
        """Give what the header should say of the way from this source to the network."""

    def init_state(self, batch_size: int = 1) -> Any:
        """Give a fresh state for ``batch_size`` streams."""

    def reset(self, state: Any, rows: Sequence[int]) -> None:
        """Forget what these streams have seen."""

    def step(self, items: Sequence[Data], state: Any) -> StepResult:
        """Take one item a stream, advance the state, give the newest output."""

    def steps(self, items: Sequence[Data], state: Any) -> list[StepResult]:
        """Take items of one stream, one after another: what as many calls of ``step`` give.

        Products over all of them are larger and fewer; the times are shared out evenly.
        """


Pace: TypeAlias = Callable[[int], int]  # the number of a gate to the tokens that it may pass


@runtime_checkable
class GatedModel(Model, Protocol):
    """A model that computes only some tokens of a frame, as many as it is told.

    How many is part of a stream's state, so it may change from frame to frame.
    """

    def token_count(self, state: Any) -> int | None:
        """Give how many tokens a frame of this stream has; None before its first frame."""

    def set_tokens(self, state: Any, count: int | None, pace: Pace | None = None) -> None:
        """Say how many tokens of the next frames are updated at most; None: all.

        With a ``pace``, that is asked for the number anew at every gate of a frame.
        """

    def step_macs(self, state: Any, count: int) -> int:
        """Give about what a step costs with so many tokens, once there was a frame.

        Rising in ``count``. What it really costs depends on the frame: see ``StepResult.macs``.
        """
