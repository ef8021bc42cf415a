"""The strips of a feed: the active label of each of the last seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from costream.core.status import FeedStatus

STRIP_S = 180  # seconds of history


class LabelStrips:
    """The strip of one feed, and those of the persons who are there."""

    def __init__(self) -> None:
        self._labels: deque[str | None] = deque(maxlen=STRIP_S)
        self._persons: dict[int, deque[str | None]] = {}

    @property
    def labels(self) -> tuple[str | None, ...]:
        """The labels of the feed, oldest first; None where none was active."""
        return tuple(self._labels)

    def add_second(self, status: FeedStatus) -> None:
        """Add a cell to the strips of the feed and of the persons who are there."""
        self._labels.append(status.active)
        before, self._persons = self._persons, {}
        for person in status.persons or ():
            strip = before.get(person.number, deque(maxlen=STRIP_S))
            strip.append(person.active)
            self._persons[person.number] = strip

    def of_persons(self, status: FeedStatus) -> FeedStatus:
        """Return the status with the strips of its persons."""
        if not status.persons:
            return status
        persons = (
            replace(person, strip=tuple(self._persons.get(person.number, ())))
            for person in status.persons
        )
        return replace(status, persons=tuple(persons))
