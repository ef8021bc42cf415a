"""Memory of all of a stream: learned queries attend to every row, with weights that decay.

The exponential memory of Zhao and Krähenbühl, "Real-time Online Video Detection with Temporal
Smoothing Transformers" (TeSTra, ECCV 2022), in O(1) for each step. Its authors keep sums with a
maximum that grows and overflows in the end; here the state is the mean itself and the logarithm of
the sum of its weights, both of which stay bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from costream.nn.attention import SingleOutputAttention
from costream.nn.recurrence import scan
from costream.nn.state import State, zeros

_CHUNK = 256  # rows of a clip that are taken at once, at most
_RANGE = 20.0  # of the logarithms of decays in a chunk, for precision
_NOTHING = -1e4  # logarithm of the weights of no rows


@dataclass
class LongMemoryState(State):
    """What each stream remembers."""

    steps: Tensor  # int64 [B], rows seen
    weights: Tensor  # [B, h, M]: logarithm of the sum of the weights of all rows
    means: Tensor  # [B, h, M, e]: of the values with these weights


class LongMemory(nn.Module):
    """Attention of the newest row to a memory of all rows, the newest included.

    In each head, M learned queries attend to the rows of the stream: row i has at step t the weight
    exp(q k_i) decay^(t - i). Then a row ``y`` attends to the M means; the result is y + that.

    Args:
        embed_dim: d. ``num_heads``: h. ``size``: M. ``decay``: for each step, above 0, up to 1.

    ValueError for other decays and sizes below 1.
    """

    def __init__(self, embed_dim: int, num_heads: int, size: int = 16, decay: float = 0.97) -> None:
        super().__init__()
        if size < 1 or not 0 < decay <= 1:
            raise ValueError(
                f"memory {size} must be at least 1, memory_decay {decay} above 0 and up to 1"
            )
        self.size, self.decay, self.num_heads = size, decay, num_heads
        self.chunk = max(1, min(_CHUNK, int(_RANGE / max(1e-9, -math.log(decay)))))
        self.reading = SingleOutputAttention(embed_dim, num_heads, size)
        head_dim = embed_dim // num_heads
        self.queries = nn.Parameter(torch.randn(num_heads, size, head_dim) / math.sqrt(head_dim))
        self.rows = nn.Linear(embed_dim, 2 * embed_dim)
        self.norm = nn.LayerNorm(embed_dim)

    @property
    def horizon(self) -> int:
        """Rows that have 95 % of the weight of all, at equal products; 256 at most."""
        return min(_CHUNK, math.ceil(math.log(0.05) / min(-1e-9, math.log(self.decay))))

    def init_state(self, batch_size: int = 1) -> LongMemoryState:
        """Return the initial state of ``batch_size`` streams."""
        shape, like = (batch_size, *self.queries.shape), self.queries
        return LongMemoryState(
            zeros(batch_size), zeros(*shape[:3], like=like), zeros(*shape, like=like)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the rows ``y`` [B, T', d] of the last steps of a clip [B, T, d], with memory."""
        state = self.init_state(len(x))
        self.remember(x[:, : x.shape[1] - y.shape[1]], state)
        return self.forward_steps(x[:, x.shape[1] - y.shape[1] :], y, state)

    def forward_step(self, x: Tensor, y: Tensor, state: LongMemoryState) -> Tensor:
        """Remember a row [B, d] of every stream, return its ``y`` [B, d] with memory."""
        return self.forward_steps(x[:, None], y[:, None], state)[:, 0]

    def forward_steps(self, x: Tensor, y: Tensor, state: LongMemoryState) -> Tensor:
        """Remember T rows [B, T, d], return their ``y`` [B, T, d] with memory after each."""
        if not x.shape[1]:
            return y
        parts = zip(*(torch.split(z, self.chunk, 1) for z in (x, y)), strict=True)
        return torch.cat([self._read(self._remember(a, state), b) for a, b in parts], 1)

    def remember(self, x: Tensor, state: LongMemoryState) -> None:
        """Remember T rows [B, T, d]."""
        for part in torch.split(x, self.chunk, 1) if x.shape[1] else ():
            self._remember(part, state)

    def _remember(self, x: Tensor, state: LongMemoryState) -> Tensor:
        """Return the means [B, T, h, M, e] after each of the rows [B, T, d].

        The mean after a row is decay_t times that before plus (1 - decay_t) times the row's value.
        """
        rows = torch.unflatten(self.rows(x), -1, (2, self.num_heads, -1))
        keys, values = rows.unbind(2)  # [B, T, h, e]
        logits = torch.einsum("hme,bthe->bthm", self.queries, keys) / math.sqrt(keys.shape[-1])
        past = torch.where(state.steps.to(x.device)[:, None, None] > 0, state.weights, _NOTHING)
        log_decay = math.log(self.decay)
        age = torch.arange(x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None, None]
        every = torch.cat([past[:, None], logits], 1) - age * log_decay
        total = torch.logcumsumexp(every, 1) + age * log_decay  # of weights, [B, T + 1, h, M]
        share = torch.exp(logits - total[:, 1:]).unsqueeze(-1)
        kept = torch.exp(total[:, :-1] + log_decay - total[:, 1:]).unsqueeze(-1)
        means = scan(share * values.unsqueeze(3), kept, 1, state.means.clone())
        state.weights.copy_(total[:, -1].detach())
        state.means.copy_(means[:, -1].detach())
        state.steps += x.shape[1]
        return means

    def _read(self, means: Tensor, y: Tensor) -> Tensor:
        memory = self.norm(means.transpose(2, 3).flatten(3)).flatten(0, 1)  # [B T, M, d]
        read = self.reading.attend_changed(memory, y.flatten(0, 1))
        return y + torch.unflatten(read, 0, y.shape[:2])

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        d = self.norm.normalized_shape[0]
        own = self.rows.weight.numel() + 2 * self.size * d
        return own + self.reading.count_macs(changed=True)
