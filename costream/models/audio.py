"""Sound classification with a continual transformer: CoTrans."""

from __future__ import annotations

from typing import Any

from costream.models.oad.cooadtr import CoOadTR


class CoTrans(CoOadTR):
    """The audio network of Hedegaard et al., Continual Transformers (ICLR 2023), section 4.2.

    ``CoOadTR`` in the sizes of the paper: tokens of 128 values each quarter of a second, width
    192, 16 heads, a window of 120 tokens, 192 recycling positions, attention with biases. The
    paper's parameter counts imply that its feed-forward layers are 192 wide; its text says 384.

    Args: those of ``CoOadTR``; ``num_classes`` has no default.
    """

    def __init__(
        self,
        num_classes: int,
        input_width: int = 128,
        embed_dim: int = 192,
        depth: int = 1,
        num_heads: int = 16,
        feedforward: int = 192,
        window: int = 120,
        num_positions: int = 192,
        qkv_bias: bool = True,
        out_bias: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(
            input_width,
            num_classes,
            embed_dim,
            depth,
            num_heads,
            feedforward,
            window,
            num_positions=num_positions,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            **more,
        )
