"""One watch: its feeds, its network, its views and its saved states, from begin to end."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Protocol

from costream.core.clock import resample, tick_per_item
from costream.core.errors import CostreamError, ExitCode, SourceError, UsageError
from costream.core.status import WatchStatus
from costream.models.base import GatedModel, Model
from costream.options.budget import Budget
from costream.options.options import Options
from costream.runtime.alerts.alerts import AlertOptions, Alerts
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.alerts.snapshots import BOX, Scene
from costream.runtime.alerts.worker import Action
from costream.runtime.budget import Controller, controller
from costream.runtime.masks import MaskPainter
from costream.runtime.memory import give_back
from costream.runtime.options import check_model_options, source_options
from costream.runtime.persons import person_rows
from costream.runtime.recorder import StreamRecorder
from costream.runtime.stop import StopHandler
from costream.runtime.watch.buffer import Buffer
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed import Clock, Feed
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.feed_states import FeedStates
from costream.runtime.watch.loop import Loop
from costream.runtime.watch.mqtt import Enable, MqttPublisher, Scenes
from costream.runtime.watch.outbox import Outbox, Position
from costream.runtime.watch.state_dir import SavedState, StateDirectory
from costream.runtime.watch.status import StatusCollector
from costream.runtime.watch.time_share import TimeShare
from costream.runtime.watch.web import WebPage, earlier_events
from costream.sinks.base import Sink
from costream.sources.base import ConnectionOptions, LiveSource, Source, SourceOptions
from costream.sources.live.feed_source import FeedSource
from costream.sources.pipe import PipeSource
from costream.sources.uris import open_source

log = logging.getLogger("costream")

VIEW_S = 0.25  # interval between status updates
SAVE_S = 1.0  # interval between savings of the network's state
DURABLE_S = 10.0  # interval between savings that survive a power failure; they wear out a disk
TIDY_S = 60.0  # interval between returns of free memory to the system
AHEAD = 1000  # step numbers that are left out after a crash, as some may be used already
RESUME_S = 60.0  # a saved state is used for a restart within this time
BUFFER_STEPS = 64  # most steps of a feed that wait for the network before the feed waits
BURST_S = 12.0  # no step is dropped of a burst that is at most this long ...
BURST_FRAMES = 256  # ... and has at most this many frames
BURST_LINES = 10_000  # the same, for lines of text
STOP_S = 1.0  # time for all feeds to end; one that hangs in a library is abandoned
# Hosts and ports, as people often type them instead of a URL.
_HOST = re.compile(
    r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[\w.-]+\.(?:local|lan|home)|[\w.-]+(?=:[0-9]))"
    r"(?::[0-9]{1,5})?(?:/.*)?"
)


class WatchView(Protocol):
    """A display or export of the status of a watch."""

    def show(self, status: WatchStatus) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class WatchParts:
    """What a watch is made of, in this process or on a cluster."""

    options: Options
    specs: Sequence[FeedSpec]
    model: Model
    views: Sequence[WatchView]
    stop: StopHandler
    sinks: Callable[[Options, str], list[Sink]]  # returns those for the records of a feed's name


class WatchRun:
    """One watch of several feeds; iterate ``rounds`` to its end, when ``exit_code`` is known."""

    def __init__(self, parts: WatchParts, outbox: Outbox | None = None) -> None:
        """``outbox``: this is a worker, and actions and states are those of another process."""
        options, specs, model, views = parts.options, parts.specs, parts.model, parts.views
        self._options, self._model, self._views, self._stop = options, model, views, parts.stop
        self._sinks = parts.sinks
        self.exit_code = ExitCode.BUG
        self._arrived = Condition()
        self._share = TimeShare(_share(options, model))
        self._broker, self._page = receivers(views)
        actions = [view for view in (self._broker, self._page) if view is not None]
        self._states: StateDirectory | Outbox | None = outbox
        if outbox is not None:
            self._alerts = make_alerts(options, specs, model, outbox.actions, own=False)
        else:
            self._alerts = make_alerts(options, specs, model, actions)
            if options.state_dir is not None:
                self._states = StateDirectory(Path(options.state_dir), model)
        self._saved = [self._restored(spec) for spec in specs]
        self._channels = [self._channel(row, spec) for row, spec in enumerate(specs)]
        self._overview = StatusCollector(model.info, self._channels, self._alerts)
        masks = [frozenset(p for p in spec.places if p.kind == "mask") for spec in specs]
        throttles = _throttles(options, model, specs)
        followed = [person_rows(model, options) for _ in specs] if model.info.follows else None
        rows = FeedStates(
            model, len(specs), options.tokens, throttles, masks, followed, options.policy
        )
        self._loop = Loop(model, rows, self._channels, self._share, self._alerts, self._overview)
        self._shown_s = self._saved_s = self._durable_s = self._tidied_s = 0.0

    def rounds(self) -> Generator[None, None, None]:
        """Watch to the end, pausing after each round of steps; every file is finished.

        Closing the iterator ends the watch early; files are finished all the same.
        """
        for row, saved in enumerate(self._saved):
            if saved is not None:
                self._loop.rows.begin(row, saved.newest)
                if saved.state is not None and saved.age_s(time.time()) <= RESUME_S:
                    self._loop.rows.put(row, saved.state)
        scenes = {c.spec.name: partial(_scene, c) for c in self._channels}
        specs = [channel.spec for channel in self._channels]
        begin_receivers(self._views, self._options, specs, self._model, self.switch, scenes)
        try:
            with self._stop.while_running(lambda: None):  # the loop polls the stop event itself
                for channel in self._channels:
                    channel.feed.start()
                yield from self._loop.rounds(self._stop, self._arrived, self._periodic)
                self._end()
            self.exit_code = self._code_at_end()
        except CostreamError as error:
            self.exit_code = error.exit_code
            raise
        except BrokenPipeError:
            self.exit_code = ExitCode.OK  # the reader closed the pipe
        except GeneratorExit:
            self.exit_code = ExitCode.SIGINT
            self._end()
            raise
        finally:
            self._finish(self.exit_code)

    def picture(self, feed: str) -> bytes:
        """Return the newest picture of a feed as JPEG, b"" if there is none; by any thread."""
        scene = self._named(feed).scene
        return b"" if scene is None else scene.jpeg()

    def positions(self) -> Iterator[Position]:
        """Yield the name and position of each feed that has begun, and what returns its summary."""
        for channel in self._channels:
            at = channel.snapshot()
            if at is not None:
                yield channel.spec.name, at, partial(channel.summary, ExitCode.PARTIAL)

    def switch(self, feed: str, rule: str | None, is_on: bool) -> None:
        """Switch a rule of a feed, or without a rule the feed itself; by any thread."""
        if rule is None:
            self._named(feed).switch(is_on)
        else:
            self._alerts.enable(feed, rule, is_on)

    def _named(self, feed: str) -> FeedChannel:
        """Return the channel of a feed."""
        return next(channel for channel in self._channels if channel.spec.name == feed)

    def _restored(self, spec: FeedSpec) -> SavedState | None:
        """Return the state of a feed that an earlier watch saved, if there is one."""
        return None if self._states is None else self._states.restore(spec)

    def _channel(self, row: int, spec: FeedSpec) -> FeedChannel:
        """Return the channel of a feed; its thread is not started yet."""
        saved = self._saved[row]
        clock_s = time.time()
        began_s = clock_s if saved is None else saved.began_at(clock_s)
        zero_s = None if saved is None else time.monotonic() - (clock_s - began_s)
        options = self._options.with_places(spec.places)
        options = replace(
            options,
            channel=spec.channel or options.channel,
            stream=spec.stream or options.stream,
        )
        recorder = self._recorder(spec, options)
        source = _open(spec, self._reading(spec, options, zero_s))
        feed = Feed(
            spec.name,
            source,
            self._clock(recorder.rate_hz),
            self._buffer(recorder.rate_hz),
            MaskPainter(options.mask),
            sporadic=self._model.info.text,
        )
        channel = FeedChannel(spec, row, feed, recorder)
        if saved is not None and zero_s is not None:
            channel.resume(saved, began_s, zero_s)
        return channel

    def _reading(self, spec: FeedSpec, options: Options, zero_s: float | None) -> SourceOptions:
        """Return how a feed is read; ``zero_s``: time.monotonic() at 0 s of a resumed one."""
        reading = source_options(options, self._model, ())
        is_text = self._model.info.text
        alerts = spec.alerts
        shown = options.snapshots or options.mqtt or options.web
        pictured = shown or alerts.notify or alerts.describe
        return replace(
            reading,
            text="line" if is_text else None,
            arrival=is_text,
            drawing=reading.drawing or (BOX if pictured else None),
            connecting=ConnectionOptions(
                timeout_s=spec.timeout_s or options.timeout_s,
                retries=options.retries,
                transport=spec.transport or options.transport,
                tls_verify=options.tls_verify if spec.tls_verify is None else spec.tls_verify,
                speed=options.speed if options.realtime else None,
                keeper=self._alerts.ring(spec.name),
                name=spec.name,
                follow=is_text and not options.realtime,
                zero_s=zero_s,
            ),
        )

    def _recorder(self, spec: FeedSpec, options: Options) -> StreamRecorder:
        needs = {rule.needs for rule in spec.alerts.on if rule.needs}
        sinks = self._sinks(options, spec.name)
        if self._broker is not None:
            sinks.append(self._broker.sink(spec.name))
        heard = self._model.info.sound or self._model.info.beside
        if heard and (self._options.mqtt or self._options.web):
            needs.add("dB")
        if self._page is not None:
            sinks.append(self._page.sink(spec.name))
        return StreamRecorder(self._model, options, sinks, follow_persons=True, needs=needs)

    def _clock(self, rate_hz: float) -> Clock:
        """Return what turns the items of a feed into steps."""
        info = self._model.info
        if info.sound is not None or info.text:
            return tick_per_item
        return partial(
            resample,
            rate_hz=rate_hz,
            gap_tolerance_s=info.card.gap_tolerance_s,
            frames=info.frames,
        )

    def _buffer(self, rate_hz: float) -> Buffer:
        """Return the queue of a feed, of a size for the lag and the bursts that are expected."""
        max_lag_s, block = self._options.max_lag_s, self._options.on_late == "block"
        if self._model.info.text:
            size = BURST_LINES
        elif block:
            size = max(1, min(BUFFER_STEPS, math.ceil(max_lag_s * rate_hz)))
        else:
            most = BURST_FRAMES // self._model.info.frames
            size = max(1, min(most, math.ceil((max_lag_s + BURST_S) * rate_hz)))
        return Buffer(size, max_lag_s, block=block, arrived=self._arrived)

    def _periodic(self, now_s: float) -> None:
        """Do the periodic work besides the steps."""
        if now_s - self._shown_s >= VIEW_S:
            self._shown_s = now_s
            self._show()
            for channel in self._channels:
                channel.log_delays(now_s, self._options.max_lag_s)
            paced = self._model.info.sound is None
            if said := self._share.overload(len(self._channels), paced=paced):
                log.warning("%s", said)
        if now_s - self._tidied_s >= TIDY_S:
            self._tidied_s = now_s
            give_back()
        if self._options.state_dir is not None and now_s - self._saved_s >= SAVE_S:
            durable = now_s - self._durable_s >= DURABLE_S
            self._saved_s, self._durable_s = now_s, now_s if durable else self._durable_s
            self._save_states(AHEAD, durable=durable)

    def _show(self) -> None:
        lost = 0 if self._broker is None else self._broker.dropped
        status = self._overview.status(self._share.load, self._alerts.failed + lost)
        for channel, feed in zip(self._channels, status.feeds, strict=True):
            age_s = feed.away_s if feed.age_s is None else feed.age_s
            if channel.recorder.opened and age_s is not None:
                for alert in self._alerts.state(feed.name, channel.now_s, feed.state, age_s):
                    self._loop.record_alert(channel, alert)
        self._record_notes()
        for view in self._views:
            view.show(status)

    def _record_notes(self) -> None:
        """Record what became known of alerts."""
        for feed, note in self._alerts.notes():
            self._named(feed).recorder.write(note)

    def _save_states(self, ahead: int = 0, *, durable: bool = True) -> None:
        if self._options.state_dir is None:
            return
        for channel in self._channels:
            snapshot = channel.snapshot(ahead)
            if self._states is not None and snapshot is not None:
                state = self._loop.rows.take(channel.row)
                self._states.save(channel.spec, snapshot, state, durable=durable)

    def _end(self) -> None:
        """End the threads of the feeds, and handle their remaining events."""
        for channel in self._channels:
            channel.stop()
        until_s = time.monotonic() + STOP_S
        for channel in self._channels:
            if not channel.feed.join(max(0.0, until_s - time.monotonic())):
                log.info("%s: its thread hangs in a library and is abandoned", channel.spec.name)
        self._loop.drain()

    def _finish(self, exit_code: ExitCode) -> None:
        """Finish every file; the first error is raised after all were tried."""
        with ExitStack() as stack:
            for view in self._views:
                stack.callback(view.close)
            stack.callback(self._show)
            if self._states is not None:
                self._save_states()
                stack.callback(self._states.close)
            for channel in self._channels:
                stack.callback(channel.close, exit_code)
            stack.callback(self._record_notes)
            stack.callback(self._alerts.close, STOP_S)

    def _code_at_end(self) -> ExitCode:
        if self._stop.exit_code is not None:
            return self._stop.exit_code
        return ExitCode.INPUT if any(channel.lost for channel in self._channels) else ExitCode.OK


def _open(spec: FeedSpec, reading: SourceOptions) -> Source:
    """Return the source of a feed. Raises UsageError if it is not live, SourceError."""
    try:
        source = open_source(spec.uri, reading)
    except SourceError as error:
        if not _HOST.fullmatch(spec.uri) or os.path.exists(spec.uri):
            raise
        hint = f"the feed of a camera is a URL, as in rtsp://{spec.shown}"
        raise SourceError("no such file", where=spec.shown, hint=hint) from error
    if not isinstance(source, (LiveSource, PipeSource)):
        hint = "play it with --realtime, or use: costream detect"
        raise UsageError("this is a file, not a live feed", where=spec.shown, hint=hint)
    if spec.alerts.clips is not None and not isinstance(source, FeedSource):
        hint = "omit --clips, or write clips = false for it in a list of feeds"
        raise UsageError("only streams and cameras have clips", where=spec.shown, hint=hint)
    return source


def _share(options: Options, model: Model) -> float | None:
    """Return the share of real time that steps are left out for; None: there is no such limit."""
    budget = options.budget
    if isinstance(model, GatedModel) or model.info.looks or not isinstance(budget, Budget):
        return None
    return budget.amount if budget.kind == "share" else None


def _throttles(
    options: Options, model: Model, specs: Sequence[FeedSpec]
) -> list[Controller] | None:
    """Return the controller of each feed; None where none is needed."""
    if _share(options, model) is not None:
        return None
    # The budget is shared by the steps of all feeds.
    rate_hz = len(specs) * (options.rate_hz or model.info.card.rate_hz)
    throttles = [controller(model, options.budget, rate_hz) for _ in specs]
    return [each for each in throttles if each is not None] or None


def receivers(views: Sequence[WatchView]) -> tuple[MqttPublisher | None, WebPage | None]:
    """Return the views that also take records and alerts: the broker's, and the page."""
    broker = next((view for view in views if isinstance(view, MqttPublisher)), None)
    return broker, next((view for view in views if isinstance(view, WebPage)), None)


