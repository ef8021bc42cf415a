"""Times as text, and fixed-rate ticks from a source of any rate."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Protocol, TypeAlias

from costream.core.errors import UsageError
from costream.core.records import AudioBlock, Data, Fault, Gap, Header, Item, VideoFrame

# An item up to this much after a tick still belongs to it. Matroska and FLV round times to 1 ms, so
# the first frame and this one may each be 0.5 ms off: at 24 frames a second the frame due at
# 41.667 ms is written at 42 ms. Never more than a tenth of a tick, for high rates.
TOLERANCE_S = 1.001e-3

# Items of a slow source are apart up to SLOW times the usual time without a gap between them, the
# first two up to FIRST times the tolerance. Up to NEARLY times that they are repeated at each tick.
SLOW = 3.0
FIRST = 5.0
NEARLY = 1.25

# Step times are sums of 1/rate in floating point: five steps of 0.1 s are slightly below 0.5 s.
SLACK_S = 1e-6

# After this time without audio, the sound of a video has ended; its network is reset for more.
SILENT_S = 2.0

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*s?", re.IGNORECASE)
_UNITS = re.compile(
    r"(?=[0-9.])"
    + "".join(
        rf"(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+){unit}\s*)?" for unit in ("d", "h", "m(?:in)?", "s")
    ),
    re.IGNORECASE,
)
_LONGEST_TIME = 20  # characters
_CLOCK = re.compile(r"(?:([0-9]+):)?([0-9]+):([0-9]{1,2}(?:\.[0-9]*)?)")


def parse_time(text: str) -> float:
    """Return ``text`` in seconds: "62", "62.5", "5s", "3min", "1h30m", "1:02" or "01:02:03.456".

    Raise UsageError for anything else, also if minutes or seconds after a colon exceed 59.
    """
    text = text.strip()
    if len(text) > _LONGEST_TIME:
        text = f"{text[:_LONGEST_TIME]}…"
    time_s = math.inf
    if match := _SECONDS.fullmatch(text):
        time_s = float(match[1])
    elif match := _UNITS.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        time_s = 86400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds
    elif match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        if seconds < 60 and (match[1] is None or minutes < 60):
            time_s = 3600.0 * hours + 60.0 * minutes + seconds
    if time_s < math.inf:
        return time_s
    raise UsageError(f"not a time: {text!r}", hint="write 62.5, 90s, 1h30m or HH:MM:SS.mmm")


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


def parse_utc(text: str) -> float:
    """Return a time in ISO 8601, such as ``utc`` writes, as seconds since 1970.

    Without a zone it is UTC. Raise ValueError for other text.
    """
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def began_of(header: Header) -> float | None:
    """Return the time of day at 0 s of a run, seconds since 1970; None if it was not live."""
    try:
        return parse_utc(header.began or "")
    except ValueError:
        return None


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
    """Yield ticks at a fixed rate from items at any rate; see Resampler."""
    clock = Resampler(rate_hz, gap_tolerance_s, frames)
    for item in items:
        yield from clock.push(item)
    yield from clock.finish()


class Clock(Protocol):
    """Turns the items of a source into ticks."""

    def push(self, item: Item) -> Iterator[TickItem]:
        """Take the next item; yield the ticks, gaps and faults it completes."""

    def finish(self) -> Iterator[TickItem]:
        """Yield what is left at the end of the source."""


class Resampler:
    """Ticks at a fixed rate from items at any rate; see Ticker.

    ``frames``: video frames per tick, sampled at ``frames`` times the rate. A tick has the time
    of its last frame, which holds the others as ``earlier``. Frames left over before a gap or
    the end make no tick. Audio between frames belongs to the tick at which it is complete.
    """

    def __init__(
        self, rate_hz: float, gap_tolerance_s: float, frames: int = 1, *, eager: bool = False
    ) -> None:
        """``eager``: as for Ticker."""
        self._frames, self._rates = frames, (rate_hz, gap_tolerance_s)
        self._eager = eager
        self.parts: list[Tick] = []  # of the next tick, if it has several frames
        self._blocks: deque[AudioBlock] = deque()
        self.ticker = Ticker(frames * rate_hz, gap_tolerance_s, eager=eager)
        self._begun = False

    def push(self, item: Item) -> Iterator[TickItem]:
        """Take the next item; yield the ticks, gaps and faults it completes."""
        if isinstance(item, AudioBlock):
            self._blocks.append(item)
            return
        if not (self._begun or isinstance(item, (Gap, Fault))):
            self._begun = True
            if self._frames > 1 and not isinstance(item, VideoFrame):
                self._frames, self.ticker = 1, Ticker(*self._rates, eager=self._eager)
        yield from self._together(self.ticker.push(item))

    def finish(self) -> Iterator[TickItem]:
        """Yield the last ticks."""
        yield from self._together(self.ticker.finish())

    def _together(self, ticks: Iterable[TickItem]) -> Iterator[TickItem]:
        """Join the ticks of several frames, and attach the sound."""
        for tick in ticks:
            if self._frames > 1 and isinstance(tick, Tick):
                self.parts.append(tick)
                if len(self.parts) == self._frames:
                    yield self._with_sound(self._joined())
                    self.parts = []
                continue
            if isinstance(tick, Gap):
                self.parts = []
            yield tick if isinstance(tick, Fault) else self._with_sound(tick)

    def _joined(self) -> Tick:
        last, parts = self.parts[-1], self.parts
        pictures = [part.item for part in parts if isinstance(part.item, VideoFrame)]
        item = replace(pictures[-1], earlier=tuple(pictures[:-1])) if pictures else last.item
        return Tick(last.i // self._frames, last.time_s, item, any(part.fresh for part in parts))

    def _with_sound(self, tick: Tick | Gap) -> Tick | Gap:
        if not self._blocks:
            return tick
        now_s = tick.end_s if isinstance(tick, Gap) else tick.time_s + TOLERANCE_S
        blocks: list[AudioBlock] = []
        while self._blocks and self._blocks[0].time_s <= now_s:
            blocks.append(self._blocks.popleft())
        if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
            tick = replace(tick, item=replace(tick.item, sound=tuple(blocks)))
        return tick


def tick_per_item(items: Iterable[Item]) -> Iterator[TickItem]:
    """Yield one tick per item, see ItemClock."""
    clock = ItemClock()
    for item in items:
        yield from clock.push(item)


class ItemClock:
    """One tick per item, at the item's time; for audio blocks, which are contiguous."""

    def __init__(self) -> None:
        self._next = 0

    def push(self, item: Item) -> Iterator[TickItem]:
        """Yield the tick of an item, or the gap or fault itself."""
        if isinstance(item, (Gap, Fault)):
            yield item
        else:
            yield Tick(self._next, item.time_s, item, True)
        self._next += 1

    def finish(self) -> Iterator[TickItem]:
        """Yield nothing: no item is held back."""
        return iter(())


