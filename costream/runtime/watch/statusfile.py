"""``--status-file``: the status of a watch in a file that is replaced atomically."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from costream.errors import UsageError
from costream.runtime.watch.statusjson import status_json
from costream.sinks.atomic import part_path
from costream.status import WatchStatus

_EVERY_S = 1.0
_BEGIN = '{"type": "status"'  # how every status file begins

log = logging.getLogger("costream")


class StatusFile:
    """Writes the newest status to ``path`` at most once a second, through a temporary file.

    A failure to write (a full disk, a missing folder) is logged once, and writing is retried.
    UsageError when ``path`` holds something else, which is not overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # so that a link is not replaced
        self._status: WatchStatus | None = None
        self._wrote_s = float("-inf")
        self._failing = False
        _check(self._path)

    def show(self, status: WatchStatus) -> None:
        """Take the current status; write it if the last write was long enough ago."""
        self._status = status
        if time.monotonic() - self._wrote_s >= _EVERY_S:
            self._wrote_s = time.monotonic()
            self._write(status, running=True)

    def close(self) -> None:
        """Write the last status, with ``"running": false``. May be called again."""
        status, self._status = self._status, None
        if status is not None:
            self._write(status, running=False)

    def _write(self, status: WatchStatus, *, running: bool) -> None:
        text = json.dumps(status_json(status, running=running), ensure_ascii=False)
        part = part_path(self._path)
        try:
            # A name that is not UTF-8 is decoded with lone surrogates.
            part.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
            os.replace(part, self._path)
        except OSError as error:
            if not self._failing:
                reason = error.strerror or type(error).__name__
                log.warning("%s: cannot write the status (%s), trying again", self._path, reason)
            self._failing = True
            return
        if self._failing:
            log.warning("%s: the status can be written again", self._path)
        self._failing = False


def _check(path: Path) -> None:
    """Raise UsageError when ``path`` exists and is not a status file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            begin = file.read(len(_BEGIN))
    except FileNotFoundError:
        return
    except OSError as error:
        what = f"cannot be the status file ({error.strerror})"
        raise UsageError(what, where=path) from error
    if begin not in ("", _BEGIN):
        hint = "give --status-file another name"
        raise UsageError("exists and is not a status file", where=path, hint=hint)
