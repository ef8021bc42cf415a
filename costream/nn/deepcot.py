"""Deep continual transformers: stacks of single-output blocks of any depth.

In DeepCoT (Carreto Picon, Zhou, Zhang, Iosifidis, DeepCoT: Deep Continual Transformers for
Real-Time Inference on Data Streams, 2025) every block is single-output and stores the keys and
values of its last n inputs. A step costs L single-output blocks, whatever the window. For
L >= 2 the output is not that of the ordinary encoder over the window: rows of lower blocks are
never updated, and the output depends on L (n - 1) + 1 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.attention import AttentionState, SingleOutputAttention
from costream.nn.block import A, EncoderBlock, EncoderConfig, EncoderStack
from costream.nn.position import RotaryPositions, turn_pairs
from costream.nn.ring import recording
from costream.nn.state import State


class SoftAttention(SingleOutputAttention):
    """Single-output attention with weights exp(-|q - k|^2 / (2 e)), which are not normalised.

    Keys are projected as queries are, so ``in_proj_weight`` is [Wq; Wv], [2 d, d]. Lu et al.,
    "SOFT: Softmax-free Transformer with linear complexity" (NeurIPS 2021); DeepCoT's analysis uses
    it in blocks without activation and layer norms.
    """

    def __init__(self, embed_dim: int, num_heads: int, window: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, window, **options)
        self._split = (2, num_heads, self.head_dim)
        self.in_proj_weight = nn.Parameter(torch.empty(2 * embed_dim, embed_dim))
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            self.in_proj_bias = nn.Parameter(torch.zeros(2 * embed_dim))

    def project(self, x: Tensor, turns: Tensor | None = None) -> Tensor:
        """Return queries, keys equal to them, and values [..., 3, h, e] of rows ``x`` [..., d].

        ``turns``: complex [..., e / 2], rotates the queries and keys of each row.
        """
        rows = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        rows = torch.unflatten(rows, -1, self._split)
        if turns is not None:
            turn_pairs(rows.narrow(-3, 0, 1), turns[..., None, None, :])
        return torch.cat([rows.narrow(-3, 0, 1), rows], -3)

    def _weigh(self, q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
        # |q|^2 + |k|^2 - 2 q k would cancel where rows are close, which is where weights are large.
        wide = torch.promote_types(q.dtype, torch.float32)  # cdist does not support 16-bit types
        mode = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(q.to(wide), k.mT.to(wide).contiguous(), compute_mode=mode)
        weights = distance.square().mul(-0.5 / self.head_dim).exp()
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0.0)
        return weights.to(q.dtype)

    def count_macs(self, rows: int | None = None, changed: bool = False) -> int:
        """Return the multiply-accumulates of one step of a stream over ``rows`` rows, or n."""
        return super().count_macs(rows, changed) - self.embed_dim**2


class ScaledBlock(EncoderBlock[A]):
    """A block whose residual branches are divided by the depth L, in place of layer norms.

    y = x + MHA(x) / L, z = y + W2 act(W1 y) / L.
    """

    def __init__(self, self_attn: A, config: EncoderConfig) -> None:
        super().__init__(self_attn, config)
        del self.norm1, self.norm2
        self.scale = 1 / config.depth

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the output rows [..., d] from input rows ``x`` and their attention output.

        ``attended`` is overwritten.
        """
        y = (self._drop(attended) if self.training else attended).mul_(self.scale).add_(x)
        return self._feedforward(y).mul_(self.scale).add_(y)


ATTENTIONS = {"softmax": SingleOutputAttention, "soft": SoftAttention}


@dataclass
class DeepState(State):
    """State of a stack: the window of inputs of each block."""

    layers: tuple[AttentionState, ...]


