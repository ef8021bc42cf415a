"""``costream watch``: check the options, load one network, watch every feed."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Protocol

from costream.core.clock import resample, tick_per_item
from costream.core.errors import CostreamError, ExitCode, SourceError, UsageError
from costream.core.status import WatchStatus
from costream.models.base import GatedModel, Model
from costream.options.budget import BudgetFile
from costream.options.options import Options
from costream.runtime.alerts.alerts import Alerts
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.alerts.snapshots import BOX
from costream.runtime.budget import TokenController
from costream.runtime.detect import load_checked
from costream.runtime.masks import MaskPainter
from costream.runtime.memory import give_back, share_heap, widen_strings
from costream.runtime.options import check_model_options, source_options
from costream.runtime.persons import person_rows
from costream.runtime.recorder import StreamRecorder
from costream.runtime.setup import logging_to
from costream.runtime.stop import StopHandler
from costream.runtime.watch.channel import FeedChannel
from costream.runtime.watch.feed import Buffer, Clock, Feed
from costream.runtime.watch.feed_list import FeedSpec, read_feeds
from costream.runtime.watch.loop import FeedStates, Loop, TimeShare
from costream.runtime.watch.mqtt import MqttPublisher
from costream.runtime.watch.prometheus import Metrics
from costream.runtime.watch.state_dir import SavedState, StateDirectory
from costream.runtime.watch.status import StatusCollector, StatusFile
from costream.runtime.watch.systemd import SystemdNotifier
from costream.sinks.atomic import StreamOutput
from costream.sinks.base import Sink
from costream.sinks.journal import Journal
from costream.sinks.jsonl import JsonLines
from costream.sinks.registry import check_outputs
from costream.sinks.rotation import Rotation
from costream.sources.base import ConnectionOptions, LiveSource, Source, SourceOptions
from costream.sources.live.devices import silence_portaudio
from costream.sources.live.feed_source import FeedSource
from costream.sources.pipe import PipeSource
from costream.sources.uris import open_source
from costream.ui.console import live_allowed, stderr_console
from costream.ui.watch.dashboard import Dashboard
from costream.ui.watch.lines import WatchLines

log = logging.getLogger("costream")

VIEW_S = 0.25  # interval between status updates
SAVE_S = 1.0  # interval between savings of the network's state
DURABLE_S = 10.0  # interval between those that survive a power failure; they wear a disk
TIDY_S = 60.0  # interval between times at which free memory is given back
AHEAD = 1000  # step numbers that are left out after a crash, since some of them may be used
RESUME_S = 60.0  # a saved state is used for a restart within this time
BUFFER_STEPS = 64  # most steps of a feed that wait for the network before the feed waits
BURST_S = 12.0  # a burst of data this long is kept whole ...
BURST_FRAMES = 256  # ... if it has no more frames
BURST_LINES = 10_000  # of text
STOP_S = 1.0  # time for all feeds to end; one that hangs in a library is abandoned


class WatchView(Protocol):
    """A display or export of the status of a watch."""

    def show(self, status: WatchStatus) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


def watch(options: Options, effective: Sequence[str] = ()) -> ExitCode:
    """Watch every feed until all have ended or a signal arrives; return the exit code.

    Everything is checked before the model is loaded. ``effective`` holds lines that say which
    settings are in force, shown with -v.
    """
    share_heap()
    logged = logging_to(options.verbosity, options.color, options.log_file, effective)
    with StopHandler() as stop, logged:
        specs = read_feeds(options)
        for folder in (options.output, options.snapshots):
            if folder not in (None, "-"):
                check_outputs((), Path(str(folder)), "", overwrite=True)
        with ExitStack() as stack:
            stack.enter_context(silence_portaudio(spec.uri for spec in specs))
            views = _views(options, stack)
            model = load_checked(options, shares=True)
            widen_strings()
            run = WatchRun(options, specs, model, views, stop, _sinks)
            for _ in run.rounds():
                pass
            return run.exit_code


def _views(options: Options, stack: ExitStack) -> list[WatchView]:
    """Return the views of the watch; ``stack`` will close them."""
    views: list[WatchView] = [SystemdNotifier(), *status_exports(options)]
    console = stderr_console(options.color)
    if live_allowed(
        sys.stderr,
        quiet=options.verbosity < 0,
        no_live=not options.live,
        flag=options.color,
        data_on_terminal=options.output == "-" and sys.stdout.isatty(),
    ):
        views.append(Dashboard(console))
    elif options.verbosity >= 0:
        views.append(WatchLines(console))
    for view in views:
        stack.callback(view.close)
    return views


def status_exports(options: Options) -> list[WatchView]:
    """Return what the options say the status is written to."""
    views: list[WatchView] = []
    if options.status_file is not None:
        views.append(StatusFile(Path(options.status_file)))
    if options.metrics is not None:
        views.append(Metrics(options.metrics))
    if options.mqtt is not None:
        views.append(MqttPublisher(options.mqtt))
    return views


def _share(options: Options, model: Model) -> float | None:
    """Return the share of real time to be met by leaving out steps; None: not applicable."""
    if options.budget is None or isinstance(model, GatedModel):
        return None
    budget = options.budget
    if isinstance(budget, BudgetFile) or budget.kind != "share":
        what = f"every step of {model.info.card.name} costs the same"
        hint = "use a share of real time (0.5x), or a token-gated model"
        raise UsageError(what, where="--budget", hint=hint)
    return budget.amount


def _throttles(
    options: Options, model: Model, specs: Sequence[FeedSpec]
) -> list[TokenController] | None:
    """Return a token controller for each feed; None without a budget or a token-gated model."""
    if options.budget is None or not isinstance(model, GatedModel):
        return None
    # The budget is shared by the steps of all feeds.
    rate_hz = len(specs) * (options.rate_hz or model.info.card.rate_hz)
    return [TokenController(model, options.budget, rate_hz) for _ in specs]


class WatchRun:
    """One watch of several feeds; iterate ``rounds`` to its end.

    ``sinks`` returns the sinks for the records of a feed by its name. ``exit_code`` is known at
    the end.
    """

    def __init__(
        self,
        options: Options,
        specs: Sequence[FeedSpec],
        model: Model,
        views: Sequence[WatchView],
        stop: StopHandler,
        sinks: Callable[[Options, str], list[Sink]],
    ) -> None:
        self._options, self._model, self._views, self._stop = options, model, views, stop
        self._sinks = sinks
        self.exit_code = ExitCode.BUG
        self._arrived = Condition()
        self._share = TimeShare(_share(options, model))
        self._broker = next((view for view in views if isinstance(view, MqttPublisher)), None)
        self._alerts = _alerts(options, specs, model, self._broker)
        self._state_directory = (
            None if options.state_dir is None else StateDirectory(Path(options.state_dir), model)
        )
        self._saved = [self._restored(spec) for spec in specs]
        self._channels = [self._channel(row, spec) for row, spec in enumerate(specs)]
        self._overview = StatusCollector(model.info, self._channels, self._alerts)
        masks = [frozenset(p for p in spec.places if p.kind == "mask") for spec in specs]
        throttles = _throttles(options, model, specs)
        followed = [person_rows(model, options) for _ in specs] if model.info.follows else None
        rows = FeedStates(model, len(specs), options.tokens, throttles, masks, followed)
        self._loop = Loop(model, rows, self._channels, self._share, self._alerts, self._overview)
        self._shown_s = self._saved_s = self._durable_s = self._tidied_s = 0.0

    def rounds(self) -> Generator[None, None, None]:
        """Watch to the end, pausing after each round of steps; every file is finished.

        Ends early, and properly, when the iterator is closed.
        """
        for row, saved in enumerate(self._saved):
            if saved is not None:
                self._loop.rows.begin(row, saved.newest)
                if saved.age_s(time.time()) <= RESUME_S:
                    self._loop.rows.put(row, saved.state)
        if self._broker is not None:
            self._broker.begin([channel.spec for channel in self._channels], self._model.info)
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

    def _restored(self, spec: FeedSpec) -> SavedState | None:
        """Return what an earlier watch saved of a feed, if it did."""
        return None if self._state_directory is None else self._state_directory.restore(spec)

    def _channel(self, row: int, spec: FeedSpec) -> FeedChannel:
        saved = self._saved[row]
        clock_s = time.time()
        began_s = clock_s if saved is None else saved.began_at(clock_s)
        zero_s = None if saved is None else time.monotonic() - (clock_s - began_s)
        model, options = self._model, self._options.with_places(spec.places)
        options = replace(
            options,
            channel=spec.channel or options.channel,
            stream=spec.stream or options.stream,
        )
        reading = source_options(options, model, ())
        pictures = BOX if options.snapshots or options.mqtt else None
        text = model.info.text
        reading = replace(
            reading,
            text="line" if text else None,
            arrival=text,
            drawing=reading.drawing or pictures,
            connecting=ConnectionOptions(
                timeout_s=spec.timeout_s or options.timeout_s,
                retries=options.retries,
                transport=spec.transport or options.transport,
                tls_verify=options.tls_verify if spec.tls_verify is None else spec.tls_verify,
                speed=options.speed if options.realtime else None,
                keeper=self._alerts.ring(spec.name),
                follow=text and not options.realtime,
                zero_s=zero_s,
            ),
        )
        needs = {need for rule in spec.alerts.on if (need := rule.needs)}
        if self._broker is not None and (model.info.sound or model.info.beside):
            needs.add("dB")
        sinks = self._sinks(options, spec.name)
        if self._broker is not None:
            sinks.append(self._broker.sink(spec.name))
        track = StreamRecorder(model, options, sinks, follow_persons=True, needs=needs)
        clock: Clock = tick_per_item
        if model.info.sound is None and not text:
            clock = partial(
                resample,
                rate_hz=track.rate_hz,
                gap_tolerance_s=model.info.card.gap_tolerance_s,
                frames=model.info.frames,
            )
        block = options.on_late == "block"
        most = BUFFER_STEPS if block else BURST_FRAMES // model.info.frames
        kept_s = options.max_lag_s + (0.0 if block else BURST_S)
        size = BURST_LINES if text else max(1, min(most, math.ceil(kept_s * track.rate_hz)))
        buffer = Buffer(size, options.max_lag_s, block=block, arrived=self._arrived)
        painter = MaskPainter(options.mask)
        source = _source(spec, reading)
        if not isinstance(source, (LiveSource, PipeSource)):
            hint = "play it with --realtime, or use: costream detect"
            raise UsageError("this is a file, not a live feed", where=spec.shown, hint=hint)
        if spec.alerts.clips is not None and not isinstance(source, FeedSource):
            hint = "omit --clips, or write clips = false for it in a list of feeds"
            raise UsageError("only streams and cameras have clips", where=spec.shown, hint=hint)
        feed = Feed(spec.name, source, clock, buffer, painter, sporadic=text)
        channel = FeedChannel(spec, row, feed, track)
        if saved is not None and zero_s is not None:
            channel.resume(saved, began_s, zero_s)
        return channel

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
        if self._state_directory is not None and now_s - self._saved_s >= SAVE_S:
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
        for view in self._views:
            view.show(status)

    def _save_states(self, ahead: int = 0, *, durable: bool = True) -> None:
        for channel in self._channels:
            snapshot = channel.snapshot(ahead)
            if self._state_directory is not None and snapshot is not None:
                state = self._loop.rows.take(channel.row)
                self._state_directory.save(channel.spec, snapshot, state, durable=durable)

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
            stack.callback(self._alerts.close, STOP_S)
            if self._state_directory is not None:
                self._save_states()
                stack.callback(self._state_directory.close)
            for channel in self._channels:
                stack.callback(channel.close, exit_code)

    def _code_at_end(self) -> ExitCode:
        if self._stop.exit_code is not None:
            return self._stop.exit_code
        return ExitCode.INPUT if any(channel.lost for channel in self._channels) else ExitCode.OK


# Hosts and ports, as they are often named without the rest of their URL.
_HOST = re.compile(
    r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[\w.-]+\.(?:local|lan|home)|[\w.-]+(?=:[0-9]))"
    r"(?::[0-9]{1,5})?(?:/.*)?"
)


def _source(spec: FeedSpec, reading: SourceOptions) -> Source:
    """Return the source of a feed. The errors of ``open_source``, with a hint for a bare host."""
    try:
        return open_source(spec.uri, reading)
    except SourceError as error:
        if not _HOST.fullmatch(spec.uri) or os.path.exists(spec.uri):
            raise
        hint = f"the feed of a camera is a URL, as in rtsp://{spec.shown}"
        raise SourceError("no such file", where=spec.shown, hint=hint) from error


def _alerts(
    options: Options, specs: Sequence[FeedSpec], model: Model, broker: MqttPublisher | None
) -> Alerts:
    """Return the alerts of all feeds. UsageError for rules that do not fit the model's labels."""
    folder = None if options.output in (None, "-") else Path(str(options.output))
    snapshots = None if options.snapshots is None else Path(options.snapshots)
    alerts = Alerts(folder, snapshots, () if broker is None else (broker,))
    objects = model.info.card.finds_objects
    classes = RuleLabels.of((head.card, options.timeline(head.card)) for head in model.info.heads)
    for spec in specs:
        check_model_options(options.with_places(spec.places), model, shares=True)
        places = {place.name: place.kind for place in spec.places} if objects else None
        alerts.add(spec.name, spec.alerts, classes, places)
        heard = [rule for rule in spec.alerts.on if rule.kind in ("level", "sound")]
        if heard and model.info.sound is None and model.info.beside is None:
            where = f"{heard[0].where} {heard[0].text!r}"
            raise UsageError(f"{model.info.card.name} does not take sound", where=where)
    return alerts


def _sinks(options: Options, name: str) -> list[Sink]:
    """Return the sinks for the records of a feed."""
    output = options.output
    if output is not None and output != "-":
        return [Journal(Path(output), name, Rotation.parse(options.rotate, options.keep))]
    if output == "-":
        return [JsonLines(StreamOutput(sys.stdout), feed=name)]
    return []
