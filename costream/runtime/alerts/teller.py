"""Rate-limited warnings."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("costream")

LOG_INTERVAL_S = 30.0  # least time between two messages about the same problem


class LogLimiter:
    """Logs the first of many messages, then at intervals one with the number left out."""

    def __init__(self, every_s: float = LOG_INTERVAL_S) -> None:
        self._every_s = every_s
        self._told_s: float | None = None
        self._silent = 0

    def tell(self, message: str) -> None:
        """Log a warning, or count it for the next message."""
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < self._every_s:
            self._silent += 1
            return
        more = f" (and {self._silent} more since the last message)" if self._silent else ""
        log.warning("%s%s", message, more)
        self._told_s, self._silent = now_s, 0
