"""Conversion between weight files and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from costream.core.errors import ModelError
from costream.core.formatting import listed
from costream.models.frontend import load_frontend
from costream.models.spec import MODELS, architectures, model_spec
from costream.nn.widths import narrow
from costream.weights_io.card import Card
from costream.weights_io.file import write_weights

# A network may have more parameters than its file, up to these: tables that are computed.
_SPARE_NUMBERS = 50_000_000
_SPARE_PARAMETERS = 10_000


def save_model(
    path: Path, card: Card, network: nn.Module, frontend: nn.Module | None = None
) -> str:
    """Write a weight file of these modules, return the digest of its tensors.

    Raises OutputError if it cannot be written.
    """
    return write_weights(path, card, model_tensors(network, frontend))


def model_tensors(network: nn.Module, frontend: nn.Module | None) -> dict[str, Tensor]:
    """Return the tensors of a weight file of these modules."""
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    if frontend is not None:
        tensors |= {f"frontend.{k}": v for k, v in frontend.state_dict().items()}
    return tensors


def build(card: Card, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module | None]:
    """Return network and frontend of a card with these weights (``network.*``, ``frontend.*``).

    Raises ModelError, with the names of tensors that are missing, unexpected or of another shape,
    and if the number of labels is not that of the classes.
    """
    stored = tensors
    if "int8" in card.compression:
        from costream.models.int8 import keep_int8, to_float

        tensors = to_float(stored)
    # Random weights are drawn and overwritten; this must not change the caller's random state.
    with torch.random.fork_rng(devices=[]), _no_larger_than(tensors):
        network = new_network(card)
        frontend = (
            load_frontend(card.frontend, **card.frontend_arguments) if card.frontend else None
        )
    for name in card.compression.get("pruned") or ():
        module = {"network": network, "frontend": frontend}.get(name)
        if module is None:
            raise ModelError(f"the card lists a pruned module {name!r} that does not exist")
        try:
            narrow(module, _part(f"{name}.", tensors))
        except ValueError as error:
            raise ModelError(f"the tensors do not fit the architecture: {error}") from error
    expected = {f"network.{k}": v for k, v in network.state_dict().items()}
    if frontend is not None:
        expected |= {f"frontend.{k}": v for k, v in frontend.state_dict().items()}
    _compare(expected, tensors)
    classes = card.arguments.get("num_classes", len(card.labels))
    if classes != len(card.labels):
        raise ModelError(f"the card has {len(card.labels)} labels for {classes} classes")
    network.load_state_dict(_part("network.", tensors))
    if frontend is not None:
        frontend.load_state_dict(_part("frontend.", tensors))
    if "int8" in card.compression:
        keep_int8(network, "network.", stored)
        if frontend is not None:
            keep_int8(frontend, "frontend.", stored)
    return network, frontend


def new_network(card: Card) -> nn.Module:
    """Return the network of a card with random weights.

    Raises ModelError for an unknown architecture and for arguments that it does not take.
    """
    if card.architecture not in architectures():
        raise ModelError(
            f"unknown architecture {card.architecture!r}",
            hint=f"known are {', '.join(architectures())}; the weights may need a newer costream",
        )
    try:
        network: nn.Module = MODELS.load(card.architecture)(**card.arguments)
    except ModelError:
        raise
    except Exception as error:  # a class with sizes from a file may raise anything
        raise ModelError(
            f"the card's arguments do not fit {card.architecture} ({error})"
        ) from error
    return network


@contextmanager
def _no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise ModelError as soon as modules get far more parameters than there are tensors.

    This happens before memory is filled: a card may describe more than a machine has.
    """
    numbers = sum(tensor.numel() for tensor in tensors.values()) + _SPARE_NUMBERS
    parameters = len(tensors) + _SPARE_PARAMETERS

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal numbers, parameters
        numbers -= 0 if parameter is None else parameter.numel()
        parameters -= 1
        if min(numbers, parameters) < 0:
            raise ModelError("the card's arguments describe a larger network than its tensors")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _compare(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    parts = [
        f"{what}: {listed(names)}"
        for what, names in (("missing", missing), ("left over", unexpected), ("wrong shape", wrong))
        if names
    ]
    if parts:
        raise ModelError(f"the tensors do not fit the architecture: {'; '.join(parts)}")


def model_class(card: Card) -> Any:
    """Return the class of the model that runs the network of a card."""
    return resolve_name(model_spec(card.architecture).model)
