"""Projection of a row with fixed landmarks: it returns logits instead of query and key."""

from __future__ import annotations

import torch
from torch import Tensor

from costream.nn.fast import by_columns
from costream.nn.folding import Folded
from costream.nn.nystrom.window import NystromAttention, to_float64


class FoldedProjection(Folded):
    """The input projection of Nyström attention multiplied with its fixed landmarks.

    A row needs its query and key only in q K~^T and Q~ k^T, and these are linear in the row x:
    q K~^T = x (K~ W_q)^T + K~ b_q, and likewise with W_k. So m columns per head replace e, twice,
    and a step has one product less. Computed in float64.
    """

    def __init__(self, module: NystromAttention) -> None:
        weight, bias, landmarks = module.in_proj_weight, module.in_proj_bias, module.landmarks
        super().__init__([t for t in (weight, bias, landmarks) if t is not None])
        with torch.inference_mode(False), torch.no_grad():
            self.weight = by_columns(_fold(weight, landmarks))
            self.bias = None if bias is None else _fold(bias[:, None], landmarks)[:, 0]


def _fold(weight: Tensor, landmarks: Tensor) -> Tensor:
    """Return [h m + h (m + e), c] of [3 d, c]: q K~^T of all heads; Q~ k^T and value of each."""
    h, e = landmarks.shape[0], landmarks.shape[3]
    queries, keys = to_float64(landmarks).unbind(1)
    q, k, v = weight.to(queries.dtype).view(3, h, e, -1)
    asking, logits = keys @ q, queries @ k
    rows = torch.cat([asking.flatten(0, 1), torch.cat([logits, v], 1).flatten(0, 1)])
    return rows.to(weight.dtype)
