"""The objects in the picture of one stream: their numbers, and the zones and lines they pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from costream.core.clock import Tick
from costream.core.records import Box, Data, VideoFrame
from costream.options.options import Options
from costream.runtime.alerts.snapshots import Scene
from costream.runtime.presence import Event, Presence
from costream.runtime.tracking import MAX_BOXES, ObjectTracker


class SceneObjects:
    """Numbers the boxes of a detector from step to step, and finds them in zones and on lines.

    ``presence``: the objects in zones and on lines; None if the stream has no such places.
    """

    def __init__(self, options: Options, *, needs_places: bool, numbered: bool) -> None:
        """``needs_places``: for a rule. ``numbered``: the boxes have numbers already."""
        self._places = options.places
        placed = needs_places or bool(options.zone or options.line)
        self.presence = Presence(self._places) if placed else None
        self._tracks = (options.track or placed) and not numbered
        self._boxes: tuple[Box, ...] = ()  # of the newest step
        self.begin(0)

    def begin(self, newest: int) -> None:
        """Continue numbering after ``newest``; call it before the first step."""
        self._tracker = ObjectTracker(newest=newest) if self._tracks else None

    def update(self, tick: Tick, boxes: Sequence[Box], *, looked: bool) -> tuple[Box, ...]:
        """Take the boxes of a step, best first; return at most MAX_BOXES with number and zones.

        ``looked``: False if they are those of an earlier step.
        """
        found = tuple(boxes[:MAX_BOXES])
        if self._tracker is not None:
            found = self._tracker.update(tick.time_s, found, looked=looked)
        if self.presence is not None and isinstance(tick.item, VideoFrame):
            size = tick.item.size or tick.item.rgb.shape[1::-1]
            found = self.presence.update(tick.time_s, found, size)
        self._boxes = found
        return found

    def events(self) -> Sequence[Event]:
        """Return the records of zones and lines that the newest step made final."""
        return () if self.presence is None else self.presence.events

    def gap(self) -> Sequence[Event]:
        """Forget all objects at a gap; return the records of their leaving."""
        if self._tracker is not None:
            self._tracker.reset()
        return () if self.presence is None else self.presence.reset()

    def finish(self, *, complete: bool) -> Sequence[Event]:
        """Return the last records of zones and lines; ``complete``: see ``Presence.reset``."""
        return () if self.presence is None else self.presence.reset(complete=complete)

    def scene(self, item: Data) -> Scene | None:
        """Return the picture ``item`` of the newest step with its objects; None for other data."""
        return Scene(item, self._boxes, self._places) if isinstance(item, VideoFrame) else None


def numbers_of(boxes: Collection[Box]) -> list[int]:
    """Return the numbers of the boxes that have one."""
    return [box.id for box in boxes if box.id is not None]
