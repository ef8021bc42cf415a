"""Reading of a user's videos as tokens, with the sources and frontend of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from costream.core.clock import Tick, resample
from costream.core.errors import UsageError
from costream.core.records import Fault, Gap, VideoFrame
from costream.labels.examples import Example
from costream.labels.recording import UNSCORED
from costream.models.compatibility import extra_audio
from costream.models.oad.audiovisual import AudioVisual, stack_audio_blocks
from costream.sources.base import SourceOptions
from costream.training.feature_cache import FeatureCache, example_key, example_seed, join_keys
from costream.training.open_examples import of_each, open_example
from costream.training.optim import device_of
from costream.training.tokens.token_streams import TokenStream
from costream.training.video.video_views import VideoView
from costream.weights_io.card import Card

CHUNK = 32  # frames in one call of a frontend
LEAD_S = 8.0  # read before the first example, as context of frontend and network
WHOLE_S = 60.0  # granularity of what is read: labels may be moved a little
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EncodedVideo:
    """A recording encoded by a frontend.

    ``tokens``: [T, D] of the unchanged recording, then of its views. ``times``: seconds of each
    step [T], NaN in the still frames before and after a view. ``examples``: those in it, and
    ``places``: their indices in the list passed to ``read``.
    """

    examples: tuple[Example, ...]
    places: tuple[int, ...]
    tokens: tuple[Tensor, ...]
    times: tuple[Times, ...]

    def streams(self, labels: Sequence[str], still: int) -> list[TokenStream]:
        """Return each view with the label of every step; ``still``: label of still frames."""
        return [
            TokenStream(x, labels_at(self.examples, times, labels, still))
            for x, times in zip(self.tokens, self.times, strict=True)
        ]

    def steps(self, example: Example) -> npt.NDArray[np.int64]:
        """Return the steps of the unchanged recording within an example, or else the nearest."""
        times = self.times[0]
        end_s = np.inf if example.end_s is None else example.end_s
        inside = np.flatnonzero((times >= example.start_s) & (times < end_s))
        nearest = np.array([np.abs(times - example.start_s).argmin()])
        return inside if len(inside) else nearest


def labels_at(
    examples: Sequence[Example], times: Times, labels: Sequence[str], still: int
) -> npt.NDArray[np.int64]:
    """Return the label of the latest example at each time [T], UNSCORED without one.

    It is ``still`` where a time is NaN.
    """
    out = np.where(np.isnan(times), still, UNSCORED)
    for example in sorted(examples, key=lambda e: e.start_s):
        end_s = np.inf if example.end_s is None else example.end_s
        out[(times >= example.start_s) & (times < end_s)] = labels.index(example.label)
    return out


def by_recording(examples: Sequence[Example]) -> dict[str, list[int]]:
    """Return the indices of each recording's examples, recordings in order."""
    places: dict[str, list[int]] = {}
    for k, example in enumerate(examples):
        places.setdefault(example.source, []).append(k)
    return places


