"""Import of a network that a function of a user's file builds: ``FILE.py:FUNCTION``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import custom_labels, read_labels
from costream.core.user_code import run_code
from costream.models.build import build
from costream.models.user_network import MEL_RATE_HZ, RATE_HZ, UserPlan, user_plan
from costream.weights_io.card import Card
from costream.weights_io.foreign import read_foreign
from costream.weights_io.import_settings import CARD_KEYS, ImportSettings

TASKS = {"mel": "sound classification", "skeleton": "skeleton action recognition"}


def import_user_network(
    file: Path, function: str, weights: Path | None, name: str, config: Mapping[str, str]
) -> tuple[Card, dict[str, Tensor], str]:
    """Run a file, and return card, tensors (``network.*``) and the report of the conversion.

    ``weights``: a checkpoint with the names of the module's ``state_dict``; None: those that the
    function sets. Raises UsageError for a file that fails, ModelError for a network that cannot be
    continual and for weights that do not fit it.
    """
    settings = ImportSettings(config, CARD_KEYS)
    if not file.is_file():
        raise ModelError("there is no such file", where=file)
    run_code(file)
    plan = user_plan(file.name, function)
    if weights is not None:
        _fill(plan, weights)
    net = plan.converted()
    with torch.no_grad():
        clip = plan.example[:1]
        out = net.forward_steps(torch.cat([clip, clip], plan.time_axis), net.init_state(1))
    if out.dim() != 3 or not out.shape[net.out_axis]:
        what = f"an output {list(out.shape)}, not [1, K] for K classes"
        raise ModelError(what, where=f"{file}:{function}")
    classes = out.shape[3 - net.out_axis]
    arguments: dict[str, Any] = {"file": file.name, "function": function, "num_classes": classes}
    arguments["frame_macs"] = net.count_macs()
    if plan.input == "rows":
        arguments["input_width"] = plan.example.shape[3 - plan.time_axis]
    hop = plan.frontend_arguments["hop_frames"] if plan.input == "mel" else None
    labels = settings.get("labels")
    named = custom_labels(tuple(f"class {k}" for k in range(classes)), file)
    named = named if labels is None else read_labels(labels)
    if len(named.names) != classes:
        what = f"{len(named.names)} labels, but the network has {classes} outputs"
        raise ModelError(what, where=f"labels={labels}")
    rate_hz = MEL_RATE_HZ / hop if hop else settings.get("rate_hz") or RATE_HZ
    card = Card(
        name=name,
        task=TASKS.get(plan.input.removesuffix("s"), "online action detection"),
        architecture="user-network",
        arguments=arguments,
        labels=named.names,
        rate_hz=rate_hz,
        delay_s=net.delay / (MEL_RATE_HZ if hop else rate_hz),
        background=settings.get("background") or named.background,
        frontend=plan.frontend,
        frontend_arguments=dict(plan.frontend_arguments),
        description=f"The network of {function} in {file.name}, made continual.",
        trained_on=settings.get("trained_on") or "",
        licence=settings.get("licence") or "",
    )
    tensors = {f"network.network.{k}": v for k, v in plan.module.state_dict().items()}
    try:
        build(card, tensors)  # as it is when it runs
    except ModelError as error:
        raise ModelError(str(error), where=f"{file}:{function}") from error
    return card, tensors, str(net.report())


def _fill(plan: UserPlan, weights: Path) -> None:
    """Load weights into the module. ModelError if they do not fit."""
    tensors = read_foreign(weights).tensors
    try:
        plan.module.load_state_dict(tensors)
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise ModelError(f"do not fit the network: {lines:.300}", where=weights) from error
