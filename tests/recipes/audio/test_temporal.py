"""What the temporal models of sound learn from."""

from __future__ import annotations

import numpy as np
import torch

from weights.recipes.audio.temporal import _mixed


def test_streams_are_mixed_with_their_targets():
    tokens = torch.randn(6, 9, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.eye(6)[:, None].repeat(1, 9, 1)
    targets[2, 4:] = 0  # unknown
    rng, seen = np.random.default_rng(0), 0
    for _ in range(20):
        rows, told = _mixed(tokens, targets, rng)
        if rows is tokens:
            continue
        seen += 1
        share = told.sum(-1)
        assert set(share.unique().tolist()) <= {0.0, 1.0}
        for row, own, known in zip(rows, told, share.bool(), strict=True):
            expected = torch.einsum("tk,ktd->td", own, tokens)
            torch.testing.assert_close(row[known], expected[known])
        assert torch.equal(share[2], targets[2].sum(-1))
    assert 4 <= seen <= 16
