"""Collection of the status of all feeds of a watch."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from costream.core.clock import utc
from costream.core.commit import code_version
from costream.core.errors import UsageError
from costream.core.records import SCHEMA, Alert, plain, to_json
from costream.core.status import WatchStatus
from costream.core.urls import redact
from costream.models.base import ModelInfo
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.watch.channel import FeedChannel
from costream.sinks.atomic import check_folder, replace_file

_ALERTS = 20


class StatusCollector:
    """Collects the status of a watch; adds one strip cell per second to each channel."""

    def __init__(self, model: ModelInfo, channels: Sequence[FeedChannel], rules: Alerts) -> None:
        self._model, self._channels, self._rules = model.card.name, channels, rules
        events = (x for h in model.heads for x in h.card.labels if x != h.card.background)
        self._labels = tuple(events)
        self._began_s, self._start_s = time.time(), time.monotonic()
        self._strip_s = self._start_s
        self._alerts: deque[tuple[str, Alert]] = deque(maxlen=_ALERTS)

    def add_alert(self, feed: str, alert: Alert) -> None:
        """Add an alert to the newest ones."""
        self._alerts.append((feed, alert))

    def status(self, load: float, failed_actions: int) -> WatchStatus:
        """Return the current status."""
        now_s = time.monotonic()
        feeds = tuple(
            replace(
                channel.status(now_s),
                rules=self._rules.holding(channel.spec.name),
                held=self._rules.held(channel.spec.name),
            )
            for channel in self._channels
        )
        while self._strip_s + 1.0 <= now_s:
            self._strip_s += 1.0
            for channel, feed in zip(self._channels, feeds, strict=True):
                channel.add_second(feed)
        return WatchStatus(
            version=code_version(),
            model=self._model,
            began=utc(self._began_s),
            now=utc(time.time()),
            uptime_s=now_s - self._start_s,
            feeds=feeds,
            alerts=tuple(self._alerts),
            load=load,
            memory_mb=_resident_mb(),
            failed_actions=failed_actions,
            strips={channel.spec.name: tuple(channel.strip) for channel in self._channels},
            labels=self._labels,
        )


def _resident_mb() -> float:
    """Return the resident memory of this process; its peak where only that is available."""
    if sys.platform == "win32":
        return 0.0
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


WRITE_EVERY_S = 1.0  # interval of writing the status file
_BEGIN = '{"type": "status"'  # how every status file begins
log = logging.getLogger("costream")


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


_hidden = lru_cache(512)(redact)  # strips repeat the same few labels thousands of times


def status_json(status: WatchStatus, *, running: bool) -> dict[str, Any]:
    """Return the status as one object; its fields are those of WatchStatus and FeedStatus.

    In addition: ``type``, ``schema``, the process (``pid``), whether the watch still runs, and
    the feed of each alert.
    """
    head = {"type": "status", "schema": SCHEMA, "running": running, "pid": os.getpid()}
    alerts = [{"feed": feed, **to_json(alert)} for feed, alert in status.alerts]
    values: dict[str, Any] = _redacted({**plain(status), "alerts": alerts})
    return {**head, **values}


def _redacted(value: Any) -> Any:
    """Return JSON values with the credentials of URLs removed, at any depth."""
    if isinstance(value, str):
        return _hidden(value)
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    if isinstance(value, dict):
        return {_hidden(key): _redacted(each) for key, each in value.items()}
    return value
