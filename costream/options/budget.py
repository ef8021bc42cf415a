"""Cost budgets of a step, from the command line or from a file that may change during the run."""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from costream.core.errors import UsageError

log = logging.getLogger("costream")
Unit = Literal["ms", "macs"]
Kind = Literal["ms", "macs", "share", "part"]
_TIME = re.compile(r"([0-9.]+)\s*(ms|s)", re.IGNORECASE)
_SHARE = re.compile(r"([0-9.]+)\s*x", re.IGNORECASE)
_PART = re.compile(r"([0-9.]+)\s*%")
_MACS = re.compile(r"([0-9.]+)\s*([kMGT]?)MACs?", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
CHECK_S = 0.5  # interval at which a file is checked


@dataclass(frozen=True)
class Budget:
    """The maximum cost of a step. ``text``: as the user wrote it."""

    text: str
    amount: float  # milliseconds, MACs, seconds of work per second, or part of the dense MACs
    kind: Kind

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse "40ms", "0.1s", "20GMAC", "0.5x" (of real time) or "50%"; else UsageError.

        "50%" is half of the operations that computing every frame completely takes.
        """
        word = text.strip()
        try:
            if match := _TIME.fullmatch(word):
                ms = float(match[1]) * (1.0 if match[2].lower() == "ms" else 1e3)
                return cls._checked(word, ms, "ms")
            if match := _MACS.fullmatch(word):
                return cls._checked(word, float(match[1]) * _PREFIXES[match[2].lower()], "macs")
            if match := _SHARE.fullmatch(word):
                return cls._checked(word, float(match[1]), "share")
            if match := _PART.fullmatch(word):
                return cls._checked(word, float(match[1]) / 100, "part")
        except ValueError:
            pass
        hint = "write a time (40ms), operations (20GMAC or 50%) or a share of real time (0.5x)"
        raise UsageError(f"{text!r} is not a valid budget", where="--budget", hint=hint)

    @classmethod
    def _checked(cls, text: str, amount: float, kind: Kind) -> Budget:
        if not (math.isfinite(amount) and amount > 0):
            raise ValueError
        return cls(text, amount, kind)

    def __str__(self) -> str:
        """Return the budget as the user wrote it."""
        return self.text

    @property
    def unit(self) -> Unit:
        """The unit of ``target``."""
        return "macs" if self.kind in ("macs", "part") else "ms"

    def target(self, rate_hz: float, dense_macs: float = math.inf) -> float:
        """Return the maximum cost of a step at this step rate, in ``unit``.

        ``dense_macs``: operations of a step that is computed completely; infinite: not known.
        """
        if self.kind == "part":
            return self.amount * dense_macs
        return 1e3 * self.amount / rate_hz if self.kind == "share" else self.amount


def parse_budget(text: str) -> Budget | BudgetFile:
    """Parse a budget, or for @FILE read it from that file. Raises UsageError."""
    return BudgetFile(text[1:]) if text.startswith("@") else Budget.parse(text)


class BudgetFile:
    """The budget in a text file, read again when the file has changed."""

    def __init__(self, path: Path | str) -> None:
        """Read the file. Raises UsageError when it cannot be read or holds no valid budget."""
        self._path = Path(path)
        self.text = f"@{path}"  # as the user wrote it
        self._checked_s = time.monotonic()
        self._stamp = self._changed()
        self.budget = self._read()

    def __str__(self) -> str:
        """Return @ and the name of the file, as the user wrote it."""
        return self.text

    def current(self) -> Budget:
        """Return the current budget; the previous one while the file holds no valid budget."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return self.budget
        self._checked_s = now_s
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
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UsageError(f"the budget cannot be read ({reason})", where=self._path) from error
        return Budget.parse(text)
