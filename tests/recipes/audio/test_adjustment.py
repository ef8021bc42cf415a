"""Logit adjustment: rare labels are raised, and by as much as validation clips gain from."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from weights.recipes.audio.calibration import Held, adjustment, best_tau
from weights.recipes.audio.data import SoundClip

LABELS = ("bell", "music", "rain", "speech")
SHARES = torch.tensor([0.1, 0.2, 0.4, 0.3])


def test_rare_labels_are_raised_and_speech_and_music_stay() -> None:
    added = adjustment(LABELS, SHARES, 0.5)
    np.testing.assert_allclose(added[0] - added[2], 0.5 * np.log(4), rtol=1e-6)
    assert added[1] == added[3] == 0
    assert not adjustment(LABELS, SHARES, 0.0).any()
    assert adjustment(LABELS, torch.tensor([0.0, 0.2, 0.5, 0.3]), 1.0).isfinite().all()


def test_the_factor_has_the_highest_mean_recall() -> None:
    # A bell behind rain that is too sure of itself by less than 0.4 log 4.
    rows = {"bell": [0.0, -9, 0.5, -9], "rain": [-0.6, -9, 0.5, -9]}
    names = ["bell", *["rain"] * 9]
    samples = np.ones(8000, np.int16)
    clips = [
        SoundClip(samples, name, "s", str(k), "validation", False) for k, name in enumerate(names)
    ]
    held = Held(clips, [torch.tensor([rows[name]]) for name in names])
    head = nn.Linear(4, 4, bias=False)
    nn.init.eye_(head.weight)
    assert best_tau(head, LABELS, lambda c: c.label, held, SHARES) == 0.4
