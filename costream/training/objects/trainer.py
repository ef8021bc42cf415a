"""``costream train`` for object detectors: custom classes from images with boxes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.checkpoints.card import Card
from costream.checkpoints.file import Weights
from costream.errors import ExitCode, UsageError
from costream.evaluation.metrics.detection import DetectedBoxes
from costream.frontends.crops import Pixels
from costream.labels.boxes import read_boxes
from costream.labels.examples import name_matcher
from costream.models.build import build, new_network, save_model
from costream.models.eventful.vitdet import ViTDet
from costream.training.base import (
    CHECKPOINT_SUFFIXES,
    TrainSettings,
    log_resume_hint,
    training_checkpoint,
    warn_of_unchecked,
)
from costream.training.card_text import card_text
from costream.training.feature_cache import FeatureCache, example_key
from costream.training.objects.card import DetectorResults, describe, detection_table
from costream.training.objects.detector import (
    PROTOTYPES,
    PictureSupply,
    TokenSupply,
    ValidationFunction,
    detect_objects,
    figures,
    fit,
    heads_of,
    prototypes,
    to_truth,
)
from costream.training.objects.examples import (
    Album,
    AnnotatedImage,
    Encoded,
    EncodedViews,
    Views,
    annotated_images,
    count_boxes,
    divide,
)
from costream.training.optim import Schedule, TrainingCheckpoint
from costream.training.report.objects import DetectorReport, objects_report

log = logging.getLogger("costream")
BATCH, TOKENS = 8, 8192  # maximum views of a step, and their tokens
STEPS, PER_PICTURE, MOST = 450, 3, 900  # twice as many from scratch
MOST_VALIDATED = 48  # maximum images of each validation during training
COMPARED = 256  # maximum images that the class means are computed from


class Side:
    """One side of the split: its images as a network sees them.

    ``encoded``: their backbone tokens.
    """

    def __init__(self, views: Views, card: Card, cache: FeatureCache) -> None:
        self.views, self.stills = views, views.album.stills
        self.encoded = EncodedViews(views, card, cache)

    def seen(self, numbers: Sequence[int]) -> list[Encoded]:
        """Return the images of these numbers, encoded as in a run."""
        return [self.encoded.seen(number) for number in numbers]

    def some(self, most: int, seed: int) -> list[int]:
        """Return the numbers of at most ``most`` images, drawn by the seed."""
        drawn = np.random.default_rng(seed).permutation(len(self.stills))[:most]
        return sorted(int(number) for number in drawn)


def train_objects(settings: TrainSettings, base: Weights, paths: Sequence[Path]) -> ExitCode:
    """Train, write weights, card and report to ``paths``, and print them.

    Raises UsageError, SourceError, ModelError, OutputError.
    """
    check(settings)
    settings = replace(settings, fine_tune=settings.scratch or settings.fine_tune is not False)
    clips = read_boxes(settings.data or Path(), settings.labels or Path(), settings.group)
    stills = annotated_images(clips)
    labels = tuple(sorted(count_boxes(stills)))
    if not labels:
        raise UsageError("no boxes found", where=settings.labels)
    network, pixels, card = student(base, labels, settings)
    split_images = divide(stills, settings.validation, settings.seed)
    counts = [count_boxes(side) for side in split_images]
    counted = (
        f"{len(s)} images with {c.total()} boxes" for s, c in zip(split_images, counts, strict=True)
    )
    log.info("%s to train on, %s to validate with", *counted)
    warn_of_unchecked(set(labels) - counts[1].keys(), settings)
    partial = training_checkpoint(
        settings, base, list(map(_image_identity, stills)), CHECKPOINT_SUFFIXES[0]
    )
    with log_resume_hint([partial]):
        cache = FeatureCache(settings.cache, card, _backbone(network))
        albums = [Album(side, labels, pixels.box) for side in split_images]
        views = [Views(album, network, pixels, settings.seed) for album in albums]
        trained, checked = (Side(view, card, cache) for view in views)
        result = fit_detector(network, base, card, trained, checked, settings, partial)
        cache.prune()
    card = describe(card, result, split_images, base, settings)
    save_model(paths[0], card, network, pixels)
    paths[1].write_text(card_text(card, detection_table), encoding="utf-8")
    own = result.found[card.name]
    report = DetectorReport(
        card, paths[0].name, counts[0], counts[1], result.history, own, result.truth
    )
    paths[2].write_text(objects_report(report), encoding="utf-8")
    partial.remove()
    _print(card, paths[0], len(checked.stills))
    return ExitCode.OK


def check(settings: TrainSettings) -> None:
    """Raise UsageError for options that are missing or do not apply to images with boxes."""
    if settings.data is None or settings.labels is None:
        lacking = "--data" if settings.data is None else "--labels"
        hint = "--data names the images, --labels their boxes: COCO JSON or a folder of YOLO"
        raise UsageError("training a detector needs images with boxes", where=lacking, hint=hint)
    for name, given in (
        ("--fps", settings.rate_hz),
        ("--layout", settings.layout),
        ("--columns", settings.columns),
    ):
        if given is not None:
            raise UsageError("does not apply to images with boxes", where=name)


def _image_identity(still: AnnotatedImage) -> list[Any]:
    """Return the identity of an annotated image as JSON values."""
    marks = [still.marks.boxes.tolist(), list(still.marks.labels), still.marks.relative]
    return [still.source, still.frame, still.group, example_key(still.example()), marks]


def _backbone(network: ViTDet) -> nn.Module:
    return nn.ModuleList([network.embedding, network.backbone])


def fit_detector(
    network: ViTDet,
    base: Weights,
    card: Card,
    trained: Side,
    checked: Side,
    settings: TrainSettings,
    partial: TrainingCheckpoint,
) -> DetectorResults:
    """Train the whole network, or without ``fine_tune`` only what comes after its backbone.

    In the latter case it learns from views which the backbone encodes once.
    """
    seed, count, every = settings.seed, len(trained.stills), range(len(checked.stills))
    others = _simple(network, base, card, trained, checked, settings) if checked.stills else {}
    learning: nn.Module = network
    supply: TokenSupply | PictureSupply
    if settings.fine_tune:
        supply = PictureSupply(trained.views)
        checked = _anew(checked, card)
    else:
        learning = heads_of(network)
        supply = TokenSupply(trained.encoded, trained.views.album)
    steps = min(MOST, STEPS + PER_PICTURE * count) * (2 if settings.scratch else 1)
    width, height = trained.views.canvases[0]
    batch = min(BATCH, max(1, TOKENS * network.patch**2 // (width * height)))
    schedule = Schedule(settings.steps or steps, batch, rate=1e-3, decay=0.05)
    validate = _validation(network, card, checked, checked.some(MOST_VALIDATED, seed))
    history = fit(network, learning, supply, schedule, seed, validate, partial)
    seen = checked.seen(every)
    groups = sorted({still.group for still in checked.stills})
    return DetectorResults(
        {card.name: [detect_objects(network, picture) for picture in seen], **others},
        [to_truth(picture) for picture in seen],
        [groups.index(still.group) for still in checked.stills],
        history,
    )


def _anew(side: Side, card: Card) -> Side:
    """Return a side whose images are encoded each time, without a cache: the backbone changes."""
    return Side(side.views, card, FeatureCache(None, card, nn.ModuleList()))


def _validation(
    network: ViTDet, card: Card, side: Side, numbers: Sequence[int]
) -> ValidationFunction:
    def validate() -> dict[str, float]:
        seen = side.seen(numbers)
        found = [detect_objects(network, picture) for picture in seen]
        return figures(found, [to_truth(picture) for picture in seen], card.labels)

    return validate


def _simple(
    network: ViTDet,
    base: Weights,
    card: Card,
    trained: Side,
    checked: Side,
    settings: TrainSettings,
) -> dict[str, list[DetectedBoxes]]:
    """Return the detections of the baselines by name: class means, and the base weights."""
    if settings.scratch:
        return {}
    pictures = checked.seen(range(len(checked.stills)))
    known = trained.seen(trained.some(COMPARED, settings.seed))
    out = {PROTOTYPES: prototypes(network, known, pictures, len(card.labels))}
    called = name_matcher(card.labels)
    names = [called(label) for label in base.card.labels]
    if any(names):
        before = cast(ViTDet, build(base.card, base.tensors)[0])
        numbers = np.array([-1 if name is None else card.labels.index(name) for name in names])
        found = [detect_objects(before, picture) for picture in pictures]
        out[f"{base.card.name}, before"] = [_renumbered(one, numbers) for one in found]
    return out


def _renumbered(found: DetectedBoxes, numbers: Any) -> DetectedBoxes:
    """Return detections with mapped labels, without those whose new number is -1."""
    labels = numbers[found.labels]
    return DetectedBoxes(found.boxes[labels >= 0], found.scores[labels >= 0], labels[labels >= 0])


def _print(card: Card, path: Path, checks: int) -> None:
    print(f"{path}: {', '.join(card.labels)}")
    if checks:
        scores = card.metrics["validation"]
        precision = {name: s["AP50"] for name, s in scores.items() if s["AP50"] is not None}
        others = [f"{name} {value:.3f}" for name, value in precision.items() if name != card.name]
        beside = f" ({', '.join(others)})" if others else ""
        if card.name in precision:
            print(f"validation: AP50 {precision[card.name]:.3f} over {checks} images{beside}")
    print(f"report: {path.with_suffix('.html')}")


_PREDICTOR = "roi_heads.box_predictor."


def student(
    base: Weights, labels: tuple[str, ...], settings: TrainSettings
) -> tuple[ViTDet, Pixels, Card]:
    """Return network, frontend and card for these labels.

    The network takes all given weights but the classifier's, of which it takes the rows of the
    labels known to the base. With ``scratch`` only the architecture is the same.
    """
    card = replace(
        base.card,
        name=settings.output.stem,
        labels=labels,
        arguments={**base.card.arguments, "classes": len(labels)},
        timeline=replace(base.card.timeline, thresholds={}),
        metrics={},
        sample={},
        costs={},
    )
    torch.manual_seed(settings.seed)
    fresh = new_network(card).state_dict()
    if not settings.scratch:
        stored = {k.removeprefix("network."): v.float() for k, v in base.tensors.items()}
        called = name_matcher(base.card.labels)
        known = [called(label) for label in labels]
        rows = [None if name is None else base.card.labels.index(name) for name in known]
        fresh = {
            k: _rows(k, v, stored[k], rows) if _PREDICTOR in k else stored[k]
            for k, v in fresh.items()
        }
    network, pixels = build(card, {f"network.{k}": v for k, v in fresh.items()})
    return cast(ViTDet, network), cast(Pixels, pixels), card


def _rows(name: str, fresh: Tensor, stored: Tensor, rows: Sequence[int | None]) -> Tensor:
    """Return classifier or delta weights for labels that were the ``rows`` of another model.

    Scores of new labels keep the ``fresh`` weights, deltas start with the mean of the stored ones.
    """
    if "cls_score" in name:
        out = fresh.clone()
        out[-1] = stored[-1]  # of the background
        for k, row in enumerate(rows):
            out[k] = out[k] if row is None else stored[row]
        return out
    if len(stored) == len(fresh) == 4:  # deltas of a single class, or class-agnostic ones
        return stored
    each = torch.unflatten(stored, 0, (-1, 4))
    return torch.cat([each.mean(0) if row is None else each[row] for row in rows])
