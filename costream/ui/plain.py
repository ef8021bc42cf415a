"""Plain progress lines, for logs and terminals without a live view."""

from __future__ import annotations

import time

from rich.console import Console

from costream.core.formatting import clean, closing_lines, share_text, times, tokens_text
from costream.core.records import Header, Record, Summary
from costream.ui.console import PLAIN_S, print_line
from costream.ui.run.state import RunState


class PlainLines:
    """Sink that prints a line on the progress of one run every ``every_s`` seconds.

    ``t=60.0 s  25.3x  walk 0.91  dropped 0``: media time, speed against real time, best label of
    each head (or the current objects, and the cost of the step), frames dropped so far. With
    ``last``, the totals are printed at the end (unless a table ends with them).
    """

    def __init__(
        self, console: Console, name: str, *, every_s: float = PLAIN_S, last: bool = True
    ) -> None:
        self._console = console
        self._name = clean(name)
        self._every_s = every_s
        self._last = last
        self._state: RunState | None = None
        self._printed_s = 0.0

    def open(self, header: Header) -> None:
        """Start the clock."""
        self._printed_s = time.monotonic()
        self._state = RunState(header, self._printed_s)

    def write(self, record: Record) -> None:
        """Add a record; print if it is due."""
        if self._state is None:
            return
        self._state.add(record)
        now_s = time.monotonic()
        if now_s - self._printed_s >= self._every_s:
            self._printed_s = now_s
            print_line(self._console, _line(self._state, now_s))

    def close(self, summary: Summary) -> None:
        """Print the totals of the run."""
        if self._state is not None and self._last:
            for line in closing_lines(self._state.header, summary):
                print_line(self._console, f"{self._name}: {line}")


def _line(state: RunState, now_s: float) -> str:
    time_s = 0.0 if state.time_s is None else state.time_s
    parts = [f"t={time_s:.1f} s", times(state.x_realtime(now_s))]
    for name, head_state in state.head_states.items():
        # Beside objects only what is there.
        if head_state.top and (state.object_state is None or head_state.current is not None):
            label, score = head_state.top[0]
            who = f"{name}: " if name and state.header.persons is not None else ""
            parts.append(f"{who}{clean(label)} {score:.2f}")
    if state.object_state is not None:
        parts.append(state.object_state.words or "nothing")
        compute = state.object_state.compute
        if compute is not None and compute.tokens is not None:
            parts.append(f"{tokens_text(compute, None)}, {share_text(compute)}")
    if state.lag_s:
        parts.append(f"lag {state.lag_s:.2f} s")
    parts.append(f"dropped {state.dropped}")
    if state.errors:
        parts.append(f"errors {state.errors}")
    return "  ".join(parts)
