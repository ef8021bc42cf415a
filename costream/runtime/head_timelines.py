"""Timelines of a model's heads, for a stream or for one of its persons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costream.core.hysteresis import is_among
from costream.models.base import ModelHead, ModelInfo
from costream.options.options import Options
from costream.runtime.segments import IndependentSegmenter, PresenceSegmenter, Segmenter
from costream.weights_io.card import Timeline


@dataclass(frozen=True)
class HeadTimeline:
    """A classifier head of the model and the timeline of its predictions."""

    head: ModelHead
    name: str | None  # marks its records; None where there is only one head
    timeline: Timeline
    segmenter: Segmenter | IndependentSegmenter
    person: int | None = None  # number of the person it is about


def new_timelines(
    info: ModelInfo,
    options: Options,
    rate_hz: float,
    only: tuple[str, ...] | None,
    heads: Sequence[ModelHead],
    person: int | None = None,
) -> list[HeadTimeline]:
    """Return empty timelines of these heads of a model.

    ``rate_hz``: steps per second; ``only``: labels.
    """
    several, out = len(info.heads) > 1, []
    for head in heads:
        name = head.card.name if several else None
        timeline = options.timeline(head.card)
        segmenter = _segmenter(info, head, timeline, rate_hz, only)
        out.append(HeadTimeline(head, name, timeline, segmenter, person))
    return out


def _segmenter(
    info: ModelInfo,
    head: ModelHead,
    timeline: Timeline,
    rate_hz: float,
    only: tuple[str, ...] | None,
) -> Segmenter | IndependentSegmenter:
    card = head.card
    if head.rate_hz is None:
        # A network's delay is a number of steps, whatever the duration of a step.
        delay_s, outputs_hz = card.delay_s * info.card.rate_hz / rate_hz, rate_hz / info.stride
    else:
        delay_s, outputs_hz = card.delay_s, min(rate_hz, head.rate_hz)
    about = (card.labels, timeline, outputs_hz, delay_s)
    if card.finds_objects:
        return PresenceSegmenter(*about)
    ahead = info.sound is not None
    if card.multilabel:
        return IndependentSegmenter(*about, only, ahead=ahead)
    return Segmenter(*about, card.background, only, ahead=ahead, each=info.text)


def active_label(timelines: Sequence[HeadTimeline], only: tuple[str, ...] | None) -> str | None:
    """Return the best label now at or above its threshold, not background.

    It is that of the first head that has one, and of which it counts, see ``presence_s``.
    """
    for entry in timelines:
        card, scores = entry.head.card, entry.segmenter.smoother.scores
        if scores is None or not entry.segmenter.counts:
            continue
        sure = [
            (score, label)
            for label, score in zip(card.labels, scores.tolist(), strict=True)
            if label != card.background
            and is_among(label, only)
            and score >= entry.timeline.threshold_of(label)
        ]
        if sure:
            return max(sure)[1]
    return None


def smoothed_scores(timelines: Sequence[HeadTimeline]) -> tuple[float, ...]:
    """Return the state of the smoothing: the newest time, then the scores of all heads.

    Empty when no scores are smoothed, or before the first ones.
    """
    smoothers = [entry.segmenter.smoother for entry in timelines]
    scores = [s.scores for s in smoothers if s.scores is not None]
    if not scores or not any(s.smooth_s for s in smoothers):
        return ()
    return tuple(np.concatenate([[smoothers[0].time_s], *scores]).tolist())


def resume_smoothing(timelines: Sequence[HeadTimeline], smoothed: Sequence[float]) -> None:
    """Resume the smoothing from the state that ``smoothed_scores`` returned."""
    if not smoothed:
        return
    time_s, scores = smoothed[0], np.array(smoothed[1:])
    for entry in timelines:
        smoother, count = entry.segmenter.smoother, len(entry.head.card.labels)
        smoother.time_s, smoother.scores = time_s, scores[:count]
        scores = scores[count:]
