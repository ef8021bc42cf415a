"""One row for labels of the same sound, in tables that people read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from costream.core.records import Segment

SEPARATOR = " | "  # between labels; there are labels with commas
ALIKE = 0.6  # common part of two segments, to the time of both, from which on they share a row
MOST = 3  # labels in a row


def share_rows(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments, those of different labels at about the same time as one.

    As a siren is also an alarm and an emergency vehicle, models that tag sound give several labels
    at once. The joined segment has the labels and the score of the most probable ones, the best
    first, and reaches from the first start to the last end. Objects and persons, which are counted
    or numbered, are left as they are.
    """
    groups: list[list[Segment]] = []
    for segment in segments:
        alone = segment.count is not None or segment.person is not None
        same = None if alone else next((g for g in groups if _alike(g[0], segment)), None)
        if same is None:
            groups.append([segment])
        else:
            same.append(segment)
    return [_joined(group) for group in groups]


def _alike(one: Segment, other: Segment) -> bool:
    if one.model != other.model or one.label == other.label:
        return False
    if one.count is not None or one.person is not None:
        return False
    common = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    both = max(one.end_s, other.end_s) - min(one.start_s, other.start_s)
    return common > 0 and common >= ALIKE * both


def _joined(group: list[Segment]) -> Segment:
    if len(group) == 1:
        return group[0]
    best = sorted(group, key=lambda segment: -segment.score)
    labels = list(dict.fromkeys(segment.label for segment in best))
    return replace(
        best[0],
        start_s=min(segment.start_s for segment in group),
        end_s=max(segment.end_s for segment in group),
        label=SEPARATOR.join(labels[:MOST]),
    )
