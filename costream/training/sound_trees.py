"""Tree-ensemble baseline on summary statistics of log-mel spectrograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from costream.training.trees import forest
from weights.recipes.audio.backbone import make_mel
from weights.recipes.audio.data import SAMPLE_RATE_HZ, SoundClip

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def trees(
    training: Sequence[SoundClip],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: Callable[[SoundClip], str],
    count: int,
    seed: int,
) -> list[npt.NDArray[np.float32]]:
    """Return the probabilities [1, K] of each clip from trees fitted to clips of the same set."""
    own = [c for c in training if c.set == clips[0].set]
    known = np.array([labels.index(label_of(c)) for c in own])
    told = forest(features(own), known, features(clips), len(labels), count, seed)
    return list(told[:, None])


@torch.inference_mode()
def features(clips: Sequence[SoundClip]) -> npt.NDArray[np.float32]:
    """Return summary statistics of log-mel spectrograms over time, float32 [N, 8 bands].

    They are mean, standard deviation, quantiles and mean absolute frame difference of each band,
    after subtracting the overall mean: the loudness of a clip carries little information.
    """
    mel = make_mel()
    rows = []
    for clip in clips:
        wave = torch.from_numpy(clip.wave)
        heard = mel(F.pad(wave, (0, max(0, SAMPLE_RATE_HZ - len(wave))))[None])[0]
        heard = heard - heard.mean()
        quantiles = torch.quantile(heard, torch.tensor(_QUANTILES), dim=0)
        change = heard.diff(dim=0).abs().mean(0)
        rows.append(torch.cat([heard.mean(0), heard.std(0), quantiles.flatten(), change]).numpy())
    return np.stack(rows)
