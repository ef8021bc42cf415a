"""One label for each piece of music, for tables and pages that people read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from costream.core.records import Header, Segment, heads_of

NO_MUSIC = "no music"  # background of the heads that name genres
PAUSE_S = 1.0  # a longer one is between two pieces


@dataclass
class _Piece:
    first: Segment
    end_s: float
    count: int = 0
    length_s: float = 0.0  # of its segments
    weights: dict[str, float] = field(default_factory=dict)  # label -> seconds times score

    def add(self, segment: Segment) -> None:
        length_s = segment.end_s - segment.start_s
        self.end_s = segment.end_s
        self.count += 1
        self.length_s += length_s
        weight = length_s * segment.score if segment.score > 0 else 0.0  # 0 of NaN
        self.weights[segment.label] = self.weights.get(segment.label, 0.0) + weight

    def joined(self) -> Segment:
        if self.count == 1:
            return self.first
        label = max(self.weights, key=lambda label: self.weights[label])
        score = self.weights[label] / self.length_s if self.length_s > 0 else math.nan
        return replace(self.first, end_s=self.end_s, label=label, score=score)


class MusicPieces:
    """Pieces of music, each made from segments of a head at most ``PAUSE_S`` apart.

    A piece has the label with the most seconds times score, and as its score their share of its
    seconds. Segments of other heads, and of live sources, are passed on as they are.
    """

    def __init__(self, header: Header | None = None) -> None:
        heads = {} if header is None or header.began is not None else heads_of(header)
        self._models = {name for name, head in heads.items() if head.background == NO_MUSIC}
        self._open: dict[str | None, _Piece] = {}

    def add(self, segment: Segment) -> list[Segment]:
        """Add the next segment of a head; return what is complete by it."""
        if segment.model not in self._models:
            return [segment]
        piece = self._open.get(segment.model)
        if piece is not None and round(segment.start_s - piece.end_s, 6) <= PAUSE_S:
            piece.add(segment)
            return []
        self._open[segment.model] = new = _Piece(segment, segment.end_s)
        new.add(segment)
        return [] if piece is None else [piece.joined()]

    def rest(self) -> list[Segment]:
        """Return the pieces that the end completes."""
        pieces = [piece.joined() for piece in self._open.values()]
        self._open.clear()
        return sorted(pieces, key=lambda piece: piece.start_s)
