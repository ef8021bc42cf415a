"""What a worker of a watch sends to the process that started it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from costream.core.errors import ExitCode
from costream.core.records import AnyRecord, Header, Record, Summary
from costream.core.status import WatchStatus
from costream.runtime.alerts.actions import AlertEvent, ignored
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.state_dir import SavedState, Snapshot

if TYPE_CHECKING:
    from torch import Tensor

# The name of a feed, its position, and what returns its summary so far.
Position: TypeAlias = "tuple[str, Snapshot, Callable[[], Summary]]"

_MOST = 100_000  # messages that wait; then the worker waits, and drops steps as if it were slow


@dataclass(frozen=True)
class SentRecord:
    """A record of a feed; a header begins a run, a summary ends it."""

    feed: str
    record: AnyRecord


@dataclass(frozen=True)
class SentAlert:
    """An alert whose actions are due: those that wait for its clip, or all others."""

    event: AlertEvent
    wants_clip: bool


@dataclass(frozen=True)
class SentPosition:
    """The position of a feed after all records that were sent before, and its summary so far."""

    feed: str
    at: Snapshot
    saved_s: float  # time.time() of the worker
    summary: Summary


@dataclass(frozen=True)
class SentState:
    """The network's state for a feed; ``tensors`` returns it as that of ``Model.init_state``."""

    feed: str
    at: Snapshot
    values: Mapping[str, Tensor]
    durable: bool

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors by their names."""
        return self.values


@dataclass(frozen=True)
class SentLog:
    """A message of the worker."""

    level: int
    text: str


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker; ``error`` says why it ended early."""

    exit_code: ExitCode
    error: str | None = None


Sent: TypeAlias = (
    SentRecord | SentAlert | SentPosition | SentState | SentLog | WorkerEnd | WatchStatus
)


class Outbox(logging.Handler):
    """The view, the state directory, the sinks, actions and log of a watch that is a worker.

    What they get in one round of steps is passed on together by ``publish``, so that records and
    the position after them are never torn apart. All methods may be called by any thread.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._saved: Mapping[str, SavedState] = {}
        self._changed = threading.Condition()  # guards the rest
        self._round: list[Sent] = []
        self._ready: list[Sent] = []
        self._steps: dict[str, int] = {}  # next step by feed, as sent
        self.actions = (SendAlert(self, wants_clip=False), SendAlert(self, wants_clip=True))

    def add(self, sent: Sent) -> None:
        """Add a message to those of this round."""
        with self._changed:
            self._round.append(sent)

    def publish(self, positions: Iterable[Position]) -> None:
        """End a round, with the positions of all feeds; those that stepped are sent."""
        with self._changed:
            for feed, at, summary in positions:
                if self._steps.get(feed) != at.next_step:
                    self._steps[feed] = at.next_step
                    at = replace(at, smoothed=())
                    self._round.append(SentPosition(feed, at, time.time(), summary()))
            self._ready += self._round
            self._round = []
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._ready) < _MOST)

    def take(self, timeout_s: float) -> list[Sent]:
        """Return what was published since the last call; wait for it at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._ready), timeout_s)
            taken, self._ready = self._ready, []
            self._changed.notify_all()
        return taken

    def begin(self, saved: Mapping[str, SavedState]) -> None:
        """``saved``: the feeds that were watched before, from where they continue."""
        self._saved = saved

    def sink(self, feed: str) -> SendRecords:
        """Return a sink that sends the records of a feed."""
        return SendRecords(self, feed)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a message of the log."""
        self.add(SentLog(record.levelno, record.getMessage()))

    def show(self, status: WatchStatus) -> None:
        """Send a status."""
        self.add(status)

    def restore(self, spec: FeedSpec) -> SavedState | None:
        """Return the position of a feed that was watched before."""
        return self._saved.get(spec.name)

    def save(self, spec: FeedSpec, at: Snapshot, state: Any, *, durable: bool = True) -> None:
        """Send the state of the network for a feed."""
        values = {name: tensor.detach().clone() for name, tensor in state.tensors().items()}
        self.add(SentState(spec.name, at, values, durable))

    def close(self) -> None:
        """Do nothing: what was added last is published by ``publish``."""


class SendRecords:
    """Sink that sends the records of one feed."""

    def __init__(self, outbox: Outbox, feed: str) -> None:
        self._outbox, self._feed = outbox, feed

    def open(self, header: Header) -> None:
        """Send the header."""
        self._outbox.add(SentRecord(self._feed, header))

    def write(self, record: Record) -> None:
        """Send a record."""
        self._outbox.add(SentRecord(self._feed, record))

    def close(self, summary: Summary) -> None:
        """Send the summary."""
        self._outbox.add(SentRecord(self._feed, summary))


class SendAlert:
    """Action that sends alerts to the process that has their actions."""

    name = "actions of alerts"

    def __init__(self, outbox: Outbox, *, wants_clip: bool) -> None:
        self._outbox, self.wants_clip = outbox, wants_clip

    def do(self, event: AlertEvent) -> None:
        """Send an alert; its picture is drawn and written first."""
        self._outbox.add(SentAlert(replace(event, note=ignored), self.wants_clip))

    def cancel(self) -> None:
        """Do nothing: sending takes no time."""
