"""``watch --engine ray``: the feeds are watched by actors of a Ray cluster.

The actors read the feeds, run the network and evaluate the rules. Everything else is done here, as
by a watch of one process: files, store, views, saved states, and the actions of alerts.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from costream.core.clock import utc
from costream.core.commit import code_version
from costream.core.errors import CostreamError, ExitCode, UsageError, WorkerError
from costream.core.records import Alert, AlertNote, AnyRecord, Header, Summary
from costream.core.status import FeedStatus, SeenLabel, WatchStatus
from costream.core.user_code import code_files
from costream.models.auto import model_for
from costream.options.options import Options
from costream.runtime.alerts.snapshots import RemoteScene
from costream.runtime.counters import StreamCounters
from costream.runtime.model_loading import kind_of_feeds
from costream.runtime.ray_cluster import Machines, at_machine, ray_cluster, require_ray
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.outbox import (
    Sent,
    SentAlert,
    SentLog,
    SentPosition,
    SentRecord,
    SentState,
    WorkerEnd,
)
from costream.runtime.watch.ray_worker import FeedWorker, WorkerTask
from costream.runtime.watch.state_dir import SavedState, StateDirectory
from costream.runtime.watch.status import NEWEST_ALERTS, resident_mb
from costream.runtime.watch.watch_run import (
    RESUME_S,
    STOP_S,
    VIEW_S,
    WatchParts,
    begin_receivers,
    make_alerts,
    receivers,
)
from costream.sinks.base import Sink
from costream.sources.live.address import is_camera
from costream.sources.uris import is_pipe

log = logging.getLogger("costream")

_POLL_S = 0.1  # interval of looking for a signal
_GRACE_S = 10.0  # time for workers to end
_PAUSES_S = (0.0, 1.0, 3.0, 10.0)  # before a worker that was lost again is replaced
_STABLE_S = 60.0  # a worker that has lived this long is replaced at once
_SILENT_S = 15.0  # a worker that has not answered for this time is lost; its calls take 0.5 s
_ROUND_S = 1.0  # most of a round that counts as silence, as this process may have been stopped
_HEADLESS_S = 40.0  # a watch without the head ends after this time; Ray aborts it after 60 s
# Of a processor, for each worker: so little that there is a place for all, also when machines are
# lost. If nothing is reserved, Ray starts actors anywhere.
_RESERVED = 0.01
_CALLS = 8  # calls that an actor serves at one time
_PICTURE_S = 5.0  # time limit for a picture
# Totals of FeedStatus, which go on when a worker is replaced.
_COUNTS = ("steps", "dropped", "reconnects", "gaps", "errors", "alerts", "held")
_TOTALS = (*_COUNTS, "macs", "dense_macs")


@dataclass
class RayFeed:
    """A feed, its files, and how far it has come."""

    spec: FeedSpec
    status: FeedStatus
    sinks: list[Sink] = field(default_factory=list)  # of the run in progress
    began_s: float = 0.0  # time.monotonic() at the start of the run
    before: FeedStatus | None = None  # the totals of the workers before
    earlier: SavedState | None = None  # from where the worker continued
    at: SentPosition | None = None  # of this worker
    state: SentState | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended or is lost for good."""
        return self.status.state in ("ended", "lost")

    def saved(self) -> SavedState | None:
        """Return from where the next worker continues.

        Before this worker has sent a state, that is the earlier one, unless it was too old for it.
        """
        if self.at is None:
            return self.earlier
        at, earlier = self.at, self.earlier
        state: Any = None
        smoothed: tuple[float, ...] = ()
        if self.state is not None:
            state, smoothed = self.state.values, self.state.at.smoothed
        elif earlier is not None and earlier.age_s(at.saved_s) <= RESUME_S:
            state, smoothed = earlier.state, earlier.smoothed
        return SavedState(**{**vars(at.at), "smoothed": smoothed}, saved_s=at.saved_s, state=state)

    def continues(self) -> None:
        """Let the next worker continue from what has come from this one, which is lost."""
        self.earlier, self.at, self.state = self.saved(), None, None


@dataclass
class _RayWorker:
    """An actor and its feeds."""

    number: int
    feeds: list[RayFeed]
    actor: Any = None
    machine: str = ""  # as the cluster names it
    began_s: float = 0.0  # time.monotonic()
    silent_s: float = 0.0  # since its last answer
    due_s: float = 0.0  # when it is started again
    losses: int = 0  # in a short time
    ready: bool = False  # it has watched
    ended: WorkerEnd | None = None
    status: WatchStatus | None = None


