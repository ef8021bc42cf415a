"""Weights of the networks that find persons in pictures, and their joints."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from costream.core.errors import ModelError
from costream.models.build import build
from costream.models.images import Pixels
from costream.models.objects.nanodet import NanoDetPlus
from costream.models.persons import PERSON
from costream.models.pose.blazepose import BlazePose
from costream.models.pose.movenet import MoveNet
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX, read_weights
from costream.weights_io.store import weight_folders

DETECTOR, ESTIMATOR = "nanodet", "pose"
# Names of the weights by the values of --pose.
POSES = {"lite": ESTIMATOR, "full": "pose-full", "movenet": "movenet"}


@cache
def detector() -> tuple[NanoDetPlus, Pixels]:
    """Return the detector of persons and its frontend. ModelError if its weights are missing."""
    card, network, pixels = _loaded(DETECTOR)
    if not isinstance(network, NanoDetPlus) or not isinstance(pixels, Pixels):
        raise ModelError(f"{DETECTOR} has other weights here than those of NanoDet-Plus")
    if card.labels[0] != PERSON:
        raise ModelError(f"the first label of {DETECTOR} is not {PERSON!r}")
    return network, pixels


@cache
def pose_network(name: str) -> BlazePose | MoveNet:
    """Return the network of these weights. ModelError if they are missing, or of another one."""
    _, network, _ = _loaded(name)
    if not isinstance(network, BlazePose | MoveNet):
        raise ModelError(f"{name} has other weights here than those of BlazePose or MoveNet")
    return network


def _loaded(name: str) -> tuple[Card, Any, Any]:
    """Return card, network and frontend of weights that are found by their name."""
    paths = (folder / f"{name}{SUFFIX}" for _, folder in weight_folders())
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        what = f"no weights for {name} here, with which persons are found in video"
        hint = "reinstall costream"
        if name == POSES["full"]:
            hint = f"costream models import pose_landmark_full.tflite --name {name}"
        raise ModelError(what, hint=hint)
    stored = read_weights(path)
    network, frontend = build(stored.card, stored.tensors)
    network.eval().requires_grad_(False)
    for weight in network.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return stored.card, network, frontend


class PoseWeights:
    """What the weights of a pose estimator are as a model: none, which its error says."""

    def __init__(self, card: Card, *_: Any, **__: Any) -> None:
        """Raise ModelError."""
        used = "-m costgcn-2d --pose movenet" if card.architecture == "movenet" else "-m costgcn"
        hint = f"for what persons do in a video: {used}"
        raise ModelError(f"{card.name} finds joints for other models, and has no labels", hint=hint)
