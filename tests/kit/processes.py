"""Runs of the program that need not load PyTorch again: forks of a process that has loaded it.

Loading it costs seconds of a processor, and the tests run the program hundreds of times. A fork is
a process like any other: it has its own surroundings, streams, exit code and end. How the
interpreter starts is not seen here; the tests of that start one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

_LOADED = ("av", "numpy.random", "safetensors.torch", "torch")
_ROOMS = (
    "checkpoints",
    "cli",
    "evaluation",
    "frontends",
    "importers",
    "labels",
    "models",
    "report",
    "results",
    "runtime",
    "sinks",
    "sources",
)


class Forks:
    """A process that forks ``python -m costream`` whenever it is asked to.

    It ends with the process that made it. One run at a time; threads wait for each other.
    """

    def __init__(self, env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def run(
        self,
        args: list[str],
        streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
        env: dict[str, str],
        cwd: Path | str | None,
        timeout_s: float,
        limits: dict[str, int] | None = None,
    ) -> int:
        """Run the program on these streams; give its exit code, or minus the signal's number.

        ``limits``: of what it may use, by the names of ``resource``.

        Raises:
            subprocess.TimeoutExpired: it was killed after ``timeout_s``.
        """
        request = json.dumps([args, env, str(cwd or os.getcwd()), limits or {}]).encode()
        with self._lock:
            numbers = [stream.fileno() for stream in streams]
            socket.send_fds(self._socket, [len(request).to_bytes(8, "big")], numbers)
            self._socket.sendall(request)
            child = self._number()
            self._socket.settimeout(timeout_s)
            try:
                return self._number()
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self._socket.settimeout(None)
                self._number()
                raise subprocess.TimeoutExpired(["costream", *args], timeout_s) from None
            finally:
                self._socket.settimeout(None)

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._socket.close()
        self._server.wait()

    def _number(self) -> int:
        return int.from_bytes(_exactly(self._socket, 8), "big", signed=True)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _load() -> None:
    """Load what most runs load, and read what can be looked up by name."""
    import costream
    import costream.__main__
    from costream.registry import Registry

    for name in _LOADED:
        importlib.import_module(name)
    for room in _ROOMS:
        for module in pkgutil.walk_packages(
            [f"{costream.__path__[0]}/{room}"], f"costream.{room}."
        ):
            importlib.import_module(module.name)
    ours = [module for name, module in sys.modules.items() if name.startswith("costream.")]
    for value in [value for module in ours for value in vars(module).values()]:
        if isinstance(value, Registry):
            value.entries()


def _serve(connection: socket.socket) -> None:
    """Fork for every request, until nobody can ask any more."""
    while True:
        head, fds, _, _ = socket.recv_fds(connection, 8, 3)
        if not head:
            return
        head += _exactly(connection, 8 - len(head))
        args, env, cwd, limits = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        child = os.fork()
        if not child:
            connection.close()
            for name, limit in limits.items():
                resource.setrlimit(getattr(resource, name), (limit, limit))
            _become_the_program(args, env, cwd, fds)
        for fd in fds:
            os.close(fd)
        connection.sendall(child.to_bytes(8, "big", signed=True))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(code.to_bytes(8, "big", signed=True))


def _become_the_program(args: list[str], env: dict[str, str], cwd: str, fds: list[int]) -> None:
    """Do what ``python -m costream`` does from here on; does not come back."""
    import numpy as np

    import costream.__main__ as program

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.modules["__main__"] = program  # what further processes load
    sys.argv = ["costream", *args]
    np.random.seed()  # noqa: NPY002 (as unforeseeable as after a start)
    code = 0
    try:
        program.entry()
    except SystemExit as end:
        code = int(end.code or 0)
    # The end of an interpreter, but for taking PyTorch apart, which takes a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _load()
    gc.freeze()  # so that forks do not write to what they share
    with suppress(KeyboardInterrupt, EOFError), socket.socket(fileno=int(sys.argv[1])) as _asked:
        _serve(_asked)
