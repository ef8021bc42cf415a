"""Progress of a download: a bar on a terminal, plain lines elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from tqdm import tqdm

_PLAIN_S = 5.0


class Transfer:
    """Display of the progress of one download; a context manager."""

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
                self._bar = self._open(done, total)
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._shown_s >= _PLAIN_S:
            self._shown_s = time.monotonic()
            of = "" if total is None else f" of {total / 1e6:.1f}"
            self.say(f"{done / 1e6:.1f}{of} MB")

    def lost(self, reason: str, pause_s: float) -> None:
        """Print why the download is retried, and when."""
        self.say(f"{reason}; trying again in {pause_s:.0f} s")

    def say(self, text: str) -> None:
        """Remove the bar and print a line."""
        self._close()
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def _open(self, done: int, total: int | None) -> tqdm[NoReturn]:
        return tqdm(
            desc=self._name,
            initial=done,
            total=total,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            leave=False,
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
