"""CoOadTR: token classification with a continual transformer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.spec import register_model
from costream.nn.block import EncoderConfig, EncoderStack
from costream.nn.encoder import Encoder
from costream.nn.fast import linear
from costream.nn.position import PositionState, RecyclingPositions
from costream.nn.state import State, zeros

# for THUMOS14: width of RGB and flow of ActivityNet's TSN, classes
THUMOS14 = {"input_width": 3072, "num_classes": 22}


class OadOutput(NamedTuple):
    """Scores of one step [B, ...] or of T steps [B, T, ...]; K classes, A steps ahead."""

    logits: Tensor  # [..., K], of the present
    anticipation: Tensor | None  # [..., A, K], of the future; None: not predicted


@dataclass
class ClassifierState(State):
    """State of a token classifier for each stream."""

    positions: PositionState | None
    encoder: State


class TokenClassifier(nn.Module):
    """Linear, recycling positions, a continual encoder, LayerNorm, Linear.

    Args:
        encoder: maps tokens to tokens, one per step; its dropout is that of the tokens too.
        input_width: width of a feature row. ``num_classes``: K.
        positions: "learned", "fixed" or "none". ``num_positions``: rows of the table; the default
            is that of Continual Transformers, n if learned and 2 n - 1 if fixed.
        input_projection: False if rows are ``embed_dim`` wide already.
        head: False to return the encoder's output in place of logits.
        skip: whether a linear map of the feature row itself is added to the logits.

    Subclasses build the encoder. Their other arguments are those of ``EncoderConfig`` and the ones
    above; ``config`` has the defaults.
    """

    delay = 0
    config: ClassVar[EncoderConfig]
    encoder: Any

    def __init__(
        self,
        encoder: EncoderStack,
        input_width: int,
        num_classes: int,
        *,
        positions: str = "learned",
        num_positions: int | None = None,
        input_projection: bool = True,
        head: bool = True,
        skip: bool = False,
    ) -> None:
        super().__init__()
        width, window = encoder.embed_dim, encoder.window
        if positions not in ("learned", "fixed", "none"):
            raise ValueError(f"positions {positions!r} is not learned, fixed or none")
        if not input_projection and input_width != width:
            raise ValueError(f"input_width {input_width} is not embed_dim {width}")
        if skip and not head:
            raise ValueError("skip needs head: it is added to the logits")
        self.window = window
        self.input_projection = nn.Linear(input_width, width) if input_projection else None
        learned = positions == "learned"
        rows = num_positions or (window if learned else 2 * window - 1)
        self.positions = None if positions == "none" else RecyclingPositions(rows, width, learned)
        self.dropout = encoder.config.dropout
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes) if head else None
        self.skip = nn.Linear(input_width, num_classes) if skip else None

    @property
    def receptive_field(self) -> int:
        """Feature rows that an output depends on."""
        return int(self.encoder.receptive_field)

    @property
    def exact(self) -> bool:
        """Whether its answers are those of recomputing the window."""
        return bool(self.encoder.exact)

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output of every step of a clip [B, T, C], as stepping through it would.

        ``offset``: steps before the clip, an int or int64 [B]; random offsets in training make the
        table of positions recyclable. ``last``: only this number of last steps, which saves time
        with two or more blocks, where each step has a window of its own.
        """
        y = self.encoder(self._drop(self.embed(x, offset)), last)
        return self._classify(y, x if last is None else x[:, -last:])

    def embed(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Return the encoder's input [B, T, d] for a clip [B, T, C]; see ``forward``."""
        x = self._embed(x)
        return x if self.positions is None else cast(Tensor, self.positions(x, offset))

    def init_state(self, batch_size: int = 1) -> ClassifierState:
        """Return the initial state of a batch of streams."""
        positions = None if self.positions is None else self.positions.init_state(batch_size)
        return ClassifierState(positions, self.encoder.init_state(batch_size))

    def warmup(self, state: ClassifierState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its receptive field is not yet full.

        ``ago``: the answer for this number of steps before.
        """
        return cast("tuple[bool, ...]", self.encoder.warmup(state.encoder, ago))

    def graph_key(self, x: Tensor, state: ClassifierState) -> Hashable:
        """Return that of the encoder, or None; see ``cuda_graph.GraphedStep``."""
        key = getattr(self.encoder, "graph_key", None)
        return None if key is None else cast(Hashable, key(x, state.encoder))

    def forward_step(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        y = self._embed(x)
        if self.positions is not None and state.positions is not None:
            y = self.positions.forward_step(y, state.positions)
        return self._classify(self.encoder.forward_step(self._drop(y), state.encoder), x)

    def forward_steps(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take T feature rows [B, T, C], return what T calls of ``forward_step`` would."""
        y = self._embed(x)
        if self.positions is not None and state.positions is not None:
            y = self.positions.forward_steps(y, state.positions)
        return self._classify(self.encoder.forward_steps(self._drop(y), state.encoder), x)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream whose window is full."""
        return int(self._row_macs(1) + self.encoder.count_macs())

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when the whole window is recomputed."""
        return int(self._row_macs(self.window) + self.encoder.dense_macs)

    def _row_macs(self, rows: int) -> int:
        layers = self.input_projection, self.head, self.skip
        projection, *others = (0 if one is None else one.weight.numel() for one in layers)
        return rows * projection + sum(others)

    def _embed(self, x: Tensor) -> Tensor:
        return x if self.input_projection is None else linear(self, "input_projection", x)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training else x

    def _classify(self, y: Tensor, x: Tensor) -> OadOutput:
        """Return the output for the encoder's rows and those of the features."""
        if self.head is not None:
            y = linear(self, "head", y)
        return OadOutput(y if self.skip is None else y + linear(self, "skip", x), None)


@register_model(
    "cooadtr",
    summary="online action detection, continual transformer of one block (default)",
    listed=1,
    order=1,
    arguments=THUMOS14,
)
@register_model(
    "cooadtr-b2",
    summary="online action detection, continual transformer of two blocks",
    listed=2,
    architecture="cooadtr",
)
class CoOadTR(TokenClassifier):
    """Linear, recycling positions, continual encoder, LayerNorm, Linear.

    The network of Hedegaard et al., Continual Transformers (ICLR 2023), section 4.1: OadTR
    without class token and decoder. ``depth`` 1 and 2 are their b1 and b2, 3 and more are exact
    too. The output after each step is that of the ordinary encoder over the last ``window``
    tokens, or over all if there are fewer.

    Args:
        input_width: width of a feature row; 3072 or 4096 for RGB and flow, 7168 or 8192 with
            audio. ``num_classes``: K. Others: see ``TokenClassifier``.
    """

    config = EncoderConfig(
        *(1024, 8, 1024, 1, 64), qkv_bias=False, out_bias=False, final_norm=True, dropout=0.1
    )

    def __init__(self, input_width: int, num_classes: int, **options: Any) -> None:
        config, others = self.config.update(options)
        super().__init__(Encoder(config), input_width, num_classes, **others)


@register_model(
    "cotrans",
    summary="music genres in audio, continual transformer",
    listed=5,
    order=2,
    bench="costream.bench.audio:sound_steps_table",
    arguments={"num_classes": 10},
    task="sound classification",
)
@register_model(
    "cosounds",
    summary="environmental sounds, continual transformer",
    listed=6,
    architecture="cotrans",
)
class CoTrans(CoOadTR):
    """The audio network of Hedegaard et al., Continual Transformers (ICLR 2023), section 4.2.

    ``CoOadTR`` in the sizes of the paper: tokens of 128 values each quarter of a second, width
    192, 16 heads, a window of 120 tokens, 192 recycling positions, attention with biases. The
    paper's parameter counts imply that its feed-forward layers are 192 wide; its text says 384.
    """

    config = EncoderConfig(192, 16, 192, 1, 120, final_norm=True, dropout=0.1)

    def __init__(
        self,
        num_classes: int,
        input_width: int = 128,
        *,
        num_positions: int | None = 192,
        **options: Any,
    ) -> None:
        super().__init__(input_width, num_classes, num_positions=num_positions, **options)


@dataclass
class FeaturesState(State):
    """Step count of each stream."""

    steps: Tensor  # int64 [B]


@register_model("features", order=8, arguments={"embed_dim": 4096}, task="features", frontend="tsn")
class Features(nn.Module):
    """Identity network, to run a frontend by itself whose tokens are ``embed_dim`` wide."""

    delay = 0
    window = 1
    dense_macs = 0

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim

    def init_state(self, batch_size: int = 1) -> FeaturesState:
        """Return the initial state of a batch of streams."""
        return FeaturesState(zeros(batch_size))

    def warmup(self, state: FeaturesState, ago: int = 0) -> tuple[bool, ...]:
        """Return False for each stream: there is no window to fill."""
        return (False,) * state.batch_size

    def forward_step(self, x: Tensor, state: FeaturesState) -> Tensor:
        """Return the tokens [B, D] unchanged."""
        state.steps += 1
        return x

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step: 0."""
        return 0
