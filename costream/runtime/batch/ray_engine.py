"""Batch engine on a Ray cluster (the extra ``ray``); its results equal the local engine's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from costream.runtime.batch.folders import Outcome, failure
from costream.runtime.batch.job import TICK_S, BatchJob, Task, discard, too_late
from costream.runtime.batch.run_input import process
from costream.runtime.ray_cluster import ray_cluster, require_ray

_RETRIES = 2  # per file, when its worker or machine is lost


class RayEngine:
    """One Ray task per file, as many at a time as the cluster has cores (or ``jobs``).

    Ray starts the processes, spreads them over the machines and repeats a file whose worker was
    lost. Paths must mean the same on every machine.
    """

    def __init__(
        self,
        work: BatchJob,
        jobs: int | None = None,
        timeout_s: float | None = None,
        address: str | None = None,
    ) -> None:
        """``address``: of a running cluster; None: $RAY_ADDRESS, else a local one."""
        require_ray()
        self._work, self._jobs, self._timeout_s, self._address = work, jobs, timeout_s, address

    def run(
        self, tasks: Sequence[Task], stopped: Callable[[], bool]
    ) -> Generator[Outcome | None, None, None]:
        """Yield the outcomes of the tasks as they finish, and None at short intervals."""
        slots = self._jobs and self._jobs * self._work.options.threads
        with ray_cluster(self._address, slots) as ray:
            yield from self._run(ray, deque(tasks), stopped)

    def _run(
        self, ray: Any, pending: deque[Task], stopped: Callable[[], bool]
    ) -> Iterator[Outcome | None]:
        threads = self._work.options.threads
        remote = ray.remote(num_cpus=threads, max_retries=_RETRIES)(process)
        shared = ray.put(self._work)
        running: dict[Any, tuple[Task, float]] = {}
        while pending or running:
            if stopped():
                for reference, (task, _) in running.items():
                    ray.cancel(reference, force=True)
                    discard(self._work, task.name)
                return
            slots = self._jobs or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
            while pending and len(running) < slots:
                task = pending.popleft()
                running[remote.remote(task, shared)] = (task, time.monotonic())
            ready, _ = ray.wait(list(running), timeout=TICK_S)
            for reference in ready:
                yield self._outcome(ray, reference, running.pop(reference)[0])
            yield from self._late(ray, running)
            yield None

    def _outcome(self, ray: Any, reference: Any, task: Task) -> Outcome:
        try:
            outcome: Outcome = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise  # process() turns every error of an input into an outcome: this is a bug
        except ray.exceptions.RayError as error:
            discard(self._work, task.name)
            reason = f"the worker process died {_RETRIES + 1} times ({type(error).__name__})"
            return failure(task.name, reason)
        return outcome

    def _late(self, ray: Any, running: dict[Any, tuple[Task, float]]) -> Iterator[Outcome]:
        """Cancel tasks beyond the time limit, counted from submission to Ray; yield outcomes."""
        if self._timeout_s is None:
            return
        now_s = time.monotonic()
        for reference, (task, began_s) in list(running.items()):
            if now_s - began_s > self._timeout_s:
                ray.cancel(reference, force=True)
                del running[reference]
                discard(self._work, task.name)
                yield too_late(task, self._timeout_s)
