"""Fewer rows for tables and pages that people read; records keep every segment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from costream.core.audioset import kinds_among
from costream.core.records import Head, Header, Segment, heads_of
from costream.core.spelling import folded

NO_MUSIC = "no music"  # background of the heads that name genres
PAUSE_S = 1.0  # a longer one is between two pieces
UNKNOWN = "unknown genre"
SHORT_S, CLEAR = 10.0, 0.1  # shorter pieces have a genre if they are this far above the threshold
SURE = 0.8  # a label with less than this part of a related label's score is a weaker guess
WAIT_S = 60.0  # for other labels of the same sound


@dataclass
class _Piece:
    first: Segment
    end_s: float
    least: float  # score from which a short piece has a genre
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
        piece = self.first
        if self.count > 1:
            label = max(self.weights, key=lambda label: self.weights[label])
            score = self.weights[label] / self.length_s if self.length_s > 0 else math.nan
            piece = replace(piece, end_s=self.end_s, label=label, score=score)
        if self.length_s < SHORT_S and piece.score < self.least:
            return replace(piece, label=UNKNOWN)
        return piece


def _recorded(header: Header | None) -> dict[str | None, Head]:
    """Return the heads whose segments are changed: none of live sources."""
    return {} if header is None or header.began is not None else heads_of(header)


class MusicPieces:
    """Pieces of music, each made from segments of a head at most ``PAUSE_S`` apart.

    A piece has the label with the most seconds times score, and as its score their share of its
    seconds. Of a piece of less than ``SHORT_S`` the genre is ``UNKNOWN`` unless its score is
    ``CLEAR`` above the threshold. Segments of other heads, and of live sources, are passed on as
    they are.
    """

    def __init__(self, header: Header | None = None) -> None:
        self._least = {
            name: head.threshold + CLEAR
            for name, head in _recorded(header).items()
            if head.background == NO_MUSIC
        }
        self._open: dict[str | None, _Piece] = {}

    def add(self, segment: Segment) -> list[Segment]:
        """Add the next segment of a head; return what is complete by it."""
        if segment.model not in self._least:
            return [segment]
        piece = self._open.get(segment.model)
        if piece is not None and round(segment.start_s - piece.end_s, 6) <= PAUSE_S:
            piece.add(segment)
            return []
        self._open[segment.model] = new = _Piece(segment, segment.end_s, self._least[segment.model])
        new.add(segment)
        return [] if piece is None else [piece.joined()]

    def rest(self) -> list[Segment]:
        """Return the pieces that the end completes."""
        pieces = [piece.joined() for piece in self._open.values()]
        self._open.clear()
        return sorted(pieces, key=lambda piece: piece.start_s)


class SoundNames:
    """One row for a sound that related labels of AudioSet name at the same time.

    Related labels are a kind of sound and what belongs to it, as *Animal*, *Dog* and *Bark*. A
    segment is left out if a related one lasts for at least half of it and is clearly surer
    (``SURE``), or is more special and about as sure. Segments of other heads, and of live sources,
    are passed on as they are.
    """

    def __init__(self, header: Header | None = None) -> None:
        self._kinds = {
            name: kinds_among([folded(label) for label in head.labels])
            for name, head in _recorded(header).items()
        }
        self._held: list[Segment] = []

    def add(self, segment: Segment) -> list[Segment]:
        """Add the next segment; return those to which nothing later belongs."""
        if not self._kinds.get(segment.model):
            return [segment]
        self._held.append(segment)
        return self._release(segment.start_s - WAIT_S)

    def rest(self) -> list[Segment]:
        """Return the segments that the end completes."""
        return self._release(math.inf)

    def _release(self, until_s: float) -> list[Segment]:
        done = [segment for segment in self._held if segment.end_s < until_s]
        shown = [segment for segment in done if not (self._weak(segment) or self._general(segment))]
        self._held = [segment for segment in self._held if not segment.end_s < until_s]
        return shown

    def _weak(self, segment: Segment) -> bool:
        return any(
            other.score * SURE > segment.score
            and (self._belongs(segment, other) or self._belongs(other, segment))
            for other in self._during(segment)
        )

    def _general(self, segment: Segment) -> bool:
        return any(
            self._belongs(other, segment) and not self._weak(other)
            for other in self._during(segment)
        )

    def _during(self, segment: Segment) -> Iterator[Segment]:
        half_s = (segment.end_s - segment.start_s) / 2
        for other in self._held:
            shared_s = min(segment.end_s, other.end_s) - max(segment.start_s, other.start_s)
            if other.model == segment.model and other is not segment and shared_s >= half_s:
                yield other

    def _belongs(self, special: Segment, general: Segment) -> bool:
        kind, label = folded(general.label), folded(special.label)
        return label != kind and label in self._kinds[general.model].get(kind, ())


class ReadableRows:
    """Segments as people read them: music by pieces, and one name for each sound."""

    def __init__(self, header: Header | None = None) -> None:
        self._steps = (MusicPieces(header), SoundNames(header))

    def add(self, segment: Segment) -> list[Segment]:
        """Add the next segment; return the rows that are complete by it."""
        pieces, names = self._steps
        return [row for piece in pieces.add(segment) for row in names.add(piece)]

    def rest(self) -> list[Segment]:
        """Return the rows that the end completes."""
        pieces, names = self._steps
        rows = [row for piece in pieces.rest() for row in names.add(piece)]
        return sorted([*rows, *names.rest()], key=lambda row: row.start_s)
