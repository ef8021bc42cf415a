"""Reading ahead: items are made by a thread of their own, some before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
_WAIT_S = 0.05  # for the thread to notice that nobody takes its items any more


class Prefetcher(Generic[ItemT]):
    """Iterator over ``items`` in their order, of which a thread makes up to ``limit`` in advance.

    Decoding and a network then use two cores. An error that ``items`` raises is raised after the
    items before it. ``close`` ends the thread, after the item that it is making.
    """

    def __init__(self, items: Iterator[ItemT], limit: int) -> None:
        self._items = items
        self._made: Queue[ItemT | None] = Queue(limit)  # None: there are no more
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="read ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetcher[ItemT]:
        return self

    def __next__(self) -> ItemT:
        item = None if self._closed else self._made.get()
        if item is not None:
            return item
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread and wait for it; items that were not taken are lost."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._made.get(timeout=_WAIT_S)
            except Empty:
                continue
        self._thread.join()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._made.put(item)
                if self._closed:
                    return
        except BaseException as error:  # it is raised where the items are taken
            self._error = error
        self._made.put(None)
