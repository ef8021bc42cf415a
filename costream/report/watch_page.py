"""The events of watches at times of day, as the first part of their report."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from costream.core.clock import began_of
from costream.core.formatting import counted
from costream.core.moments import moment_in_name
from costream.core.records import AlertNote, Header, Level
from costream.report.markup import Html, folded
from costream.report.swatches import patterns
from costream.sinks.events import Event, add_note, event_of, event_page
from costream.sinks.mean_levels import MeanLevels
from costream.sinks.result_reader import Content, Totals, UnreadableRecord
from costream.sinks.rotation import feed_of

_MOST = 20_000  # events on a page
_MOST_NEAR = 200  # files and folders in which folders with pictures are looked for


class WatchEvents:
    """The newest events of the runs of a report, if all of them have times of day.

    These are watches, and sound recordings whose names state when they began.
    """

    def __init__(self, page: Path | None) -> None:
        """``page``: file of the report, to which links are relative; None: no links."""
        self._page = page
        self._events: deque[Event] = deque(maxlen=_MOST)
        self._count = 0
        self._models: set[str] = set()
        self._labels: dict[str, None] = {}
        self._levels = MeanLevels()
        self._live = self._other = 0  # runs

    @property
    def only(self) -> bool:
        """Whether there are runs, and all of them have times of day."""
        return self._live > 0 and self._other == 0

    def read(self, contents: Iterable[Content], path: Path) -> Iterator[Content]:
        """Yield the contents of a run in the file ``path``, keeping its events."""
        began_s, feed, loudest_db = None, feed_of(path), 0.0
        for content in contents:
            if isinstance(content, Header):
                began_s = began_of(content)
                if began_s is None and (named := _recorded(content)):
                    feed, began_s = named
                loudest_db = content.options.get("full_scale_db") or 0.0
                self._live += began_s is not None
                self._other += began_s is None
                self._models.add(content.model)
                self._labels |= dict.fromkeys(content.labels)
            elif isinstance(content, Level) and began_s is not None:
                level, unit = (content.db, "dB") if content.dba is None else (content.dba, "dBA")
                unit = unit if loudest_db else f"{unit} of full scale"
                self._levels.add(feed, began_s + content.time_s, level, unit)
            elif isinstance(content, AlertNote) and began_s is not None:
                links = replace(content, clip=None)
                if content.clip is not None:
                    links = replace(content, clip=self._link(content.clip, path.parent))
                add_note(self._events, links, feed, began_s)
            elif began_s is not None and not isinstance(content, (Totals, UnreadableRecord)):
                event = event_of(content, feed, began_s)
                if event is not None:
                    self._count += 1
                    self._events.append(replace(event, more=self._linked(event.more, path.parent)))
            yield content

    def parts(self, title: str) -> tuple[str, str]:
        """Return the page before and after the figures of the runs."""
        events = sorted(self._events, key=lambda event: event.start_s)
        feeds = sorted({event.feed for event in events})
        about = f"{counted(len(feeds), 'feed')}, {', '.join(sorted(self._models))}"
        if self._count > len(events):
            about += f"; the newest {len(events):,} of {self._count:,} events"
        data: dict[str, Any] = {
            "live": False,
            "title": title,
            "about": about,
            "labels": list(self._labels),
            "events": [event.to_json() for event in events],
            "levels": self._levels.to_json(),
        }
        style = files("costream.report").joinpath("style.css").read_text("utf-8")
        head, tail, _ = event_page(data, style)
        mark = "\0"
        opening, closing = folded("Figures of the runs", Html(mark)).split(mark)
        return f"{head}{patterns()}{opening}", f"{closing}{tail}"

    def _linked(self, more: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return the fields of an event with links to its files; None for those not there."""
        links: dict[str, str | None] = {}
        for name in ("clip", "picture"):
            file = more.get(name)
            if isinstance(file, str):
                links[name] = self._link(file, folder) if Path(file).name == file else None
        return {**more, **links}

    def _link(self, file: str, folder: Path) -> str | None:
        if self._page is None:
            return None
        path = next((p for f in _near(folder) if (p := f / file).is_file()), None)
        try:
            here = self._page.resolve().parent
            return None if path is None else Path(os.path.relpath(path, here)).as_posix()
        except ValueError:  # another drive of Windows
            return None


def _recorded(header: Header) -> tuple[str, float] | None:
    """Return the recorder and the beginning of a sound recording, if its name states the time."""
    source = Path(header.source)
    named = moment_in_name(source.name) if header.kind == "audio" else None
    return None if named is None else (named[0] or source.parent.name or "recorder", named[1])


@lru_cache(64)
def _near(folder: Path) -> tuple[Path, ...]:
    """Return the folders in which clips and pictures are looked for: this, below it, beside it."""
    folder = folder.resolve()
    found = [folder]
    for above in (folder, folder.parent):
        with suppress(OSError):
            found += [path for path in islice(above.iterdir(), _MOST_NEAR) if path.is_dir()]
    return tuple(found)
