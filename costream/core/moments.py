"""Moments as people write them, and in names of files, in the time zone of this machine."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from costream.core.clock import parse_time
from costream.core.errors import UsageError

# As recorders name their files: AudioMoth, Song Meter, field recorders, phones.
_IN_NAME = re.compile(
    r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)[T_ -](\d\d)[-:.]?(\d\d)[-:.]?(\d\d)(Z?)(?!\d)"
)
_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?")


def parse_moment(text: str, where: str, now: datetime | None = None) -> float:
    """Return a moment in seconds since 1970.

    ``today`` and ``yesterday`` are their midnight, ``22:00`` is the last time that it was, an
    age such as ``2h`` or ``7d`` is so long ago. Others are dates, or dates with a time, as in ISO
    8601, in the time zone of this machine unless they have one. ``now``: with or without a time
    zone. Raises UsageError, which names ``where``.
    """
    now = datetime.now() if now is None else now
    word = text.strip().lower()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("now", "today", "yesterday"):
        at = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}[word]
        return at.timestamp()
    if match := _CLOCK.fullmatch(word):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        at = midnight + timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return (at if at <= now else at - timedelta(days=1)).timestamp()
    try:
        if re.fullmatch(r"[\d. dhmins]*[dhmns]", word):
            return now.timestamp() - parse_time(word)
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except (UsageError, ValueError, OverflowError, OSError):
        hint = "write today, yesterday, 22:00, 2h, 7d, 2026-11-28 or '2026-11-28 22:00'"
        raise UsageError(f"not a moment: {text[:40]!r}", where=where, hint=hint) from None


def moment_in_name(name: str) -> tuple[str, float] | None:
    """Return what stands before a date and a time in a file name, and that time.

    The time is in seconds since 1970, in the time zone of this machine unless ``Z`` follows:
    ``SM2_20260514_043000.wav`` began at half past four. None without a date and a time.
    """
    match = _IN_NAME.search(name)
    if match is None:
        return None
    try:
        at = datetime.strptime("".join(match.groups()[:6]), "%Y%m%d%H%M%S")
        at = at.replace(tzinfo=timezone.utc) if match[7] else at
        return name[: match.start()].strip(" _-."), at.timestamp()
    except (ValueError, OverflowError, OSError):
        return None
