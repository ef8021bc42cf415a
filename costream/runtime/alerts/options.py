"""Alert options of a feed: --on, --run, --post, --append and --clips.

The same names are keys of a feed's table in a TOML file, each a string or a list of strings::

    on = ["falling>=0.8 for 2s", "gap>=10s"]
    run = "notify-send {feed} {label}"
    clips = "5,10"                        # or [5, 10], or true
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from costream.clock import parse_time
from costream.errors import UsageError
from costream.runtime.alerts.append import AppendLine
from costream.runtime.alerts.command import RunCommand
from costream.runtime.alerts.post import PostJson
from costream.runtime.alerts.rules import Rule, parse_rule
from costream.runtime.alerts.worker import Action

CLIPS = "5,5"  # value of a bare --clips
LONGEST_S = 600.0  # limit for either part of a clip: packets are held in memory


@dataclass(frozen=True)
class ClipSpan:
    """The length of a clip before and after the alert."""

    before_s: float
    after_s: float


@dataclass(frozen=True)
class AlertOptions:
    """The alert options, checked as far as possible without a model."""

    on: tuple[Rule, ...] = ()
    run: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    clips: ClipSpan | None = None

    def actions(self) -> dict[tuple[str, str], Action]:
        """Return new actions by key; equal keys of two feeds mean the same action."""
        made: dict[tuple[str, str], Action] = {}
        made.update({("run", text): RunCommand(text) for text in self.run})
        made.update({("post", text): PostJson(text) for text in self.post})
        made.update({("append", text): AppendLine(text) for text in self.append})
        return made


KEYS = tuple(field.name for field in fields(AlertOptions))


def read_options(told: Mapping[str, Any]) -> AlertOptions:
    """Return the options under the KEYS of ``told``; other keys, and None, are ignored.

    ``told`` holds the values of the command line or of a table in a TOML file. Raises UsageError
    for mistakes; nothing is run or opened.
    """
    options = AlertOptions(
        tuple(parse_rule(text) for text in _texts(told, "on")),
        _texts(told, "run"),
        _texts(told, "post"),
        _texts(told, "append"),
        _span(told.get("clips")),
    )
    options.actions()
    if not options.on and any((options.run, options.post, options.append, options.clips)):
        raise UsageError(
            "actions or clips need a rule",
            where="alerts",
            hint="add one, as in: --on 'falling>=0.8 for 2s'",
        )
    return options


def _texts(told: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = told.get(key)
    values = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(values, Iterable) or not all(isinstance(v, str) for v in (*values,)):
        raise UsageError("must be a string or a list of strings", where=key)
    return tuple(values)


def _span(value: Any) -> ClipSpan | None:
    """Parse "5,10", "5", 5, [5, 10] or true."""
    if value is None or value is False:
        return None
    parts = CLIPS if value is True else value
    if isinstance(parts, str):
        parts = parts.split(",")
    elif isinstance(parts, (int, float)):
        parts = [parts]
    try:
        seconds = [parse_time(str(part)) for part in parts]
        before_s, after_s = seconds * 2 if len(seconds) == 1 else seconds
    except (UsageError, ValueError, TypeError):
        raise UsageError(
            f"expected seconds before and after, not {value!r}",
            where="clips",
            hint="write them as in 5,10",
        ) from None
    if max(before_s, after_s) > LONGEST_S:
        raise UsageError(f"at most {LONGEST_S:g} s before and after", where="clips")
    return ClipSpan(before_s, after_s)
