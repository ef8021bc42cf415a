"""Progress of downloads and batches: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from tqdm import tqdm

from costream.core.errors import say
from costream.core.formatting import counted, short_time, times
from costream.ui.console import PLAIN_S, print_line

REFRESH_S = 0.25


class Transfer:
    """Progress of one download on stderr: a bar on a terminal, else lines; a context manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._terminal = sys.stderr.isatty()
        self._bar: tqdm[NoReturn] | None = None
        self._shown_s = time.monotonic()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def at(self, done: int, total: int | None) -> None:
        """Show the number of bytes received, of ``total`` if known."""
        if self._terminal:
            if self._bar is None:
                bar = partial(tqdm, unit="B", unit_scale=True, file=sys.stderr, leave=False)
                self._bar = bar(desc=self._name, initial=done, total=total)
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._shown_s >= PLAIN_S:
            self._shown_s = time.monotonic()
            of = "" if total is None else f" of {total / 1e6:.1f}"
            self.say(f"{done / 1e6:.1f}{of} MB")

    def lost(self, reason: str, pause_s: float) -> None:
        """Print why the download is retried, and when."""
        self.say(f"{reason}; trying again in {pause_s:.0f} s")

    def say(self, text: str) -> None:
        """Remove the bar and print a line."""
        self._close()
        say(f"{self._name}: {text}")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@dataclass
class BatchState:
    """Progress of a batch. Sizes in bytes stand in for lengths that are not known yet."""

    files: int  # to be done in this run
    size: int  # of those files
    done_files: int = 0
    done_size: int = 0
    media_s: float = 0.0  # of finished files
    failed: int = 0
    skipped: int = 0
    began_s: float = field(default_factory=time.monotonic)
    running: dict[str, float] = field(default_factory=dict)  # name: media seconds so far

    def count(self, status: str) -> None:
        """Count a file with an outcome."""
        self.done_files += 1
        self.failed += status in ("failed", "partial")
        self.skipped += status == "skipped"

    @property
    def seen_s(self) -> float:
        """Media seconds processed, including unfinished files."""
        return self.media_s + sum(self.running.values())

    def elapsed_s(self) -> float:
        """Return the seconds since the batch began."""
        return max(time.monotonic() - self.began_s, 1e-9)

    def eta_s(self) -> float | None:
        """Return the estimated remaining seconds, from the sizes of files; None: unknown."""
        if not self.done_size:
            return None
        return self.elapsed_s() * (self.size - self.done_size) / self.done_size

    def total_media_s(self) -> float | None:
        """Return the estimated media seconds of all files, from their sizes; None: unknown."""
        if not self.done_size:
            return None
        return max(self.media_s * self.size / self.done_size, self.seen_s)

    def line(self) -> str:
        """Return the progress as one line."""
        parts = [f"{self.done_files}/{counted(self.files, 'file')}"]
        if self.seen_s:
            parts += [
                f"{short_time(self.seen_s)} of media",
                f"{times(self.seen_s / self.elapsed_s())} real time",
            ]
        eta_s = self.eta_s()
        if eta_s is not None and self.done_files < self.files:
            parts.append(f"ETA {short_time(eta_s, 0)}")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        parts.append(f"{self.failed} failed")
        return "  ".join(parts)


class BatchProgress:
    """Display of a ``BatchState``; draws only when ``show`` is called, so there is no thread."""

    def __init__(self, console: Console, state: BatchState, *, live: bool, quiet: bool) -> None:
        self._console, self._state, self._quiet = console, state, quiet
        self._shown_s = time.monotonic()
        self._bars: Progress | None = None
        self._files = self._media = TaskID(0)
        if live:
            self._open()

    def show(self) -> None:
        """Draw if it is due."""
        every_s = PLAIN_S if self._bars is None else REFRESH_S
        if time.monotonic() - self._shown_s < every_s:
            return
        self._shown_s = time.monotonic()
        if self._bars is not None:
            self._draw(self._bars)
        elif not self._quiet:
            print_line(self._console, self._state.line())

    def close(self, line: str) -> None:
        """Remove the bars from the screen and print the last line."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        if not self._quiet:
            print_line(self._console, line)

    def _open(self) -> None:
        name, text = TextColumn("{task.description:>6}"), TextColumn("{task.fields[text]}")
        bars = Progress(
            *(name, BarColumn(bar_width=30), text),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._files = bars.add_task("files", total=max(1, self._state.files), text="")
        self._media = bars.add_task("media", total=None, text="")
        bars.start()
        self._bars = bars
        self._draw(bars)

    def _draw(self, bars: Progress) -> None:
        state = self._state
        failed = f", {state.failed} failed" if state.failed else ""
        files = f"{state.done_files}/{state.files}{failed}"
        eta_s = state.eta_s()
        left = "" if eta_s is None else f", ETA {short_time(eta_s, 0)}"
        media = f"{short_time(state.seen_s, 0)}, {times(state.seen_s / state.elapsed_s())}"
        bars.update(self._files, completed=state.done_files, text=files)
        text, total_s = f"{media} real time{left}", state.total_media_s()
        bars.update(self._media, completed=state.seen_s, total=total_s, text=text)
        bars.refresh()
