"""Identity of weight files: digests and properties, without reading the tensors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from costream.models.catalogue import find_weights
from costream.models.spec import is_gated
from costream.weights_io.card import Card
from costream.weights_io.file import read_header


@dataclass(frozen=True)
class WeightsIdentity:
    """Digests and properties in a weight file's header; loading checks the tensors against them."""

    weights_sha256: str  # of the tensors
    card_sha256: str  # of the card: labels, thresholds, rates
    finds_objects: bool = False
    gated: bool = False  # token-gated
    events: tuple[str, ...] = ()  # labels that are not background


def identify(name: str, weights: str | os.PathLike[str] | None = None) -> WeightsIdentity:
    """Return the identity of a model's weights, or of several separated by commas. No torch.

    Raises ModelError like ``find_weights``.
    """
    each = [
        read_header(find_weights(part.strip(), weights)).metadata
        for part in name.split(",")
        if part.strip()
    ]
    texts = [metadata.get("card", "") for metadata in each]
    cards = "".join(texts)
    tensors = ",".join(metadata.get("tensors_sha256", "") for metadata in each)
    known = [Card.from_json(text) for text in texts if text]
    finds_objects = any(card.finds_objects for card in known)
    gated = any(is_gated(card.architecture) for card in known)
    sha256 = hashlib.sha256(cards.encode()).hexdigest()
    events = tuple(label for card in known for label in card.events)
    return WeightsIdentity(tensors, sha256, finds_objects, gated, events)
