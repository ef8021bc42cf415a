"""Scores of the audio models and of baselines on clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.evaluation.clips import sequence_scores
from costream.labels.recording import SILENCE
from costream.runtime.segments import Segmenter
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from costream.weights_io.card import Timeline
from weights.recipes.action.loop import logits
from weights.recipes.audio.data import NO_MUSIC, OTHER, SPEECH, SoundClip
from weights.recipes.audio.lessons import make_mel
from weights.recipes.audio.pieces import BLOCK, LabelOf
from weights.recipes.common import forest

RATE_HZ = 4.0
Rows: TypeAlias = npt.NDArray[np.float32]
QUIET = (OTHER, SILENCE, NO_MUSIC)  # labels that say that nothing known is heard
_SPOKEN = ("crowd", "children playing", "laughter", SPEECH)  # labels of clips with words in them


@torch.inference_mode()
def clip_tokens(frontend: nn.Module, clips: Sequence[SoundClip]) -> list[Tensor]:
    """Return the tokens [T, D] of the blocks of each clip, as computed by ``costream listen``."""
    frontend.eval()
    blocks = (torch.from_numpy(clip.blocks(BLOCK)) for clip in clips)
    return [frontend(rows[None].float() / 32768)[0] for rows in blocks]


@torch.inference_mode()
def predict(head: nn.Module, tokens: Sequence[Tensor]) -> list[Rows]:
    """Return the probabilities [T, K] of a head for each clip."""
    head.eval()
    return [logits(head, rows[None])[0].softmax(-1).numpy() for rows in tokens]


def score(
    predictions: Sequence[Rows],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: LabelOf,
) -> dict[str, Any]:
    """Return the metrics of clips of one set, with predictions among that set's labels.

    ``top1_background``: with predictions among all labels, including the background labels.
    """
    names = np.array([label_of(clip) or "" for clip in clips])
    own = sorted(set(names.tolist()))
    columns = [labels.index(label) for label in own]
    truth = np.array([own.index(name) for name in names])
    result = sequence_scores(
        [p[:, columns] for p in predictions], truth, [c.group for c in clips], own
    )
    best = np.array([labels[p.mean(0).argmax()] for p in predictions])
    everything = float((best == names).mean())
    return {"sequences": len(clips), **result, "top1_background": everything}


def majority(
    train: Sequence[SoundClip], clips: Sequence[SoundClip], label_of: LabelOf
) -> dict[str, Any]:
    """Return the metrics of always predicting the most frequent training label."""
    names = [label_of(clip) or "" for clip in clips]
    own = [n for n in (label_of(clip) for clip in train) if n in set(names)]
    best = max(sorted(set(own)), key=own.count)
    return {"sequences": len(clips), "top1": names.count(best) / len(names)}


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def trees(
    training: Sequence[SoundClip],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: LabelOf,
    count: int,
    seed: int,
) -> list[Rows]:
    """Return the probabilities [1, K] of each clip from trees fitted to clips of the same sets."""
    sets = {c.set for c in clips}
    own = [c for c in training if c.set in sets and label_of(c) in labels]
    known = np.array([labels.index(label_of(c) or "") for c in own])
    predictions = forest(features(own), known, features(clips), len(labels), count, seed)
    return list(predictions[:, None])


@torch.inference_mode()
def features(clips: Sequence[SoundClip]) -> Rows:
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


def shown(
    predictions: Sequence[Rows],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: LabelOf,
    timeline: Timeline,
) -> dict[str, float]:
    """Return shares of the clips whose timeline shows the right label, and some wrong one.

    ``empty``: neither. Of clips with a label of QUIET nothing is expected.
    """
    counts = np.zeros(3)
    for rows, clip in zip(predictions, clips, strict=True):
        found = set(timeline_labels(rows, labels, timeline)) - {*QUIET}
        right = {label_of(clip) or ""}
        counts += [bool(found & right), bool(found - right), not found]
    right_share, wrong, empty = (counts / max(1, len(clips))).tolist()
    return {"right": right_share, "wrong": wrong, "empty": empty}


def timeline_labels(rows: Rows, labels: Sequence[str], timeline: Timeline) -> list[str]:
    """Return the labels of the segments of probabilities [T, K]."""
    segmenter = Segmenter(labels, timeline, RATE_HZ)
    found = [s for i, row in enumerate(rows) for s in segmenter.push(i / RATE_HZ, row)]
    return [s.label for s in (*found, *segmenter.flush())]


def speech_scores(
    predictions: Sequence[Rows],
    clips: Sequence[SoundClip],
    labels: Sequence[str],
    label_of: LabelOf,
) -> dict[str, float]:
    """Return recall of speech, and the share of other clips taken for it.

    Clips in which people may speak, too, as crowds, do not count among the others.
    """
    best = np.array([labels[p.mean(0).argmax()] for p in predictions]) == SPEECH
    names = np.array([label_of(c) or "" for c in clips])
    others = ~np.isin(names, (*_SPOKEN, ""))
    return {"recall": float(best[names == SPEECH].mean()), "false": float(best[others].mean())}
