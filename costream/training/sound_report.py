"""Evaluation of the audio models on held-out clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.evaluation.clips import sequence_scores
from costream.frontends.audio import ContinualAudioNet
from costream.training.sound_augment import BLOCK
from weights.recipes.action.loop import logits
from weights.recipes.audio.data import SoundClip


@torch.inference_mode()
def clip_tokens(backbone: ContinualAudioNet, clips: Sequence[SoundClip]) -> list[Tensor]:
    """Return the tokens [T, D] of each clip, as computed by ``costream listen``.

    The last block counts if at least half of it is filled.
    """
    backbone.eval()
    out = []
    for clip in clips:
        blocks = max(1, round(len(clip.samples) / BLOCK + 1e-9))
        wave = torch.from_numpy(clip.wave)
        wave = F.pad(wave, (0, max(0, blocks * BLOCK - len(wave))))[: blocks * BLOCK]
        out.append(backbone(wave[None])[0])
    return out


@torch.inference_mode()
def predict(head: nn.Module, tokens: Sequence[Tensor]) -> list[npt.NDArray[np.float32]]:
    """Return the probabilities [T, K] of a head for each clip."""
    head.eval()
    return [logits(head, rows[None])[0].softmax(-1).numpy() for rows in tokens]


def score(
    told: Sequence[npt.NDArray[np.float32]],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: Callable[[SoundClip], str],
) -> dict[str, Any]:
    """Return the metrics of clips of one set, with predictions among that set's labels.

    ``top1_all``: with predictions among all labels.
    """
    names = np.array([label_of(clip) for clip in clips])
    own = sorted(set(names.tolist()))
    columns = [labels.index(label) for label in own]
    truth = np.array([own.index(name) for name in names])
    result = sequence_scores([p[:, columns] for p in told], truth, [c.group for c in clips], own)
    said = np.array([labels[p.mean(0).argmax()] for p in told])
    everything = float((said == names).mean())
    return {"sequences": len(clips), **result, "top1_all": everything}


def majority(
    train: Sequence[SoundClip], clips: Sequence[SoundClip], label_of: Callable[[SoundClip], str]
) -> dict[str, Any]:
    """Return the metrics of always predicting the most frequent training label."""
    names = [label_of(clip) for clip in clips]
    own = [n for n in (label_of(clip) for clip in train) if n in set(names)]
    best = max(sorted(set(own)), key=own.count)
    return {"sequences": len(clips), "top1": names.count(best) / len(names)}
