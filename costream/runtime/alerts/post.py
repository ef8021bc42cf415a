"""Alert action: POST the alert to a URL."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from costream.errors import OutputError, UsageError
from costream.runtime.alerts.actions import AlertEvent

POST_TIMEOUT_S = 10.0  # per socket operation of an attempt
PAUSES_S = (1.0, 3.0)  # before the second and the third attempt


class PostJson:
    """POSTs each alert as JSON; user and password in the URL become basic authentication.

    Up to three attempts while the server cannot be reached, is too busy or reports an internal
    error. Redirects are not followed: they would turn the POST into a GET. Messages name only
    the host, as the path of such a URL is often a secret.
    """

    wants_clip = False

    def __init__(
        self, url: str, timeout_s: float = POST_TIMEOUT_S, pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        """UsageError when ``url`` is not an http or https URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            # An invalid URL cannot be redacted, and may hold a password.
            raise UsageError(
                "not a URL", where="post", hint="write http://HOST/... or https://HOST/..."
            )
        host = f"[{host}]" if ":" in host else host
        place = host if port is None else f"{host}:{port}"
        self.name = f"POST to {parts.scheme}://{place}"
        self._url = parts._replace(netloc=place, fragment="").geturl()
        self._headers = {"Content-Type": "application/json", "User-Agent": "costream"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._timeout_s, self._pauses_s = timeout_s, pauses_s
        self._cancelled = threading.Event()
        self._connections = _Connections()

    def do(self, event: AlertEvent) -> None:
        """Send the alert. OutputError when it was not accepted."""
        body = event.json.encode("utf-8", "backslashreplace")
        problem = self._attempt(body)
        for pause_s in self._pauses_s:
            if problem is None or self._cancelled.wait(pause_s):
                break
            problem = self._attempt(body)
        if problem is not None:
            raise OutputError(problem, where=self.name)

    def cancel(self) -> None:
        """Abort the request in progress and send no more."""
        self._cancelled.set()
        self._connections.cut()

    def _attempt(self, body: bytes) -> str | None:
        """Send once. Return None on success, else the reason; the caller may retry.

        OutputError when retrying would not help.
        """
        request = Request(self._url, body, self._headers, method="POST")
        try:
            with self._connections.opener.open(request, timeout=self._timeout_s):
                return None
        except HTTPError as error:
            with error:
                reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                raise OutputError(reason, where=self.name) from error
            return reason
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            return f"not delivered ({reason})"


class _Connections:
    """Opens connections, and can shut down the one in use from another thread."""

    def __init__(self) -> None:
        self._newest: http.client.HTTPConnection | None = None
        self.opener = build_opener(_Plain(self._plain), _Encrypted(self._encrypted), _Stay())

    def cut(self) -> None:
        """Shut down the newest connection, which ends any wait for its response."""
        sock = getattr(self._newest, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)

    def _plain(self, host: str, **told: Any) -> http.client.HTTPConnection:
        self._newest = http.client.HTTPConnection(host, **told)
        return self._newest

    def _encrypted(self, host: str, **told: Any) -> http.client.HTTPConnection:
        self._newest = http.client.HTTPSConnection(host, **told)
        return self._newest


class _Plain(HTTPHandler):
    def __init__(self, connect: Any) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, request)


class _Encrypted(HTTPSHandler):
    def __init__(self, connect: Any) -> None:
        super().__init__()
        self._connect = connect

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, request)


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
