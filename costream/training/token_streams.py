"""Streams of tokens with a label for every step, made of recordings one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.training.clips import UNSCORED

FEWEST = 4  # steps of a recording that are taken, where it has as many
STAYING = 0.5  # share of pieces that are followed by one of the same class


@dataclass(frozen=True)
class TokenStream:
    """Tokens [T, D] with the class of every step [T], UNSCORED where it is not known."""

    tokens: Tensor
    labels: npt.NDArray[np.int64]


class TokenStreams:
    """Draws streams: pieces of recordings, each class as often, joined without a pause.

    ``recordings``: of each, the views there are of it, which are drawn equally often. ``varied``:
    by how much each piece is moved at random, in the ways in which recordings of one class differ
    (see ``differences``); 1: as much as they do.
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
        """Give a stream of so many steps."""
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
        """Give so many streams as tokens [B, T, D] and labels int64 [B, T]."""
        drawn = [self.draw(steps, rng) for _ in range(streams)]
        labels = torch.from_numpy(np.stack([s.labels for s in drawn]))
        return torch.stack([s.tokens for s in drawn]), labels

    def _piece(self, label: int, most: int, rng: np.random.Generator) -> TokenStream:
        """Give a piece with a step of this class that begins and ends anywhere around it."""
        own = self._by_class[label]
        views = own[int(rng.integers(len(own)))]
        view = views[int(rng.integers(len(views)))]
        places = np.flatnonzero(view.labels == label)
        place = int(places[int(rng.integers(len(places)))])
        begin = place - int(rng.integers(min(place, most - 1) + 1))
        end = place + 1 + int(rng.integers(min(len(view.labels), begin + most) - place))
        end = min(len(view.labels), max(end, begin + FEWEST))
        tokens = view.tokens[begin:end]
        if self._ways is not None:
            chance = torch.from_numpy(rng.standard_normal(len(self._ways), dtype=np.float32))
            tokens = tokens + self._varied * (chance @ self._ways)
        return TokenStream(tokens, view.labels[begin:end])


def differences(classes: Iterable[tuple[int, Sequence[Sequence[TokenStream]]]]) -> Tensor | None:
    """Give how recordings of one class differ, as rows [N, D], of classes and their recordings.

    N standard normal numbers times the rows are normal with the covariance, pooled over classes,
    of the mean tokens of views about the mean of their class. What is learnt of examples that are
    moved so comes near to a linear discriminant of whole recordings (Fisher, 1936), which is hard
    to beat where there are few. None where no class has two recordings.
    """
    rows, freedom = [], 0
    for label, recordings in classes:
        if len(recordings) < 2:
            continue
        means = [
            torch.stack([v.tokens[torch.from_numpy(v.labels == label)].mean(0) for v in views])
            for views in recordings
        ]
        centre = torch.stack([own.mean(0) for own in means]).mean(0)
        rows += [(own - centre) / len(own) ** 0.5 for own in means]
        freedom += len(means) - 1
    return torch.cat(rows) / freedom**0.5 if rows else None
