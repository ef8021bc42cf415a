"""Runs of the program that need not load PyTorch again: forks of a process that has loaded it.

Loading it costs seconds of a processor, and the tests run the program hundreds of times. A fork is
a process like any other: it has its own surroundings, streams, exit code and end. How the
interpreter starts is not seen here; the tests of that start one.
"""

from __future__ import annotations

import atexit
import contextlib
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
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

Streams = tuple[IO[bytes], IO[bytes], IO[bytes]]
Run = tuple[list[str], dict[str, str], str]  # arguments, environment, working directory
# PyTorch's optimisers load its compiler, which takes seconds.
_LOADED = ("av", "numpy.random", "safetensors.torch", "torch", "torch._dynamo")
_ROOMS = ("cli", "evaluation", "labels", "models", "runtime", "sinks", "sources", "training")


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
        streams: Streams,
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
        request = [[args, env, str(cwd or os.getcwd())]]
        return self._ask(request, False, streams, timeout_s, limits or {})

    def run_each(
        self, runs: list[Run], streams: Streams, timeout_s: float, limits: dict[str, int]
    ) -> None:
        """Run the program with each of these, one after the other in the same process.

        That costs a tenth. Beside the folder DIR of a run there are then DIR.out and DIR.err,
        what it wrote, and DIR.code, its exit code. Those from one on that does not end, or that
        kills the process, have no exit code. ``streams``: its input; elsewhere nothing is written.
        """
        with suppress(subprocess.TimeoutExpired):
            self._ask(runs, True, streams, timeout_s, limits)

    def _ask(
        self,
        runs: list[Run],
        several: bool,
        streams: Streams,
        timeout_s: float,
        limits: dict[str, int],
    ) -> int:
        request = json.dumps([runs, several, limits]).encode()
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
                raise subprocess.TimeoutExpired(["costream", *runs[0][0]], timeout_s) from None
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
    from costream.core.registry import Registry

    for name in _LOADED:
        importlib.import_module(name)
    for room in _ROOMS:
        for module in pkgutil.walk_packages(
            [f"{costream.__path__[0]}/{room}"], f"costream.{room}."
        ):
            with contextlib.suppress(ModuleNotFoundError):  # needs an extra
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
        runs, several, limits = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        child = os.fork()
        if not child:
            connection.close()
            for name, limit in limits.items():
                resource.setrlimit(getattr(resource, name), (limit, resource.RLIM_INFINITY))
            _become_the_program(fds)
            os._exit(_run_each(runs, limits) if several else _run(*runs[0], last=True))
        for fd in fds:
            os.close(fd)
        connection.sendall(child.to_bytes(8, "big", signed=True))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(code.to_bytes(8, "big", signed=True))


def _become_the_program(fds: list[int]) -> None:
    """Be as ``python -m costream`` is when it starts."""
    import numpy as np

    import costream.__main__ as program

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.modules["__main__"] = program  # what further processes load
    np.random.seed()  # noqa: NPY002 (as unforeseeable as after a start)


def _run(args: list[str], env: dict[str, str], cwd: str, *, last: bool) -> int:
    """Do what ``python -m costream`` does; return its exit code."""
    import costream.__main__ as program

    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv = ["costream", *args]
    code = 0
    try:
        program.entry()
    except SystemExit as end:
        code = int(end.code or 0)
    if last:  # the end of an interpreter, but for taking PyTorch apart, which takes a second
        threading._shutdown()
        atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    return code


def _run_each(runs: list[Run], limits: dict[str, int]) -> int:
    """Do the work of ``Forks.run_each``."""
    for args, env, cwd in runs:
        if "RLIMIT_CPU" in limits:  # of each
            seconds = int(time.process_time()) + limits["RLIMIT_CPU"]
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        for number, ending in ((1, "out"), (2, "err")):
            fd = os.open(f"{cwd}.{ending}", os.O_WRONLY | os.O_CREAT)
            os.dup2(fd, number)
            os.close(fd)
        code = _run(args, env, cwd, last=False)
        sys.stderr.flush()
        Path(f"{cwd}.code").write_text(str(code))
    return 0


if __name__ == "__main__":
    _load()
    gc.freeze()  # so that forks do not write to what they share
    with suppress(KeyboardInterrupt, EOFError), socket.socket(fileno=int(sys.argv[1])) as _asked:
        _serve(_asked)
