"""A budget that may be changed while a run goes on: it stands in a file."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from costream.errors import UsageError
from costream.runtime.budget import Budget

_LOOK_S = 0.5

log = logging.getLogger("costream")


def parse_budget(text: str) -> Budget | BudgetFile:
    """Give the budget that ``text`` is, or for @FILE the one that stands there. UsageError."""
    return BudgetFile(Path(text[1:])) if text.startswith("@") else Budget.parse(text)


class BudgetFile:
    """The budget in a text file, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises UsageError when it cannot be read or holds no budget."""
        self._path = path
        self._looked_s = time.monotonic()
        self._stamp = self._changed()
        self.budget = self._read()

    def look(self) -> Budget:
        """Give the budget as it stands now; the one before while the file holds none."""
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
            log.info("%s: the budget is %s now", self._path, self.budget.text)
        except UsageError as error:
            log.warning("%s; it stays at %s", error, self.budget.text)
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
            told = error.strerror if isinstance(error, OSError) else "no text"
            raise UsageError(f"the budget cannot be read ({told})", where=self._path) from error
        return Budget.parse(text)
