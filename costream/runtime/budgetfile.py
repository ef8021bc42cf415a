"""Budgets in a file, which may be changed during a run."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from costream.errors import UsageError
from costream.runtime.budget.budget import Budget

_LOOK_S = 0.5

log = logging.getLogger("costream")


def parse_budget(text: str) -> Budget | BudgetFile:
    """Parse a budget, or for @FILE read it from that file. Raises UsageError."""
    return BudgetFile(Path(text[1:])) if text.startswith("@") else Budget.parse(text)


class BudgetFile:
    """The budget in a text file, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises UsageError when it cannot be read or holds no valid budget."""
        self._path = path
        self._looked_s = time.monotonic()
        self._stamp = self._changed()
        self.budget = self._read()

    def look(self) -> Budget:
        """Return the current budget; the previous one while the file holds no valid budget."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return self.budget
        self._looked_s = now_s
        stamp = self._changed()
        if stamp == self._stamp:
            return self.budget
        self._stamp = stamp
        try:
            self.budget = self._read()
            log.info("%s: the budget is now %s", self._path, self.budget.text)
        except UsageError as error:
            log.warning("%s; the budget stays at %s", error, self.budget.text)
        return self.budget

    def _changed(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def _read(self) -> Budget:
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            told = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UsageError(f"the budget cannot be read ({told})", where=self._path) from error
        return Budget.parse(text)
