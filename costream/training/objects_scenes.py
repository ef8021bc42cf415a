"""Training scenes: photographs, and clips labelled by a teacher or by what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from costream.models.vitdet_heads import Detections
from costream.training.objects_cutouts import Cutout, background, cut_out, moved, passing
from costream.training.objects_packs import (
    LABELS,
    MEANING,
    Scene,
    read_clip,
    read_images,
    read_names,
)
from costream.training.objects_teacher import Yolox
from costream.training.objects_views import Supply

_SURE = 0.4  # least score of the teacher's boxes


@dataclass(frozen=True)
class Clip:
    """Use of a clip of samples.tar."""

    every: int  # interval of frames for training
    judged: int = 1  # interval of frames for tests: about 10 per second
    moving: str | None = None  # the label of all that moves; None: use the teacher
    cutouts: bool = False  # moving objects are cut out
    parts: bool = True  # its last fifth is for tests


CLIPS = {
    "car-detection": Clip(1, moving="vehicle", cutouts=True),
    "one-by-one-person-detection": Clip(6, cutouts=True),
    "bottle-detection": Clip(12, judged=3),
    "asl-gestures-8-signs": Clip(20, parts=False),
    "classroom-preview": Clip(4, parts=False),
}


def make_supply(packs: Path, teacher: Yolox) -> Supply:
    """Return the source of training views: the training parts of all images and clips."""
    names = read_names(packs)
    clips, cutouts = [], []
    for name, clip in CLIPS.items():
        frames = read_clip(packs, name, clip.every, "train" if clip.parts else None)
        empty = background(frames)
        scenes = label(frames, clip, teacher, names, empty)
        clips.append(scenes)
        if clip.cutouts:
            cutouts.append([c for scene in scenes for c in _cutouts(scene, empty)])
    return Supply(read_images(packs, "train"), clips, cutouts)


def label(
    frames: Sequence[Tensor], clip: Clip, teacher: Yolox, names: Sequence[str], empty: Tensor
) -> list[Scene]:
    """Return frames with boxes: of what moves, or confident ones of the teacher."""
    scenes = []
    for frame in frames:
        if clip.moving is not None:
            boxes = passing(frame, empty)
            labels = [LABELS.index(clip.moving)] * len(boxes)
        else:
            boxes, labels, _ = known(teacher.detect(frame, _SURE), names)
        rows = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        scenes.append(Scene(frame, rows, torch.tensor(labels).long(), steady=True))
    return scenes


def known(found: Detections, names: Sequence[str]) -> tuple[list[Tensor], list[int], list[float]]:
    """Return boxes, labels and scores of the teacher's detections that are in ``LABELS``."""
    boxes, labels, scores = [], [], []
    for box, score, number in zip(*found[:2], found.labels.tolist(), strict=True):
        meaning = MEANING.get(names[number])
        if meaning is not None:
            boxes.append(box)
            labels.append(LABELS.index(meaning))
            scores.append(float(score))
    return boxes, labels, scores


def _cutouts(scene: Scene, empty: Tensor) -> list[Cutout]:
    mask = moved(scene.pixels, empty)
    pairs = zip(scene.boxes, scene.labels.tolist(), strict=True)
    found = (cut_out(scene.pixels, mask, box, number) for box, number in pairs)
    return [cutout for cutout in found if cutout is not None]
