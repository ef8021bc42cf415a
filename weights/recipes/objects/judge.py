"""Detections of a network and its teacher on test images and clips, and ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor

from costream.core.records import PixelSize
from costream.evaluation.metrics.detection import (
    DetectedBoxes,
    Truth,
    precision_interval,
)
from costream.models.eventful.vitdet import ViTDet
from costream.models.images import Pixels
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.sources.media.lazy_image import fit
from costream.training.objects.detector_card import best_threshold, rounded_scores, shown_boxes
from costream.training.objects.image_augment import LabelledImage, channels_first
from costream.weights_io.card import Timeline
from weights.recipes.objects.cutouts import background
from weights.recipes.objects.data import (
    ANNOTATED_CLIPS,
    ANNOTATED_SIZE,
    CAMERAS,
    CLIPS,
    SplitName,
    boxes_at,
    clip_part,
    label,
    read_clip,
    read_images,
    read_names,
    read_pictures,
    select_labelled,
)
from weights.recipes.objects.detections import boxes_in, detect_images
from weights.recipes.objects.labels import LABELS
from weights.recipes.objects.teacher import NanoDet


@dataclass(frozen=True)
class DetectionTest:
    """Images as the network gets them, the frames of a clip in order, and ground truth."""

    pictures: list[Tensor]  # uint8 [3, h, w]
    truth: list[Truth]  # in their pixels


def photographs(scenes: Sequence[LabelledImage], box: PixelSize) -> DetectionTest:
    """Return photographs scaled into the box of a network, as sources do it."""
    pictures, truth = [], []
    for scene in scenes:
        height, width = scene.pixels.shape[1:]
        size = fit((width, height), box)
        frame = av.VideoFrame.from_ndarray(
            np.ascontiguousarray(scene.pixels.permute(1, 2, 0).numpy()), "rgb24"
        )
        small = frame.reformat(*size).to_ndarray()
        pictures.append(channels_first(small))
        truth.append(_truth(scene.boxes, scene.labels, (width, height), size))
    return DetectionTest(pictures, truth)


def annotated_clip(packs: Path, name: str, box: PixelSize) -> DetectionTest:
    """Return a held-out clip with manual annotations."""
    own = ANNOTATED_CLIPS[name]
    pictures = read_clip(packs, name, box)[: own.frames]
    truth = [
        _truth(*boxes_at(own, frame), ANNOTATED_SIZE, (p.shape[2], p.shape[1]))
        for frame, p in enumerate(pictures)
    ]
    return DetectionTest(pictures, truth)


def pseudo_labelled_clip(
    packs: Path, name: str, teacher: NanoDet, box: PixelSize, part: SplitName | None
) -> DetectionTest:
    """Return the begin of a clip or of a part of it with boxes of the teacher or what moves."""
    use = (CLIPS | CAMERAS)[name]
    decoded = read_clip(packs, name)
    frames = clip_part(decoded, part, use.judged)[:_FRAMES]
    empty = background(clip_part(decoded, "train" if part else None, use.judged))
    scenes = [s.sure() for s in label(frames, use, teacher, read_names(packs), empty)]
    pictures = clip_part(read_clip(packs, name, box), part, use.judged)[:_FRAMES]
    truth = [
        _truth(
            s.boxes,
            s.labels,
            (s.pixels.shape[2], s.pixels.shape[1]),
            (p.shape[2], p.shape[1]),
        )
        for s, p in zip(scenes, pictures, strict=True)
    ]
    return DetectionTest(pictures, truth)


@torch.no_grad()
def detect_clip(
    network: ViTDet, pictures: Sequence[Tensor], box: PixelSize, share: float
) -> tuple[list[DetectedBoxes], float]:
    """Return the detections of a network in a clip with a share of its tokens, and its cost.

    The first frame is computed in full, as is one after a cut. The cost is the mean number of
    multiply-accumulates per frame.
    """
    pixels = Pixels(box, network.patch)
    first = pixels(pictures[0][None])
    state = network.init_state(1, first.shape[2], first.shape[3])
    tokens = first.shape[2] * first.shape[3] // network.patch**2
    spent = Operations()
    found = [
        boxes_in(
            network.forward_step(pixels(p[None]), state, TopTokens(int(share * tokens)), spent)[0],
            p,
        )
        for p in pictures
    ]
    return found, spent.total / len(pictures)


def detect_with_teacher(
    teacher: NanoDet, packs: Path, pictures: Sequence[Tensor]
) -> list[DetectedBoxes]:
    """Return the detections of the teacher in each image, of the classes in ``LABELS``."""
    names = read_names(packs)
    found = []
    for picture in pictures:
        said = teacher.detect(picture, 0.05)
        boxes, labels, scores = select_labelled(said, names)
        rows = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        order = np.argsort(-np.array(scores), kind="stable")
        found.append(
            DetectedBoxes(
                rows.numpy()[order], np.array(scores)[order], np.array(labels, int)[order]
            )
        )
    return found


def _truth(boxes: Tensor, labels: Tensor, size: PixelSize, fitted: PixelSize) -> Truth:
    scale = torch.tensor([fitted[0] / size[0], fitted[1] / size[1]] * 2)
    return Truth((boxes * scale).numpy(), labels.numpy())


SHARES = {"all tokens": 1.0, "half": 0.5, "a quarter": 0.25, "an eighth": 0.125}
_TEACHER_NAME = "NanoDet-Plus-m-1.5x, the teacher"
_LEAST, _FALSE, _PRECISION = 0.4, 0.25, 0.6  # bounds of the threshold: see choose_threshold
_FRAMES = 100  # of a clip that the teacher judges, at most


def judge(
    network: ViTDet, packs: Path, teacher: NanoDet, box: PixelSize, threshold: float
) -> dict[str, Any]:
    """Return the metrics of a card, by test set and by model. ``threshold``: of the scores."""

    def alone(scenes: Sequence[LabelledImage]) -> dict[str, dict[str, Any]]:
        return _judge_photographs(network, packs, teacher, photographs(scenes, box), box, threshold)

    complete = [picture.sure() for picture in read_pictures(packs, "complete")]
    own = [picture.sure() for picture in read_pictures(packs, "val")]
    metrics = {
        "COCO val2017, 64 pictures, held out, from the teacher too": alone(
            read_images(packs, "test")
        ),
        "COCO train2017, 80 pictures, held out; the teacher learnt from them": alone(complete),
        "images_det, validation pictures of other sources; mostly against the teacher": alone(own),
    }
    for name in ANNOTATED_CLIPS:
        test = annotated_clip(packs, name, box)
        rows = _gated(network, test, box)
        rows[_TEACHER_NAME] = _score(detect_with_teacher(teacher, packs, test.pictures), test.truth)
        metrics[f"{name}, held out; boxes put down by hand"] = rows
    for name in CAMERAS:
        test = pseudo_labelled_clip(packs, name, teacher, box, None)
        metrics[f"{name}, held out; against the teacher"] = _gated(network, test, box)
    for name, clip in CLIPS.items():
        if clip.parts:
            test = pseudo_labelled_clip(packs, name, teacher, box, "test")
            judged_by = "what moves" if clip.moving else "the teacher"
            title = f"{name}, last fifth; same camera as trained on; against {judged_by}"
            metrics[title] = _gated(network, test, box)
    return metrics


def _judge_photographs(
    network: ViTDet,
    packs: Path,
    teacher: NanoDet,
    test: DetectionTest,
    box: PixelSize,
    threshold: float,
) -> dict[str, dict[str, Any]]:
    """Return the metrics on photographs, with intervals: unlike frames, they are independent."""
    rows, own = {}, detect_images(network, test.pictures, box)
    for title, found in (
        ("eventful-vitdet", own),
        (_TEACHER_NAME, detect_with_teacher(teacher, packs, test.pictures)),
    ):
        rows[title] = _score(found, test.truth)
        limits = precision_interval(found, test.truth, range(len(found)), LABELS)
        if limits is not None:
            rows[title]["AP50_95"] = [round(limit, 4) for limit in limits]
    rows["eventful-vitdet"]["shown"] = shown_boxes(own, test.truth, Timeline(threshold))
    return rows


def choose_threshold(network: ViTDet, packs: Path, box: PixelSize) -> float:
    """Return the score threshold chosen by F1 on validation images.

    At least 0.4, and so high that there are at most 0.25 false boxes in an image and 0.6 of all
    boxes are right. In pictures with all boxes, not the teacher's, twice as many were false.
    """
    scenes = [*read_images(packs, "validation"), *(p.sure() for p in read_pictures(packs, "val"))]
    test = photographs(scenes, box)
    found = detect_images(network, test.pictures, box)
    threshold = round(max(_LEAST, best_threshold(found, test.truth)), 2)
    while True:
        seen = shown_boxes(found, test.truth, Timeline(threshold))
        if threshold >= 1 or (seen["false"] <= _FALSE and seen["precision"] >= _PRECISION):
            return threshold
        threshold += 0.01


def _gated(network: ViTDet, test: DetectionTest, box: PixelSize) -> dict[str, Any]:
    rows = {}
    for title, share in SHARES.items():
        found, macs = detect_clip(network, test.pictures, box, share)
        rows[title] = {**_score(found, test.truth), "macs": round(macs)}
    return rows


def _score(found: Sequence[DetectedBoxes], truth: Sequence[Truth]) -> dict[str, Any]:
    return rounded_scores(found, truth, LABELS)
