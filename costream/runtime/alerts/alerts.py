"""All alerts of a watch: rules over feeds, what is done when they fire, and clips."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from costream.records import Alert
from costream.redact import redact
from costream.runtime.alerts.event import Event
from costream.runtime.alerts.firing import Firing
from costream.runtime.alerts.options import AlertOptions, ClipSpan
from costream.runtime.alerts.rules import Classes
from costream.runtime.alerts.teller import Teller
from costream.runtime.alerts.worker import Worker
from costream.sources.packets import PacketRing
from costream.sources.remux import SUFFIX
from costream.status import FeedState

log = logging.getLogger("costream")

# How long after it happened an alert may be found and still get all of its clip.
_LATE_S = 5.0
_NAMES = 1000
_NAME_BYTES = 80  # of a feed or a label in the name of a clip


@dataclass
class _Feed:
    firings: tuple[Firing, ...]
    workers: tuple[Worker, ...]
    span: ClipSpan | None
    ring: PacketRing | None
    without: Teller = field(default_factory=Teller)  # tells that there was no clip
    fired: int = 0


class Alerts:
    """Says what is to be recorded, and does what is to be done, without ever waiting for it.

    All methods are called by one thread, but ``ring`` gives what the threads that read use.
    """

    def __init__(self, clips: Path | None = None) -> None:
        """``clips``: the folder that clips go to; None: no feed asks for them."""
        self._folder = clips
        self._feeds: dict[str, _Feed] = {}
        self._workers: dict[tuple[str, str], Worker] = {}
        self._names: deque[str] = deque(maxlen=_NAMES)  # given lately: no files yet perhaps

    def add(self, feed: str, options: AlertOptions, classes: Classes) -> None:
        """Take a feed. UsageError when a rule does not fit the labels, or there is no folder.

        Actions that several feeds share are done one after the other.
        """
        firings = tuple(Firing(rule, classes) for rule in options.on)
        if options.clips is not None and self._folder is None:
            raise UsageError("clips need a folder", where="clips", hint="name one with -o")
        actions = options.actions()
        for key, action in actions.items():
            if key not in self._workers:
                self._workers[key] = Worker(action)
        workers = tuple(self._workers[key] for key in actions)
        span = options.clips
        ring = None if span is None else PacketRing(span.before_s + _LATE_S)
        self._feeds[feed] = _Feed(firings, workers, span, ring)

    def ring(self, feed: str) -> PacketRing | None:
        """Give what is to be shown the packets of this feed (Connecting.keeper)."""
        return self._feeds[feed].ring

    def push(
        self, feed: str, time_s: float, probabilities: npt.NDArray[np.floating]
    ) -> list[Alert]:
        """Take one step of a feed (``probabilities``: [C], all heads); give what to record."""
        to = self._feeds[feed]
        alerts = [a for firing in to.firings for a in firing.push(time_s, probabilities)]
        return [self._take(feed, alert, alert.time_s) for alert in alerts]

    def gap(self, feed: str) -> None:
        """Note that data of a feed are missing here."""
        for firing in self._feeds[feed].firings:
            firing.gap()

    def state(self, feed: str, now_s: float, state: FeedState, age_s: float | None) -> list[Alert]:
        """Take how a feed is doing, at least each second; give what to record.

        ``now_s``: the feed's time; ``age_s``: since its newest data came; None: none ever did.
        """
        alerts = [a for f in self._feeds[feed].firings for a in f.state(now_s, state, age_s)]
        # What there was to be seen was before.
        return [self._take(feed, alert, alert.since_s) for alert in alerts]

    @property
    def fired(self) -> int:
        """Alerts of all feeds so far."""
        return sum(feed.fired for feed in self._feeds.values())

    def fired_by(self, feed: str) -> int:
        """Alerts of one feed so far."""
        return self._feeds[feed].fired

    @property
    def failed(self) -> int:
        """Actions that failed or were not done in time, and clips that were not written."""
        clips = sum(feed.ring.failed for feed in self._feeds.values() if feed.ring is not None)
        return clips + sum(worker.failed + worker.dropped for worker in self._workers.values())

    def close(self, timeout_s: float = 2.0) -> None:
        """Finish clips and actions, and kill what is not done in time."""
        until_s = time.monotonic() + timeout_s
        rings = [feed.ring for feed in self._feeds.values() if feed.ring is not None]
        for ring in rings:
            ring.close(0.0)  # all begin to end at once
        for ring in rings:
            ring.close(max(0.0, until_s - time.monotonic()))
        for worker in self._workers.values():
            worker.finish()
        for worker in self._workers.values():
            worker.close(until_s)

    def _take(self, feed: str, alert: Alert, at_s: float) -> Alert:
        """Do what is to be done for an alert about what was at ``at_s``; give it as recorded."""
        to = self._feeds[feed]
        to.fired += 1
        now = datetime.now(timezone.utc)
        event = Event(feed, now.isoformat(timespec="milliseconds").replace("+00:00", "Z"), alert)
        log.info("%s: %s: %s %.2f", feed, alert.rule, alert.label, alert.score)
        if self._folder is not None and to.ring is not None and to.span is not None:
            path = self._folder / self._name(feed, now, alert.label)
            done = partial(_clip_done, to.workers, event)
            if to.ring.save(path, at_s, to.span.before_s, to.span.after_s, done):
                event = replace(event, alert=replace(alert, clip=path.name), clip=path)
                for worker in to.workers:
                    if not worker.action.wants_clip:
                        worker.put(event)
                return event.alert
            to.without.tell(f"{feed}: no clip: nothing is held of that time, or too many wait")
        for worker in to.workers:
            worker.put(event)
        return alert

    def _name(self, feed: str, now: datetime, label: str) -> str:
        """Give a clip a name that no other one has."""
        stem = f"{_safe(feed)}_{now:%Y%m%dT%H%M%SZ}_{_safe(label)}"
        name, number = f"{stem}{SUFFIX}", 1
        while name in self._names or (self._folder is not None and (self._folder / name).exists()):
            number += 1
            name = f"{stem}~{number}{SUFFIX}"
        self._names.append(name)
        return name


def _clip_done(workers: tuple[Worker, ...], event: Event, path: Path | None) -> None:
    """Let the actions that waited for a clip go on, with it or, when it failed, without."""
    if path is not None:
        event = replace(event, alert=replace(event.alert, clip=path.name), clip=path)
    for worker in workers:
        if worker.action.wants_clip:
            worker.put(event)


def _safe(text: str) -> str:
    """Give ``text`` as a part of a file name on any system, without credentials."""
    kept = "".join(c if c.isalnum() or c in ".-" else "_" for c in redact(text))
    return kept.encode()[:_NAME_BYTES].decode(errors="ignore").strip("._") or "unnamed"
