"""``-m auto``: free models, chosen by the kind of the source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from costream.core.errors import ModelError, UsageError
from costream.core.records import SourceKind
from costream.core.settings import AUTO
from costream.weights_io.licences import AllowedLicence

if TYPE_CHECKING:
    from costream.models.with_audio import HearingModel

DETECTOR = "nanodet"
SOUND = "mn04"  # for sources of sound alone, too
SKELETON = "costgcn"  # not free
AUTO_MODELS = (DETECTOR, SOUND)  # for video
RATE_HZ = 5.0  # pictures a second that the detector may look at
LENGTH_S, GAP_S = 1.0, 2.0  # of the timeline: shortest presence, and longest absence within one
# Scores of objects from which on a row begins. On 64 pictures of COCO val2017 0.77 of the labels of
# things from 0.6 on are right (0.66 from 0.45 on), and 0.97 of those of people from 0.4 on.
PERSON, SURE_PERSON, SURE = "person", 0.4, 0.6
_HINTS = {
    "skeleton": "-m costgcn, -m costgcn-2d for joints in pictures, or --licence any",
    "features": "name the model of these features: -m cooadtr, or one of your own",
    "text": "use: costream read",
}


def expanded(name: str) -> str:
    """Return the names of all models that ``auto`` may load, separated by commas; else ``name``."""
    return ",".join(AUTO_MODELS) if name == AUTO else name


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
    what = f"no model under a free licence takes {kind}"
    raise UsageError(what, where="-m auto", hint=_HINTS[kind])


def auto_model(detector: object, sound: object) -> HearingModel:
    """Return the model of ``auto`` for video, made of loaded models.

    It finds people and things, looking where something moves, and sounds. Raises ModelError if the
    weights are of another kind.
    """
    from costream.models.objects.model import DetectorModel
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
    return with_sound(detector, sound)
