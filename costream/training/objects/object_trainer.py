"""Trainer of custom object classes from images with boxes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.labels.clips_with_boxes import read_boxes
from costream.models.build import build, new_network
from costream.models.eventful.vitdet import ViTDet
from costream.nn.eventful.counts import Operations
from costream.training.adaptation import with_facts
from costream.training.base import (
    EARLY_STOPPING_NOTE,
    TrainedModel,
    TrainingData,
    TrainSettings,
    TrainSetup,
    Workspace,
    base_rows,
    warn_of_unchecked,
)
from costream.training.card_text import card_text
from costream.training.feature_cache import FeatureCache, example_key
from costream.training.objects.album import (
    Album,
    AnnotatedImage,
    annotated_images,
    count_boxes,
    divide,
)
from costream.training.objects.detector_card import (
    DetectorResults,
    chosen,
    detection_table,
    validation_scores,
)
from costream.training.objects.detector_fit import Learning, Seeing, baselines, train_detector
from costream.training.objects.detector_training import (
    PictureSupply,
    TokenSupply,
    detect_objects,
    heads_of,
    tokens_loss,
)
from costream.training.objects.image_views import EncodedViews, Views
from costream.training.objects.prototypes import proposed
from costream.training.optim import device_of
from costream.training.report.detector_report import DetectorReport, objects_report
from costream.training.verdict import Held, group_text, score_verdict
from costream.weights_io.card import Card
from costream.weights_io.file import Weights

log = logging.getLogger("costream")
BATCH = 8  # maximum views of a step
TOKENS = 8192  # maximum tokens of these views


class ObjectTrainer:
    """Trainer of custom object classes; see ``CustomClassTrainer``."""

    metric = ("AP50", "AP50", "images")
    command = "detect"
    stem = "roi_heads.box_predictor."  # of the names of the layers whose rows are classes

    def check(self, card: Card, settings: TrainSettings) -> TrainSettings:
        """Return the settings with defaults: by default all of the network is trained.

        UsageError for options that are missing or do not apply to images with boxes.
        """
        if settings.data is None or settings.labels is None:
            missing = "--data" if settings.data is None else "--labels"
            hint = "--data names the images, --labels their boxes: COCO JSON or a folder of YOLO"
            raise UsageError(
                "training a detector needs images with boxes", where=missing, hint=hint
            )
        unused = {"fps": settings.rate_hz, "layout": settings.layout, "columns": settings.columns}
        for name, value in unused.items():
            if value is not None:
                raise UsageError("does not apply to images with boxes", where=f"--{name}")
        return replace(settings, fine_tune=settings.scratch or settings.fine_tune is not False)

    def read(self, card: Card, settings: TrainSettings) -> TrainingData:
        """Return the annotated images, and warn of labels without validation boxes."""
        clips = read_boxes(settings.data or Path(), settings.labels or Path(), settings.group)
        stills = annotated_images(clips)
        labels = tuple(sorted(count_boxes(stills)))
        if not labels:
            raise UsageError("no boxes found", where=settings.labels)
        sides = divide(stills, settings.validation, settings.seed)
        counts = [count_boxes(side) for side in sides]
        counted = (
            f"{len(s)} images with {c.total()} boxes" for s, c in zip(sides, counts, strict=True)
        )
        log.info("%s to train on, %s to validate with", *counted)
        warn_of_unchecked(set(labels) - counts[1].keys(), settings)
        return TrainingData(labels, *sides, list(map(_image_identity, stills)))

    def setup(self, base: Weights, labels: tuple[str, ...], settings: TrainSettings) -> TrainSetup:
        """Return the network to train for these labels.

        The network starts from the base weights; the classifier only for labels that the base model
        has too. With ``scratch`` only the architecture is the same.
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
            compression={},
        )
        torch.manual_seed(settings.seed)
        fresh = new_network(card).state_dict()
        if not settings.scratch:
            stored = {k.removeprefix("network."): v.float() for k, v in base.tensors.items()}
            rows = base_rows(labels, base.card)
            fresh = {
                k: self.initial(k, v, stored[k], rows) if self.stem in k else stored[k]
                for k, v in fresh.items()
            }
        built, pixels = build(card, {f"network.{k}": v for k, v in fresh.items()})
        return TrainSetup(built, pixels, card, self.encoder(built))

    def initial(
        self, name: str, fresh: Tensor, stored: Tensor, rows: Sequence[int | None]
    ) -> Tensor:
        """Return initial weights of a layer of ``stem``; ``rows``: of each label in the base."""
        return _rows(name, fresh, stored, rows)

    def encoder(self, network: nn.Module) -> nn.Module:
        """Return the part of a network that is frozen without ``fine_tune``."""
        vitdet = cast(ViTDet, network)
        return nn.ModuleList([vitdet.embedding, vitdet.backbone])

    def fit(self, setup: TrainSetup, data: TrainingData, workspace: Workspace) -> DetectorResults:
        """Train the network, or without ``fine_tune`` only the layers after its backbone.

        In the latter case the backbone encodes each view once.
        """
        network, pixels, card, _ = setup
        settings, seed = workspace.settings, workspace.settings.seed
        albums = [Album(side, card.labels, pixels.box) for side in (data.training, data.validation)]
        views = [Views(album, pixels, seed) for album in albums]
        trained, checked = (EncodedViews(view, network, card, workspace.cache) for view in views)
        seeing = Seeing(trained.seen, checked.seen, detect_objects, proposed)
        others = baselines(setup, data, workspace, seeing, network.roi_heads.overlap)
        modules: nn.Module = network
        supply: TokenSupply | PictureSupply
        if settings.fine_tune:
            supply = PictureSupply(trained.views, network)
            # Encoded each time, without a cache: the backbone changes.
            nothing = FeatureCache(None, card, nn.ModuleList())
            seeing = replace(
                seeing, checked=EncodedViews(checked.views, network, card, nothing).seen
            )
        else:
            modules = heads_of(network)
            supply = TokenSupply(trained)
        width, height = trained.views.canvases[0]
        batch = min(BATCH, max(1, TOKENS * network.patch**2 // (width * height)))
        learning = Learning(
            modules,
            batch,
            loss=partial(tokens_loss, network, supply, batch),
            macs=partial(_count_macs, network, height, width),
            frozen=not settings.fine_tune,
        )
        return train_detector(setup, data, workspace, learning, seeing, others)

    def describe(
        self, setup: TrainSetup, result: DetectorResults, data: TrainingData, workspace: Workspace
    ) -> TrainedModel:
        """Return the card with training data and metrics, texts, and the verdict.

        Thresholds are chosen on the validation images.
        """
        card, settings, origin = setup.card, workspace.settings, workspace.origin
        training, checks = data.training, data.validation
        counts, checked = (count_boxes(side) for side in (training, checks))
        listed = ", ".join(f"{label} {counts[label]}" for label in card.labels)
        start = f"started from {origin}" if origin else "trained from scratch"
        start += ", backbone frozen" if origin and result.frozen else ""
        timeline = chosen(card, result) if checks else card.timeline
        how = [EARLY_STOPPING_NOTE] if checks else []
        how += ["The thresholds were chosen on them too."] if timeline != card.timeline else []
        scores = validation_scores(replace(card, timeline=timeline), result) if checks else {}
        remedy = "add images" + (", or use --fine-tune" if result.frozen else "")
        groups = group_text([still.group for still in checks], settings.group)
        others = {name: s for name, s in scores.items() if name != card.name}
        verdict = score_verdict(
            "AP50", scores.get(card.name, {}), others, Held(len(checks), "image", groups, remedy)
        )
        card = replace(
            card,
            timeline=timeline,
            description=f"Custom objects: {', '.join(card.labels)}.",
            trained_on=f"{len(training)} user images with {counts.total()} boxes ({listed}),"
            f" {start}; seed {settings.seed}.",
            split=f"{len(training)} images to train, {len(checks)} to validate, by file or group."
            + "".join(f" {sentence}" for sentence in how),
            limits=f"Verdict: {verdict}. Fitted to the places and cameras of its images.",
            **workspace.terms("images"),
            metrics={"validation": scores} if checks else {},
        )
        card = with_facts(card, result.adaptation.facts, settings.compare)
        found = result.found[card.name]
        report = DetectorReport(
            *(card, workspace.file, counts, checked, result.history, found, result.truth),
            verdict=verdict,
            command=self.command,
        )
        text, page = card_text(card, detection_table), objects_report(report)
        return TrainedModel(card, text, page, verdict, result.adaptation.adapter)


@torch.no_grad()
def _count_macs(network: ViTDet, height: int, width: int) -> int:
    """Return the MACs of a frame of this size in pixels, up to the choice of boxes."""
    operations = Operations()
    network.embed(torch.zeros(1, 3, height, width, device=device_of(network)), operations)
    rows, columns = (side // network.patch for side in (height, width))
    return operations.total + network.count_macs(rows, columns)


def _image_identity(still: AnnotatedImage) -> list[Any]:
    """Return the identity of an annotated image as JSON values."""
    marks = [still.marks.boxes.tolist(), list(still.marks.labels), still.marks.relative]
    return [still.source, still.frame, still.group, example_key(still.example()), marks]


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
