"""The tree baselines: their features, and that they learn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from weights.recipes.action import loop as action_baselines
from weights.recipes.action.rendering.scenes import LabelledClip
from weights.recipes.audio import scores as sound_trees
from weights.recipes.audio.data import SoundClip as Sound


def test_cells_are_means_and_changes_are_from_lags_before():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (20, 3, 25, 33), dtype=np.uint8)
    rows = action_baselines.features(frames)
    assert rows.shape == (20, 4 * 12 * 16)
    grey = frames.mean(1)
    # The first cell of 25 x 33 pixels in 12 x 16 cells is 2 x 2, the last 3 x 3.
    np.testing.assert_allclose(rows[:, 0], grey[:, :2, :2].mean((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(rows[:, 191], grey[:, -3:, -3:].mean((1, 2)), rtol=1e-5)
    for k, lag in enumerate(action_baselines.LAGS, 1):
        changed = rows[:, k * 192] - (rows[:, 0] - rows[np.maximum(np.arange(20) - lag, 0), 0])
        np.testing.assert_allclose(changed, 0, atol=1e-3)


def test_trees_tell_bright_from_dark_frames():
    rng = np.random.default_rng(1)
    labels = np.repeat([0, -1, 2], 60)
    level = np.repeat([20, 90, 200], 60)[:, None, None, None]
    frames = (level + rng.integers(0, 20, (180, 3, 24, 32))).astype(np.uint8)
    clip = LabelledClip("made", frames, labels, blur_s=0.0)
    (told,) = action_baselines.trees([clip], [clip], 3, 20, 0)
    assert told.shape == (180, 3)
    assert (told.argmax(1) == labels)[labels >= 0].all()
    assert not told[:, 1].any()  # nobody has shown it


def test_trees_tell_a_tone_from_noise_however_loud():
    rng = np.random.default_rng(2)

    def sound(tone, loud):
        wave = rng.normal(0, 1, 20_000)
        if tone:
            wave = np.sin(2 * np.pi * 800 * np.arange(20_000) / 16_000) + 0.01 * wave
        samples = (loud * wave).astype(np.int16)
        return Sound(samples, "tone" if tone else "noise", "ESC-10", "g", "train", False)

    training = [sound(k % 2, loud) for k, loud in enumerate(rng.uniform(500, 5000, 20))]
    clips = [sound(k % 2, loud) for k, loud in enumerate(rng.uniform(500, 5000, 6))]
    told = sound_trees.trees(training, clips, ["noise", "tone"], lambda c: c.label, 50, 0)
    assert [row.shape for row in told] == [(1, 2)] * 6
    assert [int(row.argmax()) for row in told] == [0, 1, 0, 1, 0, 1]
