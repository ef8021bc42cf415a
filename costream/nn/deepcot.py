"""Deep continual transformers: stacks of single-output blocks of any depth.

In DeepCoT (Carreto Picon, Zhou, Zhang, Iosifidis, DeepCoT: Deep Continual Transformers for
Real-Time Inference on Data Streams, 2025) every block is single-output and stores the keys and
values of its own last n inputs. A step costs L single-output blocks, whatever the window. For
L >= 2 the output is not that of the ordinary encoder over the window: rows of lower blocks are
never updated, and the output depends on L (n - 1) + 1 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.nn.attention import AttentionState, MultiheadAttention, SingleOutputAttention
from costream.nn.block import EncoderBlock
from costream.nn.fast import layer_norm
from costream.nn.position import RotaryPositions
from costream.nn.soft import ScaledBlock, SoftAttention
from costream.nn.state import State

ATTENTIONS = {"softmax": SingleOutputAttention, "soft": SoftAttention}


@dataclass
class DeepState(State):
    """State of a stack: for each block the window of its own inputs."""

    layers: tuple[AttentionState, ...]


class DeepEncoder(nn.Module):
    """Stack of single-output blocks, with the parameter names of ``Encoder``.

    The first outputs use the rows seen so far: empty slots of a window are masked. The authors
    let each block wait until its window is full, which gives the same outputs from step L (n - 1)
    on and none before.

    Args:
        embed_dim: d. ``num_heads``: h. ``feedforward``: hidden width. ``depth``: blocks L.
        window: n, of each block. ``norm_first``: pre-norm blocks.
        activation: "gelu" (exact), "relu" or "none".
        rotary: rotary positions in every block, instead of positions added to the input.
        attention: "softmax" or "soft", see ``SoftAttention``.
        residual: "norm", or "scaled" for blocks without layer norms, see ``ScaledBlock``.
        qkv_bias, out_bias: biases of the attention projections.
        final_norm: a LayerNorm after the last block. ``dropout``: in training.
    """

    delay = 0
    stride = 1

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward: int,
        depth: int,
        window: int,
        *,
        norm_first: bool = False,
        activation: str = "gelu",
        rotary: bool = False,
        attention: str = "softmax",
        residual: str = "norm",
        qkv_bias: bool = True,
        out_bias: bool = True,
        final_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if depth < 1 or window < 1:
            raise ValueError(f"depth {depth} and window {window} must be at least 1")
        if attention not in ATTENTIONS:
            raise ValueError(f"attention {attention!r} is not one of {sorted(ATTENTIONS)}")
        if residual not in ("norm", "scaled") or (residual == "scaled" and norm_first):
            raise ValueError(f"residual {residual!r} must be norm, or scaled if not norm_first")
        self.embed_dim, self.depth, self.window = embed_dim, depth, window
        bias: dict[str, Any] = {"qkv_bias": qkv_bias, "out_bias": out_bias, "dropout": dropout}
        blocks: list[EncoderBlock[SingleOutputAttention]] = []
        for _ in range(depth):
            attend = ATTENTIONS[attention](embed_dim, num_heads, window, **bias)
            if residual == "scaled":
                blocks.append(ScaledBlock(attend, feedforward, depth, activation, dropout))
            else:
                blocks.append(EncoderBlock(attend, feedforward, norm_first, activation, dropout))
        self.layers = nn.ModuleList(blocks)
        self._blocks = tuple(blocks)  # also a plain attribute, which is read 1 us faster
        self.rotary = RotaryPositions(embed_dim // num_heads) if rotary else None
        self.norm = nn.LayerNorm(embed_dim) if final_norm else None

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        return self.depth * (self.window - 1) + 1

    def forward(self, x: Tensor, last: int | None = None, tokens: int = 1) -> Tensor:
        """Return the output at each row of a clip [B, T, d], as stepping through it would.

        ``last``: return only this many last rows, [B, last, d]. ``tokens``: rows of a step, which
        see one another; ValueError unless they divide T.
        """
        last = min(last or x.shape[1], x.shape[1])
        x = x[:, max(0, x.shape[1] - last - self.receptive_field + 1) // tokens * tokens :]
        # The angles may start anywhere: only distances count.
        turns = self._turns(torch.arange(x.shape[1])[None], x)
        for block in self._blocks:
            x = block.leave(x, block.self_attn(block.enter(x), turns, tokens))
        return self._normalise(x[:, -last:])

    def init_state(self, batch_size: int = 1) -> DeepState:
        """Return the initial state of ``batch_size`` streams."""
        return DeepState(tuple(block.self_attn.init_state(batch_size) for block in self._blocks))

    def warmup(self, state: DeepState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether it has seen fewer rows than an output depends on.

        ``ago``: the same, this many rows earlier.
        """
        return tuple(t - ago < self.receptive_field for t in state.layers[0].steps.tolist())

    def forward_step(self, x: Tensor, state: DeepState) -> Tensor:
        """Take one row [B, d] of every stream, return the newest output, [B, d].

        For m rows of one step, [B, m, d], return [B, m, d]: they see one another in every block,
        and the window moves on by m. ValueError for more than n.
        """
        if x.dim() == 3:
            return self.forward_steps(x, state, x.shape[1])
        turns = self._turns(state.layers[0].steps, x)
        for block, kept in zip(self._blocks, state.layers, strict=True):
            x = block.leave(x, block.self_attn.forward_step(block.enter(x), kept, turns))
        return self._normalise(x)

    def forward_steps(self, x: Tensor, state: DeepState, tokens: int = 1) -> Tensor:
        """Take T rows [B, T, d], return what T calls of ``forward_step`` would, [B, T, d].

        ``tokens``: rows of a step, as for ``forward``.
        """
        times = state.layers[0].steps[:, None] + torch.arange(x.shape[1])
        turns = self._turns(times, x)
        for block, kept in zip(self._blocks, state.layers, strict=True):
            attended = block.self_attn.forward_steps(block.enter(x), kept, turns, tokens)
            x = block.leave(x, attended)
        return self._normalise(x)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one row for one stream whose windows are full."""
        block = self._blocks[0]
        return self.depth * (block.self_attn.count_macs() + block.count_macs(1))

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the ordinary encoder over one window, replaced by this one."""
        n, block = self.window, self._blocks[0]
        attention = MultiheadAttention.count_macs(block.self_attn, n)
        return self.depth * (attention + block.count_macs(n))

    def _turns(self, times: Tensor, like: Tensor) -> Tensor | None:
        return None if self.rotary is None else self.rotary.turns(times, like)

    def _normalise(self, x: Tensor) -> Tensor:
        return x if self.norm is None else layer_norm(self, "norm", x)
