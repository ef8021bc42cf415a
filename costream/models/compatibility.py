"""Compatibility of sources and models."""

from __future__ import annotations

from typing import Any

from costream.core.errors import ModelError, SourceError, UsageError
from costream.core.layouts import MEDIAPIPE_33, find_layout
from costream.core.records import AudioFormat, SourceInfo, SourceKind
from costream.models.base import shipped_for
from costream.models.frontend import frontend_class
from costream.models.oad.tsn import load_opencv
from costream.weights_io.card import Card


def source_kind(frontend: Any) -> SourceKind:
    """Return the kind of source for a model with this frontend; features if it has none."""
    kind: SourceKind = "features" if frontend is None else frontend.takes
    return kind


def card_kind(card: Card) -> SourceKind:
    """Return the kind of source for the model of a card. ModelError for an unknown frontend."""
    return source_kind(None if card.frontend is None else frontend_class(card.frontend))


def extra_audio(frontend: Any) -> AudioFormat | None:
    """Return the format of the audio that a video frontend also takes; None: it takes none."""
    if source_kind(frontend) != "video" or not hasattr(frontend, "block"):
        return None
    return AudioFormat(frontend.sample_rate_hz, frontend.block)


def check_source(card: Card, frontend: Any, info: SourceInfo) -> None:
    """Raise SourceError if a source does not fit the model.

    Video fits a skeleton model, as joints are found in it, and the tokens of a frontend may come
    as features, unless they are whole images. Raises ModelError if the model has no
    classifier.
    """
    if frontend is not None:
        check_classifier(card, "use costream features to write the output of its frontend")
    check_classifier(card, "use it from Python: load_model(...).network")
    wanted = source_kind(frontend)
    tokens = frontend is None or hasattr(frontend, "token_width")
    if info.kind == "features" and wanted != "skeleton" and tokens:
        _check_width(card, info.width)
    elif wanted == "skeleton" and info.kind == "video":
        frontend.check(MEDIAPIPE_33, frontend.axes, card.name)
    elif wanted == "skeleton" and info.kind == "skeleton":
        _check_skeleton(card, frontend, info)
    elif wanted == info.kind == "video":
        check_flow(card, frontend)
    elif wanted != info.kind:
        raise SourceError(
            f"{card.name} takes {_NAMES[wanted]}, not {_NAMES[info.kind]}",
            hint=_hint(card, wanted, info),
        )


def check_classifier(card: Card, hint: str | None = None) -> None:
    """Raise ModelError for an encoder without a classifier."""
    if not card.labels:
        what = f"{card.name} is an encoder without a classifier: it returns no scores"
        raise ModelError(what, hint=hint)


def check_flow(card: Card, frontend: Any) -> None:
    """Raise ModelError if a frontend uses optical flow and OpenCV is not installed."""
    if "flow" in getattr(frontend, "streams", ()):
        load_opencv(card.name)


def source_notes(frontend: Any, info: SourceInfo) -> dict[str, Any]:
    """Return entries for the run's header on how a source reaches the network."""
    if source_kind(frontend) == "skeleton" and info.kind == "video":
        return {"pose": "BlazePose on persons of NanoDet-Plus, operations not counted"}
    if info.kind == "video" and extra_audio(frontend) is not None and not info.extra_audio:
        why = info.silent or "only files and feeds provide it"
        return {"sound": f"none, its part of the tokens is zeros ({why})"}
    return {}


def exactness(model: Any) -> dict[str, Any]:
    """Return the entry ``exact`` for the run's header if outputs may differ from the window's.

    They are equal if network and frontend are ``exact``, or save no operations.
    """
    network = model.network_dense_macs - model.network_macs
    frontend = model.dense_macs - model.macs - network
    parts = ((model.network, network), (model.frontend, frontend))
    exact = all(saved <= 0 or getattr(part, "exact", False) for part, saved in parts)
    return {} if exact else {"exact": False}


def input_width(card: Card) -> int:
    """Return the number of values of a feature row. ModelError if the network takes no rows."""
    width = card.arguments.get("input_width") or card.arguments.get("embed_dim")
    if width is None:
        raise ModelError(f"{card.name} has no frontend, and its network takes no rows of features")
    return int(width)


_NAMES = {
    "features": "precomputed features",
    "skeleton": "skeletons",
    "video": "video",
    "audio": "sound",
    "text": "text",
}


def _hint(card: Card, wanted: SourceKind, info: SourceInfo) -> str:
    """Return the input that the model takes, and the model for the kind of this source."""
    if wanted == "features":
        width = input_width(card)
        needed = f"give a .npy or .npz file with {width} values a row"
    elif wanted == "skeleton":
        needed = "give a table or recording of joints, or a video"
    elif wanted == "text":
        needed = "read a text: costream read FILE"
    elif wanted == "audio":
        needed = "give a file or stream with sound, or --mic"
    else:
        needed = "give a video"
    name = shipped_for(info)
    return needed + (f"; for {_NAMES[info.kind]}: -m {name}" if name else "")


def _check_width(card: Card, width: int | None) -> None:
    wanted = input_width(card)
    if width is not None and width != wanted:
        raise SourceError(
            f"rows of {width} values, but {card.name} takes {wanted}",
            hint="use the features it was trained on, or other weights",
        )


def _check_skeleton(card: Card, frontend: Any, info: SourceInfo) -> None:
    if info.layout is None or info.axes is None:
        return
    try:
        layout = info.joints or find_layout(info.layout)
    except UsageError:
        return  # a custom layout: the first frame carries it and is checked
    frontend.check(layout, info.axes, card.name)
