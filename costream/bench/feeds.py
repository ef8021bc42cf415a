"""Benchmark of many feeds: complete watches of a film that plays as a feed, in processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from costream.core.errors import SourceError
from costream.core.tables import Cell, Table

COLUMNS = (
    *("feeds", "processes", "steps a second", "x real time", "ms of processor a step"),
    *("feeds a core", "MB a process", "lag, s"),
)
_READ_S = 0.5  # interval of reading the status
_WAIT_S = 300.0  # time limit for what is waited for
_END_S = 60.0  # the same for the end of a watch


def feeds_table(
    file: str, model: str, counts: Sequence[int], processes: Sequence[int], watch_s: float
) -> Table:
    """Return what watches of so many feeds take, each for ``watch_s`` after its start.

    ``file``: a film, which plays in real time as every feed, or slower where the machine does not
    keep up: no step is left out. ``processes``: numbers of watches that share the feeds, one thread
    each. "feeds a core": how many a core would have in real time. SourceError if the feeds do not
    begin.
    """
    rows = [
        _row(file, model, count, number, watch_s)
        for count in counts
        for number in processes
        if number <= count
    ]
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    notes = (
        f"{watch_s:g} s each; the processor time of decoding, network and everything else.",
        "Real time below 1, and lag: the machine does not keep up (a watch would drop steps).",
        f"{os.cpu_count()} cores; load of the machine at the end: {load}.",
    )
    return Table(f"feeds: {model}, {Path(file).name}", COLUMNS, tuple(rows), notes)


def _row(file: str, model: str, count: int, processes: int, watch_s: float) -> tuple[Cell, ...]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        watches = [
            stack.enter_context(_Watch(file, model, len(range(k, count, processes)), folder, k))
            for k in range(processes)
        ]
        for watch in watches:
            watch.begin()
        before = [watch.status() for watch in watches]
        after = [
            watch.status_at(status["uptime_s"] + watch_s)
            for watch, status in zip(watches, before, strict=True)
        ]
        rate_hz = watches[0].rate_hz()
    took_s = sum(_of(after, "uptime_s")) - sum(_of(before, "uptime_s"))
    cpu_s = sum(_of(after, "cpu_s")) - sum(_of(before, "cpu_s"))
    steps = _total(after, "steps") - _total(before, "steps")
    per_s = steps * processes / took_s
    return (
        *(count, processes, round(per_s, 1), round(per_s / count / rate_hz, 2)),
        round(1e3 * cpu_s / steps, 2) if steps else None,
        round(steps / cpu_s / rate_hz, 1) if cpu_s else None,
        round(max(_of(after, "memory_mb"))),
        round(max(feed["lag_s"] for status in after for feed in status["feeds"]), 2),
    )


class _Watch:
    """A process that watches a film as so many feeds; ended when the block ends."""

    def __init__(self, file: str, model: str, count: int, folder: Path, number: int) -> None:
        self._path, self._count = folder / f"{number}.json", count
        command = [sys.executable, "-m", "costream", "watch", *[file] * count, "-m", model]
        command += [
            "--realtime",
            "--on-late",
            "block",
            "--status-file",
            str(self._path),
            "-o",
            str(folder / str(number)),
        ]
        self._process = subprocess.Popen([*command, "-q"], stdin=subprocess.DEVNULL)

    def begin(self) -> None:
        """Wait until all feeds have steps."""
        self._wait(lambda status: all(feed["steps"] for feed in status["feeds"]))

    def status_at(self, uptime_s: float) -> dict[str, Any]:
        """Wait until the watch has run for so long, and return its status."""
        return self._wait(lambda status: status["uptime_s"] >= uptime_s)

    def _wait(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until_s = time.monotonic() + _WAIT_S
        while time.monotonic() < until_s:
            with suppress(FileNotFoundError):
                status = self.status()
                if not status["running"]:
                    break
                if holds(status):
                    return status
            time.sleep(_READ_S)
        what = "the watch has ended, or does not run"
        raise SourceError(what, where=f"{self._count} feeds", hint="use a longer film")

    def rate_hz(self) -> float:
        """Return the steps a second of a feed, as its file says."""
        with next(self._path.with_suffix("").glob("*.jsonl")).open(encoding="utf-8") as file:
            return float(json.loads(file.readline())["rate_hz"])

    def status(self) -> dict[str, Any]:
        """Return the newest status."""
        status: dict[str, Any] = json.loads(self._path.read_text("utf-8"))
        return status

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _of(statuses: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [status[name] for status in statuses]


def _total(statuses: Sequence[dict[str, Any]], name: str) -> int:
    return sum(feed[name] for status in statuses for feed in status["feeds"])
