"""``costream train`` of a model that finds objects: the user's own, from pictures with boxes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.checkpoints.weights_file import Weights
from costream.errors import ExitCode, UsageError
from costream.evaluation.detection import Found, Truth, precision_interval
from costream.frontends.pixels import Pixels
from costream.labels.boxes import read_boxes
from costream.labels.examples import respelled
from costream.models.build import build, new_network, save_model
from costream.models.card import Card, Timeline
from costream.models.vitdet import ViTDet
from costream.training.family import EARLY, PARTIALS, TrainSettings, stopping, unfinished
from costream.training.feature_cache import FeatureCache, key_of
from costream.training.loop import Schedule
from costream.training.objects_report import detection_table, rounded_scores
from costream.training.objects_threshold import best_threshold
from costream.training.own_detector import (
    Look,
    PictureSupply,
    TokenSupply,
    descend,
    figures,
    find,
    heads_of,
    to_truth,
)
from costream.training.own_encoded import Encoded, EncodedViews, Views
from costream.training.own_objects_report import Learnt, objects_report
from costream.training.own_prototypes import PROTOTYPES, prototypes
from costream.training.own_stills import Album, Still, count_boxes, divide, to_stills
from costream.training.partial import Partial
from costream.training.report import card_text

log = logging.getLogger("costream")

BATCH = 8
STEPS, PER_PICTURE, MOST = 250, 4, 800  # from scratch twice as many
WATCHED = 48  # pictures that are looked at meanwhile
COMPARED = 256  # pictures whose boxes have a mean
ENOUGH = 10  # validation objects of a class for a threshold of its own
_PREDICTOR = "roi_heads.box_predictor."


class Side:
    """One side of the split: its stills as a network gets them.

    ``encoded``: what the network's backbone makes of them.
    """

    def __init__(self, views: Views, card: Card, cache: FeatureCache) -> None:
        self.views, self.stills = views, views.album.stills
        self.encoded = EncodedViews(views, card, cache)

    def seen(self, numbers: Sequence[int]) -> list[Encoded]:
        """Give some stills as in a run."""
        return [self.encoded.seen(number) for number in numbers]

    def some(self, most: int, seed: int) -> list[int]:
        """Give the numbers of so many stills at most, drawn by the seed."""
        drawn = np.random.default_rng(seed).permutation(len(self.stills))[:most]
        return sorted(int(number) for number in drawn)


@dataclass(frozen=True)
class Told:
    """What is found on the validation pictures, by name, and what is there.

    ``history``: what was seen on the way, see ``Watch``.
    """

    found: dict[str, list[Found]]  # of the network first
    truth: list[Truth]
    groups: list[int]  # of which group each picture is
    history: list[dict[str, float]]


def train_objects(settings: TrainSettings, base: Weights, paths: Sequence[Path]) -> ExitCode:
    """Train, write weights, card and report to ``paths``, and print where they are.

    Raises UsageError, SourceError, ModelError, OutputError.
    """
    check(settings)
    settings = replace(settings, fine_tune=settings.scratch or settings.fine_tune is not False)
    clips = read_boxes(settings.data or Path(), settings.labels or Path(), settings.group)
    stills = to_stills(clips)
    labels = tuple(sorted(count_boxes(stills)))
    if not labels:
        raise UsageError("no boxes at all", where=settings.labels)
    network, pixels, card = student(base, labels, settings)
    divided = divide(stills, settings.validation, settings.seed)
    counts = [count_boxes(side) for side in divided]
    _warn(labels, divided, counts, settings)
    partial = unfinished(settings, base, list(map(_told, stills)), PARTIALS[0])
    with stopping([partial]):
        cache = FeatureCache(settings.cache, card, _backbone(network))
        albums = [Album(side, labels, pixels.box) for side in divided]
        views = [Views(album, network, pixels, settings.seed) for album in albums]
        trained, checked = (Side(view, card, cache) for view in views)
        told = teach(network, base, card, trained, checked, settings, partial)
        cache.prune()
    card = describe(card, told, divided, base, settings)
    save_model(paths[0], card, network, pixels)
    paths[1].write_text(card_text(card, detection_table), encoding="utf-8")
    own = told.found.get(card.name, [])
    learnt = Learnt(card, paths[0].name, counts[0], counts[1], told.history, own, told.truth)
    paths[2].write_text(objects_report(learnt), encoding="utf-8")
    partial.remove()
    _print(card, paths[0], len(checked.stills))
    return ExitCode.OK


def check(settings: TrainSettings) -> None:
    """Raise UsageError for options that pictures with boxes have no use for, or lack."""
    if settings.data is None or settings.labels is None:
        lacking = "--data" if settings.data is None else "--labels"
        hint = "--data names the pictures, --labels their boxes: COCO JSON or a folder of YOLO"
        raise UsageError("objects are learnt from pictures with boxes", where=lacking, hint=hint)
    for name, given in (
        ("--fps", settings.rate_hz),
        ("--layout", settings.layout),
        ("--columns", settings.columns),
    ):
        if given is not None:
            raise UsageError("is not for pictures with boxes", where=name)


def student(
    base: Weights, labels: tuple[str, ...], settings: TrainSettings
) -> tuple[ViTDet, Pixels, Card]:
    """Give network, frontend and card for these labels.

    The network has all of the given weights but the classifier's, of which it has the rows of the
    labels that it knows. With ``scratch`` it has only their shape.
    """
    card = replace(
        base.card,
        name=settings.output.stem,
        labels=labels,
        arguments={**base.card.arguments, "classes": len(labels)},
        timeline=replace(base.card.timeline, thresholds={}),
        metrics={},
        sample={},
    )
    torch.manual_seed(settings.seed)
    fresh = new_network(card).state_dict()
    if not settings.scratch:
        stored = {k.removeprefix("network."): v.float() for k, v in base.tensors.items()}
        called = respelled(base.card.labels)
        known = [called(label) for label in labels]
        rows = [None if name is None else base.card.labels.index(name) for name in known]
        fresh = {
            k: _rows(k, v, stored[k], rows) if _PREDICTOR in k else stored[k]
            for k, v in fresh.items()
        }
    network, pixels = build(card, {f"network.{k}": v for k, v in fresh.items()})
    return cast(ViTDet, network), cast(Pixels, pixels), card


def _rows(name: str, fresh: Tensor, stored: Tensor, rows: Sequence[int | None]) -> Tensor:
    """Give the rows of a classifier, or of deltas, for labels that were the ``rows`` of another.

    Scores of new labels begin as they are ``fresh``, deltas with the mean of those that there are.
    """
    if "cls_score" in name:
        out = fresh.clone()
        out[-1] = stored[-1]  # of the background
        for k, row in enumerate(rows):
            out[k] = out[k] if row is None else stored[row]
        return out
    if len(stored) == len(fresh) == 4:  # deltas of the only class, or those of any
        return stored
    each = torch.unflatten(stored, 0, (-1, 4))
    return torch.cat([each.mean(0) if row is None else each[row] for row in rows])


def _warn(
    labels: Sequence[str],
    divided: Sequence[Sequence[Still]],
    counts: Sequence[Counter[str]],
    settings: TrainSettings,
) -> None:
    told = (
        f"{len(s)} pictures with {c.total()} boxes" for s, c in zip(divided, counts, strict=True)
    )
    log.info("%s to train on, %s to validate with", *told)
    unchecked = [label for label in labels if not counts[1][label]]
    if unchecked and settings.validation > 0:
        log.warning("no validation examples of %s: too few files (or groups)", ", ".join(unchecked))


def _told(still: Still) -> list[Any]:
    """Give all that counts of a still, as values of JSON."""
    marks = [still.marks.boxes.tolist(), list(still.marks.labels), still.marks.relative]
    return [still.source, still.frame, still.group, key_of(still.example()), marks]


def _backbone(network: ViTDet) -> nn.Module:
    return nn.ModuleList([network.embedding, network.backbone])


def teach(
    network: ViTDet,
    base: Weights,
    card: Card,
    trained: Side,
    checked: Side,
    settings: TrainSettings,
    partial: Partial,
) -> Told:
    """Train all of the network, or without ``fine_tune`` what comes after its backbone.

    That learns from views which the backbone encodes once.
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
    schedule = Schedule(settings.steps or steps, BATCH, rate=1e-3, decay=0.05)
    look = _look(network, card, checked, checked.some(WATCHED, seed))
    history = descend(network, learning, supply, schedule, seed, look, partial)
    seen = checked.seen(every)
    groups = sorted({still.group for still in checked.stills})
    return Told(
        {card.name: [find(network, picture) for picture in seen], **others},
        [to_truth(picture) for picture in seen],
        [groups.index(still.group) for still in checked.stills],
        history,
    )


