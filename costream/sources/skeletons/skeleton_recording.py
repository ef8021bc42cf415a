"""A skeleton recording as a format reads it: frames of persons, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from costream.core.errors import SourceError
from costream.core.layouts import Layout
from costream.sources.skeletons.axes_option import AxesOption
from costream.sources.skeletons.person import Person

# Left out of a recording, worded so that a count can precede it.
BAD_ROW = "malformed row(s), left out"
BAD_FRAME = "malformed frame(s), left out"


@dataclass(frozen=True)
class PersonFrame:
    """All persons at one time; may be empty."""

    time_s: float
    bodies: tuple[Person, ...]


@dataclass(frozen=True)
class SkippedData:
    """Data that was left out; ``what`` is worded to follow a number."""

    what: str


@dataclass(frozen=True)
class TruncatedRecording:
    """The recording is damaged or cut off here; nothing after it can be read."""

    message: str


Event: TypeAlias = PersonFrame | SkippedData | TruncatedRecording


@dataclass(frozen=True)
class SkeletonRecording:
    """An open skeleton recording."""

    layout: Layout
    axes: int  # coordinates per joint, 2 or 3
    rate_hz: float | None  # nominal frames per second
    duration_s: float | None
    events: Iterator[Event]  # in recording order
    assumed: tuple[str, ...] = ()  # assumptions about what the file does not state
    option: AxesOption | None = None  # ``--columns`` with other axes; None: impossible


def check_joints(count: int, layout: Layout, where: str) -> None:
    """Raise SourceError unless a file has as many joints as its layout."""
    if count != len(layout.joints):
        raise SourceError(
            f"there are {count} joints in it, {layout.name} has {len(layout.joints)}", where=where
        )
