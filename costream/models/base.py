"""Protocols and results of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from costream.core.records import AudioFormat, Box, Data, SkeletonFrame, SourceInfo, VideoFrame
from costream.weights_io.card import Card

if TYPE_CHECKING:
    from torch import Tensor

# A shipped model for each kind of source, to be named in messages.
SHIPPED = {"audio": "cosounds", "video": "cooadtr", "skeleton": "costgcn"}


def shipped_for(info: SourceInfo) -> str | None:
    """Return the name of the shipped model for a source, or None."""
    in_picture = info.kind == "skeleton" and info.axes == 2
    return "costgcn-2d" if in_picture else SHIPPED.get(info.kind)


def stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays stacked, [N, ...]; a single one faster than by ``np.stack``."""
    return arrays[0][None].copy() if len(arrays) == 1 else np.stack(arrays)


class NetworkOutput(Protocol):
    """Output of a classifying network for a step (B streams, K classes, A future steps)."""

    logits: Tensor  # [B, K]
    anticipation: Tensor | None  # [B, A, K]


class Network(Protocol):
    """A continual network with a classifier. It holds weights only; streams are in the state.

    A network with a ``stride`` has an output every ``stride`` steps, and returns None at the
    others. One that takes several tokens at once, as networks for audio do, has ``forward_steps``,
    and its ``warmup`` takes a number of steps ago. ``exact``: its outputs equal a recomputation of
    the window.
    """

    window: int  # tokens
    delay: int  # steps
    dense_macs: int  # of one step of one stream, with all of the window recomputed

    def init_state(self, batch_size: int = 1) -> Any: ...  # noqa: D102

    def forward_step(self, x: Tensor, state: Any) -> NetworkOutput | None: ...  # noqa: D102

    def warmup(self, state: Any) -> tuple[bool, ...]: ...  # noqa: D102

    def count_macs(self) -> int: ...  # noqa: D102


class Cost(NamedTuple):
    """What a step of a model took."""

    macs: int  # multiply-accumulates
    s: float  # seconds
    look_macs: int = 0  # multiply-accumulates of a look of a detector, in each step


