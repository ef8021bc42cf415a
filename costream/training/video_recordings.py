"""Reads a user's videos as tokens, through the sources and the frontend of a run."""

from __future__ import annotations

import logging
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

from costream.clock import Tick, resample
from costream.errors import SourceError, UsageError
from costream.frontends.audiovisual import AudioVisual, blocks_of
from costream.labels.examples import Example, located
from costream.models.card import Card
from costream.models.fitting import check_source, sound_beside
from costream.records import Fault, Gap, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.registry import open_source
from costream.training.clips import UNSCORED
from costream.training.feature_cache import FeatureCache, chance_of, join_keys, key_of
from costream.training.token_streams import TokenStream
from costream.training.video_views import View

log = logging.getLogger("costream")

CHUNK = 32  # pictures that go through a frontend at once
LEAD_S = 8.0  # what is read before the first example, for a frontend and a network look back
WHOLE_S = 60.0  # what is read begins and ends at such times: labels may be moved a little

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """A recording as a frontend sees it.

    ``tokens``: [T, D] of it as it is, then of other views. ``times``: seconds of each step [T], NaN
    where a view stands still before or after it. ``examples``: those in it, and their places in the
    list they came in.
    """

    examples: tuple[Example, ...]
    places: tuple[int, ...]
    tokens: tuple[Tensor, ...]
    times: tuple[Times, ...]

    def streams(self, labels: Sequence[str], still: int) -> list[TokenStream]:
        """Give each view with its label at every step; ``still`` is that of a view that stands."""
        return [
            TokenStream(x, labels_at(self.examples, times, labels, still))
            for x, times in zip(self.tokens, self.times, strict=True)
        ]

    def steps(self, example: Example) -> npt.NDArray[np.int64]:
        """Give the steps of the recording as it is that lie in an example: the nearest, if none."""
        times = self.times[0]
        end_s = np.inf if example.end_s is None else example.end_s
        inside = np.flatnonzero((times >= example.start_s) & (times < end_s))
        nearest = np.array([np.abs(times - example.start_s).argmin()])
        return inside if len(inside) else nearest


def labels_at(
    examples: Sequence[Example], times: Times, labels: Sequence[str], still: int
) -> npt.NDArray[np.int64]:
    """Give the label of each time [T]: that of the example that began last, UNSCORED in none.

    Where a time is NaN it is ``still``.
    """
    out = np.where(np.isnan(times), still, UNSCORED)
    for example in sorted(examples, key=lambda e: e.start_s):
        end_s = np.inf if example.end_s is None else example.end_s
        out[(times >= example.start_s) & (times < end_s)] = labels.index(example.label)
    return out


def by_recording(examples: Sequence[Example]) -> dict[str, list[int]]:
    """Give the places of each recording's examples among all, recordings in order."""
    places: dict[str, list[int]] = {}
    for k, example in enumerate(examples):
        places.setdefault(example.source, []).append(k)
    return places


