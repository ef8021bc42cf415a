"""CoNystrom: token classification with continual Nyström attention."""

from __future__ import annotations

from typing import Any

from costream.models.oad.cooadtr import THUMOS14, CoOadTR, CoTrans, TokenClassifier
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
        num_landmarks, landmarks, iterations: see ``NystromEncoder``. Others: ``TokenClassifier``.
    """

    config = CoOadTR.config
    encoder: NystromEncoder

    def __init__(
        self,
        input_width: int,
        num_classes: int,
        *,
        num_landmarks: int = 16,
        landmarks: str = "continual",
        iterations: int = ITERATIONS,
        **options: Any,
    ) -> None:
        config, others = self.config.update(options)
        encoder = NystromEncoder(config, num_landmarks, landmarks=landmarks, iterations=iterations)
        super().__init__(encoder, input_width, num_classes, **others)


@register_model(
    "conystrom-audio",
    summary="audio, continual Nyström attention",
    listed=8,
    order=4,
    arguments={"num_classes": 10},
    task="sound classification",
)
class CoNystromAudio(CoNystrom):
    """``CoNystrom`` in the sizes for GTZAN: those of ``CoTrans``, with 4 landmarks."""

    config = CoTrans.config

    def __init__(
        self,
        num_classes: int,
        input_width: int = 128,
        *,
        num_landmarks: int = 4,
        num_positions: int | None = 192,
        **options: Any,
    ) -> None:
        options = {"num_landmarks": num_landmarks, "num_positions": num_positions, **options}
        super().__init__(input_width, num_classes, **options)
