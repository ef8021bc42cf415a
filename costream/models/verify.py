"""Verification of weights: checksum, card, tensors, and a few steps on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from costream.core.errors import ModelError
from costream.core.records import (
    POSE_ESTIMATION,
    AudioBlock,
    Data,
    FeatureRow,
    SkeletonFrame,
    TextLine,
    VideoFrame,
)
from costream.models.base import Model
from costream.models.build import build, model_class
from costream.models.compatibility import source_kind
from costream.models.spec import is_gated
from costream.models.streaming import StreamingModel
from costream.nn.eventful.policies import TopShare
from costream.weights_io.card import Card
from costream.weights_io.file import Weights, read_weights

_BEST = 10  # labels
CROP = 256  # side of the crops of a pose estimator, in pixels
_TIMED = 9  # steps
# Functions of the time in seconds, [N].
KNOWN_SOUNDS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "silence": np.zeros_like,
    "noise": lambda time_s: np.random.default_rng(0).uniform(-1, 1, len(time_s)),
    "sine": lambda time_s: np.sin(2 * np.pi * 440 * time_s),
}
_STEPS = 4  # or as many as the network needs for its first output
_TOKENS = 8  # per side of the image for object detectors
Rows: TypeAlias = npt.NDArray[np.float32]


def verify(name: str | Path, stored: Weights | None = None) -> str:
    """Check a weight file, or weights that are loaded; return the digest of the tensors.

    ``name``: the path, or the name of the ``stored`` weights for messages. Raises ModelError if a
    file is damaged, its tensors do not fit the architecture or the card, parameters are not finite,
    or stepping twice gives different results, or values that are not finite.
    """
    stored = stored or read_weights(Path(name))
    try:
        network, frontend = build(stored.card, stored.tensors)
        _check_parameters(network, *filter(None, [frontend]))
        if is_gated(stored.card.architecture) and stored.card.finds_objects:
            _check_detector(network.eval(), stored.card)
        elif stored.card.finds_objects:
            model = model_class(stored.card)(stored.card, network, frontend)
            _compare(*(_boxes(model, random_items(model, 1)) for _ in range(2)))
        elif stored.card.task == POSE_ESTIMATION:
            _compare(*(_points(network.eval()) for _ in range(2)))
        elif stored.card.labels:
            model = model_class(stored.card)(stored.card, network, frontend)
            _check_classifier(model)
        else:
            _check_encoder(network.eval(), stored.card.arguments["embed_dim"])
    except ModelError as error:
        raise ModelError(str(error), where=name) from error
    return stored.sha256


def check_known_sounds(path: Path, expected: Mapping[str, str]) -> None:
    """Raise ModelError unless a model recognises some sounds as its authors published.

    ``expected``: key of ``KNOWN_SOUNDS`` -> a label that must be among the ten best of the mean.
    """
    stored = read_weights(path)
    network, frontend = build(stored.card, stored.tensors)
    model = model_class(stored.card)(stored.card, network, frontend)
    sound = model.info.sound
    if sound is None:
        raise ModelError("this check is for models of sound", where=path)
    for name, label in expected.items():
        if name not in KNOWN_SOUNDS:
            raise ModelError(f"unknown sound {name!r}", hint=f"known: {', '.join(KNOWN_SOUNDS)}")
        wave = KNOWN_SOUNDS[name](np.arange(3 * sound.rate_hz) / sound.rate_hz).astype(np.float32)
        blocks = wave[: len(wave) // sound.block * sound.block].reshape(-1, sound.block)
        rows = _run(model, [AudioBlock(i, float(i), block) for i, block in enumerate(blocks)])
        best = np.argsort(-rows[model.network.window - 1 :].mean(0))[:_BEST]
        heard = [stored.card.labels[k] for k in best]
        if label not in heard:
            what = f"it recognises {name} as {heard[0]!r}, not as {label!r}"
            raise ModelError(f"is not the published network, or was changed: {what}", where=path)


def step_ms(path: Path) -> float | None:
    """Return the milliseconds of the fastest of several steps on noise; None without a classifier.

    Token-gated models compute all tokens.
    """
    stored = read_weights(path)
    if not stored.card.labels:
        return None
    model: Any = model_class(stored.card)(stored.card, *build(stored.card, stored.tensors))
    state, times = model.init_state(), []
    for item in random_items(model, _TIMED):
        began = time.perf_counter()
        model.step([item], state)
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def _check_parameters(*modules: nn.Module) -> None:
    """Raise ModelError for parameters that are not finite, which outputs do not always show."""
    for module in modules:
        for name, parameter in module.named_parameters():
            if not parameter.isfinite().all():
                raise ModelError(f"{name} has values that are not finite")


def _check_classifier(model: StreamingModel) -> None:
    steps = max(_STEPS, int(model.network.delay) + 1)
    first, second = (_run(model, random_items(model, steps)) for _ in range(2))
    labels = len(model.info.card.labels)
    if first.shape[1] != labels:
        raise ModelError(f"the card has {labels} labels, the network {first.shape[1]} classes")
    _compare(first, second)


def _run(model: StreamingModel, items: Sequence[Data]) -> Rows:
    state = model.init_state()
    results = [model.step([item], state).probabilities for item in items]
    rows = [probabilities[0] for probabilities in results if probabilities is not None]
    if not rows:
        raise ModelError(f"no output in {len(items)} steps")
    return np.stack(rows)


def random_items(model: Any, steps: int, seed: int = 0) -> list[Data]:
    """Return items of noise of the kind that a model takes."""
    random = np.random.default_rng(seed)
    kind = source_kind(model.frontend)
    if kind == "features":
        rows = random.standard_normal((steps, model.input_width)).astype(np.float32)
        return [FeatureRow(i, float(i), row) for i, row in enumerate(rows)]
    if kind == "skeleton":
        return [_skeleton(i, model.frontend, random) for i in range(steps)]
    if kind == "text":
        letters = random.integers(97, 123, (steps, 9)).astype(np.uint8)
        return [TextLine(i, float(i), row.tobytes().decode()) for i, row in enumerate(letters)]
    if model.info.sound is not None:
        waves = 0.1 * random.standard_normal((steps, model.info.sound.block)).astype(np.float32)
        return [AudioBlock(i, float(i), wave) for i, wave in enumerate(waves)]
    width, height = model.frontend.box
    pictures = random.integers(0, 256, (steps, height, width, 3), dtype=np.uint8)
    frames = [VideoFrame(i, float(i), i, picture.copy) for i, picture in enumerate(pictures)]
    return [replace(frame, earlier=(frame,) * (model.info.frames - 1)) for frame in frames]


def _skeleton(i: int, frontend: Any, random: np.random.Generator) -> SkeletonFrame:
    shape = (frontend.persons, frontend.joints)
    joints = random.random((*shape, frontend.axes), np.float32)
    return SkeletonFrame(i, float(i), joints, np.ones(shape, np.float32), frontend.layout)


@torch.inference_mode()
def _check_encoder(network: Any, width: int) -> None:
    rows = torch.randn(_STEPS, 1, width, generator=torch.Generator().manual_seed(0))
    runs = []
    for _ in range(2):
        state = network.init_state(1)
        runs.append(torch.cat([network.forward_step(row, state) for row in rows]).numpy())
    _compare(*runs)


@torch.inference_mode()
def _check_detector(network: Any, card: Card) -> None:
    sides = [_TOKENS * network.patch] * 2
    pictures = torch.randn(2, 1, 3, *sides, generator=torch.Generator().manual_seed(0))
    classes = network.classes
    if classes != len(card.labels):
        raise ModelError(f"the card has {len(card.labels)} labels, the network {classes} classes")
    runs = []
    for _ in range(2):
        state = network.init_state(1, *sides)
        found = [network.forward_step(x, state, TopShare(0.25))[0] for x in pictures]
        runs.append(torch.cat([f.boxes.flatten() for f in found]).numpy())
    _compare(*runs)


@torch.inference_mode()
def _points(network: nn.Module) -> Rows:
    """Return what a network finds in noise of the size of its crops."""
    crop = torch.rand(1, 3, CROP, CROP, generator=torch.Generator().manual_seed(0))
    return np.concatenate([part.flatten().numpy() for part in network(crop)])


def _boxes(model: Model, items: Sequence[Data]) -> Rows:
    """Return the boxes of the first item, [n, 5] with their scores."""
    objects = model.step(items, model.init_state()).objects or ((),)
    return np.array([(b.x1, b.y1, b.x2, b.y2, b.score) for b in objects[0]], np.float32)


def _compare(first: Rows, second: Rows) -> None:
    if not np.isfinite(first).all():
        raise ModelError("stepping gives values that are not finite")
    if not np.array_equal(first, second):
        raise ModelError("stepping twice gives different results")
