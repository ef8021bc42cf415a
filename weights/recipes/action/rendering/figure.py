"""Articulated figure and its actions: poses over time with ground-truth labels.

World axes: x to the right, y to the back, z up, metres. A pose is a vector of ``SIZE`` numbers;
``joints`` turns it into points in space. An ``Act`` is a stretch of time with one label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
LABELS = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie")
# A pose: position of the pelvis; the body leans by TILT towards the compass direction AZIMUTH and
# is turned by TWIST about its long axis; then flexion of hips, knees, shoulders, elbows (left,
# right) and spread of legs and arms.
X, Y, Z, AZIMUTH, TILT, TWIST, HIP, KNEE, SHOULDER, ELBOW, LEGS, ARMS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    14,
    15,
)
SIZE = 16
HIP_HEIGHT = 0.92
THIGH, SHANK = 0.43, 0.42  # metres, of a person of 1.75 m


def pose(  # noqa: PLR0913 - the joints of a body
    x: float,
    y: float,
    z: float,
    yaw: float,
    tilt: float = 0.0,
    twist: float = 0.0,
    hips: float = 0.0,
    knees: float = 0.0,
    shoulders: float = 0.0,
    elbows: float = 0.15,
    legs: float = 0.05,
    arms: float = 0.15,
) -> Vector:
    """Return a symmetric pose; ``yaw`` is the direction of the lean or, upright, of the face."""
    return np.array(
        [
            x,
            y,
            z,
            yaw,
            tilt,
            twist,
            hips,
            hips,
            knees,
            knees,
            shoulders,
            shoulders,
            elbows,
            elbows,
            legs,
            arms,
        ]
    )


def standing(x: float, y: float, yaw: float) -> Vector:
    """Return the pose standing upright on the floor."""
    return pose(x, y, HIP_HEIGHT, yaw)


def seated(x: float, y: float, yaw: float, seat: float) -> Vector:
    """Return the pose sitting on a seat of this height; on the floor the knees are raised."""
    low = max(0.0, 1.0 - seat / 0.4)
    return pose(
        x,
        y,
        seat + 0.11,
        yaw,
        0.05 + 0.1 * low,
        hips=1.5 + 0.55 * low,
        knees=1.5 + 0.3 * low,
        shoulders=0.5 + 0.3 * low,
        elbows=0.9,
        legs=0.12,
    )


def lying(x: float, y: float, z: float, yaw: float, twist: float = 0.0) -> Vector:
    """Return the pose lying on a surface at height z, feet towards ``yaw``, face up."""
    bent = 0.6 * abs(math.sin(twist))
    return pose(
        x,
        y,
        z + 0.12,
        yaw,
        -math.pi / 2,
        twist,
        bent,
        1.4 * bent,
        0.1 + 0.5 * bent,
        0.3 + bent,
        0.09,
        0.3,
    )


def joints(p: Vector, height: float) -> dict[str, Vector]:
    """Return the joints of a pose in world coordinates; ``height`` 1.0 is a person of 1.75 m."""
    turn = _about_z(p[AZIMUTH]) @ _about_y(p[TILT]) @ _about_z(p[TWIST])
    local: dict[str, tuple[float, float, float]] = {
        "pelvis": (0, 0, 0),
        "neck": (0, 0, 0.5),
        "head": (0.02, 0, 0.68),
        "crown": (0, 0, 0.72),
    }
    for k, (side, sign) in enumerate((("left", 1.0), ("right", -1.0))):
        hip, knee = p[HIP + k], p[KNEE + k]
        spread = sign * math.sin(p[LEGS])
        local[side + " hip"] = h = (0.0, sign * 0.1, 0.0)
        local[side + " knee"] = kn = _limb(h, hip, spread, THIGH)
        local[side + " ankle"] = an = _limb(kn, hip - knee, spread, SHANK)
        local[side + " toe"] = _limb(an, hip - knee + math.pi / 2, 0.0, 0.19)
        shoulder, elbow = p[SHOULDER + k], p[ELBOW + k]
        spread = sign * math.sin(p[ARMS])
        local[side + " shoulder"] = s = (0.0, sign * 0.18, 0.46)
        local[side + " elbow"] = e = _limb(s, shoulder, spread, 0.28)
        local[side + " hand"] = _limb(e, shoulder + elbow, 0.3 * spread, 0.27)
    return {name: p[:3] * (1, 1, height) + height * (turn @ at) for name, at in local.items()}


def _limb(
    start: tuple[float, float, float], angle: float, side: float, length: float
) -> tuple[float, float, float]:
    reach = length * math.sqrt(max(0.0, 1 - side * side))
    return (
        start[0] + reach * math.sin(angle),
        start[1] + length * side,
        start[2] - reach * math.cos(angle),
    )


def _about_z(angle: float) -> Vector:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def _about_y(angle: float) -> Vector:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


@dataclass(frozen=True)
class Act:
    """One action: its label, its length, and its pose at each moment."""

    label: str
    length_s: float
    play: Callable[[float], Vector]  # seconds since the act began -> pose

    def end(self) -> Vector:
        """Return the final pose."""
        return self.play(self.length_s)


def move(label: str, keys: list[tuple[float, Vector]], start: Vector, sudden: bool = False) -> Act:
    """Return an act that passes through poses at increasing times (seconds); the last ends it.

    ``sudden``: the movement accelerates, as a falling body does, instead of easing in and out.
    """
    times = [0.0, *(t for t, _ in keys)]
    poses = [start.copy()]
    for _, key in keys:
        # Turn the shorter way.
        turn = (key[AZIMUTH] - poses[-1][AZIMUTH] + math.pi) % (2 * math.pi) - math.pi
        poses.append(key.copy())
        poses[-1][AZIMUTH] = poses[-2][AZIMUTH] + turn

    def play(t: float) -> Vector:
        k = min(int(np.searchsorted(times, t, side="right")), len(keys)) - 1
        u = min(1.0, (t - times[k]) / (times[k + 1] - times[k]))
        u = u**2 if sudden and k == 0 else u * u * (3 - 2 * u)
        out: Vector = poses[k] + u * (poses[k + 1] - poses[k])
        return out

    return Act(label, times[-1], play)


def walk(start: Vector, to: tuple[float, float], speed: float) -> Act:
    """Return a straight walk from the pose ``start``, turning towards the goal at first."""
    dx, dy = to[0] - start[X], to[1] - start[Y]
    distance = math.hypot(dx, dy)
    length, yaw = max(distance / speed, 0.4), math.atan2(dy, dx)
    turn = (yaw - start[AZIMUTH] + math.pi) % (2 * math.pi) - math.pi

    def play(t: float) -> Vector:
        u = min(1.0, t / length)
        out = standing(
            start[X] + u * dx, start[Y] + u * dy, start[AZIMUTH] + turn * min(1.0, t / 0.5)
        )
        phase = 2 * math.pi * u * distance / 1.3  # 1.3 m for two steps
        ease = min(1.0, 4 * t, 4 * (length - t) + 0.05)
        swing = 0.45 * ease * math.sin(phase)
        out[HIP : HIP + 2] = swing, -swing
        out[KNEE : KNEE + 2] = (
            0.7 * ease * max(0.0, math.cos(phase)) + 0.05,
            0.7 * ease * max(0.0, -math.cos(phase)) + 0.05,
        )
        out[SHOULDER : SHOULDER + 2] = -0.8 * swing, 0.8 * swing
        out[ELBOW : ELBOW + 2] = 0.35
        out[TILT] = 0.06 * ease
        out[Z] += 0.02 * abs(math.sin(phase)) - 0.02
        return out

    return Act("walk", length, play)


def stay(label: str, start: Vector, length_s: float, seed: int) -> Act:
    """Return an act of holding a pose, with the small movements of a living body."""
    rng = np.random.default_rng(seed)
    rates, phases = rng.uniform(0.3, 1.3, SIZE), rng.uniform(0, 2 * math.pi, SIZE)
    sizes = np.full(SIZE, 0.04)
    sizes[[X, Y, Z]], sizes[[AZIMUTH, TWIST]] = 0.004, 0.03

    def play(t: float) -> Vector:
        out: Vector = start + sizes * min(1.0, t) * np.sin(rates * t * 2 + phases)
        return out

    return Act(label, length_s, play)


# Random movements of a figure, besides the labelled actions.
#
# A network that learns to classify many of them represents more of a body than its few labels
# require, so that it can be trained on custom classes from few examples.


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
