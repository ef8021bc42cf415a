"""Streams of persons as a pose estimator sees them: films, and motions with its errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from costream.core.layouts import BODY_15
from weights.recipes.skeleton.films import EXERCISES, FilmPerson
from weights.recipes.skeleton.learning import Streams
from weights.recipes.skeleton.pictures import projected
from weights.recipes.skeleton.streams import StreamBatch
from weights.recipes.skeleton.tokens import ABOVE, CHILDREN, body_tokens

FEW = 0.3  # scores up to which a joint is missing, as in the frontend
FILMS = 0.5  # share of a batch that is of films
ABOUT = 2.0  # how much more often those are drawn whom a clip is about
SMOOTH = 5  # steps of the median that the estimator's noise is measured against
WORST = 0.8  # mean bones that a joint is off at most, of such noise
CEILINGS = 0.12  # share of the cameras of motions that look down steeply
ERRORS = 0.6  # share of the motions that get the estimator's errors
_SIDES = list(BODY_15.mirrored)


@dataclass(frozen=True)
class ErrorRates:
    """What was measured of the estimator, for the card."""

    tracks: int
    missing: dict[str, float]  # share of the steps of a track, by part of the body
    away: float  # share of the steps within a track at which the person is not found
    noise: float  # standard deviation, in mean bones


class EstimatorErrors:
    """Missing joints and noise of the estimator, as it has them in films, for other motions.

    Lengths of a track's pieces, joints that are missing together, half bodies and lost persons stay
    as they are, because complete pieces of tracks are laid over a motion. Noise is the difference
    from a running median.
    """

    def __init__(self, persons: Sequence[FilmPerson]) -> None:
        seen = [p.joints[:, 0, :, -1] > FEW for p in persons]
        noise = [_noise(p.joints[:, 0], s) for p, s in zip(persons, seen, strict=True)]
        self._seen = torch.from_numpy(np.concatenate(seen))
        self._noise = torch.from_numpy(np.concatenate(noise))
        self._length = torch.tensor([len(s) for s in seen])
        self._start = self._length.cumsum(0) - self._length
        parts = {"hips and trunk": (0, 1), "arms": (4, 5, 7, 8), "legs": (10, 11, 13, 14)}
        there = self._seen.any(1)
        self.rates = ErrorRates(
            len(persons),
            {k: float((~self._seen[there][:, list(v)]).float().mean()) for k, v in parts.items()},
            float((~there).float().mean()),
            float(self._noise[self._seen].std()),
        )

    def __call__(self, x: Tensor, seen: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return places [B, T, V, 2] and seen [B, T, V], of which a share has errors."""
        count, steps = x.shape[:2]
        long = self._length.float().clamp(max=2 * steps)
        track = torch.multinomial(long, count, replacement=True, generator=chance)
        first, last = torch.rand(2, count, generator=chance), self._length[track] - 1
        begin = (first[0] * (last + 1 - steps).clamp(min=0)).long()
        place = begin[:, None] + torch.arange(steps)
        period = (2 * last).clamp(min=1)[:, None]  # there and back again
        place = place % period
        place = torch.minimum(place, period - place)
        rows = self._start[track][:, None] + place.clamp(min=0)
        has = (first[1] < ERRORS)[:, None, None]
        unit = _unit(x, seen)[:, None, None, None]
        x = x + self._noise[rows] * unit * has[..., None]
        return x, seen & (self._seen[rows] | ~has)


class FilmStreams:
    """Draws batches of streams from persons in films; labels are those that may be true."""

    def __init__(
        self,
        persons: Sequence[FilmPerson],
        labels: Sequence[str],
        mirrored: Mapping[str, str | None],
        errors: EstimatorErrors,
    ) -> None:
        self._persons, self._errors = persons, errors
        kinds = [p.sure or f"{_beside(p)} of {p.source.split()[0]}" for p in persons]
        cells = [(k, p.source) for k, p in zip(kinds, persons, strict=True)]
        sizes, sources = Counter(cells), Counter(kind for kind, _ in set(cells))
        known = [(ABOUT if p.sure else 1.0) * (0.1 + float(p.may.any(1).mean())) for p in persons]
        self._chance = torch.tensor(
            [
                known[k] * math.sqrt(sources[kind]) / sources[kind] / sizes[kind, source]
                for k, (kind, source) in enumerate(cells)
            ]
        )
        twins = [labels.index(mirrored.get(label) or label) for label in labels]
        self._twin = torch.tensor(twins)

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch:
        """Return ``count`` streams of ``steps`` steps in pictures; labels bool [B, T, K]."""
        chosen = torch.multinomial(self._chance, count, replacement=True, generator=generator)
        shares = torch.rand(count, 3, generator=generator)
        x = torch.zeros(count, steps, len(_SIDES), 2)
        seen = torch.zeros(count, steps, len(_SIDES), dtype=torch.bool)
        may = torch.zeros(count, steps, len(self._twin), dtype=torch.bool)
        for row, number in enumerate(chosen.tolist()):
            person, (pace, first, flip) = self._persons[number], shares[row].tolist()
            places = np.arange(steps) * math.exp(0.3 * (2 * pace - 1))
            places += first * max(0.0, len(person.joints) - places[-1])
            rows = places[places < len(person.joints)].astype(int)
            joints, mine = person.joints[rows, 0], torch.from_numpy(person.may[rows])
            if flip < 0.5:
                joints, mine = joints[:, _SIDES] * (-1, 1, 1), mine[:, self._twin]
            seen[row, : len(rows)] = torch.from_numpy(joints[..., -1] > FEW)
            x[row, : len(rows)] = torch.from_numpy(joints[..., :2].astype(np.float32))
            may[row, : len(rows)] = mine
        x = x / _unit(x, seen)[:, None, None, None].clamp(min=1e-4)
        x = _varied(x, generator)
        x, seen = self._errors(x, seen, generator) if shares[0, 0] < 0.3 else (x, seen)
        known = may.any(-1) & seen.any(-1)
        return StreamBatch(x, seen, may, _begun(known) / may.sum(-1).clamp(min=1).sqrt())


