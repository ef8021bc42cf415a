"""Text and fixed-width numbers for the feeds of a watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size

from costream.formatting import clean, counted
from costream.records import Alert
from costream.redact import redact
from costream.status import FeedState, FeedStatus, WatchStatus

# The worst first. A feed that ended by itself needs no attention.
STATES: tuple[FeedState, ...] = ("lost", "waiting", "stalled", "connecting", "live", "ended")


def display_text(text: str, *, unicode: bool = True) -> str:
    """Return ``text`` for display: on one line, without credentials, in ASCII if required."""
    text = clean(redact(text))
    return text if unicode else text.encode("ascii", "replace").decode()


def state_word(state: FeedState) -> str:
    """Return the word for a state; "lost" is in capitals, for terminals without colours."""
    return state.upper() if state == "lost" else state


def fitted(text: str, width: int, *, unicode: bool = True) -> str:
    """Return ``text`` for display in ``width`` columns.

    A long text keeps its end as well: names of cameras often differ in the last digit only.
    """
    text = display_text(text, unicode=unicode)
    if cell_len(text) <= width or width < 6:
        return set_cell_size(text, width)
    end = set_cell_size(text[::-1], width // 3).rstrip()[::-1]
    mark = "…" if unicode else "~"
    return set_cell_size(text, width - cell_len(end) - 1) + mark + end


def uptime(seconds: float) -> str:
    """Return a duration as ``01:02:03``, or ``6d 01:02:03`` from one day on."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    days, hours = divmod(minutes // 60, 24)
    clock = f"{hours:02d}:{minutes % 60:02d}:{rest:02d}"
    return f"{days}d {clock}" if days else clock


def age(seconds: float) -> str:
    """Return a duration as ``12 s``, or ``00:02:05`` from two minutes on."""
    return f"{max(0.0, seconds):.0f} s" if seconds < 119.5 else uptime(seconds)


def count5(number: int) -> str:
    """Return a count in at most five characters: exact up to 99999, then ``123k``, ``12M``."""
    for least, size, prefix in ((10**10, 10**9, "G"), (10**7, 10**6, "M"), (10**5, 10**3, "k")):
        if number >= least:
            return f"{number // size}{prefix}"
    return str(number)


def seconds5(seconds: float) -> str:
    """Return a lag in at most five characters: ``0.12s``, ``12.3s``, ``123s``, ``1.5h``, ``9d``."""
    if seconds >= 999.5:
        hours = seconds / 3600
        return f"{hours:.1f}h" if hours < 99.95 else f"{hours / 24:.0f}d"
    return f"{figure4(seconds)}s"


def figure4(number: float) -> str:
    """Return a number below 10000 in at most four characters: ``0.52``, ``25.0``, ``410``."""
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"


def share(macs: float, dense_macs: float) -> str:
    """Return the operations spent in per cent of the dense model's; '' if unknown."""
    if dense_macs <= 0:
        return ""
    percent = 100 * macs / dense_macs
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def trouble(feed: FeedStatus, *, unicode: bool = True) -> str:
    """Return how long a feed has not been live, and why; '' if unknown."""
    since = "" if feed.age_s is None or feed.state == "ended" else f"for {age(feed.age_s)}"
    return ": ".join(part for part in (since, display_text(feed.message, unicode=unicode)) if part)


def health(feeds: Iterable[FeedStatus]) -> str:
    """Return ``3/4 live, 1 lost``: the number of live feeds, and of the others by state."""
    counts = Counter(feed.state for feed in feeds)
    rest = [f"{counts[s]} {s}" for s in STATES if s != "live" and counts[s]]
    return ", ".join([f"{counts['live']}/{counts.total()} live", *rest])


def score_of(feed: FeedStatus) -> tuple[str, float | None] | None:
    """Return the active label, else the most probable one, with its score if known."""
    if feed.active is not None:
        return feed.active, dict(feed.top).get(feed.active)
    return feed.top[0] if feed.top else None


def status_line(status: WatchStatus) -> str:
    """Return all feeds on one line: ``up 01:02:03  feeds 3/4 live  lag 0.12 s  dropped 0  ...``.

    The lag is the maximum of the live feeds.
    """
    feeds = status.feeds
    lag_s = max((feed.lag_s for feed in feeds if feed.state == "live"), default=0.0)
    parts = [f"up {uptime(status.uptime_s)}", f"feeds {health(feeds)}", f"lag {lag_s:.2f} s"]
    parts.append(f"dropped {sum(feed.dropped for feed in feeds)}")
    parts.append(f"alerts {sum(feed.alerts for feed in feeds)}")
    if status.failed_actions:
        parts.append(f"{counted(status.failed_actions, 'action')} failed")
    return "  ".join(parts)


def alert_line(alert: Alert, *, unicode: bool = True) -> str:
    """Return ``falling 0.92 (falling>=0.8 for 2s), clip door-3.mkv``."""
    clip = "" if alert.clip is None else f", clip {alert.clip}"
    text = f"{alert.label} {alert.score:.2f} ({alert.rule}){clip}"
    return display_text(text, unicode=unicode)
