"""Fixtures: processes on POSIX pseudo-terminals, and tmux, whose screen can be read."""

from __future__ import annotations

import os
import select
import shutil
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.paths import ROOT

DRIVERS = {"watch": "watch_driver.py"}  # by the first word of their arguments
COLOR_SETTINGS = ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE")


def command(*args: str) -> list[str]:
    """Return what starts a driver; its arguments begin with "watch" for that of a watch.

    With "costream" they are those of the program.
    """
    if args[0] == "costream":
        return [sys.executable, "-m", *args]
    driver = DRIVERS.get(args[0], "driver.py")
    return [sys.executable, str(Path(__file__).with_name(driver)), *args[args[0] in DRIVERS :]]


def environment(**extra: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in COLOR_SETTINGS}
    fixed = {"TERM": "xterm-256color", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    return {**env, **fixed, **extra}


@dataclass
class Shown:
    """What a process wrote."""

    terminal: str
    stdout: str  # '' when that was the terminal
    code: int


def resize(fd: int, width: int, height: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


@pytest.fixture
def in_terminal() -> Callable[..., Shown]:
    """Run the driver with standard error (and output, unless ``pipe``) on a terminal."""
    pty = pytest.importorskip("pty", reason="needs a system with pseudo-terminals")

    def run(*args: str, pipe: bool = False, width: int = 80, height: int = 24, **env: str) -> Shown:
        ours, theirs = pty.openpty()
        resize(ours, width, height)
        process = subprocess.Popen(
            command(*args),
            stdin=theirs,
            stdout=subprocess.PIPE if pipe else theirs,
            stderr=theirs,
            env=environment(**env),
            start_new_session=True,
        )
        os.close(theirs)
        shown, piped = _read(ours, process)
        return Shown(shown.decode(), piped.decode(), process.wait(timeout=120))

    return run


def _read(ours: int, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Collect both outputs until the process has closed them."""
    texts = {ours: b""}
    if process.stdout is not None:
        texts[process.stdout.fileno()] = b""
    waiting, end_s = set(texts), time.monotonic() + 60
    while waiting:
        assert time.monotonic() < end_s, "the process does not end"
        for fd in select.select(list(waiting), [], [], 1.0)[0]:
            try:
                text = os.read(fd, 1 << 16)
            except OSError:  # what Linux says when the other side of a terminal is closed
                text = b""
            texts[fd] += text
            if not text:
                waiting.discard(fd)
    os.close(ours)
    if process.stdout is None:
        return texts[ours], b""
    piped = texts[process.stdout.fileno()]
    process.stdout.close()
    return texts[ours], piped


class Tmux:
    """A terminal emulator of its own, whose screen can be read."""

    def __init__(self, width: int, height: int, *args: str, **env: str) -> None:
        self._socket = f"costream-{uuid.uuid4().hex[:12]}"
        words = [f"{k}={v}" for k, v in {"PYTHONUTF8": "1", "PYTHONPATH": str(ROOT), **env}.items()]
        hidden = [word for name in COLOR_SETTINGS for word in ("-u", name)]
        # Something of before stands above, and the screen stays when the driver has ended.
        shell = ["sh", "-c", 'echo above 1; echo above 2; "$@"; exec sleep 100', "sh"]
        program = [*shell, "env", *hidden, *words, *command(*args)]
        size = ["-x", str(width), "-y", str(height)]
        self._run("-f", "/dev/null", "new", "-d", *size, *program)

    def _run(self, *args: str) -> str:
        call = ["tmux", "-L", self._socket, *args]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout

    def screen(self) -> list[str]:
        """Return the visible lines without those of before."""
        lines = self._run("capture-pane", "-p").split("\n")
        return [line for line in lines if not line.startswith("above ")]

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def cursor(self) -> bool:
        return self._run("display", "-p", "#{cursor_flag}").strip() == "1"

    def ended(self) -> bool:
        return self._run("display", "-p", "#{pane_current_command}").strip() == "sleep"

    def wait_for(self, what: Callable[[list[str]], bool]) -> list[str]:
        """Return the first screen of which ``what`` is true."""
        end_s = time.monotonic() + 90
        while True:
            screen = self.screen()
            if what(screen):
                return screen
            assert time.monotonic() < end_s, "\n".join(screen)
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False)


@pytest.fixture
def tmux() -> Iterator[Callable[..., Tmux]]:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux (apt-get install tmux)")
    opened: list[Tmux] = []

    def start(width: int, height: int, *args: str, **env: str) -> Tmux:
        opened.append(Tmux(width, height, *args, **env))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
