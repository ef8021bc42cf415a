"""Conversion of ordinary encoders to DeepCoT: the same weights, but other results."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from costream.errors import ModelError
from costream.importers.config import ImportSettings
from costream.importers.rules import ImportedNetwork

PAPER = "https://arxiv.org/abs/2511.17693"
# architecture of an ordinary encoder -> that with a memory in each block
_TWINS = {"cooadtr": "deepcot", "cotrans": "deepcot", "encoder": "deepcot-encoder"}


def apply_stack_setting(imported: ImportedNetwork, config: ImportSettings) -> ImportedNetwork:
    """Return an imported network with the ``stack`` and ``attention`` of ``config``.

    Raises ModelError for ``attention=soft`` where blocks have no memory of their own, and where
    ``stack=deepcot`` is not possible.
    """
    if config.get("stack") == "deepcot" and imported.architecture not in _TWINS.values():
        return convert_to_deepcot(imported, config, trained=False)
    if config.get("attention") == "soft" and "attention" not in imported.arguments:
        raise ModelError("attention=soft requires DeepCoT", hint="add --config stack=deepcot")
    return imported


def convert_to_deepcot(
    imported: ImportedNetwork, config: ImportSettings, *, trained: bool
) -> ImportedNetwork:
    """Return an imported encoder or classifier as DeepCoT.

    ``trained``: it was trained as DeepCoT; otherwise ``limits`` describes the difference. With
    ``attention=soft`` the key projections are dropped; the query projections replace them.
    """
    arguments, tensors = dict(imported.arguments), imported.tensors
    if config.get("attention") == "soft":
        arguments["attention"] = "soft"
        tensors = {name: _without_keys(name, value) for name, value in tensors.items()}
    depth, window = arguments["depth"], arguments["window"]
    changed = depth > 1 and not trained
    note = (
        f"Run as DeepCoT but not trained as such: each of its {depth} blocks has its own window of"
        f" {window} steps, so an output depends on {depth * (window - 1) + 1} steps and differs"
        f" from that of the encoder over {window}. Evaluate it on your own data."
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
