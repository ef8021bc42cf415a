"""Models of the sound of a video: alone, and together with a model of its pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
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
from costream.models.base import Cost, GatedModel, Looks, Model, ModelHead, StepResult
from costream.models.compatibility import exactness
from costream.models.streaming import ModelState, StreamingModel
from costream.nn.state import State, zeros
from costream.weights_io.licences import terms_of

CHANGE_DB = 10.0  # change of the level from which on a result of the sound gains most
AGE_GAIN = 0.5  # what it gains for each second since the newest


@dataclass
class BesideState(State):
    """State of a model of the sound of a video."""

    sound: ModelState
    heard_s: Tensor  # float64 [B], end of the newest audio block; 0: none yet
    ran_s: Tensor  # float64 [B], the same of the newest for which the network has run
    level_db: Tensor  # float64 [B], level of that
    looks: Looks | None = None  # whose budget the network shares


class BesideModel:
    """Steps a model of sound at the rate of video frames, with the audio blocks of each.

    A step returns the newest result; probabilities are NaN if no block has ended since the step
    before. Implements ``models.base.Model``.
    """

    def __init__(self, sound: StreamingModel) -> None:
        self._sound = sound
        rate_hz = sound.info.card.rate_hz
        heads = tuple(replace(head, rate_hz=rate_hz) for head in sound.info.heads)
        self.info = replace(sound.info, heads=heads, sound=None, beside=sound.info.sound, chunk=1)

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the header; ``sound`` is the reason if the source has none."""
        if source.extra_audio:
            return exactness(self._sound)
        return {"sound": f"none ({source.silent or 'only files and feeds have it'})"}

    def init_state(self, batch_size: int = 1) -> BesideState:
        """Return an initial state for ``batch_size`` streams."""
        real = torch.zeros(0, dtype=torch.float64)
        heard_s, ran_s, level_db = (zeros(batch_size, like=real) for _ in range(3))
        return BesideState(self._sound.init_state(batch_size), heard_s, ran_s, level_db)

    def step(self, items: Sequence[Data], state: BesideState) -> StepResult:
        """Take one item per stream, with its sound; return the newest output."""
        began = time.perf_counter()
        streams = [self._hear(item, row, state) for row, item in enumerate(items)]
        new = [result for results in streams for result in results]
        macs = sum(result.macs for result in new)
        frontend_s = sum(result.frontend_s for result in new)
        return StepResult(
            _newest([[r.probabilities for r in results] for results in streams]),
            None,
            (False,) * len(items),
            macs=macs,
            dense_macs=sum(map(self._dense, items, streams)),
            frontend_s=frontend_s,
            network_s=max(0.0, time.perf_counter() - began - frontend_s),
            network_macs=sum(result.network_macs or 0 for result in new),
            network_dense_macs=sum(result.network_dense_macs or 0 for result in new),
            familiarity=_newest([[r.familiarity for r in results] for results in streams]),
            overflowed=_either([tuple(any(r.overflowed for r in results) for results in streams)]),
            ran=tuple({self.info.card.name: "sound"} if results else {} for results in streams),
            costs={self.info.card.name: Cost(macs, time.perf_counter() - began)},
        )

    def steps(self, items: Sequence[Data], state: BesideState) -> list[StepResult]:
        """Take consecutive items of one stream, return their results."""
        return [self.step([item], state) for item in items]

    def _hear(self, item: Data, row: int, state: BesideState) -> list[StepResult]:
        """Step the network with the audio blocks of a frame of one stream."""
        blocks: tuple[AudioBlock, ...] = item.sound if isinstance(item, VideoFrame) else ()
        if not blocks:
            return []
        if blocks[0].time_s - float(state.heard_s[row]) > SILENT_S:
            state.sound.reset([row])
        state.heard_s[row] = blocks[-1].time_s
        row_state = state.sound.take([row])
        if self._may_run(blocks, row, state):
            results = self._sound.steps(blocks, row_state)
        else:
            results = []
            self._sound.skip(blocks, row_state)
        state.sound.put([row], row_state)
        return results

    def _dense(self, item: Data, results: Sequence[StepResult]) -> int:
        """Return the operations for the sound of a frame of one stream without a budget."""
        if results or not isinstance(item, VideoFrame) or not self._sound.may_skip:
            return sum(result.dense_macs for result in results)
        return len(item.sound) * self._sound.dense_macs

    def _may_run(self, blocks: Sequence[AudioBlock], row: int, state: BesideState) -> bool:
        """Return whether the budget of the stream admits that the network runs for blocks."""
        may = None if state.looks is None else state.looks.may
        if may is None or not self._sound.may_skip:
            return True
        power = float(np.mean(np.square(blocks[-1].samples, dtype=np.float64)))
        level_db = 10 * math.log10(power + 1e-10)
        age_s = blocks[-1].time_s - float(state.ran_s[row])
        change_db = abs(level_db - float(state.level_db[row]))
        gain = min(1.0, change_db / CHANGE_DB) + AGE_GAIN * age_s
        if not may(self.info.card.name, gain, age_s):
            return False
        state.ran_s[row], state.level_db[row] = blocks[-1].time_s, level_db
        return True


