"""Ensembles of imported skeleton networks, each trained on its own stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from costream.core.errors import ModelError
from costream.weights_io.tensor_rules import ImportedNetwork


def combine(parts: Sequence[ImportedNetwork], fusion: Sequence[float] | None) -> ImportedNetwork:
    """Return the ensemble of networks that differ only in their streams.

    ``fusion``: the weight of each network's scores, None: equal weights. Raises ModelError when
    classes, persons, layout or timing differ.
    """
    first, width = parts[0], parts[0].arguments["channels"]
    for part in parts:
        if "hop" in part.arguments:
            raise ModelError("sliding: ensembles of several streams only run step by step")
        _check_alike(first, part)
    streams = [stream for part in parts for stream in part.frontend_arguments["streams"]]
    arguments = {
        "members": [part.arguments for part in parts],
        "channels": [list(range(i * width, (i + 1) * width)) for i in range(len(parts))],
        "weights": list(fusion or [1.0] * len(parts)),
    }
    tensors = {
        f"members.{i}.{name}": tensor
        for i, part in enumerate(parts)
        for name, tensor in part.tensors.items()
    }
    return dataclasses.replace(
        first,
        architecture="skeleton-ensemble",
        arguments=arguments,
        tensors=tensors,
        frontend_arguments={**first.frontend_arguments, "streams": streams},
    )


def _check_alike(first: ImportedNetwork, other: ImportedNetwork) -> None:
    one, two = _compared(first), _compared(other)
    differing = [f"{key} ({one[key]} and {two[key]})" for key in one if one[key] != two[key]]
    if differing:
        raise ModelError(f"the checkpoints are not compatible: different {', '.join(differing)}")


def _compared(imported: ImportedNetwork) -> dict[str, Any]:
    frontend = {k: v for k, v in imported.frontend_arguments.items() if k != "streams"}
    keys = ("num_classes", "channels", "strides", "kernel", "padding", "pool")
    return {**frontend, **{key: imported.arguments[key] for key in keys}}
