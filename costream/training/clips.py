"""Labelled video in memory, and the rendered part of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from costream.training.figure import LABELS
from costream.training.movements import Movement
from costream.training.rendered import Scene, render
from costream.training.scenes import random_scene

UNSCORED = -1
# A figure that covers less of the picture than this is not there.
VISIBLE = 0.002


@dataclass(frozen=True)
class Clip:
    """A piece of labelled video at the model's rate."""

    name: str
    frames: npt.NDArray[np.uint8]  # [T, 3, H, W], red green blue
    labels: npt.NDArray[np.int64]  # [T], number of the class, UNSCORED where unknown
    blur_s: float  # how far off the labels may be
    overhead: bool = True  # seen from the ceiling: any turn of the picture is as good
    rendered: bool = False  # then nobody is in the first frame, and what differs is the figure


def rendered_clip(scene: Scene, rate_hz: float, name: str, classes: Sequence[str] = LABELS) -> Clip:
    """Render one scene; frames in which the figure cannot be seen are background."""
    frames, labels = [], []
    for picture, label, share in render(scene, rate_hz):
        frames.append(picture.transpose(2, 0, 1))
        labels.append(classes.index(label if share >= VISIBLE else "background"))
    overhead = bool(scene.camera.axes[2, 2] < -0.85)
    return Clip(name, np.stack(frames), np.array(labels), 0.2, overhead, rendered=True)


def rendered_clips(
    count: int,
    seed: int,
    rate_hz: float,
    size: tuple[int, int],
    movements: Sequence[Movement] = (),
) -> list[Clip]:
    """Render random scenes of 40 s and more; ``size`` is width and height.

    With ``movements``, these are made in them; their classes follow the labels.
    """
    rng = np.random.default_rng(seed)
    classes = (*LABELS, *(movement.name for movement in movements))
    bar = tqdm(range(count), desc="rendering", file=sys.stderr, disable=None, leave=False)
    scenes = (random_scene(rng, *size, movements) for _ in bar)
    return [rendered_clip(s, rate_hz, f"rendered {k}", classes) for k, s in enumerate(scenes)]
