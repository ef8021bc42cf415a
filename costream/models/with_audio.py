"""Sound beside pictures: its network alone, and together with a model of pictures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.clock import SILENT_S
from costream.core.errors import ModelError
from costream.core.places import Place
from costream.core.records import AudioBlock, Data, SourceInfo, VideoFrame
from costream.models.base import GatedModel, Model, ModelHead, StepResult
from costream.models.compatibility import exactness
from costream.models.streaming import ModelState, StreamingModel
from costream.nn.state import State, zeros


@dataclass
class BesideState(State):
    """State of a network of sound beside pictures."""

    sound: ModelState
    heard_s: Tensor  # float64 [B], end of the newest block of sound; 0: none yet


class BesideModel:
    """Steps a model of sound with the blocks beside the frames, at the rate of these.

    A step has the newest result; where no block has ended since the step before, probabilities
    are NaN. Implements ``models.base.Model``.
    """

    def __init__(self, sound: StreamingModel) -> None:
        self._sound = sound
        rate_hz = sound.info.card.rate_hz
        heads = tuple(replace(head, rate_hz=rate_hz) for head in sound.info.heads)
        self.info = replace(sound.info, heads=heads, sound=None, beside=sound.info.sound, chunk=1)

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the header; ``sound`` says why there is none."""
        if source.extra_audio:
            return exactness(self._sound)
        return {"sound": f"none ({source.silent or 'only files and feeds have it'})"}

    def init_state(self, batch_size: int = 1) -> BesideState:
        """Return an initial state for ``batch_size`` streams."""
        heard_s = zeros(batch_size, like=torch.zeros(0, dtype=torch.float64))
        return BesideState(self._sound.init_state(batch_size), heard_s)

    def step(self, items: Sequence[Data], state: BesideState) -> StepResult:
        """Take one item per stream, with the sound beside it; return the newest output."""
        began = time.perf_counter()
        heard = [self._hear(item, row, state) for row, item in enumerate(items)]
        new = [result for results in heard for result in results]
        frontend_s = sum(result.frontend_s for result in new)
        return StepResult(
            _newest([[r.probabilities for r in results] for results in heard]),
            None,
            (False,) * len(items),
            macs=sum(result.macs for result in new),
            dense_macs=sum(result.dense_macs for result in new),
            frontend_s=frontend_s,
            network_s=max(0.0, time.perf_counter() - began - frontend_s),
            network_macs=sum(result.network_macs or 0 for result in new),
            network_dense_macs=sum(result.network_dense_macs or 0 for result in new),
            familiarity=_newest([[r.familiarity for r in results] for results in heard]),
            overflowed=_either([tuple(any(r.overflowed for r in results) for results in heard)]),
        )

    def steps(self, items: Sequence[Data], state: BesideState) -> list[StepResult]:
        """Take consecutive items of one stream, return their results."""
        return [self.step([item], state) for item in items]

    def _hear(self, item: Data, row: int, state: BesideState) -> list[StepResult]:
        """Step the network with the blocks beside a frame of a stream."""
        blocks: tuple[AudioBlock, ...] = item.sound if isinstance(item, VideoFrame) else ()
        if not blocks:
            return []
        if blocks[0].time_s - float(state.heard_s[row]) > SILENT_S:
            state.sound.reset([row])
        state.heard_s[row] = blocks[-1].time_s
        own = state.sound.take([row])
        results = self._sound.steps(blocks, own)
        state.sound.put([row], own)
        return results


@dataclass
class HearingState(State):
    """States of both networks; the settings of a token-gated one are those of its state."""

    picture: Any
    beside: BesideState

    @property
    def tokens(self) -> int | None:
        """Tokens to update per step, at most; see ``gated.TokenState``."""
        return self.picture.tokens  # type: ignore[no-any-return]

    @tokens.setter
    def tokens(self, tokens: int | None) -> None:
        self.picture.tokens = tokens

    @property
    def pace(self) -> Any:
        """The number at every gate; see ``gated.TokenState``."""
        return self.picture.pace

    @pace.setter
    def pace(self, pace: Any) -> None:
        self.picture.pace = pace

    @property
    def masks(self) -> frozenset[Place]:
        """Parts of the picture that are painted over."""
        return self.picture.masks  # type: ignore[no-any-return]

    @masks.setter
    def masks(self, masks: frozenset[Place]) -> None:
        self.picture.masks = masks


