"""A figure that moves for a Kinect: the sample of skeletons and what it does when.

Metres; x to the left of the camera, y up, z away from it. The figure faces the camera, so its
right hand is at positive x.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.core.layouts import BODY_15

Vector = npt.NDArray[np.float64]

NAME = "moves"
RATE_HZ = 15
SEED = 2026
NOISE_M = 0.004  # of each joint, as of a depth camera
CHANGE_S = 0.5  # how long one act takes to become the next

# A pose: where the hips are, where the body faces (0: the camera; to its own left is positive)
# and how far it leans; then for each side (left, right) the directions of upper arm and forearm
# as (outwards, up, forwards), and the flexion of hip and knee and how far the leg is spread.
X, Z, HEADING, LEAN, ARMS, LEGS = 0, 1, 2, 3, 4, 16
SIZE = 22
LEFT, RIGHT = (0,), (1,)
BOTH = (0, 1)


def standing(x: float, z: float) -> Vector:
    """Return the pose of standing still, arms hanging."""
    pose = np.zeros(SIZE)
    pose[X], pose[Z] = x, z
    for side in BOTH:
        arm(pose, side, (0.14, -1.0, 0.02), (0.08, -1.0, 0.16))
        leg(pose, side, 0.02, 0.06, 0.05)
    return pose


def arm(
    pose: Vector, side: int, upper: Sequence[float], fore: Sequence[float], share: float = 1.0
) -> None:
    """Turn an arm towards these directions: all the way, or a share of it."""
    at = slice(ARMS + 6 * side, ARMS + 6 * side + 6)
    pose[at] += share * (np.array([*upper, *fore]) - pose[at])


def leg(pose: Vector, side: int, hip: float, knee: float, spread: float) -> None:
    """Bend a leg: angles in radians."""
    pose[LEGS + 3 * side : LEGS + 3 * side + 3] = hip, knee, spread


def joints(pose: Vector) -> Vector:
    """Return the joints of a pose, [15, 3], as body-15; the lower foot is on the floor."""
    heading, lean = pose[HEADING], pose[LEAN]
    up = np.array([0.0, 1.0, 0.0])
    ahead = np.array([-math.sin(heading), 0.0, -math.cos(heading)])
    right = np.cross(ahead, up)
    spine = math.cos(lean) * up + math.sin(lean) * ahead
    hips = np.zeros(3)
    neck = 0.5 * spine
    found = [hips, neck, neck + 0.19 * spine + 0.02 * ahead]
    for side in BOTH:
        out = (2 * side - 1) * right
        shoulder = neck - 0.03 * spine + 0.17 * out
        upper, fore = pose[ARMS + 6 * side : ARMS + 6 * side + 6].reshape(2, 3)
        frame = np.stack([out, up, ahead])
        elbow = shoulder + 0.28 * _unit(upper) @ frame
        found += [shoulder, elbow, elbow + 0.25 * _unit(fore) @ frame]
    for side in BOTH:
        out = (2 * side - 1) * right
        bend, knee, spread = pose[LEGS + 3 * side : LEGS + 3 * side + 3]
        hip = 0.09 * out - 0.04 * up
        thigh, shin = (
            math.sin(angle) * ahead - math.cos(angle) * up + math.sin(spread) * out
            for angle in (bend, bend - knee)
        )
        below = hip + 0.42 * _unit(thigh)
        found += [hip, below, below + 0.41 * _unit(shin)]
    body = np.stack(found)
    place = np.array([pose[X], 0.08 - body[[11, 14], 1].min(), pose[Z]])
    placed: Vector = body + place
    return placed


def _unit(vector: Vector) -> Vector:
    out: Vector = vector / np.linalg.norm(vector)
    return out


@dataclass(frozen=True)
class Act:
    """What the figure does for a while: changes a standing pose, given the seconds since."""

    label: str
    length_s: float
    play: Callable[[Vector, float], None]


def stand(length_s: float) -> Act:
    """Stand, shifting weight a little."""

    def play(pose: Vector, s: float) -> None:
        pose[LEAN] = 0.02 * math.sin(1.3 * s)

    return Act("background", length_s, play)


def walk(length_s: float, heading: float, speed: float = 1.1) -> Act:
    """Walk into a direction: two steps in a second and a bit."""

    def play(pose: Vector, s: float) -> None:
        pose[HEADING] = heading
        pose[X] -= speed * s * math.sin(heading)
        pose[Z] -= speed * s * math.cos(heading)
        for side, phase in ((0, 0.0), (1, math.pi)):
            swing = math.sin(6.2 * s + phase)
            lift = max(0.0, math.cos(6.2 * s + phase))
            leg(pose, side, 0.08 + 0.42 * swing, 0.12 + 0.75 * lift, 0.03)
            arm(pose, side, (0.12, -1.0, -0.45 * swing), (0.05, -1.0, 0.3 - 0.55 * swing))
        pose[LEAN] = 0.05

    return Act("walk", length_s, play)


def wave(label: str, sides: Sequence[int], length_s: float) -> Act:
    """Wave with raised hands."""

    def play(pose: Vector, s: float) -> None:
        for side in sides:
            swing = math.sin(2 * math.pi * 1.6 * s)
            arm(pose, side, (0.8, 0.45, 0.25), (0.15 + 0.65 * swing, 1.0, 0.2))

    return Act(label, length_s, play)


def raise_hands(label: str, sides: Sequence[int], length_s: float) -> Act:
    """Raise hands above the head, and take them down again."""

    def play(pose: Vector, s: float) -> None:
        share = min(1.0, 1.6 * s, 1.6 * (length_s - s))
        for side in sides:
            if share < 0.5:  # by way of the front
                arm(pose, side, (0.2, -0.1, 1.0), (0.1, 0.2, 1.0), _smooth(2 * share))
            else:
                arm(pose, side, (0.2, -0.1, 1.0), (0.1, 0.2, 1.0))
                arm(pose, side, (0.2, 1.0, 0.1), (0.05, 1.0, 0.1), _smooth(2 * share - 1))

    return Act(label, length_s, play)


def clap(length_s: float) -> Act:
    """Clap in front of the chest."""

    def play(pose: Vector, s: float) -> None:
        apart = 0.5 + 0.5 * math.cos(2 * math.pi * 1.5 * s)
        for side in BOTH:
            arm(pose, side, (0.1 + 0.4 * apart, -0.8, 0.6), (-0.7 + 1.0 * apart, 0.25, 0.9))

    return Act("clap", length_s, play)


def bend(length_s: float) -> Act:
    """Bend down until the hands are near the feet, and come up again."""

    def play(pose: Vector, s: float) -> None:
        share = _smooth(min(1.0, 1.1 * s, 1.1 * (length_s - s)))
        pose[LEAN] = 1.55 * share
        for side in BOTH:
            arm(pose, side, (0.1, -1.0, 0.15), (0.0, -1.0, 0.1), share)
            leg(pose, side, 0.02 + 0.25 * share, 0.06 + 0.45 * share, 0.06)

    return Act("bend", length_s, play)


def kick(length_s: float, times: int) -> Act:
    """Kick forwards with the right foot."""

    def play(pose: Vector, s: float) -> None:
        beat = (s * times / length_s) % 1.0
        back, out = _smooth(max(0.0, 1 - abs(beat - 0.22) / 0.2)), _pulse(beat, 0.5, 0.4)
        leg(pose, 1, -0.2 * back + 1.35 * out, 0.06 + 0.9 * back, 0.05)
        leg(pose, 0, 0.02, 0.12, 0.05)
        pose[LEAN] = -0.1 * out
        for side in BOTH:
            arm(pose, side, (0.5, -0.8, 0.2), (0.4, -0.7, 0.5), 0.3 * max(back, out))

    return Act("kick", length_s, play)


def _pulse(at: float, middle: float, half: float) -> float:
    return _smooth(max(0.0, 1 - abs(at - middle) / half))


def _smooth(share: float) -> float:
    return share * share * (3 - 2 * share)


def script() -> list[Act]:
    """Return what the figure does."""
    return [
        stand(2.0),
        walk(2.6, math.pi / 2),
        walk(2.6, -math.pi / 2),
        stand(2.0),
        wave("wave right hand", RIGHT, 4.0),
        stand(2.0),
        raise_hands("raise both hands", BOTH, 3.0),
        stand(2.0),
        clap(4.0),
        stand(2.0),
        bend(3.0),
        stand(2.0),
        kick(3.6, 3),
        stand(2.0),
        wave("wave left hand", LEFT, 4.0),
        stand(2.0),
        wave("wave both hands", BOTH, 4.0),
        stand(2.0),
        raise_hands("raise right hand", RIGHT, 3.0),
        stand(2.0),
        walk(2.6, -math.pi / 2),
        walk(2.6, math.pi / 2),
        stand(2.0),
    ]


def play(acts: Sequence[Act], rate_hz: float) -> tuple[Vector, list[str]]:
    """Return the joints at each frame, [T, 15, 3], and the label of each frame."""
    frames, labels = [], []
    home = standing(0.0, 3.0)
    last, begin_s, i = home, 0.0, 0
    for act in acts:
        while i / rate_hz < begin_s + act.length_s:
            s = i / rate_hz - begin_s
            pose = home.copy()
            act.play(pose, s)
            share = _smooth(min(1.0, s / CHANGE_S))
            frames.append(joints(last + share * (pose - last)))
            labels.append(act.label)
            i += 1
        end = home.copy()
        act.play(end, act.length_s)
        # It goes on from where it has got to, with the arms and legs it has.
        last, begin_s = end, begin_s + act.length_s
        home = standing(end[X], end[Z])
    return np.stack(frames), labels


def segments(labels: Sequence[str], rate_hz: float) -> list[dict[str, object]]:
    """Return the stretches of one label, in seconds."""
    changes = [k for k in range(len(labels)) if k == 0 or labels[k] != labels[k - 1]]
    return [
        {"start_s": a / rate_hz, "end_s": b / rate_hz, "label": labels[a]}
        for a, b in zip(changes, [*changes[1:], len(labels)], strict=True)
    ]


def write(folder: Path) -> None:
    """Write NAME.csv, a row a frame with columns named after joints, and NAME.json, the truth."""
    places, labels = play(script(), RATE_HZ)
    places += np.random.default_rng(SEED).normal(0, NOISE_M, places.shape)
    heads = [f"{joint.replace(' ', '_')}_{axis}" for joint in BODY_15.joints for axis in "xyz"]
    lines = [",".join(["time", *heads])]
    for i, frame in enumerate(places):
        lines.append(",".join([f"{i / RATE_HZ:.4f}", *(f"{v:.4f}" for v in frame.ravel())]))
    (folder / f"{NAME}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    truth = {
        "table": f"{NAME}.csv",
        "fps": RATE_HZ,
        "frames": len(labels),
        "segments": segments(labels, RATE_HZ),
    }
    text = json.dumps(truth, indent=1) + "\n"
    (folder / f"{NAME}.json").write_text(text, encoding="utf-8", newline="\n")
