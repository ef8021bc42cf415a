"""Labelled video clips in memory, and rendering of synthetic ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from costream.training.movements import Movement
from costream.training.scenes import random_scene
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.rendering.render import RenderedScene, render

UNSCORED = -1
# Share of the image that a visible figure covers at least.
VISIBLE = 0.002


@dataclass(frozen=True)
class LabelledClip:
    """A piece of labelled video at the model's rate."""

    name: str
    frames: npt.NDArray[np.uint8]  # [T, 3, H, W], red green blue
    labels: npt.NDArray[np.int64]  # [T], class index, UNSCORED where unknown
    blur_s: float  # time uncertainty of the labels
    overhead: bool = True  # ceiling view: any rotation is plausible
    rendered: bool = False  # the first frame is empty; what differs from it is the figure


def rendered_clip(
    scene: RenderedScene, rate_hz: float, name: str, classes: Sequence[str] = LABELS
) -> LabelledClip:
    """Render one scene; frames without a visible figure are background."""
    frames, labels = [], []
    for picture, label, share in render(scene, rate_hz):
        frames.append(picture.transpose(2, 0, 1))
        labels.append(classes.index(label if share >= VISIBLE else "background"))
    overhead = bool(scene.camera.axes[2, 2] < -0.85)
    return LabelledClip(name, np.stack(frames), np.array(labels), 0.2, overhead, rendered=True)


def rendered_clips(
    count: int,
    seed: int,
    rate_hz: float,
    size: tuple[int, int],
    movements: Sequence[Movement] = (),
) -> list[LabelledClip]:
    """Render random scenes of 40 s or more; ``size`` is width and height.

    ``movements`` are performed in them; their classes follow the labels.
    """
    rng = np.random.default_rng(seed)
    classes = (*LABELS, *(movement.name for movement in movements))
    bar = tqdm(range(count), desc="rendering", file=sys.stderr, disable=None, leave=False)
    scenes = (random_scene(rng, *size, movements) for _ in bar)
    return [rendered_clip(s, rate_hz, f"rendered {k}", classes) for k, s in enumerate(scenes)]
