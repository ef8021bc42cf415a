"""What is faster on this machine, measured again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from costream.models.blas import measure_again
from costream.models.kept_times import KeptTimes
from costream.nn import fast
from costream.nn.choices import Times, choices, chosen


class Work(NamedTuple):
    """What can be computed in several ways."""

    name: str  # with its sizes
    times: Times
    taken: str  # the way
    again: bool  # whether it was measured now; else when a model next needs it


class Tuned(NamedTuple):
    """What was measured on this machine."""

    path: Path  # of the file of times
    problem: str  # that it cannot be written, and why; "" if it can
    works: tuple[Work, ...]
    compiled_s: float  # that loading compiled steps took


def tune() -> Tuned:
    """Compile the steps of long streams; measure known products again, and forget other times."""
    begun = time.perf_counter()
    fast.compile_blocks()
    fast.compile_chains()
    compiled_s, kept = time.perf_counter() - begun, KeptTimes()
    known = dict(kept)
    kept.clear()
    choices.keep_in(kept)
    measure_again(known)
    works = []
    for name, before in known.items():
        times = kept.get(name, before)
        works.append(Work(name, times, chosen(times), name in kept))
    return Tuned(kept.path, kept.problem(), (*works,), compiled_s)