def _anew(side: Side, card: Card) -> Side:
    """Give a side whose pictures are encoded anew each time, as the backbone changes."""
    return Side(side.views, card, FeatureCache(None, card, nn.ModuleList()))


def _look(network: ViTDet, card: Card, side: Side, numbers: Sequence[int]) -> Look:
    def look() -> dict[str, float]:
        seen = side.seen(numbers)
        found = [find(network, picture) for picture in seen]
        return figures(found, [to_truth(picture) for picture in seen], card.labels)

    return look


def _simple(
    network: ViTDet,
    base: Weights,
    card: Card,
    trained: Side,
    checked: Side,
    settings: TrainSettings,
) -> dict[str, list[Found]]:
    """Give what is found without learning, by name: by class means, and by the weights before."""
    if settings.scratch:
        return {}
    pictures = checked.seen(range(len(checked.stills)))
    known = trained.seen(trained.some(COMPARED, settings.seed))
    out = {PROTOTYPES: prototypes(network, known, pictures, len(card.labels))}
    called = respelled(card.labels)
    names = [called(label) for label in base.card.labels]
    if any(names):
        before = cast(ViTDet, build(base.card, base.tensors)[0])
        numbers = np.array([-1 if name is None else card.labels.index(name) for name in names])
        found = [find(before, picture) for picture in pictures]
        out[f"{base.card.name}, before"] = [_renumbered(one, numbers) for one in found]
    return out


