"""Importer of MiniROAD checkpoints (An et al., Minimal RNN Framework for OAD, ICCV 2023)."""

from __future__ import annotations

from costream.core.label_sets import class_names
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_tensors, importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    linear,
    norm,
    shape_of,
)

PAPER = "https://arxiv.org/abs/2308.16444"
_RATES_HZ = {22: 4.0, 31: 4.0}  # of the features, by the classes: THUMOS14 and TVSeries


@importer(
    "miniroad",
    summary="MiniROAD",
    detect=has_tensors("layer1.0.weight", "gru.weight_ih_l0", "f_classification.0.weight"),
    keys=("input_width", "embed_dim", "num_classes"),
    order=2,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
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
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", classes),
        "embed_dim": settings.check("embed_dim", d),
        "hidden": hidden,
    }
    if classes in _RATES_HZ:
        settings.suggest({"rate_hz": _RATES_HZ[classes]})
    names = class_names(foreign.args, classes)
    return ImportedNetwork("miniroad", arguments, apply(rules, tensors), classes, names, PAPER)
