"""Remarks on joints that stood at numbers for "missing"."""

from __future__ import annotations

from collections.abc import Iterator

from costream.core.records import Fault
from costream.sources.skeletons.skeleton_recording import PersonFrame

_UNSET = "at the origin or at equal negative numbers are taken as missing"


class Placeholders:
    """Counts the joints that stood at numbers for "missing".

    ``live``: nobody knows when the data end, so that it is also told of the first of them.
    """

    def __init__(self, *, live: bool) -> None:
        self._unset = self._joints = 0
        self._told = not live

    def add(self, moment: PersonFrame) -> Iterator[Fault]:
        """Count those of a frame; yield a remark that is due."""
        for body in moment.bodies:
            unset = 0 if body.unset is None else int(body.unset.sum())
            self._unset += unset
            self._joints += unset + int((body.scores > 0).sum())
        if self._unset and not self._told:
            self._told = True
            yield Fault(moment.time_s, f"joints {_UNSET}", count=0)

    def finish(self, time_s: float) -> Iterator[Fault]:
        """Yield a remark on all of them, if there were any."""
        if self._unset:
            text = f"{self._unset:,} of {self._joints:,} joints {_UNSET}"
            yield Fault(max(time_s, 0.0), text, count=0)
