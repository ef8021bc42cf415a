"""Times as text, and fixed-rate ticks from a source of any rate."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from typing import TypeAlias

from costream.errors import UsageError
from costream.records import AudioBlock, Data, Fault, Gap, Item, VideoFrame

# An item up to this much after a tick still belongs to it. Matroska and FLV round times to 1 ms, so
# the first frame and this one may each be 0.5 ms off: at 24 frames a second the frame due at
# 41.667 ms is written at 42 ms. Never more than a tenth of a tick, for high rates.
TOLERANCE_S = 1.001e-3

# Step times are sums of 1/rate in floating point: five steps of 0.1 s are slightly below 0.5 s.
SLACK_S = 1e-6

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*s?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]+):)?([0-9]+):([0-9]{1,2}(?:\.[0-9]*)?)")


def parse_time(text: str) -> float:
    """Return ``text`` in seconds: "62", "62.5", "5s", "1:02" or "01:02:03.456".

    Raise UsageError for anything else, also if minutes or seconds after a colon exceed 59.
    """
    if match := _SECONDS.fullmatch(text.strip()):
        return float(match[1])
    if match := _CLOCK.fullmatch(text.strip()):
        hours, minutes, seconds = int(match[1] or 0), int(match[2]), float(match[3])
        if seconds < 60 and (match[1] is None or minutes < 60):
            return 3600.0 * hours + 60.0 * minutes + seconds
    raise UsageError(f"not a time: {text!r}", hint="write seconds (62.5) or HH:MM:SS.mmm")


def format_time(seconds: float, separator: str = ".") -> str:
    """Return ``seconds`` as HH:MM:SS.mmm, rounded to milliseconds (SRT: ``separator=","``).

    Times before zero get a minus sign; hours have as many digits as they need.
    """
    milliseconds = round(abs(seconds) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    sign = "-" if seconds < 0 and milliseconds else ""
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}"
    return f"{sign}{clock}{separator}{rest % 1000:03d}"


def utc(time_s: float) -> str:
    """Return ``time.time()`` seconds as ISO 8601 in UTC: 2026-11-22T03:00:49.123Z."""
    text = datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass(frozen=True)
class Tick:
    """One step of a fixed-rate clock, with the newest item at that time."""

    i: int  # index on the grid, from 0: time_s = time of the first item + i / rate_hz
    time_s: float
    item: Data  # the newest item that is not newer than the tick
    fresh: bool  # False: no new item since the previous tick


TickItem: TypeAlias = Tick | Gap | Fault


def resample(
    items: Iterable[Item], rate_hz: float, gap_tolerance_s: float, frames: int = 1
) -> Iterator[TickItem]:
    """Yield ticks at a fixed rate from items at any rate; see Ticker.

    ``frames``: video frames per tick, sampled at ``frames`` times the rate. A tick has the time
    of its last frame, which holds the others as ``earlier``. Frames left over before a gap or
    the end make no tick. Audio between frames is attached to the tick at which it is known.
    """
    blocks: deque[AudioBlock] = deque()
    data = _aside(items, blocks)
    ticks = Ticker(rate_hz, gap_tolerance_s).run(data) if frames == 1 else None
    for tick in ticks or _in_chunks(data, rate_hz, gap_tolerance_s, frames):
        if isinstance(tick, Fault) or not blocks:
            yield tick
            continue
        now_s = tick.end_s if isinstance(tick, Gap) else tick.time_s + TOLERANCE_S
        known: list[AudioBlock] = []
        while blocks and blocks[0].time_s <= now_s:
            known.append(blocks.popleft())
        if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
            tick = replace(tick, item=replace(tick.item, sound=tuple(known)))
        yield tick


def _aside(items: Iterable[Item], blocks: deque[AudioBlock]) -> Iterator[Item]:
    """Yield all items but audio blocks, which are appended to ``blocks``."""
    for item in items:
        if isinstance(item, AudioBlock):
            blocks.append(item)
        else:
            yield item


def _in_chunks(
    items: Iterator[Item], rate_hz: float, gap_tolerance_s: float, count: int
) -> Iterator[TickItem]:
    ahead: list[Item] = []
    for item in items:
        ahead.append(item)
        if not isinstance(item, (Gap, Fault)):
            break
    if ahead and not isinstance(ahead[-1], VideoFrame):
        count = 1
    parts: list[Tick] = []
    for tick in Ticker(count * rate_hz, gap_tolerance_s).run(chain(ahead, items)):
        if not isinstance(tick, Tick):
            parts = [] if isinstance(tick, Gap) else parts
            yield tick
            continue
        parts.append(tick)
        if len(parts) == count:
            pictures = [part.item for part in parts if isinstance(part.item, VideoFrame)]
            item = replace(pictures[-1], earlier=tuple(pictures[:-1])) if pictures else tick.item
            yield Tick(tick.i // count, tick.time_s, item, any(part.fresh for part in parts))
            parts = []


def tick_per_item(items: Iterable[Item]) -> Iterator[TickItem]:
    """Yield one tick per item, at the item's own time; for audio blocks, which are contiguous."""
    for i, item in enumerate(items):
        yield item if isinstance(item, (Gap, Fault)) else Tick(i, item.time_s, item, True)


