"""Temperature, thresholds and shortest segment of ``costgcn-2d``, chosen on sources left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from costream.labels.recording import BACKGROUND
from costream.models.skeleton.network import SkeletonNet
from costream.training.skeleton.motions import Motion
from costream.weights_io.card import Timeline
from weights.recipes.skeleton.clips import clip_logits
from weights.recipes.skeleton.films import FilmPerson
from weights.recipes.skeleton.scoring import timeline_of
from weights.recipes.skeleton.seen import FEW
from weights.recipes.skeleton.sets import MIRRORED
from weights.recipes.skeleton.tokens import body_tokens

Rows = npt.NDArray[np.floating]  # [T, K]
TEMPERATURES = (0.7, 0.85, 1.0, 1.2, 1.5, 1.9)
SHIFTS = (-1.4, -0.7, 0.0, 0.7)  # of the background's logit
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LENGTHS_S = (0.4, 0.6, 0.8, 1.0)
LEAST = 0.5  # of labels that no film here shows
NEVER = 1.0  # threshold of labels that are wrong whenever they are shown
WRONG = 1.0  # cost of a wrong label, relative to that of a missed one
# Exercises that people look for, and their threshold: more of them are shown than with those that
# are chosen, and more of what is none.
ASKED, ASKED_AT = ("deadlift", "jumping jack", "lunge", "plank", "push up", "squat"), 0.45
# Labels that may be true too during motions and exercises of others.
ALSO = {
    "sit": ("sit down", "stand up", "sit and applaud"),
    "lie": ("fall", "crunch", "glute bridge", "plank"),
    "walk": ("carry", "walk turn left", "walk turn right"),
    "bend": ("pick up", "tie shoe", "drop", "pick up and throw"),
    "pick up": ("pick up and throw",),
}
CLOSING = 0.6  # the lower threshold, relative to the upper one
GAP_S = 0.6
BINS = 10  # of the reliability diagram


@dataclass(frozen=True)
class Choices:
    """What was chosen, and how well the probabilities then fit on sources left out."""

    temperature: float
    shift: float
    timeline: Timeline
    reliability: list[dict[str, Any]] = field(default_factory=list)  # confidence, right, share


@torch.inference_mode()
def rows_of(network: SkeletonNet, joints: npt.NDArray[np.float32]) -> Rows:
    """Return the logits [T', K] of a person [T, 1, V, 3] in pictures."""
    x = torch.from_numpy(joints[None, :, 0].astype(np.float32))
    odd = -x.shape[1] % network.stride
    x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, odd))
    seen = x[..., -1] > FEW
    logits = clip_logits(network.eval(), body_tokens(x[..., :2], seen))[0]
    return logits[: -(-len(joints) // network.stride)].numpy()


@torch.no_grad()
def with_temperature(network: SkeletonNet, choices: Choices) -> SkeletonNet:
    """Return the network with its logits divided by the temperature, and the background's moved."""
    for layer in (network.fc, network.reading):
        for value in () if layer is None else layer.parameters():
            value.mul_(1 / choices.temperature)
    network.fc.bias[0] += choices.shift
    return network


def probabilities(logits: Rows, temperature: float, shift: float) -> Rows:
    """Return probabilities [T, K]."""
    x = logits.astype(np.float64) / temperature
    x[:, 0] += shift
    x = np.exp(x - x.max(1, keepdims=True))
    out: Rows = x / x.sum(1, keepdims=True)
    return out


def choose(
    films: Sequence[FilmPerson],
    film_rows: Sequence[Rows],
    motions: Sequence[Motion],
    motion_rows: Sequence[Rows],
    labels: Sequence[str],
    rate_hz: float,
) -> Choices:
    """Return the choices for logits of persons in films and of motions, all unknown to them.

    The threshold of ``ASKED`` is ``ASKED_AT``, unless they are wrong more often than right.
    """
    known = [_known(film, len(rows)) for film, rows in zip(films, film_rows, strict=True)]
    best = min(
        ((t, s) for t in TEMPERATURES for s in SHIFTS),
        key=lambda pair: _surprise(films, known, film_rows, motions, motion_rows, labels, pair),
    )
    in_films = [probabilities(rows, *best) for rows in film_rows]
    in_motions = [probabilities(rows, *best) for rows in motion_rows]
    timelines = []
    for length_s in LENGTHS_S:
        thresholds, cost = {}, 0.0
        for label in labels[1:]:
            parts = (films, known, in_films), (motions, in_motions), labels, rate_hz, length_s
            thresholds[label], least = _threshold(label, *parts)
            cost += least
        timelines.append((cost, length_s, _alike(thresholds)))
    _, length_s, thresholds = min(timelines, key=lambda each: each[0])
    thresholds |= {k: ASKED_AT for k, v in thresholds.items() if k in ASKED and v < NEVER}
    timeline = Timeline(0.5, round(CLOSING * 0.5, 3), length_s, GAP_S, thresholds)
    return Choices(*best, timeline, _reliability(known, in_films))


def _known(film: FilmPerson, steps: int) -> npt.NDArray[np.bool_]:
    """Return the labels that may be true, bool [T', K], at the outputs of a network."""
    stride = round(len(film.may) / steps)
    out: npt.NDArray[np.bool_] = film.may[::stride][:steps]
    return out


def _surprise(
    films: Sequence[FilmPerson],
    known: Sequence[npt.NDArray[np.bool_]],
    film_rows: Sequence[Rows],
    motions: Sequence[Motion],
    motion_rows: Sequence[Rows],
    labels: Sequence[str],
    pair: tuple[float, float],
) -> float:
    """Return the mean negative log likelihood, each kind of film and set counting the same."""
    costs: dict[str, list[float]] = {}
    for film, may, rows in zip(films, known, film_rows, strict=True):
        here = may.any(1)
        if here.any():
            mass = (probabilities(rows, *pair) * may).sum(1)[here]
            costs.setdefault(film.sure or film.kind, []).append(float(-np.log(mass + 1e-6).mean()))
    for motion, rows in zip(motions, motion_rows, strict=True):
        mass = probabilities(rows, *pair)[len(rows) // 2 :, labels.index(motion.label)]
        name = motion.name.partition(" ")[0]
        costs.setdefault(name, []).append(float(-np.log(mass + 1e-6).mean()))
    return float(np.mean([np.mean(some) for some in costs.values()]))


def _threshold(
    label: str,
    in_films: tuple[Sequence[FilmPerson], Sequence[npt.NDArray[np.bool_]], Sequence[Rows]],
    in_motions: tuple[Sequence[Motion], Sequence[Rows]],
    labels: Sequence[str],
    rate_hz: float,
    length_s: float,
) -> tuple[float, float]:
    """Return the threshold of a label and its cost: what is missed, and ``WRONG`` times errors.

    Errors are relative to the number of persons who do it: a rare label may be shown wrongly less
    often than a frequent one.

    Of a label that nobody here does, it is the least one with which it is hardly shown wrongly.
    """
    column = labels.index(label)
    scores, wanted, allowed = [], [], []
    also = (label, *ALSO.get(label, ()))
    for film, may, rows in zip(*in_films, strict=True):
        if may.any():
            scores.append(rows[:, [0, column]])
            must = may[:, column] & (may.sum(1) == 1)
            wanted.append(bool(must.sum() >= length_s * rate_hz))
            allowed.append(may[:, column] | ~may.any(1) | (film.sure in also))
    least = THRESHOLDS[0] if any(wanted) else LEAST
    for motion, rows in zip(*in_motions, strict=True):
        scores.append(rows[:, [0, column]])
        wanted.append(motion.label == label)
        allowed.append(np.full(len(rows), motion.label in also))
    positives = max(sum(wanted), 5)
    best = (NEVER, sum(wanted) / positives) if any(wanted) else (THRESHOLDS[-1], float("inf"))
    for threshold in (value for value in THRESHOLDS if value >= least):
        timeline = Timeline(threshold, CLOSING * threshold, length_s, GAP_S)
        missed = wrong = 0
        for rows, want, may in zip(scores, wanted, allowed, strict=True):
            found = []
            if rows[:, 1].max(initial=0) >= threshold:
                found = timeline_of(rows, [BACKGROUND, label], timeline, rate_hz)
            missed += want and not found
            wrong += any(
                not may[int(s.start_s * rate_hz) : int(s.end_s * rate_hz) + 1].any() for s in found
            )
        cost = (missed + WRONG * wrong) / positives
        if cost < best[1]:
            best = threshold, cost
    return best


def _alike(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Return thresholds that are the same for the left and the right hand: the larger one."""
    out = {}
    for label, threshold in thresholds.items():
        twin = thresholds[MIRRORED.get(label) or label]
        out[label] = max((t for t in (threshold, twin) if t < NEVER), default=NEVER)
    return out


def _reliability(
    known: Sequence[npt.NDArray[np.bool_]], rows: Sequence[Rows]
) -> list[dict[str, Any]]:
    """Return, for bins of the highest probability of a step, how often that label may be true."""
    here = [may.any(1) for may in known]
    p = np.concatenate([row[some] for row, some in zip(rows, here, strict=True)])
    may = np.concatenate([row[some] for row, some in zip(known, here, strict=True)])
    first = p.argmax(1)
    confidence = p[np.arange(len(p)), first]
    right = may[np.arange(len(p)), first]
    out = []
    for k in range(BINS):
        inside = (confidence > k / BINS) & (confidence <= (k + 1) / BINS)
        if inside.any():
            values = confidence[inside].mean(), right[inside].mean(), inside.mean()
            out.append(dict(zip(("said", "right", "share"), map(float, values), strict=True)))
    return out
