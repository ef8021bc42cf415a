"""Ways to compute what a network sees in films, in turns: their times, operations and agreement."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from costream.core.clock import Tick, resample
from costream.core.errors import SourceError
from costream.core.records import VideoFrame
from costream.core.tables import Cell
from costream.nn.eventful.changed_places import FIRST
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source

COLUMNS = (
    *("network", "way", "CPU ms a picture", "to full", "operations"),
    *("alike", "alike at 0.75", "near joints"),
)
_TURN = 10  # pictures of a way at a time, so that it finds its own numbers in the cache
_WARM_UP = FIRST + 3  # pictures, until places that have changed are computed


class Seen(NamedTuple):
    """What a way finds in a picture, and its operations; None: not comparable."""

    found: Any | None
    macs: int | None


Look: TypeAlias = Callable[[VideoFrame], Seen]


class Way(NamedTuple):
    """A way to compute a network: ``begin`` returns the function for the pictures of a film.

    ``change``: what is done to each picture before, which is not timed.
    """

    name: str
    begin: Callable[[], Look]
    change: Callable[[VideoFrame], VideoFrame] | None = None


class Alike(NamedTuple):
    """How far what two ways found is the same, from 0 to 1; None: not comparable.

    ``alike``: labels, boxes with an IoU of at least 0.5, or persons with an OKS of at least 0.5.
    """

    alike: float | None
    closely: float | None = None  # the same of boxes or persons at 0.75
    near_joints: float | None = None


@dataclass(frozen=True)
class Films:
    """Films, and which pictures of them are used."""

    paths: Sequence[str]
    rate_hz: float
    duration_s: float


@dataclass(frozen=True)
class Subject:
    """A network and the ways to compute it, the first of them in full.

    ``box``: width and height into which pictures are fitted; None: as they are. ``alike`` compares
    what two ways found in the pictures, that of the network in full first.
    """

    name: str
    ways: Sequence[Way]
    box: tuple[int, int] | None
    gap_tolerance_s: float
    alike: Callable[[Sequence[Any], Sequence[Any]], Alike]


def runtime(package: str, name: str) -> str:
    """Return the name of the way in full in the runtime of a package, with its version."""
    return f"{name} {version(package)}, in full"


def rows_of(subject: Subject, films: Films) -> list[tuple[Cell, ...]]:
    """Return a row for each way: all films, the ways in turns, ``_TURN`` pictures at a time."""
    ways = subject.ways
    times: list[list[float]] = [[] for _ in ways]
    macs: list[list[int | None]] = [[] for _ in ways]
    found: list[list[Any]] = [[] for _ in ways]
    for path in films.paths:
        frames = _frames(path, subject, films)
        for way in ways:
            look = way.begin()
            for frame in frames[:_WARM_UP]:
                look(frame)
        looks = [way.begin() for way in ways]
        for first in range(0, len(frames), _TURN):
            for k, look in enumerate(looks):
                change = ways[k].change
                for frame in frames[first : first + _TURN]:
                    frame = frame if change is None else change(frame)
                    began = time.process_time()
                    what, count = look(frame)
                    times[k].append(1e3 * (time.process_time() - began))
                    macs[k].append(count)
                    found[k].append(what)
    base = statistics.fmean(times[0])
    rows: list[tuple[Cell, ...]] = []
    for k, way in enumerate(ways):
        counts = [count for count in macs[k] if count is not None]
        share = sum(counts) / sum(filter(None, macs[0])) if counts else None
        compared = all(what is not None for what in (*found[0], *found[k]))
        alike = subject.alike(found[0], found[k]) if compared else Alike(None)
        mean = statistics.fmean(times[k])
        rows.append((subject.name, way.name, mean, mean / base, share, *alike))
    return rows


def _frames(path: str, subject: Subject, films: Films) -> list[VideoFrame]:
    """Return the pictures of a film, in memory. SourceError if there are fewer than two."""
    source = open_source(path, SourceOptions(end_s=films.duration_s, box=subject.box))
    try:
        source.open()
        frames = []
        for tick in resample(source.items(), films.rate_hz, subject.gap_tolerance_s):
            if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
                rgb = tick.item.rgb  # decoded now
                frames.append(
                    replace(tick.item, time_s=tick.time_s, convert=partial(np.asarray, rgb))
                )
    finally:
        source.close()
    if len(frames) < 2:
        raise SourceError("too short to measure", where=path)
    return frames
