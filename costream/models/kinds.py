"""Which kind of model runs a network."""

from __future__ import annotations

from typing import Any

from costream.models.actions import ActionModel
from costream.models.card import Card
from costream.models.objects import ObjectModel
from costream.models.streaming import StreamingModel
from costream.records import OBJECT_DETECTION


def model_class(card: Card) -> Any:
    """Give the class of models that runs what a card describes."""
    if card.task == OBJECT_DETECTION:
        return ObjectModel
    return ActionModel if card.architecture == "vivit" else StreamingModel
