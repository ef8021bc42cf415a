"""Networks in the sizes of their papers with random weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costream.checkpoints.card import UNTRAINED, Card
from costream.checkpoints.file import read_weights
from costream.errors import ModelError, UsageError
from costream.formatting import suggest_names
from costream.frontends.registry import FRONTENDS, load_frontend
from costream.layouts import NTU_25
from costream.models.build import build, new_network
from costream.models.registry import find_weights
from costream.nn.video3d.sizes import SIZES, TASK, find_size
from costream.records import OBJECT_DETECTION

OAD, SOUND, SKELETONS = (
    "online action detection",
    "sound classification",
    "skeleton action recognition",
)
# the argument of a network that takes rows of any width
_WIDTHS = {OAD: "input_width", SOUND: "input_width", "features": "embed_dim"}


@dataclass(frozen=True)
class InitialModel:
    """Values that the defaults of an architecture leave open."""

    arguments: dict[str, Any]  # the sizes of the paper, where they are not defaults
    task: str = OAD
    rate_hz: float = 4.0
    whole: bool = False  # an output describes its whole receptive field, not its end
    frontend: str | None = None  # None: it takes features
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    architecture: str | None = None  # None: the same as its key


def _video(name: str) -> InitialModel:
    """Return a 3D network for Kinetics-400, a clip network or a continual one."""
    size = find_size(name)
    assert size is not None
    clip = name == size.clip
    more = {"window": size.frames} if clip else {"pool": size.features}
    return InitialModel(
        {"num_classes": 400, **size.arguments(), **more},
        TASK,
        size.rate_hz,
        whole=True,
        frontend="crop",
        frontend_arguments={"size": size.size, "short_side": size.short_side},
        architecture=size.kind if clip else f"co{size.kind}",
    )


def _skeletons(kind: str, **more: Any) -> InitialModel:
    """Return a network for NTU RGB+D 60 as 2s-AGCN prepares it."""
    return InitialModel(
        {**_ntu(kind), **more},
        SKELETONS,
        30.0,
        whole=True,
        frontend="joints",
        frontend_arguments={
            "layout": NTU_25.name,
            "persons": 2,
            "normalise": "ntu",
            "missing": "zero",
        },
    )


def _ntu(kind: str) -> dict[str, Any]:
    return {
        "num_classes": 60,
        "joints": len(NTU_25.joints),
        "bones": [list(bone) for bone in NTU_25.bones],
        "centre": NTU_25.centre,
        "kind": kind,
    }


def _two_streams() -> InitialModel:
    one = _skeletons("stgcn")
    streams = {**one.frontend_arguments, "streams": ["joint", "bone"]}
    arguments = {"members": [_ntu("stgcn")] * 2, "channels": [[0, 1, 2], [3, 4, 5]]}
    return replace(one, arguments=arguments, frontend_arguments=streams)


_THUMOS14 = {"input_width": 3072, "num_classes": 22}  # RGB and flow of ActivityNet's TSN
_GTZAN = {"input_width": 128, "num_classes": 10}  # VGGish
# architecture, or a size of it -> its configuration in the paper
INITIAL_MODELS: dict[str, InitialModel] = {
    "cooadtr": InitialModel(_THUMOS14),
    "cotrans": InitialModel({"num_classes": 10}, SOUND),
    "conystrom": InitialModel(_THUMOS14),
    "conystrom-audio": InitialModel({"num_classes": 10}, SOUND),
    "oadtr": InitialModel(_THUMOS14),
    "miniroad": InitialModel(_THUMOS14),
    "deepcot": InitialModel(_GTZAN, SOUND),
    "encoder": InitialModel(
        {"embed_dim": 1024, "num_heads": 8, "feedforward": 1024, "depth": 1, "window": 64},
        "encoder",
        0.0,
    ),
    "features": InitialModel({"embed_dim": 4096}, "features", frontend="tsn"),
    "deepcot-encoder": InitialModel(
        {"embed_dim": 192, "num_heads": 16, "feedforward": 192, "depth": 2, "window": 120},
        "encoder",
        0.0,
    ),
    "costgcn": _skeletons("stgcn"),
    "coagcn": _skeletons("agcn"),
    "costr": _skeletons("str"),
    "stgcn": _skeletons("stgcn", window=300),
    "agcn": _skeletons("agcn", window=300, attention="clip"),
    "str": _skeletons("str", window=300),
    "skeleton-ensemble": _two_streams(),
    **{kind: _video(f"{kind}-s") for kind in ("cox3d", "x3d")},
    **{name: _video(name) for size in SIZES for name in (size.clip, size.continual)},
    "vivit": InitialModel({"num_classes": 400}, "action recognition", 15.0, frontend="crops"),
    "vitdet": InitialModel(
        {"classes": 30},
        OBJECT_DETECTION,
        30.0,
        frontend="pixels",
        frontend_arguments={"box": [1024, 1024]},
    ),
}


@dataclass(frozen=True)
class _FrontendSpec:
    """A frontend with the values for the card."""

    module: Any
    name: str | None
    arguments: dict[str, Any]
    rate_hz: float
    origin: str = ""  # of its weights, unless they are random
    licence: str = ""


def random_model(
    architecture: str,
    name: str,
    settings: Mapping[str, Any],
    frontend: str | None = None,
    seed: int = 0,
) -> tuple[Card, nn.Module, nn.Module | None]:
    """Return card, network and frontend of a model with random weights.

    ``architecture``: a key of ``INITIAL``. ``settings``: arguments of the architecture, and
    ``rate_hz``; those of the frontend are named ``frontend.NAME``. ``frontend``: a key of
    ``frontends.registry.FRONTENDS``, which then has random weights too, or a model or weight file,
    whose frontend is used unchanged, with its rate; VIDEO+SOUND: both, combined by
    ``frontends.audiovisual``. The labels are numbered and named "random". Raises UsageError for
    invalid settings and missing weights.
    """
    if architecture not in INITIAL_MODELS:
        hint = suggest_names(architecture, INITIAL_MODELS)
        raise UsageError(f"unknown architecture {architecture!r}", hint=hint)
    plan = INITIAL_MODELS[architecture]
    own = {k.removeprefix("frontend."): v for k, v in settings.items() if k.startswith("frontend.")}
    given = {k: v for k, v in settings.items() if not k.startswith("frontend.")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            front = _front(plan, frontend, own)
            rate_hz = float(given.pop("rate_hz", front.rate_hz))
            if plan.task != "encoder" and not 0 < rate_hz < math.inf:
                raise ValueError(f"rate_hz {rate_hz} is not a positive number")
            arguments = plan.arguments | given
            if front.module is not None and plan.task in _WIDTHS:
                arguments = arguments | {_WIDTHS[plan.task]: front.module.token_width}
            card = Card(
                name=name,
                task=plan.task,
                architecture=plan.architecture or architecture,
                arguments=arguments,
                labels=(),
                rate_hz=rate_hz,
                frontend=front.name,
                frontend_arguments=front.arguments,
                description="Random weights, trained on nothing: for costs, trials and training.",
                trained_on=UNTRAINED + front.origin,
                licence=front.licence,
            )
            network: Any = new_network(card)
        except (ModelError, RuntimeError, ValueError) as error:
            raise UsageError(str(error), where=architecture) from error
    said = (arguments.get("num_classes"), arguments.get("classes"))
    count = next(filter(None, said), getattr(network, "num_classes", 0))
    labels = tuple(f"random {k}" for k in range(count))
    delay_s = (network.receptive_field - 1) / 2 / rate_hz if plan.whole else 0.0
    return replace(card, labels=labels, delay_s=delay_s), network, front.module


def _front(plan: InitialModel, name: str | None, arguments: dict[str, Any]) -> _FrontendSpec:
    if name is not None and "+" in name and not Path(name).is_file():
        if arguments:
            raise ValueError(f"{', '.join(arguments)} cannot be set for two frontends")
        return _beside(*(_front(plan, part, {}) for part in name.split("+", 1)))
    if name is None or name in FRONTENDS:
        kind = name or plan.frontend
        own = arguments if name else plan.frontend_arguments | arguments
        module = None if kind is None else load_frontend(kind, **own)
        if kind is None and own:
            raise ValueError(f"there is no frontend to take {', '.join(own)}")
        return _FrontendSpec(module, kind, own, plan.rate_hz)
    stored = read_weights(find_weights(name))
    card = stored.card
    _, module = build(card, stored.tensors)
    if module is None:
        raise ModelError(f"{card.name} has no frontend")
    if arguments:
        raise ValueError(f"the frontend of {card.name} cannot be changed by arguments")
    origin = f"; the frontend is that of {card.name}"
    licence = f"Frontend of {card.name}: {card.licence}" if card.licence else ""
    kind, own = card.frontend, card.frontend_arguments
    return _FrontendSpec(module, kind, own, card.rate_hz, origin, licence)


def _beside(video: _FrontendSpec, audio: _FrontendSpec) -> _FrontendSpec:
    """Return the audio-visual frontend, at the rate of the video."""
    arguments = {
        "video": video.name,
        "audio": audio.name,
        "video_arguments": video.arguments,
        "audio_arguments": audio.arguments,
        "rate_hz": video.rate_hz,
    }
    module: Any = load_frontend("audiovisual", **arguments)
    module.video.load_state_dict(video.module.state_dict())
    module.audio.load_state_dict(audio.module.state_dict())
    origin = video.origin + audio.origin
    licence = " ".join(filter(None, (video.licence, audio.licence)))
    return _FrontendSpec(module, "audiovisual", arguments, video.rate_hz, origin, licence)
