"""What an ordinary encoder becomes when it runs as DeepCoT: the same weights, other results."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from costream.checkpoints.config import Config
from costream.checkpoints.rules import Imported
from costream.errors import ModelError

PAPER = "https://arxiv.org/abs/2511.17693"
# what an ordinary encoder is imported as -> the same with a memory in each block
_TWINS = {"cooadtr": "deepcot", "cotrans": "deepcot", "encoder": "deepcot-encoder"}


def settle(imported: Imported, config: Config) -> Imported:
    """Give an imported network as the ``stack`` and ``attention`` of ``config`` say.

    Raises ModelError for ``attention=soft`` where blocks have no memory of their own, and for
    ``stack=deepcot`` where it cannot be.
    """
    if config.get("stack") == "deepcot" and imported.architecture not in _TWINS.values():
        return deepen(imported, config, trained=False)
    if config.get("attention") == "soft" and "attention" not in imported.arguments:
        raise ModelError("attention=soft is for DeepCoT", hint="add --config stack=deepcot")
    return imported


def deepen(imported: Imported, config: Config, *, trained: bool) -> Imported:
    """Give an imported encoder or classifier as DeepCoT.

    ``trained``: it was trained so; otherwise ``limits`` says what changes. With
    ``attention=soft`` the projections of keys are left out, for those of queries take their place.
    """
    arguments, tensors = dict(imported.arguments), imported.tensors
    if config.get("attention") == "soft":
        arguments["attention"] = "soft"
        tensors = {name: _without_keys(name, value) for name, value in tensors.items()}
    depth, window = arguments["depth"], arguments["window"]
    changed = depth > 1 and not trained
    note = (
        f"Run as DeepCoT, not trained so: each of its {depth} blocks keeps a window of {window}"
        f" steps of its own, so that an output draws on {depth * (window - 1) + 1} steps and is not"
        f" that of the encoder over {window}. Judge it on your own data."
    )
    return dataclasses.replace(
        imported,
        architecture=_TWINS[imported.architecture],
        arguments=arguments,
        tensors=tensors,
        paper=PAPER,
        limits=" ".join(filter(None, (imported.limits, note if changed else ""))),
    )


def _without_keys(name: str, value: Tensor) -> Tensor:
    if not name.endswith((".in_proj_weight", ".in_proj_bias")):
        return value
    queries, _, values = value.chunk(3)
    return torch.cat([queries, values])