def begin_receivers(
    views: Sequence[WatchView],
    options: Options,
    specs: Sequence[FeedSpec],
    model: Model,
    switch: Enable,
    scenes: Scenes,
) -> None:
    """Connect the ``receivers``. ``switch``: of rules and feeds; ``scenes``: newest pictures."""
    broker, page = receivers(views)
    if broker is not None:
        broker.begin(specs, model.info, switch, scenes)
    if page is not None:
        earlier = partial(earlier_events, options, [*scenes])
        page.begin(scenes, earlier, options.output_folder, options.full_scale_db)


def make_alerts(
    options: Options,
    specs: Sequence[FeedSpec],
    model: Model,
    actions: Sequence[Action],
    *,
    own: bool = True,
) -> Alerts:
    """Return the alerts of all feeds. UsageError for rules that do not fit the model's labels.

    ``actions``: for the alerts of all feeds; ``own``: also those that each feed has.
    """
    alerts = Alerts(options.output_folder, options.snapshot_folder, actions)
    objects = model.info.card.finds_objects
    classes = RuleLabels.of((head.card, options.timeline(head.card)) for head in model.info.heads)
    for spec in specs:
        check_model_options(options.with_places(spec.places), model)
        places = {place.name: place.kind for place in spec.places} if objects else None
        speech_clips = options.speech_clips
        rules = spec.alerts if own else AlertOptions(spec.alerts.on, clips=spec.alerts.clips)
        alerts.add(spec.name, rules, classes, places, speech_clips=speech_clips)
        heard = [rule for rule in spec.alerts.on if rule.kind in ("level", "sound")]
        if spec.alerts.describe and model.info.box is None:
            what = f"{model.info.card.name} does not take pictures"
            raise UsageError(what, where="--describe")
        if heard and model.info.sound is None and model.info.beside is None:
            where = f"{heard[0].where} {heard[0].text!r}"
            raise UsageError(f"{model.info.card.name} does not take sound", where=where)
    return alerts


def _scene(channel: FeedChannel) -> Scene | None:
    """Return the newest picture of a feed."""
    return channel.scene
