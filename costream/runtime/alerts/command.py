"""Alert action: run a program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading

from costream.errors import OutputError, UsageError
from costream.runtime.alerts.actions import AlertEvent

COMMAND_TIMEOUT_S = 30.0
NAMES = ("feed", "label", "score", "time", "clip", "rule")  # Event.values

_PLACE = re.compile("{(" + "|".join(NAMES) + ")}")


class RunCommand:
    """Runs a program for each alert, without a shell, and waits for it.

    ``command`` is split into arguments once, as a shell would, without any other expansion.
    ``{feed}`` and the other NAMES are substituted afterwards, so that a value never spans several
    arguments, whatever it holds. The environment has COSTREAM_FEED, ... and COSTREAM_ALERT, the
    alert as JSON. The program's output is discarded.
    """

    def __init__(self, command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """UsageError when ``command`` cannot be split or there is no such program."""
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"cannot be split into arguments ({error})", where=command) from error
        if not self._arguments:
            raise UsageError("no program is named", where="an alert's command")
        if shutil.which(self._arguments[0]) is None:
            raise UsageError(
                "no such program",
                where=self._arguments[0],
                hint="give its path; commands do not run in a shell",
            )
        self.name = f"run {os.path.basename(self._arguments[0])}"
        self.wants_clip = "{clip}" in command
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # guards the next two
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def do(self, event: AlertEvent) -> None:
        """Run the program to its end. OutputError when it fails or takes too long."""
        try:
            process = self._start(event)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise OutputError(f"cannot be started ({error})", where=self.name) from error
        try:
            code = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise OutputError(
                f"killed, as it took longer than {self._timeout_s:g} s", where=self.name
            ) from None
        finally:
            with self._lock:
                self._process = None
        if code != 0:
            raise OutputError(
                f"failed with exit code {code}",
                where=self.name,
                hint="its output is discarded: run it by hand to see why",
            )

    def cancel(self) -> None:
        """Kill the running program and start no more."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                _kill(self._process)

    def _start(self, event: AlertEvent) -> subprocess.Popen[bytes]:
        values = event.values
        arguments = [_PLACE.sub(lambda m: values[m[1]], text) for text in self._arguments]
        told = {f"COSTREAM_{name.upper()}": value for name, value in values.items()}
        with self._lock:
            if self._cancelled:
                raise OSError("stopped")
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **told, "COSTREAM_ALERT": event.json},
                start_new_session=True,  # its own process group, so that Ctrl-C does not reach it
            )
            return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its process group."""
    if process.poll() is not None:
        return  # ended already, and its process id may have been reused
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