@dataclass
class HearingState(State):
    """States of both networks, with the settings of the state of a token-gated one."""

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
    def choice(self) -> Any:
        """Which tokens; see ``gated.TokenState``."""
        return self.picture.choice

    @choice.setter
    def choice(self, choice: Any) -> None:
        self.picture.choice = choice

    @property
    def pace(self) -> Any:
        """Number of tokens at every gate; see ``gated.TokenState``."""
        return self.picture.pace

    @pace.setter
    def pace(self, pace: Any) -> None:
        self.picture.pace = pace

    @property
    def looks(self) -> Any:
        """When a detector looks; see ``objects.looks``."""
        return self.picture.looks

    @looks.setter
    def looks(self, looks: Any) -> None:
        self.picture.looks = self.beside.looks = looks

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
        """Raises ModelError if ``picture`` takes no frames, or also takes sound."""
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
            card=replace(
                picture.info.card,
                name=name,
                labels=labels,
                background=None,
                **terms_of((picture.info.card, sound.info.card)),
            ),
            weights_sha256=f"{picture.info.weights_sha256},{sound.info.weights_sha256}",
            heads=heads,
            beside=sound.info.sound,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the header; ``sound`` is the reason if the source has none.

        Raises SourceError if the source does not fit the model of pictures.
        """
        return {**self._picture.check(source), **self._beside.check(source)}

    def init_state(self, batch_size: int = 1) -> HearingState:
        """Return an initial state for ``batch_size`` streams."""
        return HearingState(
            self._picture.init_state(batch_size), self._beside.init_state(batch_size)
        )

    def step(self, items: Sequence[Data], state: HearingState) -> StepResult:
        """Take one frame per stream, with its sound; return the newest output."""
        picture = self._picture.step(items, state.picture)
        sound = self._beside.step(items, state.beside)
        macs, dense = picture.network_macs, picture.network_dense_macs
        labels, heads = len(self.info.card.labels), len(self.info.heads)
        return replace(
            picture,
            probabilities=_joined(picture.probabilities, sound.probabilities, labels),
            macs=picture.macs + sound.macs,
            dense_macs=picture.dense_macs + sound.dense_macs,
            work=None,
            frontend_s=picture.frontend_s + sound.frontend_s,
            network_s=picture.network_s + sound.network_s,
            network_macs=None if macs is None else macs + (sound.network_macs or 0),
            network_dense_macs=None if dense is None else dense + (sound.network_dense_macs or 0),
            familiarity=_joined(picture.familiarity, sound.familiarity, heads),
            overflowed=_either([picture.overflowed, sound.overflowed]),
            ran=_both(picture.ran, sound.ran),
            costs=None if picture.costs is None else {**picture.costs, **(sound.costs or {})},
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
    """Return both as one model. Raises ModelError as ``HearingModel``."""
    kind = GatedHearingModel if isinstance(picture, GatedModel) else HearingModel
    return kind(picture, sound)


def _shifted(head: ModelHead, by: int, count: int) -> ModelHead:
    """Return a head whose columns begin further on; ``count``: labels of its model."""
    begin, end, _ = head.columns.indices(count)
    return replace(head, columns=slice(by + begin, by + end))


def _newest(
    streams: Sequence[Sequence[npt.NDArray[np.float32] | None]],
) -> npt.NDArray[np.float32] | None:
    """Return the last arrays [1, n] of each stream as [B, n], NaN in streams without one.

    None if no stream has one.
    """
    last = [next((a for a in reversed(arrays) if a is not None), None) for arrays in streams]
    width = next((a.shape[1] for a in last if a is not None), None)
    if width is None:
        return None
    missing = np.full((1, width), np.nan, np.float32)
    return np.concatenate([missing if a is None else a for a in last])


def _joined(
    first: npt.NDArray[np.float32] | None, second: npt.NDArray[np.float32] | None, width: int
) -> npt.NDArray[np.float32] | None:
    """Return arrays [B, n] and [B, m] side by side [B, width], NaN in place of a missing one."""
    if first is None and second is None:
        return None
    rows = len(second) if first is None else len(first)  # type: ignore[arg-type]
    out = np.full((rows, width), np.nan, np.float32)
    if first is not None:
        out[:, : first.shape[1]] = first
    if second is not None:
        out[:, -second.shape[1] :] = second
    return out


def _both(
    first: Sequence[Mapping[str, str]] | None, second: Sequence[Mapping[str, str]] | None
) -> tuple[Mapping[str, str], ...] | None:
    """Return for each stream [B] which networks ran, of both models; None if the first always."""
    if first is None or second is None:
        return None
    return tuple({**one, **other} for one, other in zip(first, second, strict=True))


def _either(parts: Sequence[tuple[bool, ...] | None]) -> tuple[bool, ...] | None:
    """Return for each stream [B] whether a part has its flag set; None if no flag is set."""
    rows = tuple(map(any, zip(*(flags for flags in parts if flags is not None), strict=True)))
    return rows if any(rows) else None
