"""Encoders and encoder layers of continual-inference 1.x.

A layer alone (single-output or retroactive) becomes an encoder of one block; of a retroactive
layer that is the newest of its outputs. The package takes the activation "gelu" and runs ReLU
(1.2.4): give what the training really used, ``relu`` for that string.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.checkpoints.blocks import ENCODER_KEYS, Block, encoder
from costream.checkpoints.config import Config
from costream.checkpoints.foreign import Foreign
from costream.checkpoints.rules import Imported

KEYS = ENCODER_KEYS


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether the names are those of such an encoder or layer."""
    return any(f"{at}0.self_attn.in_proj_weight" in tensors for at in ("", "layers.0."))


def find_blocks(tensors: Mapping[str, Tensor]) -> list[Block]:
    """Give the blocks: of a layer alone, or of an encoder of one or more."""
    if "0.self_attn.in_proj_weight" in tensors:
        return [_block(tensors, "")]
    blocks = [_block(tensors, "layers.0.")]
    while f"layers.{len(blocks)}.fn.0.self_attn.in_proj_weight" in tensors:
        blocks.append(_block(tensors, f"layers.{len(blocks)}.fn."))
    return blocks


def convert(foreign: Foreign, config: Config) -> Imported:
    """Give the encoder. Heads, window and activation are not in the file, and must be given."""
    blocks = find_blocks(foreign.tensors)
    last = "norm.fn" if "norm.fn.weight" in foreign.tensors else None
    return encoder(foreign.tensors, blocks, config, final_norm=last, norm_first=False)


def _block(tensors: Mapping[str, Tensor], at: str) -> Block:
    if f"{at}1.fn.norm1.weight" in tensors:  # retroactive: the whole tail is one wrapped module
        tail, ff = f"{at}1.fn", f"{at}1.fn._ff_block.fn"
        return Block(
            f"{at}0.self_attn", f"{tail}.norm1", f"{ff}.linear1", f"{ff}.linear2", f"{tail}.norm2"
        )
    tail, ff = f"{at}1", f"{at}1._ff_block.1"
    return Block(
        f"{at}0.self_attn", f"{tail}.norm1.fn", f"{ff}.linear1", f"{ff}.linear2", f"{tail}.norm2.fn"
    )