def stretch(examples: Sequence[Example]) -> Example:
    """Give what is read of a recording for the examples in it."""
    first = min(examples, key=lambda e: e.start_s)
    ends = [e.end_s for e in examples if e.end_s is not None]
    known = len(ends) == len(examples)
    return replace(
        first,
        start_s=max(0, (first.start_s - LEAD_S) // WHOLE_S) * WHOLE_S,
        end_s=math.ceil(max(ends) / WHOLE_S) * WHOLE_S if known else None,
    )


def frames_of(card: Card, frontend: Any, example: Example) -> Iterator[Tick | Gap]:
    """Give the pictures of a stretch on the card's clock.

    UsageError for features; SourceError when it cannot be read or is no video.
    """
    options = SourceOptions(
        start_s=example.start_s,
        end_s=example.end_s,
        box=frontend.box,
        beside=sound_beside(frontend),
    )
    source = open_source(example.source, options)
    try:
        info = source.open()
        if info.kind == "features":
            raise UsageError("features are no video", where=example.where)
        check_source(card, frontend, info)
        if info.silent:
            log.warning("%s: %s; its pictures are learnt from", example.where, info.silent)
        for item in resample(source.items(), card.rate_hz, card.gap_tolerance_s):
            if isinstance(item, Fault):
                log.warning("%s: %s", example.where, item.message)
            else:
                yield item
    except SourceError as error:
        raise located(error, example) from error
    finally:
        source.close()


class Reader:
    """Turns video into tokens at the card's rate, each recording once and in so many ``views``.

    Views follow from the seed and the name of the file alone.
    """

    def __init__(
        self, card: Card, frontend: Any, views: int, seed: int, cache: FeatureCache
    ) -> None:
        self._card, self._frontend, self._views = card, frontend, views
        self._seed, self._cache = seed, cache

    def read(self, examples: Sequence[Example]) -> list[Seen]:
        """Give the recordings of these examples, in the order of their first ones.

        UsageError, naming file or line, for a recording without pictures; SourceError when it
        cannot be read or is no video.
        """
        places = by_recording(examples).values()
        bar = tqdm(places, "watching", file=sys.stderr, disable=None, leave=False)
        return [self._read([examples[k] for k in own], tuple(own)) for own in bar]

    def _read(self, examples: list[Example], places: tuple[int, ...]) -> Seen:
        whole = stretch(examples)
        key = join_keys(key_of(whole), [self._seed, self._views])
        parts = self._cache.make(key, lambda: self._look(whole))
        times = tuple(x.numpy() for x in parts[1::2])
        for example in examples:
            if example.start_s > times[0][-1] + 1 / self._card.rate_hz:
                raise UsageError("begins after the end of its recording", where=example.where)
        return Seen(tuple(examples), places, tuple(parts[::2]), times)

    @torch.no_grad()
    def _look(self, example: Example) -> list[Tensor]:
        """Give tokens float32 [T, D] and times float64 [T] of the recording and of its views."""
        rng = np.random.default_rng(chance_of(example, self._seed))
        views = [View(rng, self._frontend.box) for _ in range(self._views)]
        eyes = [Eye(of_pictures(self._frontend), view) for view in (None, *views)]
        ear = Ear(self._frontend)
        pictures: list[npt.NDArray[np.uint8]] = []
        heard: list[Tensor] = []
        times: list[float] = []

        def look() -> None:
            if pictures:
                frames = torch.from_numpy(np.stack(pictures))
                for eye in eyes:
                    eye.see(frames, torch.stack(heard), np.array(times))
            pictures.clear()
            heard.clear()
            times.clear()

        for item in frames_of(self._card, self._frontend, example):
            if isinstance(item, Gap):
                look()
                ear.forget()
                for eye in eyes:
                    eye.forget()
            elif isinstance(item.item, VideoFrame):
                pictures.append(self._frontend.prepare(item.item.rgb))
                heard.append(ear.hear(item.item))
                times.append(item.time_s)
                if len(pictures) == CHUNK:
                    look()
        look()
        return [part for eye in eyes for part in eye.close(example)]


def of_pictures(frontend: Any) -> Any:
    """Give the frontend that looks at the pictures."""
    return frontend.video if isinstance(frontend, AudioVisual) else frontend


class Ear:
    """What is heard beside the pictures of a recording, for a frontend that hears."""

    def __init__(self, frontend: Any) -> None:
        self._frontend = frontend if isinstance(frontend, AudioVisual) else None
        self._state = frontend.init_state(1)

    def hear(self, frame: VideoFrame) -> Tensor:
        """Give what a step hears [D]; without such a frontend D is 0."""
        if self._frontend is None:
            return torch.zeros(0)
        return self._frontend.hear([blocks_of(frame)], self._state)[0]

    def forget(self) -> None:
        """Begin anew after a gap, as a run does."""
        self._state.reset()


class Eye:
    """One view of a recording, or the recording as it is, through a frontend.

    What is heard goes with the pictures that are shown; beside those that stand still is silence.
    """

    def __init__(self, frontend: Any, view: View | None) -> None:
        self._frontend, self._view = frontend, view
        self._state = frontend.init_state(1)
        self._tokens: list[Tensor] = []
        self._times: list[Times] = []
        self._seen = 0  # pictures of the recording
        self._last: tuple[Tensor, Tensor] | None = None  # the newest picture, and silence

    def see(self, frames: Tensor, heard: Tensor, times: Times) -> None:
        """Take the next pictures, uint8 [T, 3, H, W], what goes with them [T, D] and times [T]."""
        if self._view is not None:
            silence = torch.zeros_like(heard[:1])
            if not self._seen:
                self._stand(frames[:1], silence, self._view.lead)
            chosen = self._view.chosen(self._seen, len(frames))
            self._last = frames[-1:], silence
            self._seen += len(frames)
            shown = torch.from_numpy(chosen)
            frames, heard, times = frames[shown], heard[shown], times[chosen]
        self._take(frames, heard, times)

    def forget(self) -> None:
        """Begin anew after a gap, as a run does."""
        self._state.reset()

    def close(self, example: Example) -> tuple[Tensor, Tensor]:
        """Give tokens [T, D] and times [T]. UsageError where there were no pictures."""
        if self._view is not None and self._last is not None:
            self._stand(*self._last, self._view.tail)
        if not self._tokens:
            raise UsageError("nothing is to be seen in this example", where=example.where)
        return torch.cat(self._tokens), torch.from_numpy(np.concatenate(self._times))

    def _stand(self, picture: Tensor, silence: Tensor, steps: int) -> None:
        still = picture.expand(steps, -1, -1, -1)
        self._take(still, silence.expand(steps, -1), np.full(steps, np.nan))

    def _take(self, frames: Tensor, heard: Tensor, times: Times) -> None:
        if not len(frames):
            return
        if self._view is not None:
            frames = self._view.show(frames)
        seen = self._frontend.forward_steps(frames[None], self._state)[0]
        self._tokens.append(torch.cat((seen, heard), 1))
        self._times.append(times)
