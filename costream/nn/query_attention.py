"""Self-attention of any row of a sliding window, also of one that waits for rows after it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from costream.nn.attention import MultiheadAttention
from costream.nn.fast import linear
from costream.nn.layers import KeysState, WindowedAttention
from costream.nn.parts import Part


class QueryAttention(Part):
    """Self-attention over clips [B, d, T] whose output is one row of each window.

    Single-output attention of Hedegaard et al., Continual Transformers (ICLR 2023), of which the
    newest row, ``query_index`` -1, is the usual case (``SingleOutputAttention``, which is faster).
    An earlier row sees ``window - 1 - query_index`` rows after it, which is the delay. Rows beyond
    the ends of a clip do not exist: they are not keys of zeros.

    Args:
        embed_dim, num_heads: as for ``torch.nn.MultiheadAttention``, whose parameter names are
            found below ``attention``.
        window, query_index: see ``WindowedAttention``.
        options: ``qkv_bias``, ``out_bias``.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, window: int, query_index: int = -1, **options: Any
    ) -> None:
        super().__init__()
        self.attention = MultiheadAttention(embed_dim, num_heads, **options)
        self.windows = WindowedAttention(window, query_index)
        self.timing = self.windows.timing

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, d, T]: each row of a clip after attention to its window."""
        return self._joined(self.windows(*self._project(x)))

    def start(self, batch_size: int, clip: Tensor) -> KeysState:
        """Return the initial state; ``clip``: one frame of one stream, [1, d, 1]."""
        state = self.windows.start(batch_size, *self._project(clip))
        state.empty = clip.new_zeros(batch_size, self.attention.embed_dim, 0)
        return state

    def advance(self, x: Tensor, state: KeysState) -> Tensor | None:
        """Take T rows [B, d, T], return as many, at first less by the delay."""
        q, k, v = self._project(x)
        out = self.windows.advance(q, state, k, v)
        return None if out is None else self._joined(out)

    def example(self) -> Tensor:
        """Return a frame [1, d]."""
        return self.attention.in_proj_weight.new_zeros(1, self.attention.embed_dim)

    def _project(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values [B, h, T, e]."""
        q, k, v = self.attention.project(x.mT).unbind(2)
        return [rows.transpose(1, 2) for rows in (q, k / self.attention.scale, v)]

    def _joined(self, rows: Tensor) -> Tensor:
        return linear(self.attention, "out_proj", rows.transpose(1, 2).flatten(2)).mT
