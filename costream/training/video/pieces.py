"""Pieces of labelled recordings, as images, to fine-tune a frontend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.records import Gap, VideoFrame
from costream.labels.examples import Example
from costream.labels.recording import UNSCORED
from costream.training.tokens.token_streams import TokenStream
from costream.training.video.video_reader import by_recording, frames_of, labels_at, stretch
from costream.training.video.video_views import VideoView
from costream.weights_io.card import Card

STEPS = 48  # length of a piece
MOST_BYTES = 400_000_000  # of frames held in memory


@dataclass(frozen=True)
class Piece:
    """Consecutive frames uint8 [T, 3, H, W], each with its class or UNSCORED [T]."""

    frames: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def stream(self) -> TokenStream:
        """Return the frames as a stream, to validate with."""
        return TokenStream(torch.from_numpy(self.frames), self.labels)

    def filled(self, before: int, still: int) -> Piece:
        """Pad to ``STEPS`` steps: repeat the first frame ``before`` times, the last one after."""
        after = STEPS - before - len(self.labels)
        return Piece(
            np.pad(self.frames, ((before, after), (0, 0), (0, 0), (0, 0)), mode="edge"),
            np.pad(self.labels, (before, after), constant_values=still),
        )


class Pieces:
    """Draws randomly augmented pieces, all classes equally often.

    ``still``: the label of the repeated frames before and after a piece. ``device``: where they
    are augmented.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        box: tuple[int, int],
        still: int,
        device: torch.device = torch.device("cpu"),  # noqa: B008
    ) -> None:
        self._box, self._still, self._device = box, still, device
        having: dict[int, list[Piece]] = {}
        for piece in pieces:
            for label in np.unique(piece.labels[piece.labels != UNSCORED]).tolist():
                having.setdefault(label, []).append(piece)
        self._having = [having[label] for label in sorted(having)]

    def batch(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch: frames float32 [B, T, 3, H, W], 0 to 255, and labels int64 [B, T]."""
        frames, labels = [], []
        for _ in range(count):
            pieces = self._having[int(rng.integers(len(self._having)))]
            piece = pieces[int(rng.integers(len(pieces)))]
            piece = piece.filled(int(rng.integers(STEPS - len(piece.labels) + 1)), self._still)
            view = VideoView(rng, self._box, self._device)
            frames.append(view.show(torch.from_numpy(piece.frames).to(self._device)))
            labels.append(torch.from_numpy(piece.labels))
        return torch.stack(frames), torch.stack(labels)


def read_pieces(
    card: Card, frontend: Any, examples: Sequence[Example], labels: Sequence[str], seed: int
) -> list[Piece]:
    """Return labelled pieces from the recordings of these examples.

    If they exceed the memory limit, a random sample of them. SourceError, UsageError as
    ``VideoReader.read``.
    """
    rng = np.random.default_rng(seed)
    kept: list[Piece] = []
    count = 0
    for indices in by_recording(examples).values():
        selected = [examples[k] for k in indices]
        for piece in _pieces(card, frontend, selected, labels):
            if (piece.labels == UNSCORED).all():
                continue
            count += 1
            if len(kept) < max(1, MOST_BYTES // (STEPS * piece.frames[0].nbytes)):
                kept.append(piece)
            elif (place := int(rng.integers(count))) < len(kept):  # Vitter's algorithm R
                kept[place] = piece
    return kept


def _pieces(
    card: Card, frontend: Any, examples: Sequence[Example], labels: Sequence[str]
) -> Iterator[Piece]:
    frames: list[npt.NDArray[np.uint8]] = []
    times: list[float] = []

    def piece() -> Piece:
        labelled = labels_at(examples, np.array(times), labels, UNSCORED)
        return Piece(np.stack(frames), labelled)

    for item in frames_of(card, frontend, stretch(examples)):
        if not isinstance(item, Gap) and isinstance(item.item, VideoFrame):
            frames.append(frontend.prepare(item.item.rgb))
            times.append(item.time_s)
        if frames and (isinstance(item, Gap) or len(frames) == STEPS):
            yield piece()
            frames.clear()
            times.clear()
    if frames:
        yield piece()
