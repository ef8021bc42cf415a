"""Connection to a Ray cluster (the extra ``ray``)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from threading import current_thread, main_thread
from typing import Any

from costream.core.errors import UsageError

log = logging.getLogger("costream")
_CONNECT_S = 10.0
_AVOID_S = 120.0  # a machine that lost a worker gets none for this time, if there are others
_CHECK_S = 5.0  # interval of checks of the head
_ANSWER_S = 1.0  # time limit for its answer


def require_ray() -> None:
    """Raise UsageError when Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError(
            "Ray is not installed", where="--engine", hint="pip install 'costream[ray]'"
        )


@contextmanager
def ray_cluster(address: str | None, cpus: int | None) -> Iterator[Any]:
    """Connect to a cluster, unless this process is connected already; yield the module ``ray``.

    ``address``: of a running cluster; None: $RAY_ADDRESS, else one that is started on this machine
    with ``cpus`` slots (None: its cores). UsageError if no cluster answers.
    """
    import ray

    ours = not ray.is_initialized()
    with redirect_stdout(_WithoutRay(sys.stdout)):
        if ours:
            with _signals_kept():
                _connect(ray, address, cpus)
        try:
            yield ray
        finally:
            if ours:
                ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handlers of signals that Ray replaces with handlers that abort."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if current_thread() is main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


class _WithoutRay:
    """Standard output without Ray's messages on lost workers, which it prints into the results."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """Write a text; Ray's are logged."""
        if current_thread().name == "ray_listen_error_messages":
            log.debug("%s", text.strip())
            return len(text)
        written: int = self._out.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


class Machines:
    """The machines of a cluster: which of them gets a worker, and whether the head answers."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._head: str = ray.get_runtime_context().gcs_address
        self._avoided: dict[str, float] = {}  # when a worker was lost there, by time.monotonic()
        self._checked_s = time.monotonic()
        self._away_since_s: float | None = None

    def place(self, taken: Iterable[str]) -> str:
        """Return the machine with the most processors for each of its workers and a new one.

        ``taken``: the machine of each worker that there is.
        """
        workers, now_s = Counter(taken), time.monotonic()

        def room(machine: dict[str, Any]) -> tuple[bool, float]:
            name = machine["NodeID"]
            share = machine["Resources"].get("CPU", 0.0) / (workers[name] + 1)
            return now_s - self._avoided.get(name, -_AVOID_S) >= _AVOID_S, share

        return str(max((each for each in self._ray.nodes() if each["Alive"]), key=room)["NodeID"])

    def avoid(self, machine: str) -> None:
        """Place no worker there for a while, unless there is no other machine."""
        self._avoided[machine] = time.monotonic()

    def headless_s(self) -> float:
        """Return for how long the head has not answered, 0.0 if it does; checked now and then."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            try:
                _check_address(self._head, _ANSWER_S)
                self._away_since_s = None
            except UsageError:
                self._away_since_s = self._away_since_s or now_s
        return 0.0 if self._away_since_s is None else now_s - self._away_since_s


def at_machine(machine: str) -> Any:
    """Return the strategy of Ray for an actor there, or elsewhere once the machine is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(machine, soft=True)


def _connect(ray: Any, address: str | None, cpus: int | None) -> None:
    if address is not None:
        _check_address(address)
    joined = address or os.environ.get("RAY_ADDRESS")
    local = {} if joined or not cpus else {"num_cpus": cpus}
    try:
        ray.init(
            address=joined or "local",  # by default Ray would join any that runs on this machine
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            **local,
        )
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers ({error})", where="--ray-address") from error


def _check_address(address: str, limit_s: float = _CONNECT_S) -> None:
    """Raise UsageError when HOST:PORT does not accept connections: Ray would exit the process."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address:
        return  # "auto" and URLs are left to Ray
    try:
        socket.create_connection((host, int(port)), limit_s).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error})", where="--ray-address"
        ) from error
