"""DeepCoT: token classification with a deep continual encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from costream.models.oad.cooadtr import ClassifierState, OadOutput, TokenClassifier
from costream.models.spec import register_model
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder


@register_model(
    "deepcot",
    summary="token classification, continual transformer of any depth",
    listed=9,
    order=6,
    arguments={"input_width": 128, "num_classes": 10},  # VGGish, GTZAN
    task="sound classification",
)
class DeepCoT(TokenClassifier):
    """Linear, positions, single-output blocks with a window each, LayerNorm, Linear.

    The network of Carreto Picon et al., DeepCoT (2025). For depth 1 it is CoOadTR; a deeper one is
    not the ordinary encoder over a window, see ``DeepEncoder``. The defaults are the sizes for
    GTZAN with features of VGGish, except the hidden width, which is 1024 in the authors' code.

    Args:
        input_width: width of a feature row. ``num_classes``: K.
        positions: "learned", "fixed", "rotary" or "none".
        attention, residual: see ``DeepEncoder``. Others: see ``TokenClassifier``.
    """

    config = EncoderConfig(192, 16, 192, 2, 120, final_norm=True, dropout=0.1)

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        *,
        positions: str = "learned",
        attention: str = "softmax",
        residual: str = "norm",
        **options: Any,
    ) -> None:
        config, others = self.config.update(options)
        rotary = positions == "rotary"
        encoder = DeepEncoder(config, rotary=rotary, attention=attention, residual=residual)
        positions = "none" if rotary else positions
        super().__init__(encoder, input_width, num_classes, positions=positions, **others)

    def forward_step(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it.

        For m rows of one step, [B, m, C], return the outputs of all, [B, m, K]: in every block they
        attend to one another. ValueError for more rows than the window holds.
        """
        if x.dim() == 2:
            return super().forward_step(x, state)
        rows = y = self._embed(x)
        if self.positions is not None and state.positions is not None:
            y = self.positions.forward_steps(y, state.positions)
        y = self.encoder.forward_step(self._drop(y), state.encoder)
        if self.memory is not None and state.memory is not None:
            y = self.memory.forward_steps(rows, y, state.memory)
        return self._classify(y, x)
