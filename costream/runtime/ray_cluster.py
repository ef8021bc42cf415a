"""Connection to a Ray cluster (the extra ``ray``)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from threading import current_thread, main_thread
from typing import Any

from costream.core.errors import UsageError

log = logging.getLogger("costream")
_CONNECT_S = 10.0


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


def _connect(ray: Any, address: str | None, cpus: int | None) -> None:
    if address is not None:
        _check_address(address)
    joined = address or os.environ.get("RAY_ADDRESS")
    local = {} if joined or not cpus else {"num_cpus": cpus}
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            **local,
        )
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers ({error})", where="--ray-address") from error


def _check_address(address: str) -> None:
    """Raise UsageError when HOST:PORT does not accept connections: Ray would exit the process."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address:
        return  # "auto" and URLs are left to Ray
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error})", where="--ray-address"
        ) from error
