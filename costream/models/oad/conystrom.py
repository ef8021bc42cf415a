"""CoNystrom: token classification with continual Nyström attention."""

from __future__ import annotations

from typing import Any

from costream.models.oad.cooadtr import THUMOS14, TokenClassifier
from costream.models.spec import register_model
from costream.nn.nystrom.encoder import NystromEncoder
from costream.nn.nystrom.window import ITERATIONS


@register_model(
    "conystrom",
    summary="online action detection, continual Nyström attention",
    listed=7,
    order=3,
    bench="costream.bench.nystrom:nystrom_steps_table",
    arguments=THUMOS14,
)
class CoNystrom(TokenClassifier):
    """Linear, recycling positions, continual Nyström encoder, LayerNorm, Linear.

    The network of Carreto Picon et al., Continual Low-Rank Scaled Dot-product Attention (2024), for
    online action detection: CoOadTR with m landmarks in place of n keys. The defaults are their
    sizes for THUMOS14, where exact attention costs less; see ``costream bench ops``.

    Args:
        input_width: width of a feature row. ``num_classes``: K.
        embed_dim, depth, num_heads, feedforward, window: size of the encoder.
        num_landmarks, landmarks, iterations: see ``NystromEncoder``.
        positions: "learned", "fixed" or "none". ``num_positions``: rows of the table, see
            ``CoOadTR``.
        norm_first, activation, qkv_bias, out_bias, final_norm: see ``Encoder``.
        input_projection: False if rows are ``embed_dim`` wide already.
        head: False to return the encoder's output in place of logits.
        dropout: in training.
    """

    encoder: NystromEncoder

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        embed_dim: int = 1024,
        depth: int = 1,
        num_heads: int = 8,
        feedforward: int = 1024,
        window: int = 64,
        num_landmarks: int = 16,
        landmarks: str = "continual",
        iterations: int = ITERATIONS,
        positions: str = "learned",
        num_positions: int | None = None,
        norm_first: bool = False,
        activation: str = "gelu",
        qkv_bias: bool = False,
        out_bias: bool = False,
        final_norm: bool = True,
        input_projection: bool = True,
        head: bool = True,
        dropout: float = 0.1,
    ) -> None:
        encoder = NystromEncoder(
            embed_dim,
            num_heads,
            feedforward,
            depth,
            window,
            num_landmarks,
            landmarks=landmarks,
            iterations=iterations,
            norm_first=norm_first,
            activation=activation,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            final_norm=final_norm,
            dropout=dropout,
        )
        super().__init__(
            encoder,
            input_width,
            num_classes,
            positions=positions,
            num_positions=num_positions,
            input_projection=input_projection,
            head=head,
            dropout=dropout,
        )


@register_model(
    "conystrom-audio",
    summary="audio, continual Nyström attention",
    listed=8,
    order=4,
    arguments={"num_classes": 10},
    task="sound classification",
)
class CoNystromAudio(CoNystrom):
    """``CoNystrom`` in the sizes for GTZAN: those of ``CoTrans``, with 4 landmarks.

    Args: those of ``CoNystrom``; ``num_classes`` has no default.
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
        num_landmarks: int = 4,
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
            num_landmarks,
            num_positions=num_positions,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            **more,
        )
