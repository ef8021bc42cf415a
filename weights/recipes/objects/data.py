"""What is learnt from: pictures of the packs coco256 and images_det, and clips of samples.tar."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import av
import numpy as np
import torch
from torch import Tensor

from costream.core.errors import UsageError
from costream.core.records import PixelSize
from costream.models.eventful.box_heads import Detections
from costream.sources.media.lazy_image import fit
from costream.training.objects.image_augment import Cutout, LabelledImage, channels_first, shown
from weights.recipes.common import read_member
from weights.recipes.objects.bank import Bank, Scene, cutout_tensors, encode
from weights.recipes.objects.cutouts import (
    background,
    cut_out,
    foreground_mask,
    moving_object_boxes,
)
from weights.recipes.objects.labels import LABELS, SURE, label_number
from weights.recipes.objects.pictures import ScoredImage, decode_picture, read_rows, read_scored
from weights.recipes.objects.teacher import NanoDet

BOX = (512, 512)  # size of clips for training
SplitName = Literal["train", "validation", "test"]
_VALIDATION = 16  # one in 16 images of COCO's training set
_PARTS: dict[SplitName, tuple[float, float]] = {
    "train": (0.0, 0.7),
    "validation": (0.7, 0.8),
    "test": (0.8, 1.0),
}


def read_names(packs: Path) -> list[str]:
    """Return the names of the 80 classes of COCO."""
    with _open(packs, "coco256") as archive:
        return read_member(archive, "coco256/classes.txt").decode().split("\n")[:80]


def read_images(packs: Path, part: SplitName, *, every: bool = False) -> list[LabelledImage]:
    """Return the images of COCO with the boxes of ``LABELS``, or of ``every`` class of COCO.

    "test" is the validation set; one in 16 of the training set is for validation. Raises
    UsageError if the pack is missing.
    """
    folder = "val2017" if part == "test" else "train2017"
    names = read_names(packs)
    with _open(packs, "coco256") as archive:
        files = sorted(n for n in archive.getnames() if f"images/{folder}/" in n)
        if part != "test":
            own = part == "validation"
            files = [f for k, f in enumerate(files) if (k % _VALIDATION == 0) == own]
        numbers = range(len(names)) if every else [label_number(name) for name in names]
        return [_image(archive, file, numbers) for file in files if file.endswith(".jpg")]


def read_pictures(packs: Path, part: Literal["train", "val", "complete"]) -> list[ScoredImage]:
    """Return pictures of images_det, see ``read_scored``."""
    with _open(packs, "images_det") as archive:
        return read_scored(archive, part)


def read_clip(packs: Path, name: str, box: PixelSize = BOX) -> list[Tensor]:
    """Return the frames, uint8 [3, h, w], of a clip of a pack, scaled into a box."""
    pack = "images_det" if name in CAMERAS else "samples"
    with _open(packs, pack) as archive:
        data = read_member(archive, f"{pack}/video/{name}.mp4")
    return list(decode_clip(data, box))


def clip_part(frames: Sequence[Tensor], part: SplitName | None, every: int = 1) -> list[Tensor]:
    """Return every ``every``-th frame of the first 70 %, the next 10 % or the last 20 % of a clip.

    ``part`` None: of all of it.
    """
    low, high = _PARTS[part] if part else (0.0, 1.0)
    return list(frames[int(low * len(frames)) : int(high * len(frames)) : every])


def decode_clip(data: bytes, box: PixelSize) -> Iterator[Tensor]:
    """Yield the frames, uint8 [3, h, w], of a file, scaled into a box."""
    with av.open(io.BytesIO(data), "r") as container:
        for frame in container.decode(video=0):
            width, height = fit((frame.width, frame.height), box)
            yield channels_first(frame.reformat(width, height, "rgb24").to_ndarray())


def _image(archive: tarfile.TarFile, file: str, meanings: Sequence[int | None]) -> LabelledImage:
    pixels = decode_picture(read_member(archive, file))
    text = read_member(archive, file.replace("images", "labels").replace(".jpg", ".txt")).decode()
    boxes, labels = [], []
    for line in text.splitlines():
        number, *numbers = line.split()
        meaning = meanings[int(number)]
        if meaning is not None:
            x, y, w, h = map(float, numbers)
            boxes.append([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
            labels.append(meaning)
    height, width = pixels.shape[1:]
    scale = torch.tensor([width, height, width, height])
    return LabelledImage(
        pixels, torch.tensor(boxes).view(-1, 4) * scale, torch.tensor(labels).long()
    )


def _open(packs: Path, name: str) -> tarfile.TarFile:
    path = packs / f"{name}.tar"
    if not path.is_file():
        raise UsageError(
            "training images not found",
            where=path,
            hint=f"give the folder of {path.name} with --packs",
        )
    return tarfile.open(path)


_CLIPS = 0.15  # share of the views


@dataclass(frozen=True)
class ClipUse:
    """Use of a clip of samples.tar."""

    every: int  # interval of frames for training
    judged: int = 1  # interval of frames for tests: about 10 per second
    moving: str | None = None  # the label of all that moves; None: use the teacher
    cutouts: bool = False  # moving objects are cut out
    parts: bool = True  # its last fifth is for tests


CLIPS = {
    "car-detection": ClipUse(1, moving="car", cutouts=True),
    "one-by-one-person-detection": ClipUse(6, cutouts=True),
    "bottle-detection": ClipUse(12, judged=3),
    "asl-gestures-8-signs": ClipUse(20, parts=False),
    "classroom-preview": ClipUse(4, parts=False),
}
# of fixed cameras, held out
CAMERAS = {
    "pets_square": ClipUse(1),
    "exercise_three": ClipUse(1),
    "traffic_top": ClipUse(1),
}


def make_bank(packs: Path, teacher: NanoDet, judged: list[Scene]) -> Bank:
    """Return the training parts of all images and clips, with the scenes to be scored on."""
    names = read_names(packs)
    scenes = _photographs(packs)
    cutouts = []
    for name, clip in CLIPS.items():
        part: SplitName | None = "train" if clip.parts else None
        frames = clip_part(read_clip(packs, name), part, clip.every)
        empty = background(frames)
        labelled = label(frames, clip, teacher, names, empty)
        share = _CLIPS / len(CLIPS) / len(labelled)
        scenes += [
            Scene(encode(s.pixels), s.boxes, s.labels, s.scores, share, steady=True)
            for s in labelled
        ]
        if clip.cutouts:
            cutouts.append([c for scene in labelled for c in _cutouts(scene, empty)])
    groups = [
        [k for k, name in enumerate(names) if label_number(name) == number]
        for number in range(len(LABELS))
    ]
    most = max(map(len, groups))
    classes = torch.tensor([group + [-1] * (most - len(group)) for group in groups])
    state = teacher.in_torch().state_dict()
    return Bank(scenes, judged, *cutout_tensors(cutouts), classes, state)


def _photographs(packs: Path) -> list[Scene]:
    """Return the training pictures of coco256 and images_det."""
    own = read_images(packs, "train")
    complete = [Scene(encode(p.pixels), p.boxes, p.labels, torch.ones(len(p.labels))) for p in own]
    with _open(packs, "images_det") as archive:
        guessed = [
            Scene(data, boxes, labels, scores)
            for data, boxes, labels, scores in read_rows(archive, "train")
        ]
    scenes = [*complete, *guessed]
    has = [
        [k in scene.labels[scene.scores >= SURE] for k in range(len(LABELS))] for scene in scenes
    ]
    shares = shares_of(has, [True] * len(complete) + [False] * len(guessed))
    return [
        replace(scene, share=(1 - _CLIPS) * share)
        for scene, share in zip(scenes, shares, strict=True)
    ]


def label(
    frames: Sequence[Tensor], clip: ClipUse, teacher: NanoDet, names: Sequence[str], empty: Tensor
) -> list[ScoredImage]:
    """Return frames with boxes: of moving things, or of the teacher."""
    scenes = []
    for frame in frames:
        if clip.moving is not None:
            boxes = moving_object_boxes(frame, empty)
            labels, scores = [LABELS.index(clip.moving)] * len(boxes), [1.0] * len(boxes)
        else:
            boxes, labels, scores = select_labelled(teacher.detect(frame, 0.2), names)
        rows = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        own = torch.tensor(labels).long()
        scenes.append(ScoredImage(frame, rows, own, True, scores=torch.tensor(scores)))
    return scenes


def select_labelled(
    found: Detections, names: Sequence[str]
) -> tuple[list[Tensor], list[int], list[float]]:
    """Return boxes, labels and scores of the teacher's detections that are in ``LABELS``."""
    boxes, labels, scores = [], [], []
    for box, score, number in zip(*found[:2], found.labels.tolist(), strict=True):
        meaning = label_number(names[number])
        if meaning is not None:
            boxes.append(box)
            labels.append(meaning)
            scores.append(float(score))
    return boxes, labels, scores


