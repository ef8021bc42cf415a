"""One network for many feeds: each gets what it would get alone, whoever steps with it."""

from __future__ import annotations

import numpy as np
import pytest

from costream.layouts import find_layout
from costream.models.registry import load_model
from costream.records import AudioBlock, SkeletonFrame, VideoFrame
from costream.runtime.watch.loop import FeedStates

FEEDS = 5


def picture(rng, i):
    rgb = rng.integers(0, 255, (96, 128 - 2 * (i % 3), 3), np.uint8)
    return VideoFrame(i, i / 8, i, lambda: rgb)


def block(rng, i):
    return AudioBlock(i, (i + 1) / 4, 0.1 * rng.standard_normal(4000).astype(np.float32))


def skeleton(rng, i):
    layout = find_layout("ntu-25")
    joints = rng.standard_normal((2, 25, 3)).astype(np.float32)
    return SkeletonFrame(i, i / 30, joints, np.ones((2, 25), np.float32), layout)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("cooadtr", picture),
        ("cooadtr-b2", picture),
        ("cotrans,cosounds", block),
        ("costgcn", skeleton),
    ],
)
def test_feeds_that_come_and_go(name, make):
    """At each round some feeds have something; now and then one is forgotten, or moved."""
    model, rng = load_model(name), np.random.default_rng(3)
    rows, alone = FeedStates(model, FEEDS), [FeedStates(model, 1) for _ in range(FEEDS)]
    steps, outputs = [0] * FEEDS, 0
    for round_ in range(30):
        chosen = [k for k in range(FEEDS) if round_ % 5 == 0 or rng.random() < 0.6]
        if not chosen:
            continue
        items = [make(rng, steps[k]) for k in chosen]
        together = rows.step(chosen, items)
        for k, item, got in zip(chosen, items, together, strict=True):
            steps[k] += 1
            (expected,) = alone[k].step([0], [item])
            assert got.warmup == expected.warmup
            assert (got.macs, got.dense_macs) == (expected.macs, expected.dense_macs)
            if expected.probabilities is None:
                assert got.probabilities is None
            else:
                np.testing.assert_allclose(got.probabilities, expected.probabilities, atol=2e-5)
                outputs += 1
        if round_ == 10:
            rows.reset(2)
            alone[2].reset(0)
        if round_ == 20:  # what is known of a feed goes to a new watch
            rows, old = FeedStates(model, FEEDS), rows
            for k in range(FEEDS):
                rows.put(k, old.take(k))
    assert outputs > 20
