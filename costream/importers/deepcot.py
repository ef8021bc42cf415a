"""Importer of DeepCoT checkpoints (Carreto Picon et al., 2025), see ``sequential``.

With one block it is the same network as CoTrans and has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.importers import cooadtr
from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.cooadtr import find_layout
from costream.importers.encoder_blocks import convert_to_deepcot
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork

KEYS = cooadtr.KEYS


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of a DeepCoT with two or more blocks."""
    layout = find_layout(tensors)
    return layout is not None and layout.deep


@importer("deepcot", summary="DeepCoT", detect=detect, keys=KEYS, order=4)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network, as ``cooadtr.convert`` does; ModelError for ``stack=exact``."""
    config.check("stack", "deepcot")
    layout = cooadtr.need_layout(foreign.tensors)
    return convert_to_deepcot(cooadtr.read(foreign, config, layout), config, trained=layout.deep)
