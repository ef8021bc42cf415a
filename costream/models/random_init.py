"""Networks in the sizes of their papers with random weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costream.core.errors import ModelError, UsageError
from costream.core.formatting import suggest_names
from costream.models.build import build, new_network
from costream.models.catalogue import read_whole
from costream.models.frontend import FRONTENDS, load_frontend
from costream.models.spec import MODELS, ModelSpec, initial_models, model_spec
from costream.weights_io.card import UNTRAINED, Card, LicenceClass
from costream.weights_io.licences import narrowest

# Argument of a network for the width of its rows, by task.
_WIDTHS = {
    "online action detection": "input_width",
    "sound classification": "input_width",
    "text classification": "input_width",
    "features": "embed_dim",
}


@dataclass(frozen=True)
class _FrontendSpec:
    """A frontend, and its entries on the card."""

    module: Any
    name: str | None
    arguments: dict[str, Any]
    rate_hz: float
    origin: str = ""  # of its weights, unless they are random
    licence: str = ""
    licence_class: LicenceClass | None = "free"  # random numbers are nobody's


def random_model(
    architecture: str,
    name: str,
    settings: Mapping[str, Any],
    frontend: str | None = None,
    seed: int = 0,
) -> tuple[Card, nn.Module, nn.Module | None]:
    """Return card, network and frontend of a model with random weights.

    ``architecture``: one of ``initial_models``. ``settings``: arguments of the architecture, and
    ``rate_hz``; arguments of the frontend are named ``frontend.NAME``. ``frontend``: a key of
    ``models.frontend.FRONTENDS``, for random weights, or a model or weight file, whose frontend is
    used unchanged, with its rate; VIDEO+SOUND combines two by ``models.oad.audiovisual``. Labels
    are "random 0", "random 1", ... Raises UsageError for invalid settings and missing weights.
    """
    plan = model_spec(architecture) if architecture in MODELS else ModelSpec()
    if plan.arguments is None:
        hint = suggest_names(architecture, initial_models())
        raise UsageError(f"unknown architecture {architecture!r}", hint=hint)
    of_frontend = {
        k.removeprefix("frontend."): v for k, v in settings.items() if k.startswith("frontend.")
    }
    of_network = {k: v for k, v in settings.items() if not k.startswith("frontend.")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            front = _front(plan, frontend, of_frontend)
            rate_hz = float(of_network.pop("rate_hz", front.rate_hz))
            if plan.task != "encoder" and not 0 < rate_hz < math.inf:
                raise ValueError(f"rate_hz {rate_hz} is not a positive number")
            arguments = {**plan.arguments, **of_network}
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
                licence_class=front.licence_class,
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Initializing zero-element")  # refused below
                network: Any = new_network(card)
            _check_sizes(network, front.module)
        except (ModelError, RuntimeError, ValueError) as error:
            raise UsageError(str(error), where=architecture) from error
    classes: Any = arguments.get("num_classes") or arguments.get("classes")
    count = int(classes or getattr(network, "num_classes", 0))
    labels = tuple(f"random {k}" for k in range(count))
    card = replace(card, labels=labels, delay_s=_delay_s(plan, network, rate_hz))
    return card, network, front.module


def _delay_s(plan: ModelSpec, network: Any, rate_hz: float) -> float:
    """Return the seconds from the middle of what an output describes to its time."""
    if not plan.whole:
        return 0.0
    return float(getattr(network, "delay_steps", (network.receptive_field - 1) / 2)) / rate_hz


def _check_sizes(*modules: Any) -> None:
    """Raise ValueError if a size is 0: such a network can be built, but takes no step."""
    for module in filter(None, modules):
        for name, parameter in module.named_parameters():
            if not parameter.numel():
                shape = " x ".join(map(str, parameter.shape))
                raise ValueError(f"{name} would be empty ({shape}): sizes are 1 or more")


def _front(plan: ModelSpec, name: str | None, arguments: dict[str, Any]) -> _FrontendSpec:
    if name is not None and "+" in name and not Path(name).is_file():
        if arguments:
            raise ValueError(f"{', '.join(arguments)} cannot be set for two frontends")
        return _beside(*(_front(plan, part, {}) for part in name.split("+", 1)))
    if name is None or name in FRONTENDS:
        kind = name or plan.frontend
        options = arguments if name else {**plan.frontend_arguments, **arguments}
        module = None if kind is None else load_frontend(kind, **options)
        if kind is None and options:
            raise ValueError(f"there is no frontend to take {', '.join(options)}")
        return _FrontendSpec(module, kind, getattr(module, "arguments", options), plan.rate_hz)
    stored = read_whole(name)
    card = stored.card
    network: Any
    network, module = build(card, stored.tensors)
    kind, options = card.frontend, card.frontend_arguments
    if hasattr(network, "as_frontend"):
        kind, module = network.as_frontend()
        options = module.arguments
    if module is None:
        raise ModelError(f"{card.name} has no frontend")
    if arguments:
        raise ValueError(f"the frontend of {card.name} cannot be changed by arguments")
    origin = f"; the frontend is that of {card.name}"
    licence = f"Frontend of {card.name}: {card.licence}" if card.licence else ""
    terms = licence, card.licence_class
    return _FrontendSpec(module, kind, options, card.rate_hz, origin, *terms)


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
    terms = licence, narrowest((video.licence_class, audio.licence_class))
    return _FrontendSpec(module, "audiovisual", arguments, video.rate_hz, origin, *terms)
