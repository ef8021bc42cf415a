"""Detection latency: the delay between an action's onset and its detection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from costream.records import Segment


def latencies(told: Sequence[Segment], truth: Sequence[Segment], delay_s: float) -> list[float]:
    """Return the detection latency of every true segment in seconds; NaN: not detected.

    It is detected when a segment of its label that overlaps it opens, or at its onset if that
    was already open. ``delay_s``: how long after the time of an event the model reports it.
    """
    out = []
    for true in truth:
        opened = [
            s.start_s
            for s in told
            if s.label == true.label and s.start_s < true.end_s and s.end_s > true.start_s
        ]
        known_s = min(opened) + delay_s if opened else float("nan")
        out.append(known_s if np.isnan(known_s) else max(0.0, known_s - true.start_s))
    return out


def latency_scores(waits: Iterable[float]) -> dict[str, Any]:
    """Return the share of true segments found, and median and p90 of their latency in seconds.

    Values without data are None.
    """
    every = np.array(list(waits), np.float64)
    found = every[~np.isnan(every)]
    return {
        "segments": len(every),
        "found": float(len(found) / len(every)) if len(every) else None,
        "median_s": float(np.median(found)) if len(found) else None,
        "p90_s": float(np.percentile(found, 90)) if len(found) else None,
    }
