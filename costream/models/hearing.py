"""A model of pictures and a model of sound together, on one source that has both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import ModelError
from costream.models.base import GatedModel, Model, ModelHead, StepResult
from costream.models.streaming import ModelState, StreamingModel
from costream.nn.state import State, zeros
from costream.places import Place
from costream.records import AudioBlock, Data, SourceInfo, VideoFrame

SILENT_S = 2.0  # the network of sound begins anew after so long without any


@dataclass
class HearingState(State):
    """States of both networks; the settings of a token-gated one are those of its state."""

    picture: Any
    sound: ModelState
    heard_s: Tensor  # float64 [B], end of the newest block of sound; 0: none yet

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
    """Steps a model of pictures at its rate, and one of sound with the blocks beside the frames.

    A step has the newest result of the sound; where no block has ended since the step before, the
    probabilities of its heads are NaN. Implements ``models.base.Model``.
    """

    def __init__(self, picture: Model, sound: StreamingModel) -> None:
        """Raises ModelError if the first takes no frames, or sound itself."""
        self._picture, self._sound = picture, sound
        name = f"{picture.info.card.name},{sound.info.card.name}"
        if picture.info.box is None or picture.info.persons is not None:
            raise ModelError(f"{picture.info.card.name} does not take pictures", where=name)
        if picture.info.beside is not None:
            raise ModelError(f"{picture.info.card.name} takes the sound itself", where=name)
        rate_hz = sound.info.card.rate_hz
        count = len(picture.info.card.labels)
        self._columns = (slice(count), slice(count, count + len(sound.info.card.labels)))
        heads = (
            *(_shifted(head, 0, count) for head in picture.info.heads),
            *(
                replace(_shifted(head, count, len(sound.info.card.labels)), rate_hz=rate_hz)
                for head in sound.info.heads
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
        notes = self._picture.check(source)
        if not source.beside:
            notes |= {"sound": f"none ({source.silent or 'only media have it'})"}
        return notes

    def init_state(self, batch_size: int = 1) -> HearingState:
        """Return an initial state for ``batch_size`` streams."""
        heard_s = zeros(batch_size, like=torch.zeros(0, dtype=torch.float64))
        return HearingState(
            self._picture.init_state(batch_size), self._sound.init_state(batch_size), heard_s
        )

    def step(self, items: Sequence[Data], state: HearingState) -> StepResult:
        """Take one frame per stream, with the sound beside it; return the newest output."""
        seen = self._picture.step(items, state.picture)
        began = time.perf_counter()
        heard = [self._hear(item, row, state) for row, item in enumerate(items)]
        new = [result for results in heard for result in results]
        probabilities = self._joined(seen.probabilities, [r[-1:] for r in heard])
        familiarity = _familiarities(seen, [r[-1:] for r in heard], self.info.heads)
        spent_s = time.perf_counter() - began
        frontend_s = sum(result.frontend_s for result in new)
        network_macs, dense = seen.network_macs, seen.network_dense_macs
        return replace(
            seen,
            probabilities=probabilities,
            macs=seen.macs + sum(result.macs for result in new),
            dense_macs=seen.dense_macs + sum(result.dense_macs for result in new),
            frontend_s=seen.frontend_s + frontend_s,
            network_s=seen.network_s + max(0.0, spent_s - frontend_s),
            network_macs=None
            if network_macs is None
            else network_macs + sum(r.network_macs or 0 for r in new),
            network_dense_macs=None
            if dense is None
            else dense + sum(r.network_dense_macs or 0 for r in new),
            familiarity=familiarity,
        )

    def steps(self, items: Sequence[Data], state: HearingState) -> list[StepResult]:
        """Take consecutive frames of one stream, return their results."""
        return [self.step([item], state) for item in items]

    def _hear(self, item: Data, row: int, state: HearingState) -> list[StepResult]:
        """Step the network of sound with the blocks beside a frame of a stream."""
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

    def _joined(
        self, seen: npt.NDArray[np.float32] | None, heard: Sequence[Sequence[StepResult]]
    ) -> npt.NDArray[np.float32] | None:
        """Return the probabilities of all heads, [B, C], NaN where there are none."""
        if seen is None and not any(heard):
            return None
        out = np.full((len(heard), len(self.info.card.labels)), np.nan, np.float32)
        if seen is not None:
            out[:, self._columns[0]] = seen
        for row, results in enumerate(heard):
            for result in results:
                if result.probabilities is not None:
                    out[row, self._columns[1]] = result.probabilities[0]
        return out


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


def _familiarities(
    seen: StepResult, heard: Sequence[Sequence[StepResult]], heads: Sequence[ModelHead]
) -> npt.NDArray[np.float32] | None:
    """Return how familiar the input is to each head [B, heads]; None if none can tell."""
    known = seen.familiarity
    if known is None and all(r.familiarity is None for results in heard for r in results):
        return None
    out = np.full((len(heard), len(heads)), np.nan, np.float32)
    if known is not None:
        out[:, : known.shape[1]] = known
    for row, results in enumerate(heard):
        for result in results:
            if result.familiarity is not None:
                out[row, -result.familiarity.shape[1] :] = result.familiarity[0]
    return out
