"""Transformer encoder blocks around a residual stream, and the configuration of their stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.attention import AttentionState, MultiheadAttention
from costream.nn.fast import gelu, layer_norm, linear

if TYPE_CHECKING:
    from costream.nn.encoder_kernels import BlockStep

A = TypeVar("A", bound=MultiheadAttention, covariant=True)
# gelu is the exact form, with erf
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": torch.relu,
    "none": torch.positive,
}
_COMPILED = (torch.relu, gelu)  # activations of compiled steps
_LAYERS = ("linear1", "linear2", "norm1", "norm2")


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and options that all encoders share.

    Raises ValueError for a depth or a window below 1, and for an unknown activation.
    """

    embed_dim: int  # d
    num_heads: int  # h
    feedforward: int  # hidden width
    depth: int  # L blocks
    window: int  # n rows
    norm_first: bool = False  # pre-norm blocks
    activation: str = "gelu"  # one of ACTIVATIONS
    qkv_bias: bool = True  # of the attention projections
    out_bias: bool = True
    final_norm: bool = False  # a LayerNorm after the last block
    dropout: float = 0.0  # in training

    def __post_init__(self) -> None:
        if self.depth < 1 or self.window < 1:
            raise ValueError(f"depth {self.depth} and window {self.window} must be at least 1")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is not one of {sorted(ACTIVATIONS)}")

    @property
    def size(self) -> tuple[int, int]:
        """Width and heads of the attention of every block."""
        return self.embed_dim, self.num_heads

    @property
    def attention(self) -> dict[str, Any]:
        """Keyword arguments of the attention of every block."""
        return {name: getattr(self, name) for name in ("qkv_bias", "out_bias", "dropout")}

    def update(self, options: Mapping[str, Any]) -> tuple[EncoderConfig, dict[str, Any]]:
        """Return this configuration with fields from ``options``, and the other options."""
        names = {field.name for field in fields(self)}
        own = {name: value for name, value in options.items() if name in names}
        others = {name: value for name, value in options.items() if name not in names}
        return replace(self, **own), others


