"""Watching live feeds as an iterator of records."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from costream.api.keywords import make_options
from costream.api.streams import LoadedModel, RecordIterator, checked, loaded
from costream.core.errors import ExitCode, UsageError, clean
from costream.core.records import Header, Record, Summary
from costream.core.settings import AUTO
from costream.core.status import WatchStatus
from costream.options.options import Options
from costream.runtime.model_loading import kind_of_feeds
from costream.runtime.options import check_model_options
from costream.runtime.stop import StopHandler
from costream.runtime.watch.command import status_exports, watch_run
from costream.runtime.watch.feed_list import read_feeds
from costream.runtime.watch.outputs import file_sinks
from costream.runtime.watch.watch_run import WatchParts, WatchView
from costream.sinks.base import Sink

# A URL, the number of a camera, "mic", a TOML list of feeds, a file with realtime=True.
FeedName: TypeAlias = "str | os.PathLike[str] | int"


class FeedRecord(NamedTuple):
    """A record and the name of its feed."""

    feed: str
    record: Record | Header | Summary

    def __str__(self) -> str:
        return f"{clean(self.feed)}: {self.record}"


class _FeedQueue:
    """A sink that adds the records of one feed to a queue of all."""

    def __init__(self, feed: str, queue: deque[FeedRecord]) -> None:
        self._feed, self._queue = feed, queue

    def open(self, header: Header) -> None:
        self._queue.append(FeedRecord(self._feed, header))

    def write(self, record: Record) -> None:
        self._queue.append(FeedRecord(self._feed, record))

    def close(self, summary: Summary) -> None:
        self._queue.append(FeedRecord(self._feed, summary))


class _StatusHolder:
    """A view that keeps the newest status."""

    def __init__(self) -> None:
        self.status: WatchStatus | None = None

    def show(self, status: WatchStatus) -> None:
        self.status = status

    def close(self) -> None:
        """Do nothing."""


class FeedRecords(RecordIterator[FeedRecord]):
    """The records of all feeds as they come: a header, records and a summary of each.

    The network steps while the next record is requested. Each feed is read by a thread;
    if the caller takes longer than ``max_lag``, steps are left out and counted. A loop that ends
    early, or ``close``, ends the watch; files are finished in any case.
    """

    def __init__(
        self,
        options: Options,
        model: LoadedModel,
        sinks: Callable[[str], Sequence[Sink]] | None,
    ) -> None:
        records: deque[FeedRecord] = deque()
        self._status, stop = _StatusHolder(), StopHandler()
        with ExitStack() as stack:
            exports: list[WatchView] = status_exports(options)
            for view in exports:
                stack.callback(view.close)
            parts = WatchParts(
                options=options,
                specs=read_feeds(options),
                model=model.network,
                views=[self._status, *exports],
                stop=stop,
                sinks=lambda options, feed: _sinks_of(options, feed, records, sinks),
            )
            self._run = watch_run(parts)
            stack.pop_all()
        super().__init__(records, self._run.rounds(), stop)

    @property
    def status(self) -> WatchStatus | None:
        """The newest status of all feeds; None before the first."""
        return self._status.status

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that ``costream watch`` would return; set at the end."""
        return self._run.exit_code


def _sinks_of(
    options: Options,
    feed: str,
    records: deque[FeedRecord],
    more: Callable[[str], Sequence[Sink]] | None,
) -> list[Sink]:
    """Return the sinks of a feed: the queue, its files, and others."""
    sinks: list[Sink] = [_FeedQueue(feed, records)]
    return [*sinks, *file_sinks(options, feed), *(checked(more(feed)) if more is not None else ())]


def watch(
    feeds: FeedName | Sequence[FeedName],
    model: str | os.PathLike[str] | LoadedModel = AUTO,
    *,
    sinks: Callable[[str], Sequence[Sink]] | None = None,
    **options: Any,
) -> FeedRecords:
    """Watch live feeds with one network; iterate over their records, each with its feed's name.

    ``feeds``: URLs, numbers of cameras, ``"mic"``, TOML lists of feeds, or with
    ``realtime=True`` files. Lost feeds are reconnected. ``sinks`` returns further sinks for a
    feed. ``options``: the options of ``costream watch``, without dashes:
    ``on=["person>=0.6 for 2s"]``, ``output="log"``, ``max_lag=5``.

    Raises UsageError for wrong arguments, ModelError if the model cannot be used, OutputError if
    results cannot be written.
    """
    one = isinstance(feeds, (str, bytes)) or not isinstance(feeds, Iterable)
    several: list[Any] = [feeds] if one else [*feeds]  # type: ignore[misc]
    for each in several:
        if not isinstance(each, (str, os.PathLike, int)):
            what = f"a URL, a path or the number of a camera, not {type(each).__name__}"
            raise UsageError(what, where="feeds")
    if sinks is not None and not callable(sinks):
        raise UsageError("a function that returns the sinks of a feed", where="sinks")
    names = tuple(str(each) if isinstance(each, int) else os.fspath(each) for each in several)
    if not names:
        raise UsageError("there is no feed to watch", where="feeds")
    chosen = make_options("watch", options, sources=names)
    if chosen.engine == "ray" and isinstance(model, LoadedModel):
        what = "the workers of a cluster load the model: its name or file, not a loaded one"
        raise UsageError(what, where="model")
    if not isinstance(model, LoadedModel):
        chosen = replace(chosen, model=os.fspath(model))
    kind = kind_of_feeds(names, chosen) if model == AUTO else None
    network = loaded(model, options, kind)
    check_model_options(chosen, network.network)
    return FeedRecords(chosen, network, sinks)
