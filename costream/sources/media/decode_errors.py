"""Counting of decoding errors, reported at most once in a while."""

from __future__ import annotations

from costream.core.records import Fault

# Errors of frames; later frames are wrong too, up to the next keyframe.
UNDECODABLE = "packet(s) that cannot be decoded"
DAMAGED = "damaged frame(s)"
LOST = "lost frame(s)"


REPORT_EVERY_S = 10.0


class DecodeErrors:
    """Collects errors and summarises them in at most one Fault per REPORT_EVERY_S of media time.

    ``total`` counts all errors, reported or not.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[str, int] = {}
        self._first_s = 0.0
        self._last_s = 0.0
        self._reported_s: float | None = None

    def add(self, what: str, time_s: float) -> None:
        """Count one error; ``what`` is worded to follow a number: ``bad packet(s)``."""
        if not self._counts:
            self._first_s = time_s
        self._last_s = time_s
        self._counts[what] = self._counts.get(what, 0) + 1
        self.total += 1

    def report(self, time_s: float, intact: bool) -> list[Fault]:
        """Return the errors before ``time_s`` as one Fault if a report is due.

        ``intact``: the frame at ``time_s`` is undamaged, so a burst of errors is over.
        """
        since = self._first_s if self._reported_s is None else self._reported_s
        waited = time_s - since >= REPORT_EVERY_S
        if not self._counts or not (waited or (intact and self._reported_s is None)):
            return []
        self._reported_s = time_s
        return self.flush()

    def flush(self) -> list[Fault]:
        """Return the errors that were not reported yet as one Fault, if any."""
        if not self._counts:
            return []
        parts = ", ".join(
            f"{count} {what.replace('(s)', '' if count == 1 else 's')}"
            for what, count in self._counts.items()
        )
        span = f"at {self._first_s:.3f} s"
        if self._last_s > self._first_s:
            span = f"from {self._first_s:.3f} to {self._last_s:.3f} s"
        fault = Fault(self._first_s, f"damage {span}: {parts}", count=sum(self._counts.values()))
        self._counts.clear()
        return [fault]
