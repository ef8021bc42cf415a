"""Nyström attention over a window: low-rank attention through a few landmarks.

With m landmarks Q~, K~ [m, e] for the n queries and keys of a head, softmax attention is replaced
by the product of three thin softmaxes (Xiong et al., Nyströmformer, AAAI 2021),

    B G^+ D v,    B = softmax(q K~^T / sqrt(e)) [n, m],    G = softmax(Q~ K~^T / sqrt(e)) [m, m],
                  D = softmax(Q~ k^T / sqrt(e)) [m, n].

Landmarks are either the means of m segments of the window, or fixed: centres of the queries and
keys of a training set. The continual forms (Carreto Picon et al., Continual Low-Rank Scaled
Dot-product Attention, 2024) are in ``nystrom.continual``.

G^+ is computed by the six iterations of Nyströmformer, with each matrix scaled separately. They do
not converge to the pseudo-inverse: singular values of G below about 0.1 (the greatest is 1 to
sqrt(m)) are damped. This is intended. Measured on correlated rows, n = 1024, m = 16, e = 24,
the mean difference from softmax attention is 0.10 with six iterations, 0.26 with twelve and 1.08
with the pseudo-inverse, for outputs of 0.25; and rounding errors of rows are magnified by
1 / sigma, so that in float32 the exact one is off by 1e-3 and more, six iterations by 1e-6.
``iterations=0`` nevertheless selects the exact pseudo-inverse.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.attention import MultiheadAttention
from costream.nn.fast import linear
from costream.nn.folding import Folded

ITERATIONS = 6


def segment_sizes(window: int, landmarks: int) -> list[int]:
    """Return the sizes of m segments of n rows; the first n mod m have one row more."""
    size, longer = divmod(window, landmarks)
    return [size + (k < longer) for k in range(landmarks)]


def segment_of_rows(window: int, landmarks: int) -> Tensor:
    """Return int64 [n]: the segment that each row of a window belongs to."""
    sizes = segment_sizes(window, landmarks)
    return torch.tensor([k for k, size in enumerate(sizes) for _ in range(size)], device="cpu")


def pseudo_inverse(g: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Return G^+ of row-stochastic matrices [..., m, m], each separately.

    Z <- Z (13 I - G Z (15 I - G Z (7 I - G Z))) / 4, starting from G^T divided by the greatest row
    sum and column sum. ``iterations`` 0: the exact one, by singular values in float64.
    """
    if not iterations:  # on the CPU, since some accelerators have no float64
        exact: Tensor = torch.linalg.pinv(g.to("cpu", torch.float64))
        return exact.to(g.device, g.dtype)
    shape, g = g.shape, g.flatten(0, -3)
    sums = g.sum(-2).amax(-1) * g.sum(-1).amax(-1)
    z = g.mT / sums[:, None, None]
    for _ in range(iterations):
        a = torch.bmm(g, z)
        part = torch.baddbmm(a, a, a, beta=7, alpha=-1)
        part = torch.baddbmm(a, a, part, beta=15, alpha=-1)
        z = torch.baddbmm(z, z, part, beta=3.25, alpha=-0.25)
    return z.view(shape)


def to_float64(x: Tensor) -> Tensor:
    """Return ``x`` in float64 if the device supports it; Apple's does not."""
    return x if x.device.type == "mps" else x.double()


