"""Streams of tokens with a label for every step, made of recordings one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.training.sound_recordings import Heard

FEWEST = 4  # steps of a recording that are taken, where it has as many
STAYING = 0.5  # share of recordings that are followed by one of the same class


@dataclass(frozen=True)
class TokenStream:
    """Tokens [T, D] with the class of every step [T]."""

    tokens: Tensor
    labels: npt.NDArray[np.int64]


class TokenStreams:
    """Draws streams: pieces of recordings by chance of their class, joined without a pause.

    ``lag``: steps of a new sound that still have the label of the one before, because a token
    stands for more than its own step.
    """

    def __init__(self, heard: Sequence[Heard], labels: Sequence[str], lag: int) -> None:
        self._by_class: dict[int, list[Heard]] = {}
        for one in heard:
            self._by_class.setdefault(labels.index(one.label), []).append(one)
        self._classes, self._lag = sorted(self._by_class), lag

    def draw(self, steps: int, rng: np.random.Generator) -> TokenStream:
        """Give a stream of so many steps."""
        pieces: list[Tensor] = []
        classes: list[int] = []
        while sum(map(len, pieces)) < steps:
            stays = bool(classes) and rng.random() < STAYING
            drawn = self._classes[int(rng.integers(len(self._classes)))]
            classes.append(classes[-1] if stays else drawn)
            pieces.append(self._piece(classes[-1], rng))
        labels = np.repeat(classes, [len(piece) for piece in pieces])
        late = np.concatenate([np.full(self._lag, labels[0]), labels])
        return TokenStream(torch.cat(pieces)[:steps], late[:steps])

    def batch(self, streams: int, steps: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Give so many streams as tokens [B, T, D] and labels int64 [B, T]."""
        drawn = [self.draw(steps, rng) for _ in range(streams)]
        labels = torch.from_numpy(np.stack([s.labels for s in drawn]))
        return torch.stack([s.tokens for s in drawn]), labels

    def _piece(self, label: int, rng: np.random.Generator) -> Tensor:
        own = self._by_class[label]
        versions = own[int(rng.integers(len(own)))].tokens
        tokens = versions[int(rng.integers(len(versions)))]
        length = int(rng.integers(min(FEWEST, len(tokens)), len(tokens) + 1))
        begin = int(rng.integers(len(tokens) - length + 1))
        return tokens[begin : begin + length]
