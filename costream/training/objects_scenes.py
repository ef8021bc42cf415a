"""Training scenes: photographs, and clips labelled by a teacher or by what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from costream.models.vitdet_heads import Detections
from costream.training.objects.augment import ViewSource
from costream.training.objects_cutouts import (
    Cutout,
    background,
    cut_out,
    foreground_mask,
    moving_object_boxes,
)
from weights.recipes.objects.data import (
    COCO_TO_LABEL,
    LABELS,
    LabelledImage,
    read_clip,
    read_images,
    read_names,
)
from weights.recipes.objects.teacher import Yolox

_SURE = 0.4  # least score of the teacher's boxes


@dataclass(frozen=True)
class ClipUse:
    """Use of a clip of samples.tar."""

    every: int  # interval of frames for training
    judged: int = 1  # interval of frames for tests: about 10 per second
    moving: str | None = None  # the label of all that moves; None: use the teacher
    cutouts: bool = False  # moving objects are cut out
    parts: bool = True  # its last fifth is for tests


CLIPS = {
    "car-detection": ClipUse(1, moving="vehicle", cutouts=True),
    "one-by-one-person-detection": ClipUse(6, cutouts=True),
    "bottle-detection": ClipUse(12, judged=3),
    "asl-gestures-8-signs": ClipUse(20, parts=False),
    "classroom-preview": ClipUse(4, parts=False),
}


def make_view_source(packs: Path, teacher: Yolox) -> ViewSource:
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
    return ViewSource(read_images(packs, "train"), clips, cutouts)


def label(
    frames: Sequence[Tensor], clip: ClipUse, teacher: Yolox, names: Sequence[str], empty: Tensor
) -> list[LabelledImage]:
    """Return frames with boxes: of what moves, or confident ones of the teacher."""
    scenes = []
    for frame in frames:
        if clip.moving is not None:
            boxes = moving_object_boxes(frame, empty)
            labels = [LABELS.index(clip.moving)] * len(boxes)
        else:
            boxes, labels, _ = select_labelled(teacher.detect(frame, _SURE), names)
        rows = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        scenes.append(LabelledImage(frame, rows, torch.tensor(labels).long(), steady=True))
    return scenes


def select_labelled(
    found: Detections, names: Sequence[str]
) -> tuple[list[Tensor], list[int], list[float]]:
    """Return boxes, labels and scores of the teacher's detections that are in ``LABELS``."""
    boxes, labels, scores = [], [], []
    for box, score, number in zip(*found[:2], found.labels.tolist(), strict=True):
        meaning = COCO_TO_LABEL.get(names[number])
        if meaning is not None:
            boxes.append(box)
            labels.append(LABELS.index(meaning))
            scores.append(float(score))
    return boxes, labels, scores


def _cutouts(scene: LabelledImage, empty: Tensor) -> list[Cutout]:
    mask = foreground_mask(scene.pixels, empty)
    pairs = zip(scene.boxes, scene.labels.tolist(), strict=True)
    found = (cut_out(scene.pixels, mask, box, number) for box, number in pairs)
    return [cutout for cutout in found if cutout is not None]