def stretch(examples: Sequence[Example]) -> Example:
    """Return the part of a recording to read for the examples in it."""
    first = min(examples, key=lambda e: e.start_s)
    ends = [e.end_s for e in examples if e.end_s is not None]
    has_ends = len(ends) == len(examples)
    return replace(
        first,
        start_s=max(0, (first.start_s - LEAD_S) // WHOLE_S) * WHOLE_S,
        end_s=math.ceil(max(ends) / WHOLE_S) * WHOLE_S if has_ends else None,
    )


def options_of(frontend: Any) -> SourceOptions:
    """Return the options with which videos are read for a frontend."""
    return SourceOptions(box=frontend.box, extra_audio=extra_audio(frontend))


def frames_of(card: Card, frontend: Any, example: Example) -> Iterator[Tick | Gap]:
    """Yield the frames of an example at the card's rate.

    UsageError for features; SourceError if it cannot be read or is not a video.
    """
    with open_example(example, card, frontend, options_of(frontend)) as items:
        for tick in resample(items, card.rate_hz, card.gap_tolerance_s):
            assert not isinstance(tick, Fault)
            yield tick


class VideoReader:
    """Encodes videos as tokens at the card's rate: each recording unchanged and in ``views`` views.

    Views are determined by the seed and the file name alone.
    """

    def __init__(
        self, card: Card, frontend: Any, views: int, seed: int, cache: FeatureCache
    ) -> None:
        self._card, self._frontend, self._views = card, frontend, views
        self._seed, self._cache = seed, cache

    def read(self, examples: Sequence[Example]) -> list[EncodedVideo]:
        """Return the recordings of these examples, in the order of their first examples.

        UsageError, naming file or line, for a recording without frames; SourceError if it cannot
        be read or is not a video.
        """
        places = by_recording(examples).values()
        bar = tqdm(places, "watching", file=sys.stderr, disable=None, leave=False)
        return of_each(
            bar,
            lambda indices: self._read([examples[k] for k in indices], tuple(indices)),
            "recordings",
        )

    def _read(self, examples: list[Example], places: tuple[int, ...]) -> EncodedVideo:
        part = stretch(examples)
        key = join_keys(example_key(part), [self._seed, self._views])
        parts = self._cache.make(key, lambda: self._encode(part))
        times = tuple(x.numpy() for x in parts[1::2])
        for example in examples:
            if example.start_s > times[0][-1] + 1 / self._card.rate_hz:
                raise UsageError("begins after the end of its recording", where=example.where)
        return EncodedVideo(tuple(examples), places, tuple(parts[::2]), times)

    @torch.no_grad()
    def _encode(self, example: Example) -> list[Tensor]:
        """Return tokens float32 [T, D] and times float64 [T] of the recording and of its views."""
        rng = np.random.default_rng(example_seed(example, self._seed))
        device = device_of(self._frontend)
        views = [VideoView(rng, self._frontend.box, device) for _ in range(self._views)]
        branches = [VideoBranch(of_pictures(self._frontend), view) for view in (None, *views)]
        hears = isinstance(self._frontend, AudioVisual)
        state = self._frontend.init_state(1)
        pictures: list[npt.NDArray[np.uint8]] = []
        sounds: list[Tensor] = []
        times: list[float] = []

        def flush() -> None:
            if pictures:
                frames = torch.from_numpy(np.stack(pictures)).to(device)
                for branch in branches:
                    branch.process(frames, torch.stack(sounds).to(device), np.array(times))
            pictures.clear()
            sounds.clear()
            times.clear()

        for item in frames_of(self._card, self._frontend, example):
            if isinstance(item, Gap):
                flush()
                state.reset()
                for branch in branches:
                    branch.reset()
            elif isinstance(item.item, VideoFrame):
                pictures.append(self._frontend.prepare(item.item.rgb))
                if hears:
                    blocks = [stack_audio_blocks(item.item).to(device)]
                    sounds.append(self._frontend.forward_audio(blocks, state)[0])
                else:
                    sounds.append(torch.zeros(0))
                times.append(item.time_s)
                if len(pictures) == CHUNK:
                    flush()
        flush()
        return [part for branch in branches for part in branch.close(example)]


def of_pictures(frontend: Any) -> Any:
    """Return the video frontend of a possibly audiovisual one."""
    return frontend.video if isinstance(frontend, AudioVisual) else frontend


class VideoBranch:
    """The video branch, applied to a view of a recording or to the unchanged recording.

    Audio features follow the frames they belong to; still frames get silence.
    """

    def __init__(self, frontend: Any, view: VideoView | None) -> None:
        self._frontend, self._view = frontend, view
        self._state = frontend.init_state(1)
        self._tokens: list[Tensor] = []
        self._times: list[Times] = []
        self._seen = 0  # frames of the recording so far
        self._last: tuple[Tensor, Tensor] | None = None  # the latest frame, and silence

    def process(self, frames: Tensor, sounds: Tensor, times: Times) -> None:
        """Process frames uint8 [T, 3, H, W] with audio features [T, D] and times [T]."""
        if self._view is not None:
            silence = torch.zeros_like(sounds[:1])
            if not self._seen:
                self._hold(frames[:1], silence, self._view.lead)
            chosen = self._view.chosen(self._seen, len(frames))
            self._last = frames[-1:], silence
            self._seen += len(frames)
            shown = torch.from_numpy(chosen).to(frames.device)
            frames, sounds, times = frames[shown], sounds[shown], times[chosen]
        self._append(frames, sounds, times)

    def reset(self) -> None:
        """Reset the state after a gap, as in a run."""
        self._state.reset()

    def close(self, example: Example) -> tuple[Tensor, Tensor]:
        """Return tokens [T, D] and times [T]. UsageError if there were no frames."""
        if self._view is not None and self._last is not None:
            self._hold(*self._last, self._view.tail)
        if not self._tokens:
            raise UsageError("this example has no frames", where=example.where)
        return torch.cat(self._tokens).cpu(), torch.from_numpy(np.concatenate(self._times))

    def _hold(self, picture: Tensor, silence: Tensor, steps: int) -> None:
        still = picture.expand(steps, -1, -1, -1)
        self._append(still, silence.expand(steps, -1), np.full(steps, np.nan))

    def _append(self, frames: Tensor, sounds: Tensor, times: Times) -> None:
        if not len(frames):
            return
        if self._view is not None:
            frames = self._view.show(frames)
        features = self._frontend.forward_steps(frames[None], self._state)[0]
        self._tokens.append(torch.cat((features, sounds), 1))
        self._times.append(times)
