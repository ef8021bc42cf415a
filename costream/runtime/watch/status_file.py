"""``--status-file``: the newest status of a watch as one JSON object."""

from __future__ import annotations

import json
import logging
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.core.records import SCHEMA, plain, to_json
from costream.core.status import WatchStatus
from costream.core.urls import redact
from costream.sinks.atomic import check_folder, replace_file

log = logging.getLogger("costream")

WRITE_EVERY_S = 1.0  # interval of writing the status file
_BEGIN = '{"type": "status"'  # how every status file begins
_redact = lru_cache(512)(redact)  # strips repeat the same few labels thousands of times


class StatusFile:
    """Writes the newest status to ``path`` at most once a second, through a temporary file.

    Missing folders are created. A failure to write (a full disk) is logged once, and writing is
    retried. UsageError where nothing can be written, or ``path`` holds something else, which is
    not overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # so that a link is not replaced
        self._status: WatchStatus | None = None
        self._wrote_s = float("-inf")
        self._failing = False
        _check(self._path)
        check_folder(self._path.parent)

    def show(self, status: WatchStatus) -> None:
        """Take the current status; write it if the last write was long enough ago."""
        self._status = status
        if time.monotonic() - self._wrote_s >= WRITE_EVERY_S:
            self._wrote_s = time.monotonic()
            self._write(status, running=True)

    def close(self) -> None:
        """Write the last status, with ``"running": false``. May be called again."""
        status, self._status = self._status, None
        if status is not None:
            self._write(status, running=False)

    def _write(self, status: WatchStatus, *, running: bool) -> None:
        text = json.dumps(status_json(status, running=running), ensure_ascii=False)
        try:
            # A name that is not UTF-8 is decoded with lone surrogates.
            replace_file(self._path, f"{text}\n".encode("utf-8", "backslashreplace"))
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


def status_json(status: WatchStatus, *, running: bool) -> dict[str, Any]:
    """Return the status as one JSON object, with the fields of WatchStatus and FeedStatus.

    It also has ``type``, ``schema``, the process (``pid``), whether the watch still runs, and
    the feed of each alert.
    """
    head = {"type": "status", "schema": SCHEMA, "running": running, "pid": os.getpid()}
    alerts = [{"feed": feed, **to_json(alert)} for feed, alert in status.alerts]
    values: dict[str, Any] = _redacted({**plain(status), "alerts": alerts})
    return {**head, **values}


def _redacted(value: Any) -> Any:
    """Return JSON values with the credentials of URLs removed, at any depth."""
    if isinstance(value, str):
        return _redact(value)
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    if isinstance(value, dict):
        return {_redact(key): _redacted(each) for key, each in value.items()}
    return value
