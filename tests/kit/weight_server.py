"""An HTTP server that gives a file as servers on the way to a user do: cut, slow, moved, wrong."""

from __future__ import annotations

import http.server
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.http_server import Quiet, http_server

PIECE = 1024


@dataclass(frozen=True)
class Reply:
    """How a request is answered."""

    status: int = 200
    cut: int | None = None  # the connection ends after so many bytes of the body
    ranges: bool = True
    version: str | None = '"1"'  # the entity tag
    dated: bool = False
    location: str = ""
    pause_s: float = 0.0  # before each piece
    stall_s: float = 0.0  # after the last byte that is given
    length: bool = True  # whether the length is told
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


class WeightServer:
    """Answers request after request as its replies say, the last one for ever after.

    ``asked``: path and headers of every request. Works as a plain HTTP proxy, too: it answers
    whatever it is asked for. ``certificate``: a file with key and certificate, for HTTPS.
    """

    def __init__(self, content: bytes, *replies: Reply, certificate: Path | None = None) -> None:
        self.content, self.replies = content, list(replies) or [Reply()]
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0  # bytes of bodies
        owner = self

        class Handler(Quiet, http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._answer(self)

        self.address = ""  # while it serves
        self._serving = ExitStack()
        self._handler, self._certificate = Handler, certificate

    def url(self, name: str = "net.pth") -> str:
        """Return the address of a file."""
        return f"{self.address}/{name}"

    def __enter__(self) -> WeightServer:
        server = self._serving.enter_context(http_server(self._handler, self._certificate))
        scheme = "http" if self._certificate is None else "https"
        self.address = f"{scheme}://127.0.0.1:{server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()

    def _answer(self, request: Any) -> None:
        reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append((request.path, dict(request.headers)))
        body = self.content if reply.content is None else reply.content
        request.close_connection = True
        headers = dict(reply.headers)
        if reply.location:
            body = b""
            headers["Location"] = reply.location
        elif reply.status == 200:
            if reply.version is not None:
                headers["ETag"] = reply.version
            if reply.dated:
                headers["Last-Modified"] = "Sun, 22 Nov 2026 09:00:00 GMT"
            begin = self._begin(request, reply, headers)
            if begin is not None and begin >= len(body):
                headers["Content-Range"] = f"bytes */{len(body)}"
                self._send(request, 416, headers, b"", reply)
                return
            if begin is not None:
                headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
                self._send(request, 206, headers, body[begin:], reply)
                return
        self._send(request, reply.status, headers, body, reply)

    def _begin(self, request: Any, reply: Reply, headers: dict[str, str]) -> int | None:
        asked = request.headers.get("Range")
        own = (headers.get("ETag"), headers.get("Last-Modified"))
        if not reply.ranges or asked is None or request.headers.get("If-Range") not in own:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def _send(
        self, request: Any, status: int, headers: dict[str, str], body: bytes, reply: Reply
    ) -> None:
        with suppress(OSError):
            request.send_response(status)
            if reply.length:
                headers["Content-Length"] = str(len(body))
            for name, value in headers.items():
                request.send_header(name, value)
            request.end_headers()
            given = body if reply.cut is None else body[: reply.cut]
            for at in range(0, len(given), PIECE):
                time.sleep(reply.pause_s)
                piece = given[at : at + PIECE]
                request.wfile.write(piece)
                request.wfile.flush()
                self.sent += len(piece)
            time.sleep(reply.stall_s)
