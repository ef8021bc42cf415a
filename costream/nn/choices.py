"""The fastest of several ways to compute the same, by measuring.

Which one that is depends on the processor, the libraries and the sizes. So the ways are timed when
a network first needs one of them, in some milliseconds. Where ``choices`` keeps the times in a
file, all later runs take the same way, and their results are the same bit by bit.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TypeAlias

import torch

GAIN = 0.95  # a way other than the first is taken below this share of its time
_ROUNDS, _TURN_S = 15, 1e-4  # of each way in turns; a turn takes at least so long
_LEAST_ROUNDS, _LONGEST_S = 4, 0.1  # after so long, so many rounds are enough

Times: TypeAlias = dict[str, float]  # microseconds by the name of the way
Way: TypeAlias = Callable[[], object]


class Choices:
    """Times of ways to compute the same, and the fastest of them."""

    def __init__(self) -> None:
        self._kept: MutableMapping[str, Times] = {}
        self._lock = threading.RLock()  # a way may have choices of its own

    def keep_in(self, kept: MutableMapping[str, Times]) -> None:
        """Keep the times in ``kept`` from now on, and take those that are there."""
        self._kept = kept

    def fastest(self, work: str, ways: Mapping[str, Way]) -> str:
        """Return the name of the way to take.

        It is the first one where times cannot be kept.

        Args:
            work: what is computed, and its sizes. The number of threads is added.
            ways: functions by name. They are called many times if no earlier run did so.
        """
        count = torch.get_num_threads()
        name = f"{work}, {count} thread{'s' * (count > 1)}"
        with self._lock:
            times = self._kept.get(name, {})
            if times.keys() != ways.keys():
                self._kept[name] = measure(ways)
                times = self._kept.get(name, {})
        return chosen({way: times.get(way, 0.0) for way in ways})


choices = Choices()


def prefers_compiled(work: str, compiled: Way, ordinary: Way) -> bool:
    """Return whether to take a compiled form, rather than PyTorch's operations one by one."""
    return choices.fastest(work, {"compiled": compiled, "torch": ordinary}) == "compiled"


def chosen(times: Times) -> str:
    """Return the way that is taken for these times."""
    first, *others = times
    best = min(others, key=times.__getitem__, default=first)
    return best if times[best] < GAIN * times[first] else first


def measure(ways: Mapping[str, Way]) -> Times:
    """Return the microseconds of a call of each way: the fastest of turns.

    For one thread it is processor time, as other programs may interrupt each turn.
    """
    alone = torch.get_num_threads() == 1 and sys.platform != "win32"  # there it has ticks of 15 ms
    clock = time.thread_time if alone else time.perf_counter
    times, begun = dict.fromkeys(ways, float("inf")), time.perf_counter()
    for k in range(_ROUNDS):
        if k >= _LEAST_ROUNDS and time.perf_counter() - begun > _LONGEST_S:
            break
        for name, way in ways.items():
            times[name] = min(times[name], round(1e6 * _turn(way, clock), 2))
    return times


def _turn(way: Way, clock: Callable[[], float]) -> float:
    """Return the seconds of a call, the mean of those of a turn."""
    count, begun = 0, clock()
    while (spent := clock() - begun) < _TURN_S or not count:
        way()
        count += 1
    return spent / count
