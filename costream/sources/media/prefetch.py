"""Prefetching: a thread computes some items before they are requested."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
_WAIT_S = 0.05  # between checks whether the thread has ended


class Prefetcher(Generic[ItemT]):
    """Iterator over ``items``, up to ``limit`` of which a thread computes in advance.

    Decoding and a network then use two cores. An error of ``items`` is raised after the items
    before it. ``close`` ends the thread after its current item.
    """

    def __init__(self, items: Iterator[ItemT], limit: int) -> None:
        self._items = items
        self._ready: Queue[ItemT | None] = Queue(limit)  # None: the end
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetcher[ItemT]:
        return self

    def __next__(self) -> ItemT:
        item = None if self._closed else self._ready.get()
        if item is not None:
            return item
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread and wait for it; pending items are lost."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=_WAIT_S)
            except Empty:
                continue
        self._thread.join()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._ready.put(item)
                if self._closed:
                    return
        except BaseException as error:  # raised again by __next__
            self._error = error
        self._ready.put(None)