class Ticker:
    """Resampler of timestamped items to the grid t0 + i / rate_hz; t0: time of the first item.

    Each tick carries the newest item that is not newer than it (within TOLERANCE_S). The grid
    extends to the last item and never shifts; times are computed from the index, so no error
    accumulates over days. Between two items further apart than the tolerance, or with a Gap of
    the source between them, there are no ticks: one Gap takes their place, and the indices of
    the grid points it covers are skipped. Gap and Fault items pass through in order. Where items
    are usually that far apart, up to SLOW times as far is no gap either: each gets one tick, at the
    first point of the grid from its time on.

    The tick at the time of an item is held back until the next item, which may have the same time;
    ``eager``: it is not. The pixels of skipped frames are never converted.
    """

    def __init__(self, rate_hz: float, gap_tolerance_s: float, *, eager: bool = False) -> None:
        """``rate_hz``: ticks per second. Raise UsageError unless both are positive numbers."""
        for name, value in (("rate", rate_hz), ("gap tolerance", gap_tolerance_s)):
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"the {name} must be a number above 0, not {value}")
        self._rate_hz = rate_hz
        self._tolerance_s = gap_tolerance_s
        self._slack_s = min(TOLERANCE_S, 0.1 / rate_hz)
        self.t0_s = 0.0  # time of tick 0
        self.next = 0  # index of the next tick
        self.newest: Data | None = None  # item
        self.fresh = False
        self._gap_reported = False
        self._eager = eager
        self._apart_s: deque[float] = deque(maxlen=5)  # time between the newest items

    def push(self, item: Item) -> Iterator[TickItem]:
        """Take the next item; yield the ticks, gaps and faults it completes, in order."""
        if isinstance(item, (Gap, Fault)):
            # Ticks of earlier items must come before the Gap or Fault.
            yield from self.finish()
            self._gap_reported = self._gap_reported or isinstance(item, Gap)
            yield item
            return
        yield from self._take(item, self._gap_reported)
        self._gap_reported = False
        if self._eager:
            yield from self.finish()

    def _take(self, item: Data, gap_reported: bool) -> Iterator[TickItem]:
        """Accept a new item; first yield the ticks that still belong to the previous one."""
        before, at_once = self.newest, False
        if before is None:
            self.t0_s = item.time_s
        elif gap_reported or item.time_s - before.time_s > self._limit_s(before, item):
            yield from self.finish()
            if not gap_reported:
                seconds = item.time_s - before.time_s
                yield Gap(before.time_s, item.time_s, f"no data for {seconds:.3f} s")
            self._skip_to(item)
        elif item.time_s - before.time_s > NEARLY * self._tolerance_s:
            yield from self.finish()
            if self.fresh:  # it was between two points of the grid
                yield self._tick(before)
            self._skip_to(item)
            at_once = True
        else:
            while self._time(self.next) < item.time_s - self._slack_s:
                yield self._tick(before)
        self.newest, self.fresh = item, True
        if at_once:
            yield self._tick(item)

    def _limit_s(self, before: Data, item: Data) -> float:
        """Return how far apart two items may be without a gap between them."""
        apart_s = item.time_s - before.time_s
        known = sorted(self._apart_s)
        self._apart_s.append(apart_s)
        if not known:
            return FIRST * self._tolerance_s
        return max(self._tolerance_s, SLOW * known[len(known) // 2])

    def _skip_to(self, item: Data) -> None:
        """Skip the points of the grid before an item."""
        ahead = (item.time_s - self._slack_s - self.t0_s) * self._rate_hz
        self.next = max(self.next, math.floor(ahead))
        while self._time(self.next) < item.time_s - self._slack_s:
            self.next += 1

    def finish(self) -> Iterator[Tick]:
        """Yield the ticks up to the newest item."""
        newest = self.newest
        while newest and self._time(self.next) <= newest.time_s + self._slack_s:
            yield self._tick(newest)

    def _tick(self, item: Data) -> Tick:
        tick = Tick(self.next, self._time(self.next), item, self.fresh)
        self.next += 1
        self.fresh = False
        return tick

    def _time(self, i: int) -> float:
        return self.t0_s + i / self._rate_hz
