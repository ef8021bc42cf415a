"""Importer of continual-inference 0.17 encoders (continual-transformers) of one or two blocks.

The names are the positions in nested ``Sequential``s; ``fn`` marks a wrapped module. CoOadTR
contains such an encoder as its module ``3``.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.importers.config import ImportSettings
from costream.importers.encoder_blocks import ENCODER_KEYS, EncoderBlockNames, encoder
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork

KEYS_017 = ENCODER_KEYS


def detect_017(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of such an encoder without a classifier."""
    return "0.1.in_proj_weight" in tensors or "0.0.1.in_proj_weight" in tensors


def find_blocks_017(tensors: Mapping[str, Tensor], at: str = "") -> list[EncoderBlockNames]:
    """Return the blocks of the encoder whose names begin with ``at``."""
    if f"{at}0.0.1.in_proj_weight" not in tensors:
        return [_single(at)]
    after = f"{at}0.1.fn"
    first = EncoderBlockNames(
        f"{at}0.0.1", f"{after}.0", f"{after}.1.fn.0", f"{after}.1.fn.3", f"{after}.2"
    )
    return [first, _single(f"{at}1.fn.")]


def convert_017(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the encoder; heads, window and activation are not in the file and must be given."""
    blocks = find_blocks_017(foreign.tensors)
    return encoder(foreign.tensors, blocks, config, final_norm=None, norm_first=False)


def _single(at: str) -> EncoderBlockNames:
    return EncoderBlockNames(f"{at}0.1", f"{at}1.fn", f"{at}2.1.0", f"{at}2.1.3", f"{at}3.fn")