def _renumbered(found: Found, numbers: Any) -> Found:
    """Give what has a new number for its label; -1: it has none."""
    labels = numbers[found.labels]
    return Found(found.boxes[labels >= 0], found.scores[labels >= 0], labels[labels >= 0])


def describe(
    card: Card,
    told: Told,
    divided: Sequence[Sequence[Still]],
    base: Weights,
    settings: TrainSettings,
) -> Card:
    """Give the card with what it was trained on and how it does on the validation pictures."""
    training, checks = divided
    counts = count_boxes(training)
    listed = ", ".join(f"{label} {counts[label]}" for label in card.labels)
    origin = None if settings.scratch else f"{base.card.name} ({base.card.licence})"
    start = f"started from {origin}" if origin else "started from nothing"
    start += ", backbone as it was" if origin and not settings.fine_tune else ""
    how = [EARLY, "So were thresholds."] if checks else []
    return replace(
        card,
        timeline=chosen(card, told) if checks else card.timeline,
        description=f"Own objects: {', '.join(card.labels)}.",
        trained_on=f"{len(training)} own pictures with {counts.total()} boxes ({listed}), {start};"
        f" seed {settings.seed}.",
        split=f"{len(training)} pictures to train, {len(checks)} to validate, by file or group."
        + "".join(f" {sentence}" for sentence in how),
        limits="Knows the places and cameras of its pictures; validated on few of them.",
        licence="That of the pictures" + (f" and of {origin}" if origin else ""),
        metrics={"validation": _metrics(card, told)} if checks else {},
    )


def chosen(card: Card, told: Told) -> Timeline:
    """Give the timeline with the scores from which on F1 is best on the validation pictures.

    A label has one of its own where there are ``ENOUGH`` of its objects.
    """
    own = told.found[card.name]
    if not any(len(one.scores) for one in own):
        return card.timeline
    thresholds = {}
    for number, label in enumerate(card.labels):
        found = [Found(*(part[one.labels == number] for part in one)) for one in own]
        truth = [Truth(*(part[one.labels == number] for part in one)) for one in told.truth]
        enough = sum(len(one.labels) for one in truth) >= ENOUGH
        if enough and any(len(one.scores) for one in found):
            thresholds[label] = round(best_threshold(found, truth), 2)
    threshold = round(best_threshold(own, told.truth), 2)
    return replace(card.timeline, threshold=threshold, low=None, thresholds=thresholds)


def _metrics(card: Card, told: Told) -> dict[str, Any]:
    rows = {}
    for name, found in told.found.items():
        rows[name] = rounded_scores(found, told.truth, card.labels)
        limits = precision_interval(found, told.truth, told.groups, card.labels)
        if limits is not None:
            rows[name]["AP50_95"] = [round(limit, 4) for limit in limits]
    return rows


def _print(card: Card, path: Path, checks: int) -> None:
    print(f"{path}: {', '.join(card.labels)}")
    if checks:
        scores = card.metrics["validation"]
        told = {name: s["AP50"] for name, s in scores.items() if s["AP50"] is not None}
        others = [f"{name} {value:.3f}" for name, value in told.items() if name != card.name]
        beside = f" ({', '.join(others)})" if others else ""
        if card.name in told:
            print(f"validation: AP50 {told[card.name]:.3f} over {checks} pictures{beside}")
    print(f"report: {path.with_suffix('.html')}")
