"""All alerts of a watch: rules per feed, their actions, and clips."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from costream.core.clock import parse_time, utc
from costream.core.errors import UsageError
from costream.core.formatting import counted, short_time
from costream.core.records import Alert, AlertNote, FeedState
from costream.runtime.alerts.actions import (
    AlertEvent,
    AppendLine,
    PostJson,
    RunCommand,
    SaveSnapshot,
)
from costream.runtime.alerts.describe import DescribePicture
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.notify import notifier
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule
from costream.runtime.alerts.snapshots import SUFFIX as PICTURE_SUFFIX
from costream.runtime.alerts.snapshots import AlertPicture, Scene
from costream.runtime.alerts.speech import SpeechLog
from costream.runtime.alerts.worker import Action, ActionWorker, LogLimiter
from costream.runtime.levels import LevelMeter
from costream.runtime.persons import PersonScores
from costream.runtime.presence import Presence
from costream.sinks.rotation import clip_stem
from costream.sources.live.clip_buffer import PacketRing
from costream.sources.live.clip_file import SUFFIX

log = logging.getLogger("costream")
# An alert that fires up to this long after its event still gets a complete clip.
_LATE_S = 5.0
_NAMES = 1000
CLIPS = "5,5"  # value of a bare --clips
LONGEST_S = 600.0  # limit for either part of a clip: packets are held in memory


@dataclass
class _Feed:
    evaluators: tuple[RuleEvaluator, ...]
    workers: tuple[ActionWorker, ...]
    span: ClipSpan | None
    ring: PacketRing | None
    speech: SpeechLog | None = None  # clips with speech are not kept
    pictured: bool = False  # an action sends pictures
    without: LogLimiter = field(default_factory=LogLimiter)  # logs alerts without a clip


class Alerts:
    """Returns the alerts to record and starts their actions, without ever waiting for them.

    All methods but ``enable`` are called by one thread; the buffers from ``ring`` are used by
    reader threads.
    """

    def __init__(
        self,
        clips: Path | None = None,
        snapshots: Path | None = None,
        actions: Sequence[Action] = (),
    ) -> None:
        """``clips``: the folder for clips; None: no feed may ask for them.

        ``snapshots``: the folder for pictures; None: they are not written. ``actions``: further
        actions for the alerts of all feeds.
        """
        self._folder, self._snapshots = clips, snapshots
        writing = [SaveSnapshot()] if snapshots is not None else []
        self._common = tuple(ActionWorker(action) for action in (*writing, *actions))
        self._feeds: dict[str, _Feed] = {}
        self._workers: dict[tuple[str, str], ActionWorker] = {}
        self._names: deque[str] = deque(maxlen=_NAMES)  # recent; may not exist as files yet
        self._notes: deque[tuple[str, AlertNote]] = deque()  # filled by threads of actions

    def add(
        self,
        feed: str,
        options: AlertOptions,
        classes: RuleLabels,
        places: Mapping[str, str] | None = None,
        *,
        speech_clips: bool = True,
    ) -> None:
        """Add a feed. Raises UsageError if a rule does not fit the labels, or clips have no folder.

        ``places``: kinds of its zones and lines by name; None: the model finds no objects.
        ``speech_clips``: False: clips with speech are not written; UsageError if the model does not
        recognise speech.

        Actions that several feeds share run one after the other.
        """
        evaluators = tuple(RuleEvaluator(rule, classes, places) for rule in options.on)
        if options.clips is not None and self._folder is None:
            raise UsageError("clips need a folder", where="--clips", hint="name one with -o")
        actions = options.actions()
        for key, action in actions.items():
            if key not in self._workers:
                self._workers[key] = ActionWorker(action)
        workers = (*self._common, *(self._workers[key] for key in actions))
        span = options.clips
        ring = None if span is None else PacketRing(span.before_s + _LATE_S)
        speech = None if speech_clips or ring is None else SpeechLog(classes.labels)
        pictured = bool(options.notify or options.describe)
        self._feeds[feed] = _Feed(evaluators, workers, span, ring, speech, pictured)

    def ring(self, feed: str) -> PacketRing | None:
        """Return the packet buffer of this feed (for Connecting.keeper); None without clips."""
        return self._feeds[feed].ring

    def push(
        self,
        feed: str,
        time_s: float,
        scores: PersonScores,
        presence: Presence | None = None,
        scene: Scene | None = None,
        meter: LevelMeter | None = None,
    ) -> list[Alert]:
        """Take a step of a feed; return the alerts to record.

        ``scores``: of all heads. ``presence``: objects in zones, for rules about places. ``scene``:
        for snapshots. ``meter``: the level of sound.
        """
        to = self._feeds[feed]
        if to.speech is not None and None in scores:
            to.speech.add(time_s, scores[None])
        step = (time_s, scores, presence, meter)
        alerts = [alert for evaluator in to.evaluators for alert in evaluator.push(*step)]
        return [self._take(feed, alert, alert.time_s, scene) for alert in alerts]

    def act(self, event: AlertEvent, *, wants_clip: bool) -> None:
        """Start the actions of an alert that another process has found and recorded.

        ``wants_clip``: those that wait for its clip, or all others.
        """
        event = replace(event, note=partial(self._describe, event.feed, event.alert))
        for worker in self._feeds[event.feed].workers:
            if worker.action.wants_clip is wants_clip:
                worker.put(event)

    def enable(self, feed: str, rule: str, enabled: bool) -> None:
        """Let a rule of a feed (by its text) fire, or not; by any thread."""
        for evaluator in self._feeds[feed].evaluators:
            if rule == evaluator.rule.text:
                evaluator.enable(enabled)

    def holding(self, feed: str) -> dict[str, bool]:
        """Return for each rule of a feed whether its condition holds now."""
        return {e.rule.text: e.holding for e in self._feeds[feed].evaluators}

    def held(self, feed: str) -> int:
        """Return how many alerts of a feed the pauses of its rules have held back."""
        return sum(e.held for e in self._feeds[feed].evaluators)

    def notes(self) -> list[tuple[str, AlertNote]]:
        """Return what became known of alerts, with their feeds, since the last call."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def gap(self, feed: str) -> None:
        """Take a gap in the data of a feed."""
        for evaluator in self._feeds[feed].evaluators:
            evaluator.gap()

    def state(self, feed: str, now_s: float, state: FeedState, age_s: float) -> list[Alert]:
        """Take the state of a feed, at least once a second; return alerts to record.

        ``now_s``: the feed's time; ``age_s``: time since its newest data, or since the start.
        """
        alerts = [a for e in self._feeds[feed].evaluators for a in e.state(now_s, state, age_s)]
        # The clip shows when the condition began.
        return [self._take(feed, alert, alert.since_s) for alert in alerts]

    @property
    def failed(self) -> int:
        """Actions that failed or were dropped, and clips that were not written."""
        clips = sum(feed.ring.failed for feed in self._feeds.values() if feed.ring is not None)
        return clips + sum(worker.failed + worker.dropped for worker in self._all_workers)

    @property
    def _all_workers(self) -> tuple[ActionWorker, ...]:
        return (*self._common, *self._workers.values())

    def close(self, timeout_s: float = 2.0) -> None:
        """Finish clips and actions; cancel those that take longer than ``timeout_s``."""
        until_s = time.monotonic() + timeout_s
        self._log_held()
        rings = [feed.ring for feed in self._feeds.values() if feed.ring is not None]
        for feed in self._feeds.values():
            if feed.speech is not None:
                feed.speech.close()
        for ring in rings:
            ring.close(0.0)  # start ending all of them at once
        for ring in rings:
            ring.close(max(0.0, until_s - time.monotonic()))
        for worker in self._all_workers:
            worker.finish()
        for worker in self._all_workers:
            worker.close(until_s)

    def _log_held(self) -> None:
        for name, feed in self._feeds.items():
            for held, rule in ((e.held, e.rule) for e in feed.evaluators if e.held):
                limits = [f"one every {rule.every_s:g} s at most (every TIME in the rule)"]
                if rule.most is not None:
                    limits.append(f"{rule.most} in {short_time(rule.most_s, 0)} at most")
                what = f"{counted(held, 'alert')} held back: {', '.join(limits)}"
                log.warning("%s: %s: %s", name, rule.text, what)

    def _take(self, feed: str, alert: Alert, at_s: float, scene: Scene | None = None) -> Alert:
        """Start the clip and actions of an alert for time ``at_s``; return the alert to record."""
        to = self._feeds[feed]
        now = datetime.now(timezone.utc)
        snapshot = self._snapshot(feed, now, alert.label, scene)
        if snapshot is not None and snapshot.path is not None:
            alert = replace(alert, snapshot=snapshot.path.name)
        event = AlertEvent(
            feed, utc(now.timestamp()), alert, None, snapshot, partial(self._describe, feed, alert)
        )
        log.info("%s: %s: %s %.2f", feed, alert.rule, alert.label, alert.score)
        if self._folder is not None and to.ring is not None and to.span is not None:
            path = self._folder / self._name(self._folder, feed, now, alert.label, SUFFIX)
            done = partial(self._clip_written, to, event)
            admit = None if to.speech is None else partial(_without_speech, feed, to.speech)
            if to.ring.save(path, at_s, to.span.before_s, to.span.after_s, done, admit):
                known = path if to.speech is None else None  # it may be withheld
                _start(to.workers, event, known, wants_clip=False)
                return replace(alert, clip=None if known is None else known.name)
            to.without.warn(
                f"{feed}: no clip: no packets are buffered for that time, or too many wait"
            )
        for worker in to.workers:
            worker.put(event)
        return alert

    def _clip_written(self, to: _Feed, event: AlertEvent, path: Path | None) -> None:
        """Start the actions that wait for a clip; None: it was not written."""
        if path is not None and to.speech is not None:
            self._notes.append((event.feed, AlertNote.of(event.alert, clip=path.name)))
        _start(to.workers, event, path, wants_clip=True)

    def _describe(self, feed: str, alert: Alert, description: str) -> None:
        log.info("%s: %s: %s", feed, alert.rule, description)
        self._notes.append((feed, AlertNote.of(alert, description=description)))

    def _snapshot(
        self, feed: str, now: datetime, label: str, scene: Scene | None
    ) -> AlertPicture | None:
        """Return the snapshot of an alert; None without a picture, or if no action uses it."""
        if scene is None or not (self._common or self._feeds[feed].pictured):
            return None
        folder = self._snapshots
        if folder is None:
            return AlertPicture(scene, None)
        return AlertPicture(scene, folder / self._name(folder, feed, now, label, PICTURE_SUFFIX))

    def _name(self, folder: Path, feed: str, now: datetime, label: str, suffix: str) -> str:
        """Return a unique name for a file in a folder."""
        stem = clip_stem(feed, now, label)
        name, number = f"{stem}{suffix}", 1
        while name in self._names or (folder / name).exists():
            number += 1
            name = f"{stem}~{number}{suffix}"
        self._names.append(name)
        return name


