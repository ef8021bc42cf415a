"""Consistency checks of labels: overlaps, and labels after the end of the recording."""

from __future__ import annotations

from dataclasses import replace

from costream.clock import TOLERANCE_S
from costream.labels.intake import LabelCollector
from costream.labels.recording import Label, Recording

_AFTER_S = 1.0  # durations are rounded, and the last step of a model may extend beyond the end


def checked(recording: Recording, intake: LabelCollector, end_s: float | None) -> Recording:
    """Return the recording with its real duration and without labels after its end.

    ``end_s``: its real end, None if unknown. A label that extends far beyond the end is cut off
    there. Overlapping labels are kept and reported.
    """
    after = float("inf") if end_s is None else end_s
    labels: list[Label] = []
    latest_s = 0.0  # the end of the labels so far
    for label in recording.labels:
        if label.start_s >= after:
            intake.odd("labels after the end of the recording, left out", label.where)
            continue
        if label.start_s < latest_s - TOLERANCE_S:
            intake.odd("labels that overlap another", label.where)
        if label.end_s is not None and label.end_s > after + _AFTER_S:
            intake.odd("labels that reach beyond the end of the recording, cut off", label.where)
            label = replace(label, end_s=after)
        latest_s = max(latest_s, float("inf") if label.end_s is None else label.end_s)
        labels.append(label)
    duration_s = recording.duration_s if end_s is None else end_s
    return replace(recording, labels=tuple(labels), duration_s=duration_s)
