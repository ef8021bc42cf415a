"""Small labelled clips, shared by the tests of the action recipe."""

from __future__ import annotations

import numpy as np
import pytest

from weights.recipes.action.rendering.scenes import LabelledClip


@pytest.fixture
def clips():
    """Two clips whose pictures show the label, of 7 labels, some frames unscored."""
    rng = np.random.default_rng(0)
    out = []
    for k in range(2):
        labels = np.repeat(np.arange(7), 30)
        labels[60 * k : 60 * k + 10] = -1
        frames = rng.integers(0, 20, (210, 3, 24, 32), dtype=np.uint8)
        frames[:, :, 8:16, 8:24] += (30 * np.maximum(labels, 0)).astype(np.uint8)[
            :, None, None, None
        ]
        out.append(LabelledClip(f"clip {k}", frames, labels, 0.5, overhead=False))
    return out
