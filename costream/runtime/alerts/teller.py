"""One trouble that comes again and again is told now and then."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("costream")

TELL_S = 30.0  # from one message on the same trouble to the next


class Teller:
    """Logs the first of many messages, and then now and then one with their number."""

    def __init__(self, every_s: float = TELL_S) -> None:
        self._every_s = every_s
        self._told_s: float | None = None
        self._silent = 0

    def tell(self, message: str) -> None:
        """Log a warning, or count it for the next one."""
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < self._every_s:
            self._silent += 1
            return
        more = f" (and {self._silent} more since the last message)" if self._silent else ""
        log.warning("%s%s", message, more)
        self._told_s, self._silent = now_s, 0
