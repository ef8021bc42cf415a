"""Runs ``costream`` as a process, apart from the settings of whoever runs the tests."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

from kit.paths import ROOT
from kit.processes import Forks

COSTREAM = [sys.executable, "-m", "costream"]
NOWHERE = str(ROOT / "tests" / "no-such-home")
LIMIT_S = 300


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without costream's variables and user settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COSTREAM_")}
    homes = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "APPDATA", "LOCALAPPDATA"), NOWHERE)
    drawing = {"MPLCONFIGDIR": tempfile.gettempdir()}  # matplotlib would make that folder
    return {**kept, **homes, **drawing, "PYTHONPATH": str(ROOT), **(extra or {})}


def costream(
    *args: object, env: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; text in and out is UTF-8.

    Where it can be, in a fork of a process that has loaded PyTorch already.
    """
    at_the_start = any(name.startswith(("PYTHON", "OMP_")) for name in env or ())
    if sys.platform == "linux" and not at_the_start:
        return _fork([*map(str, args)], environment(env), **kwargs)
    return python("-m", "costream", *args, env=env, **kwargs)


def python(
    *args: object, env: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in the same surroundings."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        env=environment(env),
        check=False,
        **kwargs,
    )


def on_terminal(
    command: list[str], *, cwd: Path, env: dict[str, str], keys: str = ""
) -> tuple[str, int]:
    """Type keys into a process that has a terminal of its own; return its output and exit code."""
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", spawn, *command],
        input=keys.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        cwd=cwd,
        env=env,
        check=False,
    )
    return done.stdout.decode(errors="replace"), done.returncode


@cache
def _forks() -> Forks:
    forks = Forks(environment())
    atexit.register(forks.close)
    return forks


def _fork(
    args: list[str],
    env: dict[str, str],
    *,
    cwd: Path | str | None = None,
    stdin: IO[bytes] | None = None,
    input: str | None = None,
) -> subprocess.CompletedProcess[str]:
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        if input is not None:
            given.write(input.encode())
            given.seek(0)
        code = _forks().run(args, (stdin or given, out, err), env, cwd, LIMIT_S)
        text = []
        for stream in (out, err):
            stream.seek(0)
            text.append(stream.read().decode())
    return subprocess.CompletedProcess([*COSTREAM, *args], code, *text)


def start(*args: object, **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start the program and return the process, its output as pipes of bytes."""
    return subprocess.Popen(
        [*COSTREAM, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{"env": environment(), **kwargs},
    )


def holders(path: Path, parent: int) -> list[psutil.Process]:
    """Return the processes below ``parent`` that have ``path`` open, past those that just ended."""

    def holds(process: psutil.Process) -> bool:
        try:
            return any(file.path == str(path) for file in process.open_files())
        except psutil.NoSuchProcess:
            return False

    return [each for each in psutil.Process(parent).children(recursive=True) if holds(each)]