@dataclass(frozen=True)
class StepResult:
    """One step of every stream of a batch (B streams, C classes, A future steps)."""

    probabilities: npt.NDArray[np.float32] | None  # [B, C]; None: no output at this step
    anticipation: npt.NDArray[np.float32] | None  # [B, A, C]
    warmup: tuple[bool, ...]  # [B], True while that stream's window is not full
    macs: int  # multiply-accumulates of all streams, frontend included
    dense_macs: int  # of an output with all of the window recomputed
    frontend_s: float
    network_s: float
    skeletons: tuple[SkeletonFrame, ...] | None = None  # [B], of models for skeletons
    spectra: tuple[npt.NDArray[np.float32], ...] | None = None  # [B] of [frames, bands], ln
    objects: tuple[tuple[Box, ...], ...] | None = None  # [B], of object detectors
    # Share of the pictures that was computed; None: all of them, or the model does not choose
    area: tuple[float | None, ...] | None = None  # [B]
    work: tuple[tuple[int, int], ...] | None = None  # [B], macs and dense_macs, where they differ
    # [B] of [h, w], token-gated models whose tokens cover the image
    updated: tuple[npt.NDArray[np.bool_], ...] | None = None
    tokens: tuple[int, ...] | None = None  # [B], computed; None: no gates, or no output
    policy: str | None = None  # how what is computed was chosen, see ``Compute``; None: all is
    network_macs: int | None = None  # part of ``macs``, without the frontend; None: unknown
    network_dense_macs: int | None = None  # part of ``dense_macs``
    familiarity: npt.NDArray[np.float32] | None = None  # [B, heads], NaN where a card has none
    # [B], True where the scores are NaN and the stream was reset; None: in no stream
    overflowed: tuple[bool, ...] | None = None
    # Numbers of the followed persons of one stream, for each row [B] of this or of ``people``
    persons: tuple[int, ...] | None = None
    nobody: bool = False  # no followed person is present
    people: StepResult | None = None  # of the heads by person, where others are of the stream
    # [B], why each network was run that is not run at every step, by its name; None: all were
    ran: tuple[Mapping[str, str], ...] | None = None
    # Of all streams, by the names of models that share a budget; None: there is one model
    costs: Mapping[str, Cost] | None = None

    def has_run(self, name: str) -> bool:
        """Return whether a network has run in this step of one stream (B = 1)."""
        return self.ran is None or name in self.ran[0]

    def row(self, k: int) -> StepResult:
        """Return the result of one stream of the batch (B = 1), with its share of the cost."""
        rows, one = len(self.warmup), slice(k, k + 1)
        macs, dense_macs = (
            self.work[k] if self.work else (self.macs // rows, self.dense_macs // rows)
        )
        return StepResult(
            None if self.probabilities is None else self.probabilities[one],
            None if self.anticipation is None else self.anticipation[one],
            self.warmup[one],
            macs,
            dense_macs,
            self.frontend_s / rows,
            self.network_s / rows,
            None if self.skeletons is None else self.skeletons[one],
            None if self.spectra is None else self.spectra[one],
            None if self.objects is None else self.objects[one],
            updated=None if self.updated is None else self.updated[one],
            tokens=None if self.tokens is None else self.tokens[one],
            policy=self.policy,
            network_macs=None if self.network_macs is None else self.network_macs // rows,
            network_dense_macs=None
            if self.network_dense_macs is None
            else self.network_dense_macs // rows,
            familiarity=None if self.familiarity is None else self.familiarity[one],
            overflowed=(True,) if self.overflowed and self.overflowed[k] else None,
            area=None if self.area is None else self.area[one],
            ran=None if self.ran is None else self.ran[one],
            costs=None
            if self.costs is None
            else {
                name: Cost(macs // rows, s / rows, look // rows)
                for name, (macs, s, look) in self.costs.items()
            },
        )


@dataclass(frozen=True)
class ModelHead:
    """One classifier of a model, and the columns of its probabilities among all."""

    card: Card
    weights_sha256: str
    columns: slice
    rate_hz: float | None = None  # of its outputs, if not the rate of the steps
    by_person: bool = False  # outputs for each person, where persons are followed


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model, which do not change while it runs."""

    card: Card
    weights_sha256: str
    heads: tuple[ModelHead, ...]  # at least one; each has its own labels and timeline
    stride: int = 1  # steps from one output to the next
    delay: int = 0  # steps before the first output
    # Width and height that frames should be fitted into; None: no frames.
    box: tuple[int, int] | None = None
    frames: int = 1  # video frames per step
    sound: AudioFormat | None = None  # of the audio input; None: no audio
    beside: AudioFormat | None = None  # of audio in addition to frames
    text: bool = False  # takes lines of text
    # Best number of items of one stream per call of ``steps``; 1: batching gains nothing.
    chunk: int = 1
    persons: int | None = None  # per step of a stream; None: no skeletons
    in_time: bool = False  # whether the streams of a batch must step together
    looks: bool = False  # a detector that need not look at every picture, see ``Looks``
    by_place: bool = False  # a detector that can compute only the places that have changed
    learned: bool = False  # token-gated, with a learned policy
    holds: bool = False  # a frontend whose tokens can be held, see ``Looks``

    @property
    def follows(self) -> bool:
        """Whether there are outputs for each of several persons."""
        return any(head.by_person for head in self.heads)


# Returns whether a network may run now, by its name, what would be gained (about 1 for a result of
# which all has changed), and the seconds since its newest run.
MayRun: TypeAlias = Callable[[str, float, float], bool]


@dataclass
class Looks:
    """Settings of a stream whose detector or frontend looks only where something has moved.

    ``may``: whether the budget admits that a network runs now; the first look is always admitted.
    None: it always does. ``pause_s``: shortest time between two looks; ``share``: of the steps that
    can have one because of that. ``followed``: parts of the
    picture (x1, y1, x2, y2; 0 to 1) with persons whose joints are followed, so that motion in them
    is known. ``lost``: one of them is not found any longer since the newest look.
    """

    may: MayRun | None = None
    pause_s: float = 0.0
    share: float = 1.0
    followed: Sequence[tuple[float, float, float, float]] = ()
    lost: bool = False


@runtime_checkable
class Model(Protocol):
    """Frontend, continual network, labels and post-processing.

    Models hold weights only; the memory of streams is in the state from ``init_state``, which has
    methods to reset, save, copy and exchange streams, see ``nn.state.State``.
    """

    info: ModelInfo

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the run's header on how the source reaches the network.

        Raises SourceError if the source does not fit the model.
        """

    def init_state(self, batch_size: int = 1) -> Any:
        """Return an initial state for ``batch_size`` streams."""

    def step(self, items: Sequence[Data], state: Any) -> StepResult:
        """Take one item per stream, advance the state, return the newest output."""

    def steps(self, items: Sequence[Data], state: Any) -> list[StepResult]:
        """Take consecutive items of one stream, return the same results as calls of ``step``.

        Matrix products are larger and fewer; the time is divided evenly among the results.
        """


@runtime_checkable
class CountedModel(Model, Protocol):
    """A model of which the operations of a step of one stream are known before."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a step, frontend included."""

    @property
    def dense_macs(self) -> int:
        """The same when all of the window is recomputed."""


class NetworkRun(NamedTuple):
    """What a network that does not run at each step has done in one.

    ``reason``: why it ran; None: it did not. ``dense_macs``: its operations if it ran at each step.
    """

    reason: str | None
    macs: int
    dense_macs: int


class PersonFinder(Protocol):
    """Finds and follows the persons in the frames of one stream.

    ``may``: whether the budget admits that joints are computed; arguments as for ``MayRun``,
    without the name.
    """

    may: Callable[[float, float], bool] | None

    def find(self, frame: VideoFrame, boxes: Sequence[Box] | None = None) -> SkeletonFrame:
        """Return the persons in a frame, with their numbers.

        ``boxes``: of persons in the frame, in pixels of the source, if the finder has no detector;
        None: nobody has looked.
        """

    def close(self) -> None:
        """Forget all persons; new ones get new numbers."""

    @property
    def ran(self) -> NetworkRun | None:
        """Why joints were computed in the newest frame, and their cost; None: nobody is there."""


class PersonModel(Model, Protocol):
    """A model for one skeleton (``info.persons`` is 1) that can follow several persons."""

    def person_finder(self, most: int, *, detects: bool = True) -> PersonFinder:
        """Return a finder of at most ``most`` persons in frames.

        ``detects``: it has a detector; if False, ``PersonFinder.find`` gets boxes of persons.
        """


@runtime_checkable
class GatedModel(Model, Protocol):
    """A token-gated model: it updates only a settable number of tokens of a frame.

    The number is in the stream's state (``gated.TokenState``), so it may change from frame to
    frame.
    """

    def token_count(self, state: Any) -> int | None:
        """Return the number of tokens of a frame of this stream; None before its first."""

    def step_macs(self, state: Any, count: int) -> int:
        """Return the approximate cost of a step with ``count`` tokens, after the first frame.

        It increases with ``count``. The actual cost depends on the frame: see ``StepResult.macs``.
        """