class RayWatch:
    """One watch whose feeds are spread over a Ray cluster; iterate ``rounds`` to its end.

    A worker that is lost is replaced; its feeds continue with a new run, whose numbers follow the
    last ones that were written. ``exit_code`` is known at the end.
    """

    def __init__(self, parts: WatchParts) -> None:
        options, specs, model, views = parts.options, parts.specs, parts.model, parts.views
        check_for_ray(options, specs)
        self._options, self._model, self._views, self._stop = options, model, views, parts.stop
        kind = kind_of_feeds([spec.uri for spec in specs], options)
        self._named = _absolute(options, model_for(options.model, kind, options.licence))
        self._sinks = parts.sinks
        self.exit_code = ExitCode.BUG
        self._broker, self._page = receivers(views)
        actions = [view for view in (self._broker, self._page) if view is not None]
        self._alerts = make_alerts(options, specs, model, actions)
        self._feeds = {
            spec.name: RayFeed(spec, FeedStatus(spec.name, spec.shown, "connecting"))
            for spec in specs
        }
        self._workers: list[_RayWorker] = []
        self._pending: dict[Any, _RayWorker] = {}  # by the call that waits for messages
        self._switched: dict[tuple[str, str | None], bool] = {}
        self._newest_alerts: deque[tuple[str, Alert]] = deque(maxlen=NEWEST_ALERTS)
        self._failed_before = 0  # actions of workers that were replaced
        self._cpu_before_s = 0.0  # their processor time
        self._began_s, self._start_s, self._shown_s = time.time(), time.monotonic(), 0.0
        self._round_s = self._start_s
        self._ending_s: float | None = None
        self._is_headless = False
        self._ray: Any = None
        self._machines: Machines
        self._shared: tuple[str, ...] = ()
        self._states: StateDirectory | None = None
        if options.state_dir is not None:
            self._states = StateDirectory(Path(options.state_dir), model)
            for feed in self._feeds.values():
                saved = self._states.restore(feed.spec)
                if saved is not None:
                    feed.earlier = replace(saved, state=saved.state.tensors())

    def rounds(self) -> Generator[None, None, None]:
        """Watch to the end, pausing at least every _POLL_S; every file is finished.

        Closing the iterator ends the watch early; files are finished all the same.
        """
        jobs, threads = self._options.jobs, self._options.threads
        with ExitStack() as stack:
            try:
                slots = jobs and jobs * threads
                self._ray = stack.enter_context(ray_cluster(self._options.ray_address, slots))
                self._machines = Machines(self._ray)
                folders = self._shared_folders()
                self._shared = tuple(stack.enter_context(_marked(folder)) for folder in folders)
                self._begin_views()
                with self._stop.while_running(lambda: None):
                    self._begin_workers(
                        jobs or int(self._ray.cluster_resources().get("CPU", 1)) // threads
                    )
                    while self._go_on():
                        yield
                if self._is_headless and not self._stop.requested:
                    raise WorkerError("the head of the Ray cluster was lost", ExitCode.PARTIAL)
                self.exit_code = self._code_at_end()
            except CostreamError as error:
                self.exit_code = error.exit_code
                raise
            except BrokenPipeError:
                self.exit_code = ExitCode.OK  # the reader closed the pipe
            except GeneratorExit:
                self._stop.request()
                while self._go_on():
                    pass
                self.exit_code = ExitCode.SIGINT
                raise
            finally:
                self._finish()

    # Workers.

    def _begin_workers(self, most: int) -> None:
        feeds = list(self._feeds.values())
        count = max(1, min(most, len(feeds)))
        self._workers = [_RayWorker(k + 1, feeds[k::count]) for k in range(count)]
        for worker in self._workers:
            self._start(worker)

    def _shared_folders(self) -> Iterator[Path]:
        """Yield the folders that workers write to."""
        if self._options.snapshot_folder is not None:
            yield self._options.snapshot_folder
        clips = any(feed.spec.alerts.clips is not None for feed in self._feeds.values())
        if clips and self._options.output_folder is not None:
            yield self._options.output_folder

    def _start(self, worker: _RayWorker) -> None:
        feeds = [feed for feed in worker.feeds if not feed.over]
        saved = {feed.spec.name: at for feed in feeds if (at := feed.saved()) is not None}
        task = WorkerTask(
            options=self._named,
            specs=tuple(_absolute_spec(feed.spec) for feed in feeds),
            weights_sha256=self._model.info.weights_sha256,
            version=code_version(),
            code=code_files(),
            shared=self._shared,
            saved=saved,
            switched={k: v for k, v in self._switched.items() if self._feeds[k[0]] in feeds},
        )
        taken = [each.machine for each in self._workers if each.actor is not None]
        worker.machine = self._machines.place(taken)
        log.debug("worker %d: on machine %s", worker.number, worker.machine)
        actors = self._ray.remote(FeedWorker).options(
            scheduling_strategy=at_machine(worker.machine),
            max_concurrency=_CALLS,
            num_cpus=_RESERVED,
        )
        worker.actor, worker.began_s, worker.silent_s = actors.remote(task), time.monotonic(), 0.0
        self._pending[worker.actor.take.remote()] = worker

    def _go_on(self) -> bool:
        """Handle what has come; return False when all workers have ended."""
        headless_s = self._machines.headless_s()
        self._say_headless(headless_s)
        if self._ending_s is None and (self._stop.requested or headless_s >= _HEADLESS_S):
            self._begin_end()
        self._receive()
        now_s = time.monotonic()
        if self._ending_s is not None and now_s - self._ending_s > _GRACE_S:
            return False
        if not headless_s:
            self._replace(now_s)
        if now_s - self._shown_s >= VIEW_S:
            self._shown_s = now_s
            self._show()
        return any(worker.ended is None for worker in self._workers)

    def _say_headless(self, headless_s: float) -> None:
        """Say once that the head of the cluster is away, and once that it is back."""
        if bool(headless_s) == self._is_headless:
            return
        self._is_headless = bool(headless_s)
        if self._is_headless:
            what = "the head of the Ray cluster does not answer: the watch ends in %d s without it"
            log.warning(what, _HEADLESS_S)
        else:
            log.warning("the head of the Ray cluster is back")

    def _begin_end(self) -> None:
        self._ending_s = time.monotonic()
        for worker in self._workers:
            if worker.actor is None:
                worker.ended = WorkerEnd(ExitCode.OK)
            elif worker.ended is None:
                worker.actor.stop.remote(self._stop.exit_code or ExitCode.PARTIAL)

    def _replace(self, now_s: float) -> None:
        """Start those workers that are due, and give up those whose machine is silent."""
        silence_s, self._round_s = min(now_s - self._round_s, _ROUND_S), now_s
        for worker in self._workers:
            if worker.ended is not None:
                continue
            if worker.actor is None and now_s >= worker.due_s:
                self._start(worker)
            elif worker.actor is not None and worker.ready:
                worker.silent_s += silence_s
                if worker.silent_s >= _SILENT_S:
                    self._pending = {k: v for k, v in self._pending.items() if v is not worker}
                    self._lose(worker, f"its machine has not answered for {_SILENT_S:.0f} s")

    def _receive(self) -> None:
        if not self._pending:
            time.sleep(_POLL_S)
            return
        try:
            ready, _ = self._ray.wait(list(self._pending), timeout=_POLL_S)
        except OSError as error:  # Ray's own process on this machine has ended
            raise WorkerError(f"the Ray cluster was lost ({error})", ExitCode.PARTIAL) from error
        for call in ready:
            worker = self._pending.pop(call)
            try:
                messages = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                log.debug("worker %d: %s", worker.number, error)
                self._lose(worker, f"it died ({type(error).__name__})")
                continue
            worker.silent_s = 0.0
            for message in messages:
                self._take(worker, message)
            if worker.ended is None and worker.actor is not None:
                self._pending[worker.actor.take.remote()] = worker

    def _take(self, worker: _RayWorker, sent: Sent) -> None:
        if isinstance(sent, SentRecord):
            self._record(self._feeds[sent.feed], sent.record)
        elif isinstance(sent, SentPosition):
            self._feeds[sent.feed].at = sent
        elif isinstance(sent, SentState):
            feed = self._feeds[sent.feed]
            feed.state = sent
            if self._states is not None:
                self._states.save(feed.spec, sent.at, sent, durable=sent.durable)
        elif isinstance(sent, SentAlert):
            self._alerts.act(sent.event, wants_clip=sent.wants_clip)
        elif isinstance(sent, WatchStatus):
            worker.ready, worker.status = True, sent
            for status in sent.feeds:
                self._feeds[status.name].status = status
        elif isinstance(sent, SentLog):
            log.log(sent.level, "%s", sent.text)
        else:
            self._end(worker, sent)

    def _end(self, worker: _RayWorker, end: WorkerEnd) -> None:
        if end.error is None:
            worker.ended = end
        elif not worker.ready and not worker.losses:
            raise WorkerError(end.error, end.exit_code)
        else:
            self._lose(worker, end.error)

    def _lose(self, worker: _RayWorker, why: str) -> None:
        """End the runs of a worker that was lost, and have another one started."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)  # it may live on behind a network that failed
        worker.actor = None
        self._machines.avoid(worker.machine)
        if not worker.ready and worker.losses:  # elsewhere, too
            raise WorkerError(f"a worker could not be started: {why}", ExitCode.BUG)
        feeds = [feed for feed in worker.feeds if not feed.over]
        for feed in worker.feeds:
            self._end_run(feed)
        if self._ending_s is not None or not feeds:
            worker.ended = WorkerEnd(ExitCode.OK)
            return
        if worker.status is not None:
            self._failed_before += worker.status.failed_actions
            self._cpu_before_s += worker.status.cpu_s
        now_s = time.monotonic()
        worker.losses = 1 if now_s - worker.began_s >= _STABLE_S else worker.losses + 1
        worker.due_s = now_s + _PAUSES_S[min(worker.losses, len(_PAUSES_S)) - 1]
        worker.status = None
        for feed in feeds:
            feed.before = feed.status = self._total(feed, waiting=True)
            feed.continues()
        names = ", ".join(feed.spec.name for feed in feeds)
        log.warning("worker %d was lost: %s; another continues: %s", worker.number, why, names)

    # Feeds.

    def _record(self, feed: RayFeed, record: AnyRecord) -> None:
        if isinstance(record, Header):
            self._end_run(feed)
            if os.path.exists(feed.spec.uri):  # workers have its absolute path
                record = replace(record, source=feed.spec.shown)
            name, feed.began_s = feed.spec.name, time.monotonic()
            sinks = self._sinks(self._options, name)
            sinks += [view.sink(name) for view in (self._broker, self._page) if view is not None]
            for sink in sinks:
                sink.open(record)
                feed.sinks.append(sink)
        elif isinstance(record, Summary):
            _close(feed, record)
        else:
            if isinstance(record, Alert):
                self._newest_alerts.append((feed.spec.name, record))
            for sink in feed.sinks:
                sink.write(record)

    def _end_run(self, feed: RayFeed) -> None:
        """Finish the files of a run that its worker has not finished."""
        if not feed.sinks:
            return
        counted = StreamCounters().summary(
            ExitCode.PARTIAL,
            self._options.rate_hz or self._model.info.card.rate_hz,
            time.monotonic() - feed.began_s,
            complete=False,
            dropped=0,
            drift_ppm=None,
        )
        _close(feed, counted if feed.at is None else feed.at.summary)

    # What a watch of one process does, too.

    def _begin_views(self) -> None:
        shows = self._model.info.box is not None
        scenes = {name: partial(self._scene, name if shows else None) for name in self._feeds}
        specs = [feed.spec for feed in self._feeds.values()]
        begin_receivers(self._views, self._options, specs, self._model, self._switch, scenes)

    def _scene(self, name: str | None) -> RemoteScene | None:
        """Return the newest picture of a feed; None if it has none."""
        if name is None or self._feeds[name].status.state != "live":
            return None
        return RemoteScene(partial(self._picture, name))

    def _actor(self, name: str) -> Any:
        """Return the actor that watches a feed; None if there is none now."""
        return next((w.actor for w in self._workers if self._feeds[name] in w.feeds), None)

    def _picture(self, name: str) -> bytes:
        actor, picture = self._actor(name), b""
        with suppress(self._ray.exceptions.RayError):
            if actor is not None:
                picture = self._ray.get(actor.picture.remote(name), timeout=_PICTURE_S)
        return picture

    def _switch(self, feed: str, rule: str | None, is_on: bool) -> None:
        """Switch a rule of a feed, or without a rule the feed itself; by any thread."""
        self._switched[feed, rule] = is_on
        actor = self._actor(feed)
        if actor is not None:
            actor.switch.remote(feed, rule, is_on)

    def _show(self) -> None:
        self._record_notes()
        status = self._status()
        for view in self._views:
            view.show(status)

    def _record_notes(self) -> None:
        notes: list[tuple[str, AlertNote]] = self._alerts.notes()
        for name, note in notes:
            self._record(self._feeds[name], note)

    def _status(self) -> WatchStatus:
        known = [worker.status for worker in self._workers if worker.status is not None]
        lost = 0 if self._broker is None else self._broker.dropped
        failed = sum(status.failed_actions for status in known)
        heads = self._model.info.heads
        return WatchStatus(
            version=code_version(),
            model=self._model.info.card.name,
            began=utc(self._began_s),
            now=utc(time.time()),
            uptime_s=time.monotonic() - self._start_s,
            feeds=tuple(map(self._total, self._feeds.values())),
            alerts=tuple(self._newest_alerts),
            load=max((status.load for status in known), default=0.0),
            memory_mb=resident_mb() + sum(status.memory_mb for status in known),
            cpu_s=time.process_time() + self._cpu_before_s + sum(s.cpu_s for s in known),
            failed_actions=self._failed_before + failed + self._alerts.failed + lost,
            strips={name: strip for status in known for name, strip in status.strips.items()},
            labels=tuple(x for h in heads for x in h.card.labels if x != h.card.background),
        )

    def _total(self, feed: RayFeed, *, waiting: bool = False) -> FeedStatus:
        """Return the status of a feed, with the totals of the workers that were lost."""
        status, before = feed.status, feed.before
        if waiting:
            if feed.at is not None:  # the status may be older than the last records
                summary, names = (
                    feed.at.summary,
                    ("steps", "dropped", "errors", "macs", "dense_macs"),
                )
                known: dict[str, Any] = {
                    name: max(getattr(status, name), getattr(summary, name)) for name in names
                }
                status = replace(status, **known)
            status = replace(
                status,
                state="waiting",
                message="its worker was lost, another one starts",
                active=None,
                heads={},
                frames_hz=0.0,
                steps_hz=0.0,
                persons=None if status.persons is None else (),
            )
        if before is None or before is status:
            return status
        totals: dict[str, Any] = {
            name: getattr(before, name) + getattr(status, name) for name in _TOTALS
        }
        return replace(status, **totals, seen=_seen(before.seen, status.seen))

    def _finish(self) -> None:
        """Finish every file; the first error is raised after all were tried."""
        with ExitStack() as stack:
            for view in self._views:
                stack.callback(view.close)
            if self._workers:
                stack.callback(self._show)
            if self._states is not None:
                stack.callback(self._states.close)
            for feed in self._feeds.values():
                stack.callback(self._end_run, feed)
            stack.callback(self._record_notes)
            stack.callback(self._alerts.close, STOP_S)
            for worker in self._workers:
                if worker.actor is not None:
                    stack.callback(self._ray.kill, worker.actor)

    def _code_at_end(self) -> ExitCode:
        if self._stop.exit_code is not None:
            return self._stop.exit_code
        lost = any(feed.status.state == "lost" for feed in self._feeds.values())
        return ExitCode.INPUT if lost else ExitCode.OK


def check_for_ray(options: Options, specs: Sequence[FeedSpec]) -> None:
    """Raise UsageError if Ray is not installed, and for what only this machine has."""
    require_ray()
    for spec in specs:
        if is_pipe(spec.uri) or is_camera(spec.uri) or spec.uri.lower().split(":")[0] == "mic":
            hint = "watch it without --engine ray"
            raise UsageError("only this machine has this feed", where=spec.shown, hint=hint)
    if options.device not in ("auto", "cpu"):
        raise UsageError("--engine ray is for processors", where=f"--device {options.device}")


def _absolute(options: Options, model: str) -> Options:
    """Return the options with this model and absolute paths, which every worker understands."""
    paths = {name: getattr(options, name) for name in ("weights", "output", "snapshots")}
    named = {k: os.path.abspath(v) for k, v in paths.items() if v not in (None, "-")}
    model = os.path.abspath(model) if os.path.isfile(model) else model
    return replace(options, model=model, device="cpu", **named)


def _absolute_spec(spec: FeedSpec) -> FeedSpec:
    return replace(spec, uri=os.path.abspath(spec.uri)) if os.path.exists(spec.uri) else spec


@contextmanager
def _marked(folder: Path) -> Iterator[str]:
    """Yield a hidden file in a folder, by which workers see whether it is the same there."""
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=".costream-", dir=folder.absolute()) as file:
        yield file.name


def _close(feed: RayFeed, summary: Summary) -> None:
    """Close the files of a run; the first error is raised after all were tried."""
    sinks, feed.sinks = feed.sinks, []
    with ExitStack() as stack:
        for sink in reversed(sinks):
            stack.callback(sink.close, summary)


def _seen(before: Sequence[SeenLabel], now: Sequence[SeenLabel]) -> tuple[SeenLabel, ...]:
    """Return how often each label was seen before and now."""
    labels = {each.label: each for each in before}
    for each in now:
        count = each.count + (labels[each.label].count if each.label in labels else 0)
        labels[each.label] = replace(each, count=count)
    return tuple(labels.values())
