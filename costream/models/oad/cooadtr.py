"""CoOadTR: token classification with a continual transformer.

Checkpoints (Hedegaard et al., Continual Transformers, ICLR 2023) are a ``Sequential`` of input
projection (0), recycling positions (1), dropout (2, omitted in the audio networks), encoder,
LayerNorm and head. The encoder is one of continual-inference 0.17 or 1.x, or a stack of
single-output layers (DeepCoT). CoOadTR and CoTrans are the same network; the input of CoTrans is
the 128 features of VGGish.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.core.label_sets import class_names
from costream.models.oad import encoder_checkpoints as continual_inference
from costream.models.oad.encoder_blocks import (
    EncoderBlockNames,
    apply_stack_setting,
    block_rules,
    convert_to_deepcot,
    read_sizes,
)
from costream.models.spec import register_model
from costream.nn.block import EncoderConfig, EncoderStack
from costream.nn.encoder import Encoder
from costream.nn.fast import linear
from costream.nn.long_memory import LongMemory, LongMemoryState
from costream.nn.position import PositionState, RecyclingPositions
from costream.nn.state import State, zeros
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    TensorRule,
    apply,
    norm,
    shape_of,
)
from costream.weights_io.tensor_rules import (
    linear as linear_rules,
)

# Width of the features (RGB and flow of ActivityNet's TSN) and classes of THUMOS14.
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
    memory: LongMemoryState | None = None


class TokenClassifier(nn.Module):
    """Linear, recycling positions, a continual encoder, LayerNorm, Linear.

    Args:
        encoder: maps tokens to tokens, one per step; its dropout also applies to its input.
        input_width: width of a feature row. ``num_classes``: K.
        positions: "learned", "fixed" or "none". ``num_positions``: rows of the table; default as in
            Continual Transformers: n if learned, 2 n - 1 if fixed.
        input_projection: whether there is one; without it, rows are ``embed_dim`` wide.
        head: whether to return logits, or the encoder's output.
        skip: whether a linear map of the feature row is added to the logits.
        memory: queries of a ``LongMemory`` of all projected rows, which the newest row of the
            encoder attends to; 0: there is none. ``memory_decay``: of its weights, for each step.

    Subclasses build the encoder. Further arguments are those of ``EncoderConfig`` and of this
    class; ``config`` has the defaults.
    """

    delay = 0
    config: ClassVar[EncoderConfig]
    encoder: Any

    def __init__(  # noqa: PLR0913 - the settings of a card
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
        memory: int = 0,
        memory_decay: float = 0.97,
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
        heads = encoder.config.num_heads
        self.memory = LongMemory(width, heads, memory, memory_decay) if memory else None
        self.head = nn.Linear(width, num_classes) if head else None
        self.skip = nn.Linear(input_width, num_classes) if skip else None

    @property
    def receptive_field(self) -> int:
        """Feature rows that an output depends on."""
        return int(self.encoder.receptive_field)

    @property
    def exact(self) -> bool:
        """Whether the outputs equal a recomputation of the window."""
        return bool(self.encoder.exact) and self.memory is None

    def forward(self, x: Tensor, offset: int | Tensor = 0, last: int | None = None) -> OadOutput:
        """Return the output of every step of a clip [B, T, C], as stepping through it would.

        ``offset``: steps before the clip, an int or int64 [B]; random offsets in training make the
        table of positions recyclable. ``last``: return only this number of last steps, which saves
        time with two or more blocks, where the windows of steps differ.
        """
        rows = self._embed(x)
        placed = rows if self.positions is None else self.positions(rows, offset)
        y = self.encoder(self._drop(placed), last)
        if self.memory is not None:
            y = self.memory(rows, y)
        return self._classify(y, x if last is None else x[:, -last:])

    def embed(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Return the encoder's input [B, T, d] for a clip [B, T, C]; see ``forward``."""
        x = self._embed(x)
        return x if self.positions is None else cast(Tensor, self.positions(x, offset))

    def init_state(self, batch_size: int = 1) -> ClassifierState:
        """Return the initial state of a batch of streams."""
        positions = None if self.positions is None else self.positions.init_state(batch_size)
        memory = None if self.memory is None else self.memory.init_state(batch_size)
        return ClassifierState(positions, self.encoder.init_state(batch_size), memory)

    def warmup(self, state: ClassifierState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its receptive field was not full ``ago`` steps before."""
        return cast("tuple[bool, ...]", self.encoder.warmup(state.encoder, ago))

    def graph_key(self, x: Tensor, state: ClassifierState) -> Hashable:
        """Return the key of the encoder, or None; see ``cuda_graph.GraphedStep``."""
        key = getattr(self.encoder, "graph_key", None)
        return (
            None
            if key is None or self.memory is not None
            else cast(Hashable, key(x, state.encoder))
        )

    def forward_step(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take one feature row [B, C] of every stream, return the output after it."""
        rows = y = self._embed(x)
        if self.positions is not None and state.positions is not None:
            y = self.positions.forward_step(y, state.positions)
        y = self.encoder.forward_step(self._drop(y), state.encoder)
        if self.memory is not None and state.memory is not None:
            y = self.memory.forward_step(rows, y, state.memory)
        return self._classify(y, x)

    def forward_steps(self, x: Tensor, state: ClassifierState) -> OadOutput:
        """Take T feature rows [B, T, C], return the outputs of T calls of ``forward_step``."""
        rows = y = self._embed(x)
        if self.positions is not None and state.positions is not None:
            y = self.positions.forward_steps(y, state.positions)
        y = self.encoder.forward_steps(self._drop(y), state.encoder)
        if self.memory is not None and state.memory is not None:
            y = self.memory.forward_steps(rows, y, state.memory)
        return self._classify(y, x)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step for one stream whose window is full."""
        return int(self._row_macs(1) + self.encoder.count_macs())

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same output when all of the window is recomputed."""
        return int(self._row_macs(self.window) + self.encoder.dense_macs)

    def _row_macs(self, rows: int) -> int:
        layers = self.input_projection, self.head, self.skip
        projection, *others = (0 if one is None else one.weight.numel() for one in layers)
        memory = 0 if self.memory is None else self.memory.count_macs()
        return rows * projection + sum(others) + memory

    def _embed(self, x: Tensor) -> Tensor:
        return x if self.input_projection is None else linear(self, "input_projection", x)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.training else x

    def _classify(self, y: Tensor, x: Tensor) -> OadOutput:
        """Return the output for rows of the encoder and for the feature rows."""
        if self.head is not None:
            y = linear(self, "head", y)
        return OadOutput(y if self.skip is None else y + linear(self, "skip", x), None)


@register_model(
    "cooadtr",
    summary="online action detection, continual transformer of one block",
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
    without class token and decoder. ``depth`` 1 and 2 are their b1 and b2; larger depths are exact
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
    """Identity network, to run only a frontend, whose tokens are ``embed_dim`` wide."""

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


KEYS = (
    "num_heads",
    "window",
    "activation",
    "stack",
    "attention",
    "input_width",
    "embed_dim",
    "feedforward",
    "depth",
    "num_positions",
    "num_classes",
)
PAPER = "https://arxiv.org/abs/2201.06268"
_VGGISH = 128  # features
_AUDIOVISUAL = (7168, 8192)  # features of ActivityNet or Kinetics, with those of sound
_WINDOW = 64  # the published one; learned positions have as many rows, fixed ones 2 x 64 - 1
_GTZAN_WIDTH = 192  # of the paper's audio networks
_GTZAN = {"num_heads": 16, "window": 120}  # not in their tensors
_ALIASES = {"num_heads": "num_heads", "enc_layers": "window"}


@dataclass(frozen=True)
class SequentialLayout:
    """Parameter names of the modules after the positions, up to ``.weight``."""

    blocks: list[EncoderBlockNames]
    norm: str
    head: str
    deep: bool  # two blocks or more, each single-output


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of CoOadTR or CoTrans."""
    layout = find_layout(tensors)
    return layout is not None and not layout.deep


@importer(
    "cooadtr", summary="CoOadTR or CoTrans, one or two blocks", detect=detect, keys=KEYS, order=3
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network. The tensors do not determine the window: the table may be longer."""
    layout = require_layout(foreign.tensors)
    if layout.deep:
        raise ModelError("a stack of DeepCoT", hint="import it with --as deepcot")
    return apply_stack_setting(read(foreign, settings, layout), settings)


def require_layout(tensors: Mapping[str, object]) -> SequentialLayout:
    """Return the parameter layout; ModelError when it is not that of such a network."""
    layout = find_layout(tensors)
    if layout is None:
        raise ModelError(
            "the checkpoint does not fit: no encoder at the position of CoOadTR and CoTrans"
        )
    return layout


def read(
    foreign: ForeignCheckpoint, settings: ImportSettings, layout: SequentialLayout
) -> ImportedNetwork:
    """Return the network of a checkpoint with this layout."""
    tensors, blocks = foreign.tensors, layout.blocks
    settings.adopt(foreign.args, _ALIASES)
    sizes = read_sizes(tensors, blocks[0])
    d, width = shape_of(tensors, "0.weight", 2)
    learned = "1.pe.weight" in tensors
    table = "1.pe.weight" if learned else "1.pe.pattern"
    rows = shape_of(tensors, table, 2)[0]
    classes = shape_of(tensors, f"{layout.head}.weight", 2)[0]
    audio = width == _VGGISH
    settings.suggest(_published(width, d, rows))
    arguments: dict[str, Any] = {
        "input_width": settings.check("input_width", width),
        "num_classes": settings.check("num_classes", classes),
        "embed_dim": settings.check("embed_dim", d),
        "depth": settings.check("depth", len(blocks)),
        "num_heads": settings.heads("num_heads", d),
        "feedforward": settings.check("feedforward", sizes.feedforward),
        "window": settings.require("window"),
        "positions": "learned" if learned else "fixed",
        "activation": settings.get("activation") or "gelu",
        "num_positions": settings.check("num_positions", rows),
        "qkv_bias": sizes.qkv_bias,
        "out_bias": sizes.out_bias,
    }
    rules = [
        *linear_rules("input_projection", "0", d, width),
        TensorRule("positions.table", (table,), (rows, d)),
        *block_rules(blocks, sizes, "encoder."),
        *norm("encoder.norm", layout.norm, d),
        *linear_rules("head", layout.head, classes, d),
    ]
    names = class_names(foreign.args, classes)
    return ImportedNetwork(
        "cotrans" if audio else "cooadtr",
        arguments,
        apply(rules, tensors),
        classes,
        names,
        PAPER,
        task="sound classification" if audio else "online action detection",
    )


def _published(width: int, embed_dim: int, rows: int) -> dict[str, Any]:
    """Return the authors' settings for a network of these sizes."""
    if width == _VGGISH:
        return {"rate_hz": 4.0, **(_GTZAN if embed_dim == rows == _GTZAN_WIDTH else {})}
    window = {"window": _WINDOW} if rows in (_WINDOW, 2 * _WINDOW - 1) else {}
    return {"num_heads": 8, **window, "rate_hz": 5.0 if width in _AUDIOVISUAL else 4.0}


def find_layout(tensors: Mapping[str, object]) -> SequentialLayout | None:
    """Return the parameter layout; None when the names are not those of such a network."""
    for position in (2, 3):
        at = f"{position}."
        deep = continual_inference.is_deep(tensors, at)
        if continual_inference.detect_017(tensors, at):
            blocks = continual_inference.find_blocks_017(tensors, at)
        elif continual_inference.detect(tensors, at):
            blocks = continual_inference.find_blocks(tensors, at)
        else:
            continue
        return SequentialLayout(blocks, f"{position + 1}.fn", f"{position + 2}", deep)
    return None


# DeepCoT (Carreto Picon et al., 2025) has the same layout; with one block it is the same network as
# CoTrans.


def _is_deep(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of a DeepCoT with two or more blocks."""
    layout = find_layout(tensors)
    return layout is not None and layout.deep


@importer("deepcot", summary="DeepCoT", detect=_is_deep, keys=KEYS, order=4)
def convert_deepcot(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network, as ``convert`` does; ModelError for ``stack=exact``."""
    settings.check("stack", "deepcot")
    layout = require_layout(foreign.tensors)
    imported = read(foreign, settings, layout)
    return convert_to_deepcot(imported, settings, trained=layout.deep)
