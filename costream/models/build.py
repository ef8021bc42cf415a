"""Conversion between weight files and modules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from costream.checkpoints.card import Card
from costream.checkpoints.file import write_weights
from costream.errors import ModelError
from costream.formatting import listed
from costream.frontends.registry import load_frontend
from costream.models.eventful.classifier import ActionModel
from costream.models.eventful.detector import ObjectModel
from costream.models.streaming import StreamingModel
from costream.records import OBJECT_DETECTION

if TYPE_CHECKING:
    from costream.models.eventful.classifier import ActionModel
    from costream.models.eventful.detector import ObjectModel
    from costream.models.streaming import StreamingModel

# architecture of a card -> "module:Class"; its arguments are in the card
ARCHITECTURES = {
    "cooadtr": "costream.models.oad.cooadtr:CoOadTR",
    "cotrans": "costream.models.oad.cooadtr:CoTrans",
    "conystrom": "costream.models.oad.conystrom:CoNystrom",
    "conystrom-audio": "costream.models.oad.conystrom:CoNystromAudio",
    "oadtr": "costream.models.oad.oadtr:OadTR",
    "deepcot": "costream.models.oad.deepcot:DeepCoT",
    "miniroad": "costream.models.oad.miniroad:MiniRoad",
    "features": "costream.models.oad.cooadtr:Features",
    "encoder": "costream.nn.encoder:Encoder",
    "deepcot-encoder": "costream.nn.deepcot:DeepEncoder",
    "costgcn": "costream.models.skeleton.network:SkeletonNet",
    "coagcn": "costream.models.skeleton.network:SkeletonNet",
    "costr": "costream.models.skeleton.network:SkeletonNet",
    "stgcn": "costream.models.skeleton.window:WindowSkeletonNet",
    "agcn": "costream.models.skeleton.window:WindowSkeletonNet",
    "str": "costream.models.skeleton.window:WindowSkeletonNet",
    "vitdet": "costream.models.eventful.vitdet:ViTDet",
    "cox3d": "costream.models.video3d:VideoNet",
    "coslow": "costream.models.video3d:VideoNet",
    "coi3d": "costream.models.video3d:VideoNet",
    "x3d": "costream.models.video3d:WindowVideoNet",
    "slow": "costream.models.video3d:WindowVideoNet",
    "i3d": "costream.models.video3d:WindowVideoNet",
    "vivit": "costream.models.eventful.vivit:ViViT",
    "skeleton-ensemble": "costream.models.skeleton.ensemble:SkeletonEnsemble",
}


def save_model(
    path: Path, card: Card, network: nn.Module, frontend: nn.Module | None = None
) -> str:
    """Write a weight file of these modules, return the digest of its tensors.

    Raises OutputError if it cannot be written.
    """
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    if frontend is not None:
        tensors |= {f"frontend.{k}": v for k, v in frontend.state_dict().items()}
    return write_weights(path, card, tensors)


def build(card: Card, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module | None]:
    """Return network and frontend of a card with these weights (``network.*``, ``frontend.*``).

    Raises ModelError that names tensors which are missing, unexpected or of another shape.
    """
    # Random weights are drawn and overwritten; this must not change the caller's random state.
    with torch.random.fork_rng(devices=[]):
        network = new_network(card)
        frontend = (
            load_frontend(card.frontend, **card.frontend_arguments) if card.frontend else None
        )
    expected = {f"network.{k}": v for k, v in network.state_dict().items()}
    if frontend is not None:
        expected |= {f"frontend.{k}": v for k, v in frontend.state_dict().items()}
    _compare(expected, tensors)
    network.load_state_dict(_below("network.", tensors))
    if frontend is not None:
        frontend.load_state_dict(_below("frontend.", tensors))
    return network, frontend


def new_network(card: Card) -> nn.Module:
    """Return the network of a card with random weights.

    Raises ModelError for an unknown architecture and for arguments that it does not take.
    """
    if card.architecture not in ARCHITECTURES:
        raise ModelError(
            f"unknown architecture {card.architecture!r}",
            hint=f"known are {', '.join(ARCHITECTURES)}; the weights may need a newer costream",
        )
    module, _, attribute = ARCHITECTURES[card.architecture].partition(":")
    try:
        network: nn.Module = getattr(import_module(module), attribute)(**card.arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"the card's arguments do not fit {card.architecture} ({error})"
        ) from error
    return network


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _compare(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    missing, left = (
        sorted(expected.keys() - tensors.keys()),
        sorted(tensors.keys() - expected.keys()),
    )
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    parts = [
        f"{what}: {listed(names)}"
        for what, names in (("missing", missing), ("left over", left), ("wrong shape", wrong))
        if names
    ]
    if parts:
        raise ModelError(f"the tensors do not fit the architecture: {'; '.join(parts)}")


# Choice of the model class for a card.


def model_class(card: Card) -> Any:
    """Return the model class for a card."""
    if card.task == OBJECT_DETECTION:
        return ObjectModel
    return ActionModel if card.architecture == "vivit" else StreamingModel
