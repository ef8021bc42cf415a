"""A worker of ``watch --engine ray``: an actor that watches some of the feeds."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from costream.core.commit import code_version
from costream.core.errors import CostreamError, ExitCode, UsageError
from costream.core.user_code import run_code
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.memory import share_heap
from costream.runtime.model_loading import load_checked
from costream.runtime.stop import StopHandler
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.outbox import Outbox, Sent, WorkerEnd
from costream.runtime.watch.state_dir import SavedState
from costream.runtime.watch.watch_run import WatchParts, WatchRun

log = logging.getLogger("costream")

TAKE_S = 0.5  # a call of ``take`` waits at most this long


@dataclass(frozen=True)
class WorkerTask:
    """The feeds of a worker, and how it watches them."""

    options: Options  # with absolute paths
    specs: tuple[FeedSpec, ...]
    weights_sha256: str  # of the weights that every worker must load
    version: str  # of costream
    code: tuple[str, ...]  # Python files of the user's that the worker runs first
    shared: tuple[str, ...]  # files that every machine must see, as workers write beside them
    saved: Mapping[str, SavedState]  # feeds that were watched before; states are tensors
    switched: Mapping[tuple[str, str | None], bool]  # feeds and rules that were switched


class FeedWorker:
    """Watches feeds in a thread until they end or ``stop``; ``take`` returns what it has sent."""

    def __init__(self, task: WorkerTask) -> None:
        self._task, self._stop = task, StopHandler()
        self._run: WatchRun | None = None
        self._outbox = Outbox()
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self) -> list[Sent]:
        """Return what was sent since the last call; wait for it for a while."""
        return self._outbox.take(TAKE_S)

    def picture(self, feed: str) -> bytes:
        """Return the newest picture of a feed as JPEG; b"" if there is none."""
        return b"" if self._run is None else self._run.picture(feed)

    def switch(self, feed: str, rule: str | None, is_on: bool) -> None:
        """Switch a rule of a feed, or without a rule the feed itself."""
        if self._run is not None:
            self._run.switch(feed, rule, is_on)

    def stop(self, exit_code: ExitCode) -> None:
        """End the watch soon, with this code; the last records are sent."""
        self._stop.request(exit_code)

    def _watch(self) -> None:
        outbox = self._outbox
        log.addHandler(outbox)
        log.setLevel(logging.INFO)
        log.propagate = False
        end = WorkerEnd(ExitCode.BUG)
        try:
            end = WorkerEnd(self._go())
        except CostreamError as error:
            end = WorkerEnd(error.exit_code, f"{error} (machine {socket.gethostname()})")
        except Exception as error:  # the other process reports it
            log.debug("worker ended", exc_info=True)
            end = WorkerEnd(ExitCode.BUG, f"{type(error).__name__}: {error}")
        finally:
            outbox.add(end)
            outbox.publish(())

    def _go(self) -> ExitCode:
        task, outbox = self._task, self._outbox
        if code_version() != task.version:
            what = f"a worker has costream {code_version()}, not {task.version}"
            raise CostreamError(what)
        for shared in task.shared:
            if not os.path.exists(shared):
                what = "this is not the folder of the machine that started the watch"
                hint = "clips and snapshots need one that all machines share"
                raise UsageError(what, where=os.path.dirname(shared), hint=hint)
        share_heap()
        for path in task.code:
            run_code(path)
        model = load_checked(task.options)
        if model.info.weights_sha256 != task.weights_sha256:
            raise CostreamError(f"a worker has other weights of {model.info.card.name}")
        outbox.begin({name: _with_state(model, at) for name, at in task.saved.items()})
        parts = WatchParts(
            options=task.options,
            specs=task.specs,
            model=model,
            views=[outbox],
            stop=self._stop,
            sinks=lambda _, feed: [outbox.sink(feed)],
        )
        run = WatchRun(parts, outbox)
        for (feed, rule), is_on in task.switched.items():
            run.switch(feed, rule, is_on)
        self._run = run
        for _ in run.rounds():
            outbox.publish(run.positions())
        return run.exit_code


def _with_state(model: Model, saved: SavedState) -> SavedState:
    """Return a position with its state as that of the model's one stream."""
    if saved.state is None:
        return saved
    state = model.init_state(1)
    state.load_tensors(saved.state)
    return replace(saved, state=state)