class SeenStreams:
    """Draws batches in pictures: motions with the estimator's errors, and films."""

    def __init__(
        self,
        motions: Streams,
        films: FilmStreams | None,
        errors: EstimatorErrors,
        classes: int,
    ) -> None:
        self._motions, self._films, self._errors = motions, films, errors
        self._classes = classes

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch:
        """Return ``count`` streams of ``steps`` steps; joints [B, T, V, 2], labels [B, T, K]."""
        few = 0 if self._films is None else round(FILMS * count)
        some = self._motions.draw(count - few, steps, generator)
        x, seen = self._errors(projected(some, generator, CEILINGS), some.seen, generator)
        may = torch.nn.functional.one_hot(some.labels, self._classes).bool()
        batch = StreamBatch(x * seen[..., None], seen, may, some.weights * seen.any(-1))
        if self._films is None or not few:
            return batch
        more = self._films.draw(few, steps, generator)
        both = zip(vars(batch).values(), vars(more).values(), strict=True)
        return StreamBatch(*(torch.cat(pair) for pair in both))


def seen_tokens(batch: StreamBatch, _: torch.Generator) -> Tensor:
    """Return the tokens of streams in pictures."""
    return body_tokens(batch.joints, batch.seen)


def _beside(person: FilmPerson) -> str:
    """Return the kind of a clip, one for all clips of exercises in which others are seen too."""
    return "exercise" if person.kind in EXERCISES else person.kind


def _begun(known: Tensor) -> Tensor:
    """Return weights [B, T]: of the first steps of a stream less."""
    since = known.float().cumsum(1)
    return known * (since / 16).clamp(max=1)


def _unit(x: Tensor, seen: Tensor) -> Tensor:
    """Return the mean length of the bones of streams [B, T, V, 2], [B]."""
    child, above = list(CHILDREN), list(ABOVE)
    both = seen[:, :, child] & seen[:, :, above]
    long = (x[:, :, child] - x[:, :, above]).norm(dim=-1) * both
    unit: Tensor = long.sum((1, 2)) / both.sum((1, 2)).clamp(min=1)
    return unit


def _noise(joints: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return the noise [T, V, 2] of a track [T, V, 3], in mean bones; 0 where it is not known."""
    x = joints[..., :2]
    unit = float(_unit(torch.from_numpy(x)[None], torch.from_numpy(seen)[None])[0])
    known = seen & (_steady(seen.astype(np.float32)) > 0)
    noise = np.where(known[..., None], x - _steady(x), 0) / max(unit, 1e-4)
    out: np.ndarray = noise.clip(-WORST, WORST).astype(np.float32)
    return out


def _steady(x: np.ndarray) -> np.ndarray:
    """Return the running median over time, the first dimension."""
    half = SMOOTH // 2
    padded = np.pad(x, [(half, half), *[(0, 0)] * (x.ndim - 1)], "edge")
    out: np.ndarray = np.median(np.lib.stride_tricks.sliding_window_view(padded, SMOOTH, 0), -1)
    return out


def _varied(x: Tensor, chance: torch.Generator) -> Tensor:
    """Return places [B, T, V, 2] of persons turned a little, of other proportions, with noise."""
    count = len(x)
    angle, wide, tall = 0.12 * torch.randn(3, count, generator=chance)
    cos, sin = (v[:, None, None] for v in (angle.cos(), angle.sin()))
    a, up = x[..., 0] * wide.exp()[:, None, None], x[..., 1] * tall.exp()[:, None, None]
    shaking = 0.04 * torch.rand(count, 1, 1, 1, generator=chance)
    out = torch.stack((cos * a - sin * up, sin * a + cos * up), -1)
    return out + shaking * torch.randn(x.shape, generator=chance)
