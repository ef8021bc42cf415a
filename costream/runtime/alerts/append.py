"""Alert action: append the alert to a file."""

from __future__ import annotations

import os
from pathlib import Path

from costream.errors import OutputError, UsageError
from costream.redact import redact
from costream.runtime.alerts.actions import AlertEvent


class AppendLine:
    """Appends each alert to a file as one line of JSON; other programs may append to it too."""

    wants_clip = False

    def __init__(self, path: str) -> None:
        """Missing folders are created at the first write. UsageError when ``path`` is a folder."""
        if not path or os.path.isdir(path):
            raise UsageError("not a file that can be appended to", where=path or "''")
        self._path = Path(path)
        self.name = f"append to {redact(path)}"

    def do(self, event: AlertEvent) -> None:
        """Append the line. OutputError when that fails, as on a full disk."""
        line = f"{event.json}\n".encode("utf-8", "backslashreplace")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                # A single call, so that lines of several writers never mix.
                written = os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise OutputError(f"cannot write ({error.strerror})", where=self.name) from error
        if written < len(line):
            raise OutputError("the disk is full: a line was cut off", where=self.name)

    def cancel(self) -> None:
        """Do nothing: writing a line takes no time."""
