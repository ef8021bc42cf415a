"""The worker process: runs one input after the other, controlled through a pipe.

The command sends ``("work", Task)`` and ``("stop",)``; a worker answers ``("began",)``,
``("progress", media_s)``, ``("log", level, text)``, ``("outcome", Outcome)`` and, when the model
cannot be loaded, ``("broken", text, exit_code)``.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any

from costream.errors import CostreamError
from costream.runtime.batch.work import BatchJob, Task, load, process
from costream.runtime.stop import StopHandler


class InheritedFile:
    """An open file that is passed to a worker and stays open while the worker lives.

    So the lock of the output folder is released by the last worker, not by the command: when a
    killed command is repeated, it does not write while old workers are still exiting.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        if self._descriptor is None or os.name == "nt":  # no such inheritance on Windows
            return InheritedFile, (None,)
        return _take, (DupFd(self._descriptor),)


def _take(duplicate: Any) -> InheritedFile:
    return InheritedFile(duplicate.detach())


def serve(pipe: Connection, work: BatchJob, lock: InheritedFile) -> None:
    """Run tasks until the other end of ``pipe`` is closed, then exit at once.

    ``lock`` is only kept open.
    """
    # Only the command handles signals and sends "stop"; Ctrl-C reaches the whole group.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _log_to(pipe)
    stop = StopHandler()
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks, stop), daemon=True).start()
    try:
        load(work)
    except CostreamError as error:
        _send_result(pipe, "broken", str(error), int(error.exit_code))
        return
    while True:
        task = tasks.get()
        _send_result(pipe, "began")
        outcome = process(task, work, stop, lambda media_s: _send_result(pipe, "progress", media_s))
        _send_result(pipe, "outcome", outcome)


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


def _send_result(pipe: Connection, *message: Any) -> None:
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
        _send_result(self._pipe, "log", record.levelno, record.getMessage())


def _log_to(pipe: Connection) -> None:
    logger = logging.getLogger("costream")
    logger.addHandler(_ToCommand(pipe))
    logger.setLevel(logging.INFO)
    logger.propagate = False
