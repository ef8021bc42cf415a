"""``--metrics``: the status of a watch over HTTP, for Prometheus and health checks."""

from __future__ import annotations

import logging
import os
import re
import socket
import socketserver
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from costream.core.errors import UsageError
from costream.core.status import WatchStatus
from costream.core.urls import redact
from costream.runtime.watch.prometheus import CONTENT_TYPE, exposition

_PLAIN = "text/plain; charset=utf-8"
_ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:]+|\[[0-9A-Fa-f:.%]+\]):)?(?P<port>[0-9]{1,5})")
_LOOPBACK = "127.0.0.1"
STUCK_S = 5.0  # the main loop is stuck when it shows no status for this long
CLIENT_S = 5.0  # time limit for a client's request
_POLL_S = 0.2  # interval at which the server checks whether to end
_MOST_CLIENTS = 64  # simultaneous
_MOST_WAITING = 1024  # to be accepted; further clients try again after 1 s
log = logging.getLogger("costream")


class Metrics:
    """Serves ``/metrics`` and ``/healthz`` at ``address``: PORT (on loopback) or HOST:PORT.

    The port is bound at once, so that a problem with it is a UsageError before the model is
    loaded. Each request is answered in a thread, and never waits for the watch.
    """

    def __init__(self, address: str) -> None:
        host, port = _parsed(address)
        self._newest: tuple[WatchStatus, float] | None = None  # with its monotonic time
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(where, family, self)
        except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
            what = f"cannot listen there ({getattr(error, 'strerror', 'no such host')})"
            hint = "choose another port, or stop the program that uses it"
            raise UsageError(what, where=f"--metrics {address}", hint=hint) from error
        host = f"[{host}]" if ":" in host else host
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def show(self, status: WatchStatus) -> None:
        """Set the status to serve."""
        self._newest = status, time.monotonic()

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Return the HTTP status, content type and text for a path."""
        if path not in ("/metrics", "/healthz"):
            return HTTPStatus.NOT_FOUND, _PLAIN, "not found; try /metrics or /healthz\n"
        if self._newest is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, "the watch has not started yet\n"
        status, shown_s = self._newest
        age_s = time.monotonic() - shown_s
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, exposition(status, time.time() - age_s)
        is_well, text = health(status, age_s)
        code = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return code, _PLAIN, text


def health(status: WatchStatus, age_s: float) -> tuple[bool, str]:
    """Return whether every feed that is neither lost nor ended makes steps, and a report.

    ``age_s``: age of the status. Without any such feed, the watch is not healthy.
    """
    if age_s > STUCK_S:
        return False, f"the watch has been stuck for {age_s:.0f} s\n"
    lines, is_well, left = [], True, 0
    for feed in status.feeds:
        state: str = feed.state
        if state == "live":
            state = "ok" if feed.steps_hz > 0 else "live, but no steps"
        if state not in ("lost", "ended"):
            left += 1
            is_well = is_well and state == "ok"
        why = f" ({feed.message})" if feed.message and state != "ok" else ""
        lines.append(" ".join(redact(f"{feed.name}: {state}{why}").split()))
    lines += [] if left else ["no feed is active"]
    return is_well and left > 0, "".join(f"{line}\n" for line in lines)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # do not wait for clients that hang
    allow_reuse_address = os.name != "nt"  # on Windows, two programs could listen
    allow_reuse_port = False
    request_queue_size = _MOST_WAITING

    def __init__(self, where: Any, family: int, metrics: Metrics) -> None:
        self.address_family = socket.AddressFamily(family)
        self.metrics = metrics
        self._clients: dict[Any, float] = {}  # socket: monotonic time of its start, oldest first
        self._lock = threading.Lock()
        super().__init__(where, _Handler)
        self.socket.settimeout(_POLL_S)  # a client may have left between select and accept

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would do a DNS lookup

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._clients)) if len(self._clients) >= _MOST_CLIENTS else None
            self._clients[request] = time.monotonic()
        if oldest is not None:  # a client that asks at once is answered long before it is oldest
            self._drop(oldest)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # cannot start a thread
            self._drop(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(request, None)

    def service_actions(self) -> None:
        """Disconnect clients whose time is over, also if they keep sending."""
        begun_s = time.monotonic() - CLIENT_S
        with self._lock:
            late = [client for client, start_s in self._clients.items() if start_s < begun_s]
        for client in late:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        """End a connection, which ends the wait of its thread."""
        with self._lock:
            self._clients.pop(client, None)
        with suppress(OSError):  # it has ended
            client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        level = logging.DEBUG if isinstance(error, OSError) else logging.WARNING
        log.log(level, "metrics: a client got no answer (%s)", error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "costream", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the dashboard."""

    def do_GET(self) -> None:
        code, kind, text = self.server.metrics.answer(self.path.partition("?")[0])
        body = text.encode("utf-8", "backslashreplace")  # names may not be UTF-8
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815


def _parsed(address: str) -> tuple[str, int]:
    """Return host and port of ``9100``, ``0.0.0.0:9100`` or ``[::1]:9100``."""
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or int(match["port"]) > 65535:
        hint = "write a port (9100) or HOST:PORT (0.0.0.0:9100, [::1]:9100)"
        raise UsageError(f"not an address: {address!r}", where="--metrics", hint=hint)
    return (match["host"] or _LOOPBACK).strip("[]"), int(match["port"])
