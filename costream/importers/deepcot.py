"""Importer of DeepCoT checkpoints (Carreto Picon et al., 2025).

The layout is that of CoOadTR; with one block it is the same network as CoTrans.
"""

from __future__ import annotations

from collections.abc import Mapping

from costream.importers import cooadtr
from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.encoder_blocks import convert_to_deepcot
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a DeepCoT with two or more blocks."""
    layout = cooadtr.find_layout(tensors)
    return layout is not None and layout.deep


@importer("deepcot", summary="DeepCoT", detect=detect, keys=cooadtr.KEYS, order=4)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network, as ``cooadtr.convert`` does; ModelError for ``stack=exact``."""
    settings.check("stack", "deepcot")
    layout = cooadtr.require_layout(foreign.tensors)
    imported = cooadtr.read(foreign, settings, layout)
    return convert_to_deepcot(imported, settings, trained=layout.deep)
