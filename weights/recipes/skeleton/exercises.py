"""Motions that no set has: falls, lying, sitting, exercises, of the figure of the rendered rooms.

Its poses are those of ``weights.recipes.action.rendering.figure``, as body-15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from costream.core.layouts import BODY_15
from costream.labels.recording import BACKGROUND
from costream.training.skeleton.motions import Motion, single
from weights.recipes.action.rendering import figure as f
from weights.recipes.skeleton.sets import RATE_HZ, scaled

EACH = 40  # motions of each label
Chance = np.random.Generator
_NAMES = {"hips": "pelvis", "left wrist": "left hand", "right wrist": "right hand"}


def exercises(seed: int) -> list[Motion]:
    """Return motions of one action each, as body-15 at ``RATE_HZ``."""
    rng = np.random.default_rng(seed)
    return [
        Motion(f"exercise {k}", act.label, "figure", _joints(act, rng))
        for k in range(EACH)
        for make in _MAKERS
        for act in make(rng)
    ]


def _joints(act: f.Act, rng: Chance) -> np.ndarray:
    times = np.arange(max(6, int(act.length_s * RATE_HZ))) / RATE_HZ
    height = rng.uniform(0.9, 1.08)
    own = rng.normal(0, 0.07, f.SIZE)  # ways of holding a body
    own[: f.TILT] = 0
    frames = []
    for time_s in times:
        found = f.joints(act.play(float(time_s)) + own, height)
        frames.append([found[_NAMES.get(name, name)] for name in BODY_15.joints])
    x = np.array(frames)[..., [0, 2, 1]] * (-1, 1, 1)  # x to the left, y up, z away
    return scaled(single(x))


def _repeated(label: str, low: f.Vector, high: f.Vector, rng: Chance) -> f.Act:
    """Return one to three times from a pose to another and back."""
    keys, now = [], 0.0
    down, up, hold = rng.uniform((0.5, 0.4, 0.0), (1.4, 1.3, 0.4))
    for _ in range(int(rng.integers(1, 4))):
        for pose, seconds in ((high, down), (high, hold + 0.05), (low, up)):
            now += seconds
            keys.append((now, pose))
    return f.move(label, keys, low)


def _stood(rng: Chance, **changes: float) -> f.Vector:
    """Return a pose standing, with changed angles, the lower foot on the floor."""
    pose = f.pose(0, 0, 0, 0, **changes)
    pose[f.Z] = f._height(pose)
    return pose


def _squat(rng: Chance) -> Iterator[f.Act]:
    lean, deep = rng.uniform(0.2, 0.7), rng.uniform(1.0, 1.75)
    arms, elbows, legs = rng.uniform((0, 0.1, 0.1), (1.6, 2.3, 0.4))
    held = rng.random() < 0.5  # the arms throughout
    low = _stood(rng, legs=legs, shoulders=arms * held, elbows=elbows * held, arms=0.25)
    high = _stood(
        rng,
        tilt=lean,
        hips=lean + deep,
        knees=deep + rng.uniform(0.3, 0.7),
        legs=legs,
        shoulders=arms,
        elbows=elbows,
        arms=0.25,
    )
    yield _repeated("squat", low, high, rng)


def _lunge(rng: Chance) -> Iterator[f.Act]:
    low, side, deep = _stood(rng, shoulders=0.1), int(rng.integers(2)), rng.uniform(0.7, 1.4)
    high = low.copy()
    high[f.HIP + side], high[f.KNEE + side] = deep, deep + 0.1
    high[f.HIP + 1 - side], high[f.KNEE + 1 - side] = -0.35, deep - 0.1
    high[f.Z] = f._height(high)
    high[f.X] += rng.choice((0.0, 0.4))
    yield _repeated("lunge", low, high, rng)


def _deadlift(rng: Chance) -> Iterator[f.Act]:
    lean, bent = rng.uniform(0.8, 1.4), rng.uniform(0.1, 0.6)
    low = _stood(rng, shoulders=0.15, arms=0.1)
    high = _stood(rng, tilt=lean, hips=lean + bent, knees=2 * bent, shoulders=lean, arms=0.1)
    yield _repeated("deadlift", low, high, rng)


def _push_up(rng: Chance) -> Iterator[f.Act]:
    up = f.pose(0, 0, 0.42, 0, tilt=1.25, shoulders=1.3, elbows=0.1, arms=0.25)
    down = f.pose(0, 0, 0.2, 0, tilt=1.48, shoulders=-0.2, elbows=1.6, arms=0.45)
    share = rng.uniform(0.5, 1)
    yield _repeated("push up", up, up + share * (down - up), rng)


def _plank(rng: Chance) -> Iterator[f.Act]:
    low = rng.random() < 0.7
    pose = f.pose(0, 0, 0.3, 0, tilt=1.4, shoulders=1.5, elbows=1.5 if low else 0.1, arms=0.15)
    yield f.stay("plank", pose, rng.uniform(2, 6), int(rng.integers(2**31)))


def _jumping_jack(rng: Chance) -> Iterator[f.Act]:
    most, wide = rng.uniform(2.0, 3.0), rng.uniform(0.3, 0.6)
    period, times = rng.uniform(0.6, 1.3), int(rng.integers(2, 5))

    def play(time_s: float) -> f.Vector:
        open_ = 0.5 - 0.5 * math.cos(2 * math.pi * time_s / period)
        raised = 0.12 + most * open_
        over = raised > math.pi / 2
        pose = _stood(
            rng,
            legs=0.05 + wide * open_,
            arms=math.pi - raised if over else raised,
            shoulders=math.pi if over else 0.0,
            elbows=0.15,
        )
        pose[f.Z] += 0.12 * math.sin(math.pi * open_) ** 2
        return pose

    yield f.Act("jumping jack", times * period, play)


def _bridge(rng: Chance) -> Iterator[f.Act]:
    low = f.lying(0, 0, 0, 0)
    low[f.HIP : f.HIP + 2], low[f.KNEE : f.KNEE + 2] = 0.85, 1.6
    low[f.SHOULDER : f.SHOULDER + 2], low[f.ELBOW : f.ELBOW + 2] = 0.1, 0.1
    high = low.copy()
    high[f.TILT] -= rng.uniform(0.3, 0.6)
    high[f.HIP : f.HIP + 2], high[f.Z] = 0.1, rng.uniform(0.3, 0.42)
    yield _repeated("glute bridge", low, high, rng)


def _crunch(rng: Chance) -> Iterator[f.Act]:
    low = f.lying(0, 0, 0, 0)
    low[f.HIP : f.HIP + 2], low[f.KNEE : f.KNEE + 2] = 0.9, 1.7
    low[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(0.3, 2.8)
    low[f.ELBOW : f.ELBOW + 2] = rng.uniform(0.2, 2.3)
    high = low.copy()
    lift = rng.uniform(0.4, 1.3)
    high[f.TILT] += lift
    high[f.HIP : f.HIP + 2] += lift
    if rng.random() < 0.4:  # legs in turns
        high[f.HIP + int(rng.integers(2))] += 0.7
    yield _repeated("crunch", low, high, rng)


def _start(rng: Chance) -> f.Vector:
    """Return the pose before a fall: standing, walking or seated."""
    kind = rng.random()
    if kind < 0.25:
        return f.seated(0, 0, 0, rng.uniform(0.3, 0.5))
    pose = f.standing(0, 0, 0)
    if kind < 0.6:
        pose[f.HIP : f.HIP + 2] = rng.uniform(-0.4, 0.5, 2)
        pose[f.KNEE : f.KNEE + 2] = rng.uniform(0, 0.6, 2)
    pose[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(-0.2, 0.6, 2)
    return pose


def _fall(rng: Chance) -> Iterator[f.Act]:
    start, way = _start(rng), rng.uniform(-math.pi, math.pi)
    start[f.AZIMUTH], start[f.TWIST] = way, -way
    end = f.lying(0, 0, 0, way, 0)
    end[f.TILT], end[f.TWIST] = math.pi / 2, -way + rng.normal(0, 0.4)
    end[f.X], end[f.Y] = 0.5 * math.cos(way), 0.5 * math.sin(way)
    end[f.HIP : f.HIP + 2] = rng.uniform(0, 1.3, 2)
    end[f.KNEE : f.KNEE + 2] = rng.uniform(0, 1.6, 2)
    end[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(-0.3, 2.2, 2)
    end[f.ELBOW : f.ELBOW + 2] = rng.uniform(0.1, 1.5, 2)
    keys, length = [(0.0, end)], rng.uniform(0.55, 1.2)
    if rng.random() < 0.5:  # the knees give way first
        middle = 0.5 * (start + end)
        middle[f.TILT] = rng.uniform(0.1, 0.6)
        middle[f.KNEE : f.KNEE + 2] += 1.0
        middle[f.HIP : f.HIP + 2] += 0.5
        keys = [(0.5 * length, middle), (length, end)]
    else:
        keys = [(length, end)]
    fall = f.move("fall", keys, start, sudden=True)
    after_s = rng.uniform(0.3, 0.9)

    def play(time_s: float) -> f.Vector:
        return fall.play(min(time_s, fall.length_s))

    yield f.Act("fall", fall.length_s + after_s, play)


def _lie(rng: Chance) -> Iterator[f.Act]:
    pose = f.lying(0, 0, rng.uniform(0, 0.5), 0, rng.uniform(-math.pi, math.pi))
    pose[f.HIP : f.HIP + 2] += rng.uniform(0, 1.0, 2) * (rng.random() < 0.5)
    pose[f.KNEE : f.KNEE + 2] += rng.uniform(0, 1.4, 2) * (rng.random() < 0.5)
    pose[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(-0.2, 2.5, 2)
    pose[f.ELBOW : f.ELBOW + 2] = rng.uniform(0.1, 1.8, 2)
    yield f.stay("lie", pose, rng.uniform(2, 6), int(rng.integers(2**31)))


def _sit(rng: Chance) -> Iterator[f.Act]:
    seat = rng.choice((rng.uniform(0.35, 0.55), 0.0), p=(0.8, 0.2))
    pose = f.seated(0, 0, 0, seat)
    pose[f.TILT] += rng.uniform(-0.3, 0.4)
    pose[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(0, 1.2, 2)
    pose[f.ELBOW : f.ELBOW + 2] = rng.uniform(0.3, 2.0, 2)
    yield f.stay("sit", pose, rng.uniform(2, 6), int(rng.integers(2**31)))
    up = _stood(rng)
    length = rng.uniform(0.8, 1.8)
    yield f.move("stand up", [(length, up)], pose)
    yield f.move("sit down", [(length, pose)], up)


def _rise(rng: Chance) -> Iterator[f.Act]:
    pose = f.lying(0, 0, rng.choice((0.0, 0.45)), 0)
    middle = f.seated(0, 0, 0, float(pose[f.Z]) - 0.1)
    length = rng.uniform(0.7, 1.4)
    yield f.move("stand up", [(length, middle), (2 * length, _stood(rng))], pose)


def _nothing(rng: Chance) -> Iterator[f.Act]:
    """Yield somebody who stands, with arms anywhere, and small movements of these."""
    pose = _stood(rng, legs=rng.uniform(0, 0.3))
    pose[f.SHOULDER : f.SHOULDER + 2] = rng.uniform(-0.4, 0.7, 2)
    pose[f.ELBOW : f.ELBOW + 2] = rng.uniform(0, 2.2, 2)
    pose[f.TILT] = rng.uniform(-0.1, 0.3)
    yield f.stay(BACKGROUND, pose, rng.uniform(3, 6), int(rng.integers(2**31)))
    far = pose.copy()
    far[f.SHOULDER : f.SHOULDER + 2] += rng.uniform(-0.3, 0.5, 2)
    far[f.ELBOW : f.ELBOW + 2] += rng.uniform(-0.5, 0.7, 2)
    yield _repeated(BACKGROUND, pose, far, rng)


_MAKERS: tuple[Callable[[Chance], Iterator[f.Act]], ...] = (
    _squat,
    _lunge,
    _deadlift,
    _push_up,
    _plank,
    _jumping_jack,
    _bridge,
    _crunch,
    _fall,
    _lie,
    _sit,
    _rise,
    _nothing,
)
