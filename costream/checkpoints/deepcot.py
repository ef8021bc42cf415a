"""DeepCoT checkpoints (Carreto Picon et al., 2025): a ``Sequential`` as in ``sequential``.

With one block it has the names of CoTrans, which is the same network then.
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
    """Tell whether the names are those of DeepCoT with two blocks or more."""
    layout = find_layout(tensors)
    return layout is not None and layout.deep


def convert(foreign: Foreign, config: Config) -> Imported:
    """Give the network, as ``cooadtr.convert`` does; ModelError for ``stack=exact``."""
    config.agree("stack", "deepcot")
    layout = cooadtr.need_layout(foreign.tensors)
    return deepen(cooadtr.read(foreign, config, layout), config, trained=layout.deep)