class EncoderBlock(nn.Module, Generic[A]):
    """Attention and feed-forward, with the parameter names of ``nn.TransformerEncoderLayer``.

    Post-norm: y = LN1(x + MHA(x)), z = LN2(y + W2 act(W1 y)).
    Pre-norm: y = x + MHA(LN1(x)), z = y + W2 act(W1 LN2(y)).

    The two halves are separate methods, because continual attention takes other rows than it
    returns: ``before_attention`` and ``after_attention``.
    """

    def __init__(self, self_attn: A, config: EncoderConfig) -> None:
        super().__init__()
        width = self_attn.embed_dim
        self.self_attn = self_attn
        self.linear1 = nn.Linear(width, config.feedforward)
        self.linear2 = nn.Linear(config.feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_first, self.dropout = config.norm_first, config.dropout
        self.activate = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor, *options: Any) -> Tensor:
        """Return the rows of a window or clip [B, n, d] after the block.

        ``options``: further arguments of the attention, such as a mask.
        """
        return self.after_attention(x, self.self_attn(self.before_attention(x), *options))

    def forward_steps(self, x: Tensor, state: Any, *options: Any) -> Tensor:
        """Take T rows [B, T, d], return them after continual attention, [B, T, d]."""
        attention: Any = self.self_attn
        attended = attention.forward_steps(self.before_attention(x), state, *options)
        return self.after_attention(x, attended)

    def forward_step(self, x: Tensor, state: Any, turns: Tensor | None = None) -> Tensor:
        """Take one row [B, d] of every stream, return it after single-output attention, [B, d]."""
        if turns is None and (compiled := self._compiled_step(x, state)) is not None:
            return compiled(x)
        attention: Any = self.self_attn
        attended = attention.forward_step(self.before_attention(x), state, turns)
        return self.after_attention(x, attended)

    def _compiled_step(self, x: Tensor, state: AttentionState) -> BlockStep | None:
        """Return the compiled step for a row ``x`` [1, d], or None; ``state`` keeps it.

        It is for inference of one stream, float32 on a CPU, with norms after ordinary layers.
        """
        if not self.compiles(x):
            return None
        state.single_steps += 1
        if not fast.kernels_after(state.single_steps):
            return None
        weights = self.weights()
        if state.compiled is None or not state.compiled.fits(weights):
            state.compiled = self._compile_step(state)
        compiled: BlockStep | None = state.compiled
        fits = compiled is not None and x.shape == (1, compiled.width) and x.stride(1) == 1
        return compiled if fits else None

    def compiles(self, x: Tensor) -> bool:
        """Return whether compiled steps may take rows ``x`` [1, ...] of a stream."""
        if self.norm_first or self.training or self.activate not in _COMPILED:
            return False
        if x.shape[0] != 1 or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return fast.enabled() and type(x) is Tensor and fast.compiles(x)

    def weights(self) -> list[Tensor | None]:
        """Return the parameters in the order in which compiled steps take them."""
        attention = cast(Any, self._modules["self_attn"])  # the attribute takes 1.5 us
        weights: list[Tensor | None] = [*attention._parameters.values()]
        for layer in (attention._modules["out_proj"], *map(self._modules.get, _LAYERS)):
            if layer is not None:
                weights += layer._parameters.values()
        return weights

    def compiled_weights(self) -> list[Tensor | None] | None:
        """Return ``weights``, or None for adapters and for other layers than this class's."""
        attention, weights = cast(Any, self.self_attn), self.weights()
        if attention.packed is not None or len(weights) != 12 or weights[0] is None:
            return None
        usable = all(t is None or (fast.compiles(t) and t.is_contiguous()) for t in weights)
        # SoftAttention's keys are its queries.
        ordinary = len(weights[0]) == 3 * attention.inner_dim
        return weights if usable and ordinary else None

    def _compile_step(self, state: AttentionState) -> BlockStep | None:
        """Return the compiled step, or None."""
        attention, found = cast(Any, self.self_attn), self.compiled_weights()
        if found is None:
            return None
        inner = attention.inner_dim
        if not fast.compiles(state.keys) or state.keys.numel() != attention.window * inner:
            return None  # a state of another network
        from costream.nn.encoder_kernels import BlockSettings, BlockStep

        settings = BlockSettings(
            attention.window,
            attention.head_dim >= attention.contiguous_from,
            self.activate is torch.relu,
            (self.norm1.eps, self.norm2.eps),
        )
        return BlockStep(found, state.keys, state.values, state.steps, settings)

    def before_attention(self, x: Tensor) -> Tensor:
        """Return the attention input for input rows ``x`` [..., d]."""
        return layer_norm(self, "norm1", x) if self.norm_first else x

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the output rows [..., d] from input rows ``x`` and their attention output.

        ``attended`` is overwritten.
        """
        y = (self._drop(attended) if self.training else attended).add_(x)
        if self.norm_first:
            return self._feedforward(layer_norm(self, "norm2", y)).add_(y)
        y = layer_norm(self, "norm1", y)
        return layer_norm(self, "norm2", self._feedforward(y).add_(y))

    def _feedforward(self, y: Tensor) -> Tensor:
        hidden = self.activate(linear(self, "linear1", y))
        if not self.training:
            return linear(self, "linear2", hidden)
        return self._drop(linear(self, "linear2", self._drop(hidden)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout)

    def count_macs(self, rows: int) -> int:
        """Return the multiply-accumulates of the feed-forward over ``rows`` rows."""
        return 2 * rows * self.linear1.weight.numel()


class EncoderStack(nn.Module):
    """Base class of encoders: their blocks, and a LayerNorm if the configuration has one.

    Parameters have the names of ``nn.TransformerEncoder``.
    """

    delay = 0
    stride = 1

    def __init__(self, config: EncoderConfig, blocks: Sequence[EncoderBlock[Any]]) -> None:
        super().__init__()
        self.config = config
        self.embed_dim, self.depth, self.window = config.embed_dim, config.depth, config.window
        self.layers = nn.ModuleList(blocks)
        self._blocks = tuple(blocks)  # also a plain attribute, which is read 1 us faster
        self.norm = nn.LayerNorm(config.embed_dim) if config.final_norm else None

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.window

    @property
    def exact(self) -> bool:
        """Whether an output is that of the ordinary encoder over the window."""
        return True

    def warmup(self, state: Any, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window was not yet full ``ago`` steps ago."""
        return tuple(t - ago < self.window for t in state.attention.steps.tolist())

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of recomputing ordinary attention and all blocks over the window."""
        return self.count_dense_macs(self.window)

    def count_dense_macs(self, rows: int) -> int:
        """Return the multiply-accumulates of ordinary attention and all blocks over ``rows``."""
        each = (MultiheadAttention.count_macs(b.self_attn, rows) for b in self._blocks)
        return sum(each) + sum(block.count_macs(rows) for block in self._blocks)

    @staticmethod
    def count_last(x: Tensor, last: int | None) -> int:
        """Return how many of the last rows of a clip [B, T, d] are returned; None: all.

        Raises ValueError for less than 1.
        """
        if last is not None and last < 1:
            raise ValueError(f"last={last} rows of a clip: 1 or more")
        return x.shape[1] if last is None else min(last, x.shape[1])

    def normalise(self, x: Tensor) -> Tensor:
        """Return rows [..., d] after the final LayerNorm, if there is one."""
        return x if self.norm is None else layer_norm(self, "norm", x)
