"""Importer of MiniROAD checkpoints (An et al., Minimal RNN Framework for OAD, ICCV 2023)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork, TensorRule, apply, linear, norm, shape_of
from costream.labels.names import class_names

KEYS = ("input_width", "embed_dim", "num_classes")
PAPER = "https://arxiv.org/abs/2308.16444"


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of MiniROAD."""
    return {"layer1.0.weight", "gru.weight_ih_l0", "f_classification.0.weight"} <= tensors.keys()


@importer("miniroad", summary="MiniROAD", detect=detect, keys=KEYS, order=2)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and contradictory settings.

    A network with more than one recurrent layer, or with anticipation, has unused tensors.
    """
    tensors = foreign.tensors
    d, width = shape_of(tensors, "layer1.0.weight", 2)
    classes, hidden = shape_of(tensors, "f_classification.0.weight", 2)
    rules = [
        *linear("input_projection", "layer1.0", d, width),
        *norm("norm", "layer1.1", d),
        *linear("head", "f_classification.0", classes, hidden),
    ]
    for part, columns in (("ih", d), ("hh", hidden)):
        for kind, shape in (("weight", (3 * hidden, columns)), ("bias", (3 * hidden,))):
            name = f"gru.{kind}_{part}_l0"
            rules.append(TensorRule(name, (name,), shape))
    arguments = {
        "input_width": config.check("input_width", width),
        "num_classes": config.check("num_classes", classes),
        "embed_dim": config.check("embed_dim", d),
        "hidden": hidden,
    }
    names = class_names(foreign.settings, classes)
    return ImportedNetwork("miniroad", arguments, apply(rules, tensors), classes, names, PAPER)
