"""A worker process of a batch: runs one input after the other, controlled through a pipe.

The command sends ``("work", Task)`` and ``("stop",)``; a worker answers ``("began",)``,
``("progress", media_s)``, ``("log", level, text)``, ``("outcome", Outcome)`` and, when the model
cannot be loaded, ``("broken", text, exit_code)``.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from costream.core.errors import CostreamError
from costream.runtime.batch.job import BatchJob, Task
from costream.runtime.batch.run_input import load, process
from costream.runtime.stop import StopHandler

log = logging.getLogger("costream")


class InheritedFile:
    """An open file that is passed to a worker and stays open while the worker lives.

    So the lock of the output folder is released by the last worker, not by the command: when a
    killed command is repeated, it does not write while old workers are still exiting.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform != "win32" and self._descriptor is not None:
            from multiprocessing.reduction import DupFd

            return _take, (DupFd(self._descriptor),)
        return InheritedFile, (None,)  # no such inheritance on Windows


def _take(duplicate: Any) -> InheritedFile:
    return InheritedFile(duplicate.detach())


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Start processes in this block with stop signals blocked.

    Ctrl-C reaches all processes of the group, and would print a traceback of each worker's imports.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # of multiprocessing: starting it unblocks them
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Connection, work: BatchJob, lock: InheritedFile) -> None:
    """Run tasks until the other end of ``pipe`` is closed, then exit at once.

    ``lock`` stays open until the process ends.
    """
    # Only the command handles signals and sends "stop"; Ctrl-C reaches all processes of the group.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    log.addHandler(_ToCommand(pipe))
    log.setLevel(logging.INFO)
    log.propagate = False
    stop = StopHandler()
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks, stop), daemon=True).start()
    try:
        load(work)
    except CostreamError as error:
        _send(pipe, "broken", str(error), int(error.exit_code))
        return
    while True:
        task = tasks.get()
        _send(pipe, "began")
        outcome = process(task, work, stop, lambda media_s: _send(pipe, "progress", media_s))
        _send(pipe, "outcome", outcome)


def _listen(pipe: Connection, tasks: queue.SimpleQueue[Task], stop: StopHandler) -> None:
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            # The command is gone, perhaps killed: a repeated one will write the same files.
            os._exit(1)
        if message[0] == "stop":
            stop.request()
        else:
            tasks.put(message[1])


def _send(pipe: Connection, *message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:  # as in _listen
        os._exit(1)


class _ToCommand(logging.Handler):
    """Sends the log to the command, which owns the terminal."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.INFO)
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        _send(self._pipe, "log", record.levelno, record.getMessage())
