"""The attention update as published with the Eventful Transformers, for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.eventful.attention import TokenGrid, count_dense_attention
from costream.nn.eventful.gates import ChosenTokens, pass_difference
from costream.nn.operations import Operations
from costream.nn.relative import RelativePosition
from costream.nn.state import State, zeros


@dataclass
class PaperState(State):
    """Scores without positions, and the inputs of the last products with the values."""

    scores: Tensor  # [B, H, N, keys]
    weights: Tensor  # reference of the columns of attention weights, [B, H, N, keys]
    values: Tensor  # reference of the values, [B, keys, D]
    product: Tensor  # weights times values, [B, N, D]


class PaperUpdate:
    """Query-key and attention-value updates: Dutson, Li, Gupta (ICCV 2023), section 4.2.

    The weights of columns whose keys did not change are left unchanged, although the softmax of
    every row has changed: the result lags behind attention over the current keys, even after
    the scene freezes.
    """

    def init_state(self, batch_size: int, frame: TokenGrid, like: Tensor) -> PaperState:
        """Return the initial state of ``batch_size`` streams. ``like``: a row [..., D]."""
        square = (batch_size, frame.heads, frame.tokens, frame.keys)
        return PaperState(
            zeros(*square, like=like),
            zeros(*square, like=like),
            zeros(batch_size, frame.keys, like.shape[-1], like=like),
            zeros(batch_size, frame.tokens, like.shape[-1], like=like),
        )

    def step(
        self,
        qkv: Tensor,
        new: Tensor,
        chosen: ChosenTokens,
        state: PaperState,
        frame: TokenGrid,
        position: RelativePosition | None,
        operations: Operations,
    ) -> Tensor:
        """Write new rows, return the attention of all tokens."""
        chosen.put(new, qkv)
        width = qkv.shape[2] // 3
        for stream, rows in enumerate(qkv.unbind(0)):
            heads = (frame.heads, -1)
            q = torch.unflatten(rows[:, :width], 1, heads)
            k, v = frame.keys_values(rows)
            along = None
            if position is not None:
                along = position(torch.unflatten(q, 0, (frame.height, frame.width))[None])
            q = q.transpose(0, 1) * (width // frame.heads) ** -0.5
            k = _by_head(k, frame)
            scores, reference = state.scores[stream], state.weights[stream]
            tokens = chosen.tokens[stream]
            columns = frame.columns(tokens)
            if chosen.fresh[stream]:
                torch.matmul(q, k.mT, out=scores)
                count_dense_attention(frame, width, 1, operations)
            else:
                scores[:, tokens] = q[:, tokens] @ k.mT
                scores[:, :, columns] = q @ k[:, columns].mT
                products = len(tokens) * frame.keys + 3 * frame.tokens * len(columns)
                operations.product += products * width
                operations.position += frame.tokens * width * sum(frame.positions)
                operations.add += frame.added * scores.numel()
            placed = scores
            if along is not None:
                y, x = (part[0] for part in along)
                placed = scores + (y[..., None] + x[..., None, :]).flatten(2)
            weights = placed.softmax(-1)
            if chosen.fresh[stream]:
                reference.copy_(weights)
                state.values[stream] = v
                _by_head(state.product[stream], frame).copy_(weights @ _by_head(v, frame))
                continue
            now, change = pass_difference(v, state.values[stream], columns, operations)
            old = _by_head(now - change, frame)
            weight, delta = pass_difference(weights.mT, reference.mT, columns, operations)
            moved = weight.mT @ _by_head(change, frame) + delta.mT @ old
            _by_head(state.product[stream], frame).add_(moved)
            operations.accumulate += now.numel() + 2 * state.product[stream].numel()
        return state.product.clone()


def _by_head(rows: Tensor, frame: TokenGrid) -> Tensor:
    """Return the view [H, n, e] of rows [n, D]."""
    return torch.unflatten(rows, 1, (frame.heads, -1)).transpose(0, 1)