class DeepEncoder(EncoderStack):
    """Stack of single-output blocks, with the parameter names of ``Encoder``.

    The first outputs use the rows seen so far: empty slots of a window are masked. The authors
    let each block wait until its window is full, which gives the same outputs from step L (n - 1)
    on and none before.

    Args:
        config: its window is that of each block.
        rotary: rotary positions in every block, instead of positions added to the input.
        attention: "softmax" or "soft", see ``SoftAttention``.
        residual: "norm", or "scaled" for blocks without layer norms, see ``ScaledBlock``.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        rotary: bool = False,
        attention: str = "softmax",
        residual: str = "norm",
    ) -> None:
        if attention not in ATTENTIONS:
            raise ValueError(f"attention {attention!r} is not one of {sorted(ATTENTIONS)}")
        if residual not in ("norm", "scaled") or (residual == "scaled" and config.norm_first):
            raise ValueError(f"residual {residual!r} must be norm, or scaled if not norm_first")
        block, kind = ScaledBlock if residual == "scaled" else EncoderBlock, ATTENTIONS[attention]
        blocks = [
            block(kind(*config.size, config.window, **config.attention), config)
            for _ in range(config.depth)
        ]
        super().__init__(config, blocks)
        self.rotary = RotaryPositions(config.embed_dim // config.num_heads) if rotary else None

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.depth * (self.window - 1) + 1

    @property
    def exact(self) -> bool:
        """Whether an output is that of the ordinary encoder over the window: of one block."""
        return self.depth == 1

    def forward(self, x: Tensor, last: int | None = None, tokens: int = 1) -> Tensor:
        """Return the output at each row of a clip [B, T, d], as stepping through it would.

        ``last``: return only this many last rows, [B, last, d]. ``tokens``: rows of a step, which
        see one another; ValueError unless they divide T.
        """
        last = self.count_last(x, last)
        x = x[:, max(0, x.shape[1] - last - self.receptive_field + 1) // tokens * tokens :]
        # The angles may start anywhere: only distances count.
        turns = self._turns(torch.arange(x.shape[1])[None], x)
        for block in self._blocks:
            x = block(x, turns, tokens)
        return self.normalise(x[:, -last:])

    def init_state(self, batch_size: int = 1) -> DeepState:
        """Return the initial state of ``batch_size`` streams."""
        return DeepState(tuple(block.self_attn.init_state(batch_size) for block in self._blocks))

    def warmup(self, state: DeepState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether it has seen fewer rows than an output depends on.

        ``ago``: the same, this many rows earlier.
        """
        return tuple(t - ago < self.receptive_field for t in state.layers[0].steps.tolist())

    def graph_key(self, x: Tensor, state: DeepState) -> bool | None:
        """Return whether windows are filling; None for several rows a step.

        See ``cuda_graph.GraphedStep``.
        """
        return None if x.dim() == 3 else any(self.warmup(state))

    def forward_step(self, x: Tensor, state: DeepState) -> Tensor:
        """Take one row [B, d] of every stream, return the newest output, [B, d].

        For m rows of one step, [B, m, d], return [B, m, d]: they see one another in every block,
        and the window moves on by m. ValueError for more than n.
        """
        if x.dim() == 3:
            return self.forward_steps(x, state, x.shape[1])
        steps, recorded = state.layers[0].steps, recording()
        turns = self._turns(steps if recorded is None else recorded.times(steps), x)
        for block, layer in zip(self._blocks, state.layers, strict=True):
            x = block.forward_step(x, layer, turns)
        return self.normalise(x)

    def forward_steps(self, x: Tensor, state: DeepState, tokens: int = 1) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d].

        ``tokens``: rows of a step, as for ``forward``.
        """
        times = state.layers[0].steps[:, None] + torch.arange(x.shape[1])
        turns = self._turns(times, x)
        for block, layer in zip(self._blocks, state.layers, strict=True):
            x = block.forward_steps(x, layer, turns, tokens)
        return self.normalise(x)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one row for one stream whose windows are full."""
        return int(sum(b.self_attn.count_macs() + b.count_macs(1) for b in self._blocks))

    def _turns(self, times: Tensor, like: Tensor) -> Tensor | None:
        return None if self.rotary is None else self.rotary.turns(times, like)