def _without_speech(feed: str, speech: SpeechLog, start_s: float, end_s: float) -> bool:
    """Return whether a clip has no speech, and log if it has."""
    if reason := speech.reason(start_s, end_s):
        log.info("%s: a clip was not kept: %s", feed, reason)
    return not reason


def _start(
    workers: tuple[ActionWorker, ...], event: AlertEvent, path: Path | None, *, wants_clip: bool
) -> None:
    """Start the actions that wait for a clip, or those that do not; None: the clip failed."""
    if path is not None:
        event = replace(event, alert=replace(event.alert, clip=path.name), clip=path)
    for worker in workers:
        if worker.action.wants_clip is wants_clip:
            worker.put(event)


@dataclass(frozen=True)
class ClipSpan:
    """The length of a clip before and after the alert."""

    before_s: float
    after_s: float


@dataclass(frozen=True)
class AlertOptions:
    """The alert options, checked as far as possible without a model.

    The same names are keys of a feed's table in a TOML file, each a string or a list of strings::

        on = ["fall>=0.8 for 2s", "gap>=10s"]
        run = "notify-send {feed} {label}"
        clips = "5,10"  # or [5, 10], or true
    """

    on: tuple[Rule, ...] = ()
    run: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    describe: tuple[str, ...] = ()
    clips: ClipSpan | None = None

    def actions(self, where: Callable[[str], str] = "--{}".format) -> dict[tuple[str, str], Action]:
        """Return new actions by key; equal keys of two feeds mean the same action.

        Raises UsageError for a mistake in one, with ``where(key)`` as its name.
        """
        actions: dict[tuple[str, str], Action] = {}
        for key, kind in _ACTIONS.items():
            for text in getattr(self, key):
                try:
                    actions[key, text] = kind(text)
                except UsageError as error:
                    raise UsageError(str(error), where=where(key)) from error
        return actions


