"""Choice of the model class for a card."""

from __future__ import annotations

from typing import Any

from costream.checkpoints.card import Card
from costream.models.eventful.classifier import ActionModel
from costream.models.eventful.detector import ObjectModel
from costream.models.streaming import StreamingModel
from costream.records import OBJECT_DETECTION


def model_class(card: Card) -> Any:
    """Return the model class for a card."""
    if card.task == OBJECT_DETECTION:
        return ObjectModel
    return ActionModel if card.architecture == "vivit" else StreamingModel
