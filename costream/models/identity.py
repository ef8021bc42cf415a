"""By what weights are known again, without reading their tensors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from costream.checkpoints.weights_file import read_header
from costream.models.registry import find_weights


@dataclass(frozen=True)
class WeightsIdentity:
    """What a weight file says of itself; loading checks the tensors against it."""

    weights_sha256: str  # of the tensors
    card_sha256: str  # of the card: labels, thresholds, rates


def identify(name: str, weights: str | os.PathLike[str] | None = None) -> WeightsIdentity:
    """Give what identifies a model's weights. No torch. ModelError as ``find_weights``."""
    metadata = read_header(find_weights(name, weights)).metadata
    card = hashlib.sha256(metadata.get("card", "").encode()).hexdigest()
    return WeightsIdentity(metadata.get("tensors_sha256", ""), card)
