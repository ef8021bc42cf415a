"""Importers of the encoders of continual-inference, versions 0.17 and 1.x.

0.17 (continual-transformers): one or two blocks, whose names are the positions in nested
``Sequential``s; ``fn`` marks a wrapped module. CoOadTR contains such an encoder as its module
``3``.

1.x: encoders and single layers. A layer (single-output or retroactive) becomes an encoder of one
block; a retroactive one then yields only its newest output. The package accepts the activation
"gelu" but runs ReLU (1.2.4): give the activation that training really used, ``relu`` for that
string. A stack of single-output layers is a DeepCoT encoder.
"""

from __future__ import annotations

from collections.abc import Mapping

from costream.models.oad.encoder_blocks import (
    ENCODER_KEYS,
    EncoderBlockNames,
    apply_stack_setting,
    convert_to_deepcot,
    encoder,
)
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import ImportedNetwork

_ATTENTION = "0.self_attn.in_proj_weight"


def detect_017(tensors: Mapping[str, object], at: str = "") -> bool:
    """Return whether the names with prefix ``at`` are those of an encoder of 0.17."""
    return any(f"{at}{first}.in_proj_weight" in tensors for first in ("0.1", "0.0.1"))


def find_blocks_017(tensors: Mapping[str, object], at: str = "") -> list[EncoderBlockNames]:
    """Return the blocks of the encoder whose names begin with ``at``."""
    if f"{at}0.0.1.in_proj_weight" not in tensors:
        return [_single(at)]
    after = f"{at}0.1.fn"
    first = EncoderBlockNames(
        f"{at}0.0.1", f"{after}.0", f"{after}.1.fn.0", f"{after}.1.fn.3", f"{after}.2"
    )
    return [first, _single(f"{at}1.fn.")]


@importer(
    "continual-0.17",
    summary="encoder of one or two blocks, continual-inference 0.17",
    detect=detect_017,
    keys=ENCODER_KEYS,
    order=5,
)
def convert_017(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the encoder; heads, window and activation are not in the file and must be given."""
    blocks = find_blocks_017(foreign.tensors)
    imported = encoder(foreign.tensors, blocks, settings, final_norm=None, norm_first=False)
    return apply_stack_setting(imported, settings)


def _single(at: str) -> EncoderBlockNames:
    return EncoderBlockNames(f"{at}0.1", f"{at}1.fn", f"{at}2.1.0", f"{at}2.1.3", f"{at}3.fn")


def detect(tensors: Mapping[str, object], at: str = "") -> bool:
    """Return whether the names with prefix ``at`` are those of an encoder or layer of 1.x."""
    return any(f"{at}{first}{_ATTENTION}" in tensors for first in ("", "layers.0."))


def is_deep(tensors: Mapping[str, object], at: str = "") -> bool:
    """Return whether the second block is single-output, too: a DeepCoT stack."""
    return f"{at}layers.1.{_ATTENTION}" in tensors


def find_blocks(tensors: Mapping[str, object], at: str = "") -> list[EncoderBlockNames]:
    """Return the blocks of a single layer or of an encoder with one or more blocks."""
    if f"{at}{_ATTENTION}" in tensors:
        return [_block(tensors, at)]
    blocks = [_block(tensors, f"{at}layers.0.")]
    wrapped = "" if is_deep(tensors, at) else "fn."
    while f"{at}layers.{len(blocks)}.{wrapped}{_ATTENTION}" in tensors:
        blocks.append(_block(tensors, f"{at}layers.{len(blocks)}.{wrapped}"))
    return blocks


@importer(
    "continual",
    summary="encoder or encoder layer, continual-inference 1.x",
    detect=detect,
    keys=ENCODER_KEYS,
    order=6,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the encoder; heads, window and activation are not in the file and must be given."""
    blocks = find_blocks(foreign.tensors)
    last = "norm.fn" if "norm.fn.weight" in foreign.tensors else None
    imported = encoder(foreign.tensors, blocks, settings, final_norm=last, norm_first=False)
    if not is_deep(foreign.tensors):
        return apply_stack_setting(imported, settings)
    settings.check("stack", "deepcot")
    return convert_to_deepcot(imported, settings, trained=True)


def _block(tensors: Mapping[str, object], at: str) -> EncoderBlockNames:
    if f"{at}1.fn.norm1.weight" in tensors:  # retroactive: the whole tail is one wrapped module
        tail, ff = f"{at}1.fn", f"{at}1.fn._ff_block.fn"
        return EncoderBlockNames(
            f"{at}0.self_attn", f"{tail}.norm1", f"{ff}.linear1", f"{ff}.linear2", f"{tail}.norm2"
        )
    tail, ff = f"{at}1", f"{at}1._ff_block.1"
    return EncoderBlockNames(
        f"{at}0.self_attn", f"{tail}.norm1.fn", f"{ff}.linear1", f"{ff}.linear2", f"{tail}.norm2.fn"
    )
