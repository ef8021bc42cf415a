"""Times of the frames in the JSON of pose estimators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from costream.core.errors import SourceError
from costream.sources.file import first_of, require_rate
from costream.sources.numbering import numbered
from costream.sources.skeletons.table_clock import CALENDAR_S, SLOW_S

# Names of a frame's time, and their unit in s; None: unknown.
TIME_NAMES = {
    **dict.fromkeys(("timestamp_ms", "timestampms", "time_ms"), 1e-3),
    **dict.fromkeys(("time", "timestamp"), None),
    "time_s": 1.0,
}
NUMBER_NAMES = ("frame_id", "frame_index", "frame", "image_id")  # names of a frame's number
_LARGEST_NUMBER = 10**14

_Stamp: TypeAlias = tuple[str, float, float | None]


def frame_times_s(
    frames: Sequence[Any], rate_hz: float | None, where: str
) -> tuple[list[float], tuple[str, ...]]:
    """Return the time of each frame, and assumptions about them."""
    stamps = [_stamp(frame) for frame in frames]
    if any(stamp is not None for stamp in stamps):
        unit_s, assumed = _unit(stamps)
        scaled = [math.nan if s is None else s[1] * (s[2] or unit_s) for s in stamps]
        finite = [time_s for time_s in scaled if math.isfinite(time_s)]
        # Seconds since 1970 count from the first frame.
        origin_s = min(finite, default=0.0)
        origin_s = origin_s if origin_s >= CALENDAR_S else 0.0
        return [time_s - origin_s for time_s in scaled], assumed
    rate = require_rate(rate_hz, where)
    ids = _numbers(frames, where)
    first = min((n for n in ids if n is not None), default=0)
    # Frames are counted from 0 or from 1.
    return [
        (k if number is None else number - min(first, 1)) / rate for k, number in enumerate(ids)
    ], ()


def _unit(stamps: Sequence[_Stamp | None]) -> tuple[float, tuple[str, ...]]:
    """Return the unit, in s, of times whose name does not state it, and what was assumed.

    It is the unit in which frames are between half a millisecond and half a second apart.
    """
    open_ = [stamp for stamp in stamps if stamp is not None and stamp[2] is None]
    if not open_:
        return 1.0, ()
    name = open_[0][0]
    usual = 1.0 if name == "time" else 1e-3  # MediaPipe's timestamps are in milliseconds
    values = sorted({value for _, value, _ in open_})
    spacing = min((b - a for a, b in itertools.pairwise(values)), default=0.0)
    fitting = [u for u in (1.0, 1e-3, 1e-6, 1e-9) if SLOW_S / 1000 < spacing * u <= SLOW_S]
    unit_s = fitting[0] if fitting else usual
    if unit_s == usual:
        return usual, ()
    unit = {1.0: "seconds", 1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}[unit_s]
    return unit_s, (f"{name!r} has no unit and increases by {spacing:g}: {unit} assumed",)


def _stamp(frame: Any) -> _Stamp | None:
    """Return name, value and unit of a frame's time; the unit is None if its name has none."""
    if isinstance(frame, Mapping):
        for key, value in frame.items():
            name = str(key).lower()
            if name in TIME_NAMES and isinstance(value, (int, float)):
                return name, float(value), TIME_NAMES[name]
    return None


def _numbers(frames: Sequence[Any], where: str) -> list[int | None]:
    """Return the number of each frame: frame_id, or the number in the name of a picture.

    Raises SourceError for pictures of several videos.
    """
    names_of = [
        next((str(f[key]) for key in NUMBER_NAMES if key in f), "")
        if isinstance(f, Mapping)
        else ""
        for f in frames
    ]
    pairs = numbered([name for name in names_of if name])
    videos: dict[str, set[int]] = {}
    for video, number in pairs:
        if number is not None:
            videos.setdefault(video, set()).add(number)
    if len(videos) > 1 and len(set.union(*videos.values())) < sum(map(len, videos.values())):
        names = first_of((name for name in names_of if name), 2)
        raise SourceError(
            f"it contains frames of {len(videos)} videos ({names})",
            where=where,
            hint="save each video to a separate file",
        )
    found = iter(pairs)
    numbers = [next(found)[1] if name else None for name in names_of]
    return [n if n is not None and n < _LARGEST_NUMBER else None for n in numbers]


def stated_rate(content: Any) -> float | None:
    """Return the frame rate in the file; None if it states none."""
    rate = content.get("fps") if isinstance(content, Mapping) else None
    return float(rate) if isinstance(rate, (int, float)) and 0 < rate < 1e4 else None
