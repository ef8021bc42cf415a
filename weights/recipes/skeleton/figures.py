"""Motions of the figure of ``samples/moves.py``: other lengths, directions and ways of moving.

Few people of the sets raise or clap their hands, or kick; the figure shows what of it matters.
"""

from __future__ import annotations

import math

import numpy as np

from costream.training.skeleton.motions import Motion, single
from samples import moves
from weights.recipes.skeleton.sets import RATE_HZ, scaled

EACH = 24  # motions of each action
VARIATION = 0.12  # of the directions of limbs, relative to their length
BEFORE_S = 1.0  # standing


def figures(seed: int) -> list[Motion]:
    """Return motions of one action each, as body-15 at ``RATE_HZ``."""
    rng = np.random.default_rng(seed)
    return [
        Motion(f"figure {k}", act.label, "figure", _joints(act, rng))
        for k in range(EACH)
        for act in _acts(rng)
    ]


def _acts(rng: np.random.Generator) -> list[moves.Act]:
    """Return one act of each label."""
    length_s = iter(rng.uniform(2.0, 4.5, 10))
    sides = {"left hand": moves.LEFT, "right hand": moves.RIGHT, "both hands": moves.BOTH}
    times = int(rng.integers(1, 4))
    return [
        *(moves.wave(f"wave {name}", side, next(length_s)) for name, side in sides.items()),
        *(moves.raise_hands(f"raise {name}", side, next(length_s)) for name, side in sides.items()),
        moves.clap(next(length_s)),
        moves.bend(next(length_s)),
        moves.walk(next(length_s), rng.uniform(-math.pi, math.pi), rng.uniform(0.7, 1.4)),
        moves.kick(times * rng.uniform(0.9, 1.5), times),
    ]


def _joints(act: moves.Act, rng: np.random.Generator) -> np.ndarray:
    factors = 1 + VARIATION * rng.standard_normal(moves.SIZE)
    factors[: moves.LEAN] = 1  # place and heading

    def play(pose: moves.Vector, time_s: float) -> None:
        act.play(pose, time_s)
        pose *= factors

    own = moves.Act(act.label, act.length_s, play)
    places, labels = moves.play([moves.stand(BEFORE_S), own], RATE_HZ)
    acting = np.array([label == act.label for label in labels])
    return scaled(single(places[acting]))
