"""Initialisation of a custom detector from the weights of another, as far as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from costream.checkpoints.card import Card
from costream.checkpoints.file import Weights
from costream.frontends.pixels import Pixels
from costream.labels.examples import name_matcher
from costream.models.build import build, new_network
from costream.models.eventful.vitdet import ViTDet
from costream.training.base import TrainSettings

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
