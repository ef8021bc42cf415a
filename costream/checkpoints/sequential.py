"""Parameter layout of the published continual networks.

They are a ``Sequential`` of input projection (0), recycling positions (1), dropout (2, omitted in
the audio networks), encoder, LayerNorm and head. The encoder is one of continual-inference 0.17
or 1.x, or a stack of single-output layers (DeepCoT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from costream.checkpoints import continual_1
from costream.importers import continual_inference as continual_017
from costream.importers.encoder_blocks import EncoderBlockNames


@dataclass(frozen=True)
class SequentialLayout:
    """Parameter names of the modules after the positions, up to ``.weight``."""

    blocks: list[EncoderBlockNames]
    norm: str
    head: str
    deep: bool  # two blocks or more, each single-output


def find_layout(tensors: Mapping[str, Tensor]) -> SequentialLayout | None:
    """Return the parameter layout; None when the names are not those of such a network."""
    for position in (2, 3):
        at = f"{position}."
        deep = continual_1.is_deep(tensors, at)
        if any(f"{at}{first}in_proj_weight" in tensors for first in ("0.1.", "0.0.1.")):
            blocks = continual_017.find_blocks_017(tensors, at)
        elif continual_1.detect(tensors, at):
            blocks = continual_1.find_blocks(tensors, at)
        else:
            continue
        return SequentialLayout(blocks, f"{position + 1}.fn", f"{position + 2}", deep)
    return None
