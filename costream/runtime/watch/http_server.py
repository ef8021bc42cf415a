"""A small HTTP server for a watch: it never waits for the watch, nor for a slow client."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from costream.core.errors import UsageError

PLAIN = "text/plain; charset=utf-8"
CLIENT_S = 5.0  # time limit for a client's request
_ADDRESS = re.compile(r"(?:(?P<host>[^\[\]:]+|\[[0-9A-Fa-f:.%]+\]):)?(?P<port>[0-9]{1,5})")
_LOOPBACK = "127.0.0.1"
_POLL_S = 0.2  # interval at which the server checks whether to end
_MOST_CLIENTS = 64  # simultaneous
_MOST_WAITING = 1024  # to be accepted; further clients try again after 1 s
log = logging.getLogger("costream")


@dataclass(frozen=True)
class HttpRequest:
    """A GET or HEAD request."""

    path: str
    query: str = ""
    host: str = ""  # header Host
    cookie: str = ""  # header Cookie
    encodings: str = ""  # header Accept-Encoding


@dataclass(frozen=True)
class HttpAnswer:
    """An answer: its ``body``, or the ``parts`` of one that is sent while it comes into being."""

    status: HTTPStatus
    kind: str = PLAIN  # content type
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    parts: Iterator[bytes] | None = None  # has no time limit as long as the client takes them


class Answers(Protocol):
    """What answers the requests; called in the thread of each client."""

    def answer(self, request: HttpRequest) -> HttpAnswer: ...  # noqa: D102


class StatusServer:
    """Serves ``answers`` at ``address``: PORT (on loopback) or HOST:PORT.

    The port is bound at once, so that a problem with it is a UsageError, which names ``option``,
    before the model is loaded. Each request is answered in a thread.
    """

    def __init__(self, address: str, answers: Answers, option: str) -> None:
        host, port = _parsed(address, option)
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(where, family, answers)
        except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
            what = f"cannot listen there ({getattr(error, 'strerror', 'no such host')})"
            hint = "choose another port, or stop the program that uses it"
            raise UsageError(what, where=f"{option} {address}", hint=hint) from error
        self.loopback = str(where[0]) in ("127.0.0.1", "::1")
        self.host = f"[{host}]" if ":" in host else host
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name=option.strip("-"), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://{self.host}:{self.port}"

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # do not wait for clients that hang
    allow_reuse_address = os.name != "nt"  # on Windows, two programs could listen
    allow_reuse_port = False
    request_queue_size = _MOST_WAITING

    def __init__(self, where: Any, family: int, answers: Answers) -> None:
        self.address_family = socket.AddressFamily(family)
        self.answers = answers
        self._clients: dict[Any, float] = {}  # socket: monotonic time of its start, oldest first
        self._lock = threading.Lock()
        super().__init__(where, _Handler)
        self.socket.settimeout(_POLL_S)  # a client may have left between select and accept

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would do a DNS lookup

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._clients) >= _MOST_CLIENTS
            oldest = next(iter(self._clients)) if full else None
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

    def keep(self, client: socket.socket) -> None:
        """Set no time limit for a client whose answer goes on."""
        with self._lock:
            if client in self._clients:
                self._clients[client] = math.inf

    def _drop(self, client: socket.socket) -> None:
        """End a connection, which ends the wait of its thread."""
        with self._lock:
            self._clients.pop(client, None)
        with suppress(OSError):  # it has ended
            client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        level = logging.DEBUG if isinstance(error, OSError) else logging.WARNING
        log.log(level, "HTTP: a client got no answer (%s)", error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "costream", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the dashboard."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        headers = (self.headers.get(name, "") for name in ("Host", "Cookie", "Accept-Encoding"))
        answer = self.server.answers.answer(HttpRequest(path, query, *headers))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.parts is None:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if answer.parts is None:
            self.wfile.write(answer.body)
            return
        self.close_connection = True
        self.connection.settimeout(CLIENT_S)  # of each part
        self.server.keep(self.connection)
        for part in answer.parts:
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815


def _parsed(address: str, option: str) -> tuple[str, int]:
    """Return host and port of ``9100``, ``0.0.0.0:9100`` or ``[::1]:9100``."""
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or int(match["port"]) > 65535:
        hint = "write a port (9100) or HOST:PORT (0.0.0.0:9100, [::1]:9100)"
        raise UsageError(f"not an address: {address!r}", where=option, hint=hint)
    return (match["host"] or _LOOPBACK).strip("[]"), int(match["port"])