def shares_of(has: Sequence[Sequence[bool]], complete: Sequence[bool]) -> list[float]:
    """Return the sampling probability of photographs, twice as high with all boxes of people.

    ``has`` [N, K]: the classes present in each, see ``shown``.
    """
    weights = shown(has) * np.where(complete, 2.0, 1.0)
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


def _cutouts(guessed: ScoredImage, empty: Tensor) -> list[Cutout]:
    scene = guessed.sure()
    mask = foreground_mask(scene.pixels, empty)
    pairs = zip(scene.boxes, scene.labels.tolist(), strict=True)
    found = (cut_out(scene.pixels, mask, box, number) for box, number in pairs)
    return [cutout for cutout in found if cutout is not None]


ANNOTATED_SIZE = (480, 270)  # width and height of the manually annotated clips
Corners = tuple[int, int, int, int]


class AnnotatedTrack(NamedTuple):
    """One object: its label, and its box in some frames, including its first and last."""

    label: str
    boxes: Mapping[int, Corners]


class AnnotatedClip(NamedTuple):
    """The objects in the first frames of a clip."""

    frames: int
    tracks: tuple[AnnotatedTrack, ...]


# Manual annotations of the held-out clips: the teacher misses the car of one clip in half of its
# frames. Boxes of some frames, linearly interpolated between them.
ANNOTATED_CLIPS = {
    "person-bicycle-car-detection-preview": AnnotatedClip(
        41,
        (
            AnnotatedTrack(
                "car",
                {
                    0: (50, 153, 171, 270),
                    8: (74, 114, 178, 248),
                    16: (96, 76, 171, 192),
                    24: (75, 49, 160, 142),
                    32: (25, 36, 134, 111),
                    40: (0, 33, 90, 97),
                },
            ),
            AnnotatedTrack(
                "bicycle",
                {
                    0: (319, 0, 330, 19),
                    8: (323, 0, 338, 30),
                    16: (331, 5, 357, 43),
                    24: (346, 20, 386, 55),
                    32: (372, 31, 420, 62),
                    40: (404, 38, 453, 65),
                },
            ),
            AnnotatedTrack(
                "person",
                {
                    0: (325, 0, 333, 14),
                    8: (331, 0, 342, 14),
                    16: (345, 0, 359, 35),
                    24: (365, 1, 383, 42),
                    32: (394, 8, 413, 46),
                    40: (423, 14, 440, 50),
                },
            ),
            AnnotatedTrack(
                "person", {0: (160, 0, 176, 38), 8: (174, 0, 188, 21), 16: (187, 0, 198, 8)}
            ),
        ),
    ),
    "people-detection-preview": AnnotatedClip(
        15,  # later only a foot is visible
        (
            AnnotatedTrack(
                "person",
                {
                    0: (17, 54, 72, 153),
                    2: (10, 53, 59, 150),
                    4: (3, 54, 47, 150),
                    6: (0, 56, 47, 148),
                    8: (0, 55, 46, 148),
                    10: (0, 71, 37, 148),
                    12: (0, 93, 24, 148),
                    14: (0, 99, 18, 148),
                },
            ),
            AnnotatedTrack("person", {0: (0, 80, 32, 175), 2: (0, 100, 31, 174)}),
        ),
    ),
}


def boxes_at(watched: AnnotatedClip, frame: int) -> tuple[Tensor, Tensor]:
    """Return the boxes [n, 4], in pixels of ANNOTATED_SIZE, and labels [n] of a frame."""
    boxes, labels = [], []
    for track in watched.tracks:
        known = sorted(track.boxes)
        if known[0] <= frame <= known[-1]:
            corners = np.array([track.boxes[k] for k in known], float)
            boxes.append([np.interp(frame, known, column) for column in corners.T])
            labels.append(LABELS.index(track.label))
    return torch.tensor(boxes).float().view(-1, 4), torch.tensor(labels).long()