_ACTIONS: dict[str, Callable[[str], Action]] = {  # by their keys
    "run": RunCommand,
    "post": PostJson,
    "append": AppendLine,
    "notify": notifier,
    "describe": DescribePicture,
}
KEYS = tuple(field.name for field in fields(AlertOptions))


def read_options(
    values: Mapping[str, Any], where: Callable[[str], str] = "--{}".format
) -> AlertOptions:
    """Return the options under the KEYS of ``values``; other keys, and None, are ignored.

    ``values`` holds the values of the command line or of a table in a TOML file. ``where(key)``
    returns the name of a value in messages. Raises UsageError for mistakes; runs and opens nothing.
    """
    rules = tuple(parse_rule(text, where("on")) for text in _texts(values, "on", where))
    actions = {key: _texts(values, key, where) for key in _ACTIONS}
    span = _span(values.get("clips"), where("clips"))
    options = AlertOptions(rules, **actions, clips=span)
    options.actions(where)
    given = [key for key in KEYS if getattr(options, key)]
    if given and not options.on:
        raise UsageError(
            "actions or clips need a rule",
            where=where(given[0]),
            hint="add one, as in: --on 'fall>=0.8 for 2s'",
        )
    return options


def _texts(values: Mapping[str, Any], key: str, where: Callable[[str], str]) -> tuple[str, ...]:
    value = values.get(key)
    texts = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in (*texts,)):
        raise UsageError("must be a string or a list of strings", where=where(key))
    return tuple(texts)


def _span(value: Any, where: str) -> ClipSpan | None:
    """Parse "5,10", "5", 5, [5, 10] or true."""
    if value is None or value is False:
        return None
    parts = CLIPS if value is True else value
    if isinstance(parts, (str, int, float)):
        parts = str(parts).split(",")
    try:
        seconds = [parse_time(str(part)) for part in parts]
        before_s, after_s = seconds * 2 if len(seconds) == 1 else seconds
    except (UsageError, ValueError, TypeError):
        raise UsageError(
            f"expected seconds before and after, not {value!r}",
            where=where,
            hint="write them as in 5,10",
        ) from None
    if max(before_s, after_s) > LONGEST_S:
        raise UsageError(f"at most {LONGEST_S:g} s before and after", where=where)
    return ClipSpan(before_s, after_s)
