"""Importer of DeepCoT checkpoints (Carreto Picon et al., 2025), see ``sequential``.

With one block it is the same network as CoTrans and has the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.checkpoints import cooadtr
from costream.checkpoints.config import Config
from costream.checkpoints.foreign import Foreign
from costream.checkpoints.rules import Imported
from costream.checkpoints.sequential import find_layout
from costream.checkpoints.stacks import deepen

KEYS = cooadtr.KEYS


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of a DeepCoT with two or more blocks."""
    layout = find_layout(tensors)
    return layout is not None and layout.deep


def convert(foreign: Foreign, config: Config) -> Imported:
    """Return the network, as ``cooadtr.convert`` does; ModelError for ``stack=exact``."""
    config.agree("stack", "deepcot")
    layout = cooadtr.need_layout(foreign.tensors)
    return deepen(cooadtr.read(foreign, config, layout), config, trained=layout.deep)