class NystromAttention(MultiheadAttention):
    """Nyström attention among the rows of a window, with projections and heads.

    Args:
        embed_dim: d. ``num_heads``: h. ``num_landmarks``: m of each head, at most n.
        fixed: landmarks are buffers set by ``fix_landmarks``, random until then. Setting the
            attribute to False makes such a module use landmarks of its window again.
        iterations: of the pseudo-inverse; 0 for the exact one.
        options: of ``MultiheadAttention``.
    """

    landmarks: Tensor  # [h, 2, m, e], Q~ and K~, each / sqrt(e)
    inverse: Tensor  # [h, m, m]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_landmarks: int,
        *,
        fixed: bool = False,
        iterations: int = ITERATIONS,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, **options)
        if num_landmarks < 1:
            raise ValueError(f"num_landmarks {num_landmarks} must be at least 1")
        self.num_landmarks, self.fixed, self.iterations = num_landmarks, fixed, iterations
        if fixed:
            h, m, e = num_heads, num_landmarks, self.head_dim
            self.register_buffer("landmarks", torch.empty(h, 2, m, e))
            self.register_buffer("inverse", torch.empty(h, m, m))
            self.fix_landmarks(torch.randn(h, m, e), torch.randn(h, m, e))

    @torch.no_grad()
    def fix_landmarks(self, queries: Tensor, keys: Tensor) -> None:
        """Use landmarks [h, m, e] from now on. States created before become invalid."""
        self.landmarks.copy_(torch.stack([queries, keys], 1) * self.scale)
        self.inverse.copy_(self.invert(to_float64(self.landmarks)))
        self.fixed = True

    def invert(self, landmarks: Tensor) -> Tensor:
        """Return G^+ [..., h, m, m] of landmarks [..., h, 2, m, e]."""
        queries, keys = landmarks.unbind(-3)
        return pseudo_inverse((queries @ keys.mT / self.scale).softmax(-1), self.iterations)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, h, n, e] of rows [B, n, d]; keys are not scaled."""
        rows = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = torch.unflatten(rows, -1, self._split).permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return every row of a window [B, n, d] after Nyström attention to all rows, [B, n, d].

        ``segments``: int64 [n], the segment of each row, numbered from 0, in any order; the
        default is ``segment_of_rows``. Fixed landmarks have no segments.
        """
        q, k, v = self.split(x)
        return self.attend(q, k, v, self.find_landmarks(q, k, segments))

    def newest(self, x: Tensor, row: int, segments: Tensor) -> Tensor:
        """Return row ``row`` of the output of ``forward``, [B, d]."""
        q, k, v = self.split(x)
        found = self.find_landmarks(q, k, segments)
        return self.attend(q[:, :, row : row + 1], k, v, found)[:, 0]

    def find_landmarks(self, q: Tensor, k: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the landmarks [B or 1, h, 2, m, e] for a window of queries and keys [B, h, n, e].

        A window of fewer than m rows has a landmark for each of them.
        """
        if self.fixed:
            return self.landmarks[None]
        if segments is None:
            segments = segment_of_rows(q.shape[2], min(q.shape[2], self.num_landmarks))
        counts = torch.bincount(segments).to(q.device, q.dtype)
        pair = torch.stack([q, k], 2)
        sums = pair.new_zeros(*pair.shape[:3], len(counts), self.head_dim)
        sums = sums.index_add(3, segments.to(q.device), pair)
        return sums * (self.scale / counts)[:, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor) -> Tensor:
        """Return [B, r, d] for queries [B, h, r, e], and keys and values [B, h, n, e]."""
        inverse = self.inverse[None] if self.fixed else self.invert(landmarks)
        queries, keys = landmarks.unbind(2)
        gathered = F.dropout((queries @ k.mT).softmax(-1), self.dropout, self.training) @ v
        out = (q @ keys.mT).softmax(-1) @ (inverse @ gathered)
        return linear(self, "out_proj", out.transpose(1, 2).flatten(2))

    def count_macs(self, rows: int, newest: bool = False) -> int:
        """Return the multiply-accumulates of ``forward`` over ``rows`` rows, or of ``newest``."""
        n, d = rows, self.embed_dim
        m, asked = self.num_landmarks if self.fixed else min(n, self.num_landmarks), n
        if newest:
            asked = 1
        projections = 3 * n * d**2 + asked * d**2
        gathered = 2 * n * m * d + m**2 * d
        return projections + gathered + 2 * asked * m * d + self.inverse_macs(m) * (not self.fixed)

    def inverse_macs(self, m: int) -> int:
        """Return the multiply-accumulates of G and its inverse for one stream; only G if exact."""
        return m**2 * self.embed_dim + 4 * self.iterations * m**3 * self.num_heads


# Projection of a row with fixed landmarks: it returns logits instead of query and key.


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
            self.weight = _fold(weight, landmarks)
            self.bias = None if bias is None else _fold(bias[:, None], landmarks)[:, 0]


def _fold(weight: Tensor, landmarks: Tensor) -> Tensor:
    """Return [h m + h (m + e), c] of [3 d, c]: q K~^T of all heads; Q~ k^T and value of each."""
    h, e = landmarks.shape[0], landmarks.shape[3]
    queries, keys = to_float64(landmarks).unbind(1)
    q, k, v = weight.to(queries.dtype).view(3, h, e, -1)
    asking, logits = keys @ q, queries @ k
    rows = torch.cat([asking.flatten(0, 1), torch.cat([logits, v], 1).flatten(0, 1)])
    return rows.to(weight.dtype)
