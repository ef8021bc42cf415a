"""The words of the shipped detector's card."""

from __future__ import annotations

from typing import Any

from costream.models.card import Card, Timeline
from costream.training.objects_packs import LABELS

RATE_HZ = 10.0


def make_card(
    network: dict[str, Any], frontend: dict[str, Any], threshold: float, metrics: dict[str, Any]
) -> Card:
    """Give the card of weights with these arguments, threshold and figures."""
    return Card(
        name="eventful-vitdet",
        task="object detection",
        architecture="vitdet",
        arguments=network,
        labels=LABELS,
        rate_hz=RATE_HZ,
        frontend="pixels",
        frontend_arguments=frontend,
        timeline=Timeline(threshold=round(threshold, 2), min_length_s=0.5, min_gap_s=0.5),
        metrics=metrics,
        **_ABOUT,
    )


_ABOUT: dict[str, Any] = {
    "description": "",
    "paper": ("Eventful Transformers (Dutson et al., ICCV 2023) on ViTDet (Li et al., ECCV 2022)"),
    "trained_on": "",
    "split": "",
    "limits": "",
    "licence": "",
}
