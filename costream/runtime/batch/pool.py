"""Local process pool: a worker takes one file at a time, and a crash fails only that file."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from costream.core.errors import ExitCode, ModelError, WorkerError
from costream.runtime.batch.folders import Outcome, failure
from costream.runtime.batch.job import TICK_S, BatchJob, Task, discard, too_late
from costream.runtime.batch.worker_process import InheritedFile, serve, signals_blocked

log = logging.getLogger("costream")
_GRACE_S = 10.0  # time to finish files after a stop


@dataclass(frozen=True)
class Progress:
    """The progress of a worker with its input."""

    name: str
    media_s: float


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: Task | None = None
    loaded: bool = False  # it has begun an input, so the model is loaded
    began_s: float | None = None  # when it began this input; None: still loading the model


class Pool:
    """``jobs`` processes, each with the model loaded once.

    ``timeout_s``: an input that takes longer fails and its worker is replaced. ``lock``: the
    descriptor of the output folder's lock, which the workers hold too.
    """

    def __init__(
        self, work: BatchJob, jobs: int, timeout_s: float | None = None, lock: int | None = None
    ) -> None:
        self._work, self._jobs, self._timeout_s = work, jobs, timeout_s
        self._lock = InheritedFile(lock)
        # Not forked: the threads of torch and FFmpeg do not survive a fork.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._pending: deque[Task] = deque()
        self._ending_s: float | None = None

    def run(
        self, tasks: Sequence[Task], stopped: Callable[[], bool]
    ) -> Generator[Outcome | Progress | None, None, None]:
        """Yield outcomes and progress of the tasks as they occur, and None at short intervals.

        Once ``stopped()``, no task is started, and those in progress end as interrupted.
        ModelError when the model cannot be loaded; no process is left behind.
        """
        self._pending = deque(tasks)
        try:
            while self._pending or any(worker.task is not None for worker in self._workers):
                if stopped() and self._ending_s is None:
                    self._end()
                self._fill()
                for pipe in wait([w.pipe for w in self._workers], TICK_S):
                    yield from self._read(next(w for w in self._workers if w.pipe is pipe))
                yield from self._late()
                yield None
        finally:
            for worker in list(self._workers):
                self._remove(worker)

    def _fill(self) -> None:
        """Assign a task to every idle worker; start workers while there are more tasks."""
        while self._pending:
            idle = next((w for w in self._workers if w.task is None), None)
            if idle is None:
                if len(self._workers) >= self._jobs:
                    return
                idle = self._start()
            task = self._pending.popleft()
            idle.task, idle.began_s = task, None
            try:
                idle.pipe.send(("work", task))
            except OSError:  # it died meanwhile; _read will see the closed pipe
                return

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=serve, args=(theirs, self._work, self._lock), daemon=True
        )
        with signals_blocked():
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _read(self, worker: _Worker) -> Iterator[Outcome | Progress]:
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._died(worker)
            return
        if kind == "began":
            worker.loaded, worker.began_s = True, time.monotonic()
        elif kind == "progress" and worker.task is not None:
            yield Progress(worker.task.name, rest[0])
        elif kind == "log":
            # Faults of inputs are in the results and tables; they would flood the terminal.
            log.log(min(rest[0], logging.INFO), "%s", rest[1])
        elif kind == "outcome":
            worker.task = None
            yield rest[0]
        elif kind == "broken":
            raise WorkerError(rest[0], ExitCode(rest[1]))

    def _died(self, worker: _Worker) -> Iterator[Outcome]:
        """Remove a worker that died; its input has failed."""
        worker.process.join(1)  # the pipe closes slightly before the process ends
        self._remove(worker)
        reason = _cause(worker.process.exitcode)
        if not worker.loaded:
            raise ModelError(f"a worker died while loading the model: {reason}")
        if worker.task is not None:
            discard(self._work, worker.task.name)
            yield failure(worker.task.name, f"the worker process died: {reason}")

    def _late(self) -> Iterator[Outcome]:
        """End workers beyond the time limit, or the grace time after a stop; yield outcomes."""
        now_s = time.monotonic()
        for worker in list(self._workers):
            task, limit_s = worker.task, self._timeout_s
            took_s = 0.0 if worker.began_s is None else now_s - worker.began_s
            if task is None:
                continue
            if self._ending_s is not None and now_s - self._ending_s > _GRACE_S:
                yield self._give_up(worker, Outcome(task.name, "interrupted"))
            elif limit_s is not None and took_s > limit_s:
                yield self._give_up(worker, too_late(task, limit_s))

    def _give_up(self, worker: _Worker, outcome: Outcome) -> Outcome:
        self._remove(worker)
        discard(self._work, outcome.name)
        return outcome

    def _end(self) -> None:
        """Start no more tasks and ask the workers to end their current ones."""
        self._ending_s = time.monotonic()
        self._pending.clear()
        for worker in list(self._workers):
            if worker.began_s is None:  # still loading the model
                self._remove(worker)
                if worker.task is not None:
                    discard(self._work, worker.task.name)
            else:
                with suppress(OSError):  # it died; _read will see the closed pipe
                    worker.pipe.send(("stop",))

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()


def _cause(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, possibly out of memory" if name == "SIGKILL" else name


# Measured use of a worker with a small model, plus room for a large frame in flight.
WORKER_BYTES = 1 << 30


def auto_jobs(threads: int = 1) -> int:
    """Return the number of workers that cores and free memory allow, at least one."""
    memory = available_bytes()
    by_memory = cores() if memory is None else memory // WORKER_BYTES
    return max(1, min(cores() // threads, by_memory))


def cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_bytes() -> int | None:
    """Return the bytes of available memory, None where the system does not report it."""
    limits = [_meminfo(), _cgroup()]
    return min((n for n in limits if n is not None), default=None)


def _meminfo() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _cgroup() -> int | None:
    """Return the bytes left below a container's limit (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit = (folder / "memory.max").read_text("ascii").strip()
        used = int((folder / "memory.current").read_text("ascii"))
        return None if limit == "max" else max(0, int(limit) - used)
    return None
