"""Status notifications to systemd, by the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Mapping

from costream.core.status import WatchStatus
from costream.ui.watch.rows import status_line

_STATUS_S = 1.0

log = logging.getLogger("costream")


class SystemdNotifier:
    """Sends to the socket named by NOTIFY_SOCKET; does nothing when it is not set.

    ``show`` is called by the main loop, so the watchdog is notified only while that runs, every
    half of WATCHDOG_USEC. Nothing here blocks, and no error ends the watch.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        self._address = _address(env.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._watchdog_s = _watchdog_s(env)
        self._ready = False
        self._alive_s = self._sent_s = float("-inf")
        self._failed = False
        if self._address is not None and sys.platform != "win32":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def show(self, status: WatchStatus) -> None:
        """Send that the service is ready (once), its status, and its watchdog signal."""
        if self._socket is None:
            return
        now_s = time.monotonic()
        lines = [] if self._ready else ["READY=1"]
        is_due = self._watchdog_s is not None and now_s - self._alive_s >= self._watchdog_s / 2
        if is_due:
            lines.append("WATCHDOG=1")
        must_send = lines or now_s - self._sent_s >= _STATUS_S
        if must_send and self._send(*lines, f"STATUS={status_line(status)}"):
            self._ready, self._sent_s = True, now_s
            self._alive_s = now_s if is_due else self._alive_s

    def close(self) -> None:
        """Send that the service is stopping. May be called again."""
        if self._socket is not None:
            self._send("STOPPING=1")
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> bool:
        """Return whether systemd received it; if not, the next status is another attempt."""
        if self._socket is None or self._address is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("cannot notify systemd (%s), trying again", error.strerror or error)
            self._failed = True
            return False
        self._failed = False
        return True


def _address(name: str) -> str | None:
    """Return the address of a Unix socket; a name that begins with @ is abstract."""
    if name.startswith("@"):
        return "\0" + name[1:]
    if name and not name.startswith("/"):
        log.warning("NOTIFY_SOCKET is not a Unix socket: %s", name)
    return name if name.startswith("/") else None


def _watchdog_s(env: Mapping[str, str]) -> float | None:
    """Return the watchdog timeout in seconds; None when the watchdog is off."""
    usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 1e6
