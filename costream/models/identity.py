"""Identity of weight files: digests and properties, without reading the tensors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from costream.models.auto import expanded
from costream.models.catalogue import find_weights
from costream.models.frontend import holds_tokens
from costream.models.spec import is_gated
from costream.weights_io.card import Card
from costream.weights_io.file import read_header
from costream.weights_io.licences import AllowedLicence


@dataclass(frozen=True)
class WeightsIdentity:
    """Digests and properties from the header of a weight file, which loading verifies."""

    weights_sha256: str  # of the tensors
    card_sha256: str  # of the card: labels, thresholds, rates
    finds_objects: bool = False
    classifies: bool = True  # whether one of the models has predictions
    gated: bool = False  # token-gated
    learned: bool = False  # see ``ModelInfo.learned``
    looks: bool = False  # see ``ModelInfo.looks`` and ``holds``
    by_place: bool = False  # see ``ModelInfo.by_place``
    events: tuple[str, ...] = ()  # labels that are not background


def identify(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    licence: AllowedLicence | None = None,
) -> WeightsIdentity:
    """Return the identity of a model's weights, or of several separated by commas. No torch.

    ``licence``: as for ``models.auto.video_models``. Raises ModelError like ``find_weights``.
    """
    headers = [
        read_header(find_weights(part.strip(), weights)).metadata
        for part in expanded(name, licence, weights).split(",")
        if part.strip()
    ]
    texts = [metadata.get("card", "") for metadata in headers]
    tensors = ",".join(metadata.get("tensors_sha256", "") for metadata in headers)
    cards = [Card.from_json(text) for text in texts if text]
    finds_objects = any(card.finds_objects for card in cards)
    classifies = not all(card.finds_objects for card in cards)
    gated = any(is_gated(card.architecture) for card in cards)
    by_place = any(card.finds_objects and not is_gated(card.architecture) for card in cards)
    looks = by_place or (len(cards) == 1 and holds_tokens(cards[0].frontend))
    sha256 = hashlib.sha256("".join(texts).encode()).hexdigest()
    events = tuple(label for card in cards for label in card.events)
    learned = any(bool(card.arguments.get("token_gate")) for card in cards)
    return WeightsIdentity(
        tensors, sha256, finds_objects, classifies, gated, learned, looks, by_place, events
    )
