"""Streams of tokens with a label for every step, composed of consecutive recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.labels.recording import UNSCORED

MIN_PIECE_STEPS = 4  # least number of steps of a piece, if the recording has as many
STAYING = 0.5  # probability that the next piece is of the same class


@dataclass(frozen=True)
class TokenStream:
    """Tokens [T, D] with the class of every step [T], UNSCORED where unknown."""

    tokens: Tensor
    labels: npt.NDArray[np.int64]


class TokenStreams:
    """Draws streams: pieces of recordings, all classes equally often, concatenated.

    ``recordings``: the views of each recording, which are drawn equally often. ``varied``: scale
    of the random offset of each piece along the differences within a class (see
    ``differences``); 1: as large as these.
    """

    def __init__(self, recordings: Sequence[Sequence[TokenStream]], varied: float = 0.0) -> None:
        self._by_class: dict[int, list[list[TokenStream]]] = {}
        for views in recordings:
            found = {int(k) for view in views for k in np.unique(view.labels)} - {UNSCORED}
            for label in found:
                having = [view for view in views if (view.labels == label).any()]
                self._by_class.setdefault(label, []).append(having)
        self._classes, self._varied = sorted(self._by_class), varied
        self._ways = differences(self._by_class.items()) if varied else None

    def draw(self, steps: int, rng: np.random.Generator) -> TokenStream:
        """Return a stream of ``steps`` steps."""
        pieces: list[TokenStream] = []
        label, length = -1, 0
        while length < steps:
            if not pieces or rng.random() >= STAYING:
                label = self._classes[int(rng.integers(len(self._classes)))]
            pieces.append(self._piece(label, steps - length, rng))
            length += len(pieces[-1].labels)
        labels = np.concatenate([piece.labels for piece in pieces])
        return TokenStream(torch.cat([piece.tokens for piece in pieces])[:steps], labels[:steps])

    def batch(self, streams: int, steps: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch of streams: tokens [B, T, D] and labels int64 [B, T]."""
        drawn = [self.draw(steps, rng) for _ in range(streams)]
        labels = torch.from_numpy(np.stack([s.labels for s in drawn]))
        return torch.stack([s.tokens for s in drawn]), labels

    def _piece(self, label: int, most: int, rng: np.random.Generator) -> TokenStream:
        """Return a piece around a random step of this class, with random ends."""
        recordings = self._by_class[label]
        views = recordings[int(rng.integers(len(recordings)))]
        view = views[int(rng.integers(len(views)))]
        places = np.flatnonzero(view.labels == label)
        place = int(places[int(rng.integers(len(places)))])
        begin = place - int(rng.integers(min(place, most - 1) + 1))
        end = place + 1 + int(rng.integers(min(len(view.labels), begin + most) - place))
        end = min(len(view.labels), max(end, begin + MIN_PIECE_STEPS))
        tokens = view.tokens[begin:end]
        if self._ways is not None:
            chance = torch.from_numpy(rng.standard_normal(len(self._ways), dtype=np.float32))
            tokens = tokens + self._varied * (chance @ self._ways)
        return TokenStream(tokens, view.labels[begin:end])


def differences(classes: Iterable[tuple[int, Sequence[Sequence[TokenStream]]]]) -> Tensor | None:
    """Return the within-class differences of recordings as rows [N, D].

    N standard normal numbers times the rows are normal with the covariance, pooled over classes,
    of the views' mean tokens about their class mean. Training on examples shifted in this way
    approximates a linear discriminant of recordings (Fisher, 1936), which is hard to beat
    with few examples. None if no class has two recordings.
    """
    rows, freedom = [], 0
    for label, recordings in classes:
        if len(recordings) < 2:
            continue
        means = [
            torch.stack([v.tokens[torch.from_numpy(v.labels == label)].mean(0) for v in views])
            for views in recordings
        ]
        centre = torch.stack([of_recording.mean(0) for of_recording in means]).mean(0)
        rows += [(of_recording - centre) / len(of_recording) ** 0.5 for of_recording in means]
        freedom += len(means) - 1
    return torch.cat(rows) / freedom**0.5 if rows else None
