"""Networks of joints and of labels in ``costream bench objects``: in full, and what has changed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from costream.bench.ways import Alike, Look, Seen, Subject, Way, runtime
from costream.core.errors import ModelError
from costream.core.layouts import COCO_17, MEDIAPIPE_33
from costream.core.records import FeatureRow, VideoFrame
from costream.evaluation.metrics.detection import take_best
from costream.evaluation.metrics.joints import joint_similarity
from costream.models.base import StepResult
from costream.models.catalogue import load_model
from costream.models.export import export_step
from costream.models.images import fitted
from costream.models.onnx_step import onnx_session
from costream.models.pose.blazepose import BlazePose, Landmarks
from costream.models.pose.estimator import PoseEstimator
from costream.models.pose.found import DetectedPerson
from costream.models.pose.tracker import BOX
from costream.models.pose.weights import ESTIMATOR, detector, pose_network
from costream.models.streaming import StreamingModel
from costream.models.video.efficientnet_lite import SCALE, EfficientNetLite
from costream.nn.eventful.changed_places import THRESHOLD, ChangedPlaces, Kept
from costream.nn.eventful.counts import Operations
from costream.options.budget import Budget
from costream.runtime.budget import controller

_PERSONS = 8  # whose joints are found, at most
_COCO = [MEDIAPIPE_33.joints.index(joint) for joint in COCO_17.joints]
_NOISE = 1  # of 255
_NEAR = 0.1  # of a person's extent, within which a joint is the same
_SEEN = 0.5  # score from which on a joint is compared
_SHARE = Budget.parse("33%")  # of the operations in full: 18.6 of the 56.4 million of cooadtr
_GAP_S = 1.0

Persons = Sequence[DetectedPerson]


def pose_subject(scratch: Path) -> tuple[Subject, list[str]]:
    """Return the joints of everybody, the detector's looks included, and what is left out.

    Alike: twice the pairs of persons with an OKS of at least 0.5 (and 0.75), of all persons of this
    way and of the network in full, so that who is lost or found beside counts as not alike. Near
    joints: twice those at most a tenth of their person's extent apart, of all. The same pictures
    with noise, in full, say how far the network repeats itself.
    """
    network, notes = cast(BlazePose, pose_network(ESTIMATOR)), []
    ways = [
        Way("in full", lambda: _finding(PoseEstimator(network, _PERSONS, sparing=False))),
        Way(
            "who has moved, looks where something moves",
            lambda: _finding(PoseEstimator(network, _PERSONS)),
        ),
        Way(
            f"in full, pictures with noise of {_NOISE}",
            lambda: _finding(PoseEstimator(network, _PERSONS, sparing=False)),
            _noisy,
        ),
    ]
    try:
        export_step(ESTIMATOR, scratch / "pose.onnx")
        exported = cast(BlazePose, _OnnxPose((scratch / "pose.onnx").read_bytes(), network.macs))
        name = runtime("onnxruntime", "crops in ONNX Runtime")
        ways.append(Way(name, lambda: _finding(PoseEstimator(exported, _PERSONS, sparing=False))))
    except ModelError as error:
        notes.append(f"left out: ONNX Runtime ({error})")
    return Subject(ESTIMATOR, ways, BOX, _GAP_S, _persons_alike), notes


class _OnnxPose:
    """The exported network of joints; ``macs``: of a crop."""

    def __init__(self, data: bytes, macs: int) -> None:
        self._session, self.macs = onnx_session(data, 1), macs

    def __call__(self, crops: Tensor) -> Landmarks:
        """Return the landmarks in crops [B, 3, 256, 256], one after the other."""
        rows = [self._session.run(Landmarks._fields, {"x": crop[None].numpy()}) for crop in crops]
        return Landmarks(
            *(torch.from_numpy(np.concatenate(part)) for part in zip(*rows, strict=True))
        )


def _finding(estimator: PoseEstimator) -> Look:
    """Return the function that finds the persons in the pictures of a film."""

    def look(frame: VideoFrame) -> Seen:
        before = estimator.looks
        height, width, _ = frame.rgb.shape
        found = estimator.find(frame.rgb, frame.time_s)
        crops = 0 if estimator.ran is None else estimator.ran.macs
        unit = np.array((width / height, 1), np.float32)  # of places: the height, on both sides
        persons = [replace(each, places=unit * each.places) for each in found]
        return Seen(persons, crops + (estimator.looks - before) * _look_macs(height, width))

    return look


def _noisy(frame: VideoFrame) -> VideoFrame:
    """Return a picture to which noise was added: whole numbers up to ``_NOISE``, each as likely."""
    rgb = frame.rgb
    noise = np.random.default_rng(frame.i).integers(-_NOISE, _NOISE + 1, rgb.shape)
    noisy = (rgb + noise).clip(0, 255).astype(np.uint8)
    return replace(frame, convert=partial(np.asarray, noisy))


@cache
def _look_macs(height: int, width: int) -> int:
    """Return the operations of a look of the detector at a frame of this size."""
    network, pixels = detector()
    operations = Operations()
    picture = pixels.prepare(fitted(np.zeros((height, width, 3), np.uint8), pixels.box))
    network.detect(pixels(torch.from_numpy(picture)[None]), operations)
    return operations.total


def _persons_alike(full: Sequence[Persons], found: Sequence[Persons]) -> Alike:
    """Return the shares of persons and of joints that are the same; None without any."""
    pictures = list(zip(full, found, strict=True))
    persons = sum(len(one) + len(other) for one, other in pictures)
    seen = sum(
        int((each.scores > _SEEN).sum())
        for both in pictures
        for persons in both
        for each in persons
    )
    halves, closely = (
        2 * sum(_pairs(one, other, least) for one, other in pictures) / persons if persons else None
        for least in (0.5, 0.75)
    )
    near = sum(_near_joints(one, other) for one, other in pictures)
    return Alike(halves, closely, 2 * near / seen if seen else None)


def _pairs(full: Persons, found: Persons, least: float) -> int:
    """Return how many persons of a picture have a partner with an OKS of at least ``least``."""
    likeness = np.array([[_similarity(one, other) for other in found] for one in full])
    return int(take_best(likeness, least).sum()) if full and found else 0


def _similarity(full: DetectedPerson, other: DetectedPerson) -> float:
    """Return the OKS of a person with one of the network in full; hidden joints do not count."""
    seen = full.scores[_COCO] > _SEEN
    return joint_similarity(full.places[_COCO], seen, other.places[_COCO])


def _near_joints(persons: Persons, others: Persons) -> int:
    """Return how many joints of persons in a picture are where those of another one are."""
    free, near = [*others], 0
    for person in persons:
        counts = [_near(person, other) for other in free]
        best = max(counts, default=0)
        if best:
            near += best
            free.pop(counts.index(best))
    return near


def _near(person: DetectedPerson, other: DetectedPerson) -> int:
    apart = np.linalg.norm(person.places - other.places, axis=1)
    seen = np.minimum(person.scores, other.scores) > _SEEN
    return int((apart[seen] <= _NEAR * person.extent).sum())


def label_subject(model: StreamingModel, name: str, scratch: Path) -> tuple[Subject, list[str]]:
    """Return a model that labels pictures, frontend and network, and what is left out.

    Alike: share of the pictures in which the best label is the same. The same pictures with noise,
    in full, say how far the network repeats itself.
    """
    card, notes = model.info.card, []
    ways = [Way("in full", lambda: _labelling(model))]
    if isinstance(model.frontend, EfficientNetLite):
        places = ChangedPlaces(_Features(model.frontend))
        ways.append(Way("places that have changed", partial(_by_place, model, places)))
    if model.info.holds:
        ways.append(Way(f"--budget {_SHARE}", partial(_labelling, model, _SHARE)))
    noisy = f"in full, pictures with noise of {_NOISE}"
    ways.append(Way(noisy, partial(_labelling, model), _noisy))
    try:
        export_step(name, scratch / "step.onnx", whole=True)
        exported = cast(StreamingModel, load_model(str(scratch / "step.onnx"), device="cpu"))
        ways.append(Way(runtime("onnxruntime", "ONNX Runtime"), lambda: _labelling(exported)))
    except ModelError as error:
        notes.append(f"left out: ONNX Runtime ({error})")
    subject = Subject(card.name, ways, model.info.box, card.gap_tolerance_s, _labels_alike)
    return subject, notes


def _labelling(model: StreamingModel, budget: Budget | None = None) -> Look:
    """Return the function that labels the pictures of a film, within a budget."""
    state = model.init_state(1)
    throttle = controller(model, budget, model.info.card.rate_hz)

    def look(frame: VideoFrame) -> Seen:
        if throttle is not None:
            throttle.before(state)
        result = model.step([frame], state)
        if throttle is not None:
            throttle.after(result)
        return Seen(_label(result), result.macs)

    return look


class _Features(nn.Module):
    """The encoder as a network without a state."""

    def __init__(self, encoder: EfficientNetLite) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pictures: Tensor) -> Tensor:
        return self.encoder.features_of_scaled(pictures)


def _by_place(model: StreamingModel, places: ChangedPlaces) -> Look:
    """Return the function that labels pictures by the places of the encoder that have changed."""
    encoder, kept = model.frontend, Kept()
    state, pictures = model.init_state(1), itertools.count()

    def look(frame: VideoFrame) -> Seen:
        picture = encoder.scaled(torch.from_numpy(encoder.prepare(frame.rgb))[None])
        changed = places.look(picture, kept, next(pictures), THRESHOLD / SCALE)
        if changed is None:
            result = model.step([frame], state)
            return Seen(_label(result), result.macs)
        row = FeatureRow(frame.i, frame.time_s, changed.output[0].numpy())
        result = model.step([row], state)
        return Seen(_label(result), changed.macs + model.network_macs)

    return look


def _label(result: StepResult) -> int:
    """Return the number of the best label."""
    assert result.probabilities is not None  # the model labels pictures
    return int(result.probabilities[0].argmax())


def _labels_alike(full: Sequence[int], found: Sequence[int]) -> Alike:
    return Alike(sum(one == other for one, other in zip(full, found, strict=True)) / len(full))
