"""Random movements of a figure, besides the labelled actions.

A network that learns to classify many of them represents more of a body than its few labels
require, so that it can be trained on custom classes from few examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weights.recipes.action.rendering.figure import (
    ARMS,
    ELBOW,
    HIP,
    HIP_HEIGHT,
    KNEE,
    SHANK,
    SHOULDER,
    SIZE,
    THIGH,
    TILT,
    TWIST,
    Act,
    Vector,
    Z,
    move,
)

MOST_KEYS, MOST_TIMES = 3, 3
LEAST = 0.4  # radians, least size of the largest change: less is hardly a movement


@dataclass(frozen=True)
class Movement:
    """A movement while standing: the changes of the pose and their timing.

    ``keys``: seconds since the previous key, and the change added to the pose. ``times``: number
    of passes through them.
    """

    name: str
    keys: tuple[tuple[float, Vector], ...]
    times: int

    def act(self, start: Vector, rng: np.random.Generator) -> Act:
        """Return the movement performed from the pose ``start``, with random variation."""
        size, pace = rng.uniform(0.8, 1.2), rng.uniform(0.75, 1.3)
        own = rng.normal(0, 0.06, SIZE)
        own[:TILT] = 0.0
        keys, now = [], 0.0
        for _ in range(self.times):
            for seconds, change in self.keys:
                now += pace * seconds
                pose = start + size * change + own * (change != 0)
                pose[Z] = start[Z] - HIP_HEIGHT + _height(pose)
                keys.append((now, pose))
        keys.append((now + pace * self.keys[0][0], start))
        return move(self.name, keys, start)


def random_movement(rng: np.random.Generator, name: str) -> Movement:
    """Return a movement of one or two body parts: arms, an arm, trunk, knees, a leg, twist."""
    movement = _draw(rng, name)
    while max(float(np.abs(change).max()) for _, change in movement.keys) < LEAST:
        movement = _draw(rng, name)
    return movement


def _draw(rng: np.random.Generator, name: str) -> Movement:
    parts = rng.choice(6, int(rng.integers(1, 3)), replace=False)
    count = int(rng.integers(1, MOST_KEYS + 1))
    side = int(rng.integers(2))
    keys = []
    for _ in range(count):
        change = np.zeros(SIZE)
        for part in parts:
            if part == 0:
                change[SHOULDER : SHOULDER + 2] = rng.uniform(-0.6, 2.8)
                change[ELBOW : ELBOW + 2] = rng.uniform(0, 2)
                change[ARMS] = rng.uniform(0, 1.2)
            elif part == 1:
                change[SHOULDER + side], change[ELBOW + side] = rng.uniform((-0.6, 0), (2.8, 2))
            elif part == 2:
                change[TILT] = rng.uniform(0.2, 1.2)
                change[HIP : HIP + 2] += change[TILT]  # the legs do not move
            elif part == 3:
                bent = rng.uniform(0.4, 1.5)
                change[HIP : HIP + 2] += bent
                change[KNEE : KNEE + 2] = 1.6 * bent
            elif part == 4:
                change[HIP + side] += rng.uniform(-0.4, 1.5)
                change[KNEE + side] += rng.uniform(0, 1.5)
            else:
                change[TWIST] = rng.uniform(-1, 1)
        keys.append((float(rng.uniform(0.3, 1.1)), change))
        if rng.random() < 0.3:  # hold the pose for a while
            keys.append((float(rng.uniform(0.3, 1.0)), change))
    keys.append((float(rng.uniform(0.3, 0.9)), rng.choice([0.0, 0.4]) * keys[0][1]))
    return Movement(name, tuple(keys), int(rng.integers(1, MOST_TIMES + 1)))


def _height(pose: Vector) -> float:
    """Return the height of the pelvis, metres, with the lower foot on the floor."""
    thighs = [pose[HIP + k] - pose[TILT] for k in (0, 1)]  # angles from the vertical
    legs = (
        THIGH * math.cos(angle) + SHANK * math.cos(angle - pose[KNEE + k])
        for k, angle in enumerate(thighs)
    )
    return HIP_HEIGHT - THIGH - SHANK + max(legs)
