"""Alert events, as passed to actions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from costream.records import Alert, to_json


@dataclass(frozen=True)
class AlertEvent:
    """An alert with its feed, time and clip."""

    feed: str  # name of the feed
    at: str  # time of firing, ISO 8601, UTC
    alert: Alert
    clip: Path | None = None  # the file with the seconds around it

    @cached_property
    def values(self) -> dict[str, str]:
        """The values of {feed}, {label}, ... in a command, by name."""
        return {
            "feed": self.feed,
            "label": self.alert.label,
            "score": f"{self.alert.score:.3f}",
            "time": self.at,
            "clip": "" if self.clip is None else str(self.clip),
            "rule": self.alert.rule,
        }

    @cached_property
    def json(self) -> str:
        """The alert record with ``feed`` and ``at``, as a JSON object in one line."""
        record: dict[str, Any] = {"feed": self.feed, "at": self.at, **to_json(self.alert)}
        if self.clip is not None:
            record["clip"] = str(self.clip)
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