class HearingModel:
    """Steps a model of pictures, and one of sound as ``BesideModel`` does.

    Implements ``models.base.Model``.
    """

    def __init__(self, picture: Model, sound: StreamingModel) -> None:
        """Raises ModelError if the first takes no frames, or sound itself."""
        self._picture, self._beside = picture, BesideModel(sound)
        name = f"{picture.info.card.name},{sound.info.card.name}"
        if picture.info.box is None:
            raise ModelError(f"{picture.info.card.name} does not take pictures", where=name)
        if picture.info.beside is not None:
            raise ModelError(f"{picture.info.card.name} takes the sound itself", where=name)
        count = len(picture.info.card.labels)
        heads = (
            *(_shifted(head, 0, count) for head in picture.info.heads),
            *(
                _shifted(head, count, len(sound.info.card.labels))
                for head in self._beside.info.heads
            ),
        )
        labels = picture.info.card.labels + sound.info.card.labels
        self.info = replace(
            picture.info,
            card=replace(picture.info.card, name=name, labels=labels, background=None),
            weights_sha256=f"{picture.info.weights_sha256},{sound.info.weights_sha256}",
            heads=heads,
            beside=sound.info.sound,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Raise SourceError if the source does not fit the model of pictures.

        Return entries for the header; ``sound`` says why there is none.
        """
        return {**self._picture.check(source), **self._beside.check(source)}

    def init_state(self, batch_size: int = 1) -> HearingState:
        """Return an initial state for ``batch_size`` streams."""
        return HearingState(
            self._picture.init_state(batch_size), self._beside.init_state(batch_size)
        )

    def step(self, items: Sequence[Data], state: HearingState) -> StepResult:
        """Take one frame per stream, with the sound beside it; return the newest output."""
        seen = self._picture.step(items, state.picture)
        heard = self._beside.step(items, state.beside)
        network_macs, dense = seen.network_macs, seen.network_dense_macs
        widths = len(self.info.card.labels), len(self.info.heads)
        return replace(
            seen,
            probabilities=_beside(seen.probabilities, heard.probabilities, widths[0]),
            macs=seen.macs + heard.macs,
            dense_macs=seen.dense_macs + heard.dense_macs,
            frontend_s=seen.frontend_s + heard.frontend_s,
            network_s=seen.network_s + heard.network_s,
            network_macs=None if network_macs is None else network_macs + (heard.network_macs or 0),
            network_dense_macs=None if dense is None else dense + (heard.network_dense_macs or 0),
            familiarity=_beside(seen.familiarity, heard.familiarity, widths[1]),
            overflowed=_either([seen.overflowed, heard.overflowed]),
        )

    def steps(self, items: Sequence[Data], state: HearingState) -> list[StepResult]:
        """Take consecutive frames of one stream, return their results."""
        return [self.step([item], state) for item in items]


class GatedHearingModel(HearingModel):
    """The same with a token-gated model of pictures; implements ``models.base.GatedModel``."""

    _picture: GatedModel

    def token_count(self, state: HearingState) -> int | None:
        """Return the number of tokens of a frame of this stream; None before its first."""
        return self._picture.token_count(state.picture)

    def step_macs(self, state: HearingState, count: int) -> int:
        """Return the approximate cost of the pictures of a step with ``count`` tokens."""
        return self._picture.step_macs(state.picture, count)


def with_sound(picture: Model, sound: StreamingModel) -> HearingModel:
    """Return one model of both. Raises ModelError as ``HearingModel``."""
    kind = GatedHearingModel if isinstance(picture, GatedModel) else HearingModel
    return kind(picture, sound)


def _shifted(head: ModelHead, by: int, count: int) -> ModelHead:
    """Return a head whose columns begin further on; ``count``: labels of its model."""
    begin, end, _ = head.columns.indices(count)
    return replace(head, columns=slice(by + begin, by + end))


def _newest(
    given: Sequence[Sequence[npt.NDArray[np.float32] | None]],
) -> npt.NDArray[np.float32] | None:
    """Return the last row [B, n] of the arrays [1, n] of each stream, NaN where there is none.

    None if there is none at all.
    """
    last = [next((a for a in reversed(arrays) if a is not None), None) for arrays in given]
    width = next((a.shape[1] for a in last if a is not None), None)
    if width is None:
        return None
    nothing = np.full((1, width), np.nan, np.float32)
    return np.concatenate([nothing if a is None else a for a in last])


def _beside(
    seen: npt.NDArray[np.float32] | None, heard: npt.NDArray[np.float32] | None, width: int
) -> npt.NDArray[np.float32] | None:
    """Return arrays [B, n] and [B, m] side by side [B, width], NaN in place of a missing one."""
    there = seen if seen is not None else heard
    if there is None:
        return None
    out = np.full((len(there), width), np.nan, np.float32)
    if seen is not None:
        out[:, : seen.shape[1]] = seen
    if heard is not None:
        out[:, -heard.shape[1] :] = heard
    return out


def _either(given: Sequence[tuple[bool, ...] | None]) -> tuple[bool, ...] | None:
    """Return of which streams [B] one of the flags is set; None if of none."""
    rows = tuple(map(any, zip(*(flags for flags in given if flags is not None), strict=True)))
    return rows if any(rows) else None
