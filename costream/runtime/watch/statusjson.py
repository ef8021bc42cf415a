"""The status of a watch as plain JSON values, for other programs."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from costream.records import SCHEMA, plain, to_json
from costream.redact import redact
from costream.status import WatchStatus

_hidden = lru_cache(4096)(redact)  # strips repeat the same few labels thousands of times


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