class Ticker:
    """Resampler of timestamped items to the grid t0 + i / rate_hz; t0: time of the first item.

    Each tick carries the newest item that is not newer than it (within TOLERANCE_S). The grid
    extends to the last item and never shifts; times are computed from the index, so no error
    accumulates over days. Between two items further apart than the tolerance, or with a Gap of
    the source between them, there are no ticks: one Gap takes their place, and the indices of
    the grid points it covers are skipped. Gap and Fault items pass through in order.

    At most one item is read ahead, and the pixels of skipped frames are never converted.
    """

    def __init__(self, rate_hz: float, gap_tolerance_s: float) -> None:
        """``rate_hz``: ticks per second. Raise UsageError unless both are positive numbers."""
        for name, value in (("rate", rate_hz), ("gap tolerance", gap_tolerance_s)):
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"the {name} must be a number above 0, not {value}")
        self._rate_hz = rate_hz
        self._tolerance_s = gap_tolerance_s
        self._slack_s = min(TOLERANCE_S, 0.1 / rate_hz)
        self._t0 = 0.0
        self._next = 0  # grid index of the next tick
        self._newest: Data | None = None
        self._fresh = False

    def run(self, items: Iterable[Item]) -> Iterator[TickItem]:
        """Yield ticks, gaps and faults in order. May be called once only."""
        gap_reported = False
        for item in items:
            if not isinstance(item, (Gap, Fault)):
                yield from self._take(item, gap_reported)
                gap_reported = False
            else:
                # Ticks of earlier items must come before the Gap or Fault.
                yield from self._settle()
                gap_reported = gap_reported or isinstance(item, Gap)
                yield item
        yield from self._settle()

    def _take(self, item: Data, gap_reported: bool) -> Iterator[TickItem]:
        """Accept a new item; first yield the ticks that still belong to the previous one."""
        before = self._newest
        if before is None:
            self._t0 = item.time_s
        elif gap_reported or item.time_s - before.time_s > self._tolerance_s:
            yield from self._settle()
            if not gap_reported:
                seconds = item.time_s - before.time_s
                yield Gap(before.time_s, item.time_s, f"no data for {seconds:.3f} s")
            ahead = (item.time_s - self._slack_s - self._t0) * self._rate_hz
            self._next = max(self._next, math.floor(ahead))
            while self._time(self._next) < item.time_s - self._slack_s:
                self._next += 1
        else:
            while self._time(self._next) < item.time_s - self._slack_s:
                yield self._tick(before)
        self._newest, self._fresh = item, True

    def _settle(self) -> Iterator[Tick]:
        """Yield the ticks up to the newest item."""
        newest = self._newest
        while newest and self._time(self._next) <= newest.time_s + self._slack_s:
            yield self._tick(newest)

    def _tick(self, item: Data) -> Tick:
        tick = Tick(self._next, self._time(self._next), item, self._fresh)
        self._next += 1
        self._fresh = False
        return tick

    def _time(self, i: int) -> float:
        return self._t0 + i / self._rate_hz
