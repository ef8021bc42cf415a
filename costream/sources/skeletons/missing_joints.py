"""Remarks on joints that stood at numbers for "missing"."""

from __future__ import annotations

from collections.abc import Iterator

from costream.core.records import Fault
from costream.sources.skeletons.skeleton_recording import PersonFrame

_UNSET = "at the origin or at equal negative numbers are treated as missing"


class Placeholders:
    """Counts joints whose coordinates are a number that stands for "missing".

    ``live``: the end of the data is unknown, so the first one is reported at once.
    """

    def __init__(self, *, live: bool) -> None:
        self._unset = self._joints = 0
        self._reported = not live

    def add(self, moment: PersonFrame) -> Iterator[Fault]:
        """Count the joints of a frame; yield a remark if one is due."""
        for body in moment.bodies:
            unset = 0 if body.unset is None else int(body.unset.sum())
            self._unset += unset
            self._joints += unset + int((body.scores > 0).sum())
        if self._unset and not self._reported:
            self._reported = True
            yield Fault(moment.time_s, f"joints {_UNSET}", count=0)

    def finish(self, time_s: float) -> Iterator[Fault]:
        """Yield a remark on all such joints, if there were any."""
        if self._unset:
            text = f"{self._unset:,} of {self._joints:,} joints {_UNSET}"
            yield Fault(max(time_s, 0.0), text, count=0)
