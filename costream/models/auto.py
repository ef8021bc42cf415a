"""``-m auto``: free models, chosen by the kind of the source, and others where they are allowed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from costream.core.errors import ModelError, UsageError
from costream.core.records import SourceKind
from costream.core.settings import AUTO
from costream.weights_io.file import SUFFIX
from costream.weights_io.licences import AllowedLicence
from costream.weights_io.store import weight_folders

if TYPE_CHECKING:
    from costream.models.base import Model, ModelHead
    from costream.models.persons import PersonsModel
    from costream.models.with_audio import HearingModel

DETECTOR = "nanodet"
SOUND = "mn04"  # for sources of sound alone, too
SKELETON = "costgcn"  # not free; for sources of joints
ACTIONS = "costgcn-2d"  # not free; for what each person in a video does
AUTO_MODELS = (DETECTOR, SOUND)  # for video
RATE_HZ = 5.0  # pictures a second that the detector may look at
LENGTH_S, GAP_S = 1.0, 2.0  # of the timeline: shortest presence, and longest absence within one
# Scores of objects from which on a row begins. On 64 pictures of COCO val2017 0.77 of the labels of
# things from 0.6 on are right (0.66 from 0.45 on), and 0.97 of those of people from 0.4 on.
PERSON, SURE_PERSON, SURE = "person", 0.4, 0.6
SILENCE = "Silence"  # of AudioSet; in a timeline of what is there it is no row
_HINTS = {
    "skeleton": "-m costgcn, -m costgcn-2d for joints in pictures, or --licence any",
    "features": "name the model of these features: -m cooadtr, or one of your own",
    "text": "use: costream read",
}


def video_models(
    licence: AllowedLicence | None = None, weights: str | os.PathLike[str] | None = None
) -> tuple[str, ...]:
    """Return the names of the models of ``auto`` for video.

    ``licence``: "any" admits ``ACTIONS``, where its weights are installed. ``weights``: a folder
    of weights; None: those that are installed.
    """
    if licence != "any":
        return AUTO_MODELS
    folders = [folder for _, folder in weight_folders()] if weights is None else [Path(weights)]
    installed = any((folder / f"{ACTIONS}{SUFFIX}").is_file() for folder in folders)
    return (*AUTO_MODELS, ACTIONS) if installed else AUTO_MODELS


def expanded(
    name: str,
    licence: AllowedLicence | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> str:
    """Return the names of all models that ``auto`` may load, separated by commas; else ``name``.

    The arguments are those of ``video_models``.
    """
    if name != AUTO:
        return name
    names = video_models(licence, weights)
    return ",".join((*names, SKELETON) if ACTIONS in names else names)


def model_for(name: str, kind: SourceKind | None, licence: AllowedLicence | None = None) -> str:
    """Return the model for a source of a kind if ``name`` is ``auto``; else ``name``.

    ``licence``: "any" admits models that are not free. Raises UsageError for kinds without one.
    """
    if name != AUTO or kind in (None, "video"):
        return name
    if kind == "audio":
        return SOUND
    if kind == "skeleton" and licence == "any":
        return SKELETON
    taken = "skeletons" if kind == "skeleton" else kind
    what = f"no model under a free licence takes {taken}"
    raise UsageError(what, where="-m auto", hint=_HINTS[kind])


def auto_model(
    detector: object, sound: object, actions: Model | None = None
) -> HearingModel | PersonsModel:
    """Return the model of ``auto`` for video, made of loaded models.

    It finds people and things, looking where something moves, sounds and, with ``actions``, what
    each person does. Raises ModelError if the weights are of another kind.
    """
    from costream.models.objects.model import DetectorModel
    from costream.models.persons import with_persons
    from costream.models.streaming import StreamingModel
    from costream.models.with_audio import with_sound

    if not isinstance(detector, DetectorModel) or not isinstance(sound, StreamingModel):
        what = f"{DETECTOR} or {SOUND} has weights of another kind here"
        raise ModelError(what, where="-m auto", hint="remove them, or name a model")
    detector.sparing = True
    card = detector.info.card
    timeline = replace(
        card.timeline,
        threshold=SURE,
        thresholds={PERSON: SURE_PERSON},
        low=None,
        min_length_s=LENGTH_S,
        min_gap_s=GAP_S,
    )
    card = replace(card, rate_hz=RATE_HZ, timeline=timeline)
    heads = tuple(replace(head, card=card) for head in detector.info.heads)
    detector.info = replace(detector.info, card=card, heads=heads)
    sound.info = replace(sound.info, heads=tuple(map(_without_silence, sound.info.heads)))
    model = with_sound(detector, sound)
    return model if actions is None else with_persons(model, actions)


def _without_silence(head: ModelHead) -> ModelHead:
    """Return a head of sound whose timeline leaves out silence."""
    timeline = head.card.timeline
    thresholds = {**timeline.thresholds, SILENCE: 1.0}
    return replace(head, card=replace(head.card, timeline=replace(timeline, thresholds=thresholds)))
