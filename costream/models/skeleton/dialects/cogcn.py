"""Importer of continual-skeletons checkpoints (Hedegaard et al., Continual ST-GCNs, 2023).

ST-GCN, AGCN, S-TR and their continual forms, whose parameter names include the indices of their
containers. The strided and the stride-1 ("*") networks have the same tensors; ``--config padding``
selects one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from costream.models.skeleton.dialects.importer import (
    SKELETON_IMPORTER,
    SKELETON_KEYS,
    convert_skeleton,
)
from costream.models.skeleton.dialects.tensors import Dialect, Naming
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_prefix, importer
from costream.weights_io.tensor_rules import ImportedNetwork

PAPER = "https://arxiv.org/abs/2203.11009"


@importer(
    "continual-skeletons",
    summary="ST-GCN, AGCN or S-TR of continual-skeletons, regular or continual",
    detect=has_prefix("layers.layer1.gcn."),
    **{**SKELETON_IMPORTER, "keys": (*SKELETON_KEYS, "compat")},
    order=7,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    tensors = foreign.tensors
    # The published "*" weights of AGCN were trained with a defective attention and need it.
    compat = "continual-skeletons"
    dialect = Dialect(_naming(tensors), _kind(tensors), PAPER, padding=None, compat=compat)
    return convert_skeleton(foreign, dialect, settings)


def _kind(tensors: Mapping[str, Tensor]) -> str:
    if any(".gcn.a_conv." in name for name in tensors):
        return "agcn"
    return "str" if any(".attention_conv." in name for name in tensors) else "stgcn"


def _naming(tensors: Mapping[str, Tensor]) -> Naming:
    """Return the naming of the regular or the continual form, where a block is a residual."""
    nested = {m[1] for name in tensors if (m := re.match(r"(layers\.layer\d+\.)0\.1\.", name))}

    def theirs(ours: str) -> str:
        match = re.match(r"layers\.layer\d+\.", ours)
        if match is None or match[0] not in nested:
            return ours
        rest = ours.removeprefix(match[0])
        return f"{match[0]}0.{0 if rest.startswith('residual.') else 1}.{rest}"

    return theirs
