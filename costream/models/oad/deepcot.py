"""DeepCoT: token classification with a deep continual encoder."""

from __future__ import annotations

from torch import Tensor

from costream.models.oad.cooadtr import ClassifierState, OadOutput, TokenClassifier
from costream.models.spec import register_model
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
    """Linear, positions, single-output blocks each with its own window, LayerNorm, Linear.

    The network of Carreto Picon et al., DeepCoT (2025). For depth 1 it is CoOadTR; a deeper one is
    not the ordinary encoder over a window, see ``DeepEncoder``. The defaults are the sizes for
    GTZAN with features of VGGish, but for the hidden width, which is 1024 in the authors' code.

    Args:
        input_width: width of a feature row. ``num_classes``: K.
        embed_dim, depth, num_heads, feedforward, window: size of the encoder.
        positions: "learned", "fixed", "rotary" or "none". ``num_positions``: rows of the table,
            see ``CoOadTR``.
        norm_first, activation, attention, residual, qkv_bias, out_bias, final_norm: see
            ``DeepEncoder``.
        input_projection: False if rows are ``embed_dim`` wide already.
        head: False to return the encoder's output in place of logits.
        dropout: in training.
    """

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        embed_dim: int = 192,
        depth: int = 2,
        num_heads: int = 16,
        feedforward: int = 192,
        window: int = 120,
        positions: str = "learned",
        num_positions: int | None = None,
        norm_first: bool = False,
        activation: str = "gelu",
        attention: str = "softmax",
        residual: str = "norm",
        qkv_bias: bool = True,
        out_bias: bool = True,
        final_norm: bool = True,
        input_projection: bool = True,
        head: bool = True,
        dropout: float = 0.1,
    ) -> None:
        rotary = positions == "rotary"
        encoder = DeepEncoder(
            embed_dim,
            num_heads,
            feedforward,
            depth,
            window,
            norm_first=norm_first,
            activation=activation,
            rotary=rotary,
            attention=attention,
            residual=residual,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            final_norm=final_norm,
            dropout=dropout,
        )
        super().__init__(
            encoder,
            input_width,
            num_classes,
            positions="none" if rotary else positions,
            num_positions=num_positions,
            input_projection=input_projection,
            head=head,
            dropout=dropout,
        )

    def forward_step(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it.

        For m rows of one step, [B, m, C], return the outputs of all, [B, m, K]: in every block they
        attend to one another. ValueError for more rows than the window holds.
        """
        if x.dim() == 2:
            return super().forward_step(x, state)
        x = self._embed(x)
        if self.positions is not None and state.positions is not None:
            x = self.positions.forward_steps(x, state.positions)
        return self._classify(self.encoder.forward_step(self._drop(x), state.encoder))
