"""Mean sound levels of feeds in each quarter of an hour, from the levels of steps."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

QUARTER_S = 900
LONGEST_S = 20.0  # that one level stands for: files of events have one every 10 s


class MeanLevels:
    """Energy means of levels, weighted with the time that each of them stands for.

    So the steps around events, of which more are written, do not count more than others.
    """

    def __init__(self) -> None:
        # Of each feed, quarter and unit: the sum of power times seconds, and the seconds.
        self._sums: defaultdict[tuple[str, int, str], list[float]]
        self._sums = defaultdict(lambda: [0.0, 0.0])
        self._newest_s: dict[str, float] = {}  # time of the newest level of each feed

    def add(self, feed: str, at_s: float, level: float, unit: str) -> None:
        """Add the level of the time up to ``at_s`` (seconds since 1970), in ``unit``."""
        length_s = at_s - self._newest_s.get(feed, -math.inf)
        self._newest_s[feed] = at_s
        if not 0 < length_s <= LONGEST_S:
            return
        total = self._sums[feed, int(at_s // QUARTER_S), unit]
        total[0] += 10 ** (level / 10) * length_s
        total[1] += length_s

    def to_json(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the mean level of each quarter of an hour that ends after ``since_s``.

        They are as the page reads them.
        """
        return [
            {
                "feed": feed,
                "unit": unit,
                "start": QUARTER_S * quarter,
                "seconds": round(seconds, 1),
                "level": round(10 * math.log10(power / seconds), 1),
            }
            for (feed, quarter, unit), (power, seconds) in sorted(self._sums.items())
            if QUARTER_S * (quarter + 1) > since_s
        ]
