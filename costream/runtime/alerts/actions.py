"""Alert events, and the actions: append to a file, run a program, POST to a URL."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from costream.core.errors import OutputError, UsageError, display_name
from costream.core.records import Alert, to_json
from costream.core.urls import split_login
from costream.runtime.alerts.snapshots import AlertPicture
from costream.sinks.atomic import check_folder

COMMAND_TIMEOUT_S = 30.0
NAMES = ("feed", "label", "score", "time", "clip", "rule", "snapshot")  # of AlertEvent.values
_PLACE = re.compile("{(" + "|".join(NAMES) + ")}")
_LIKE_PLACE = re.compile("(?<![$])({[a-z_]+})")  # ${home} is a shell's
SECRET_VARIABLES: set[str] = set()  # environment variables with passwords: not for programs
_BLANK = re.compile(r"[\x00-\x20\x7f]")  # not allowed in the path of a request
POST_TIMEOUT_S = 10.0  # per socket operation of an attempt
PAUSES_S = (1.0, 3.0)  # before the second and the third attempt


def ignored(_: str) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class AlertEvent:
    """An alert with its feed, time and clip."""

    feed: str  # name of the feed
    at: str  # time of firing, ISO 8601, UTC
    alert: Alert
    clip: Path | None = None  # the file with the seconds around it
    snapshot: AlertPicture | None = None
    note: Callable[[str], None] = ignored  # takes a description of the picture, by any thread

    @cached_property
    def values(self) -> dict[str, str]:
        """The values of {feed}, {label}, ... in a command, by name."""
        return {
            "feed": self.feed,
            "label": self.alert.label,
            "score": f"{self.alert.score:.3f}",
            "time": self.at,
            "clip": "" if self.clip is None else str(self.clip),
            "rule": self.alert.rule,
            "snapshot": "" if self._picture is None else str(self._picture),
        }

    def fill(self, text: str) -> str:
        """Return ``text`` with values in place of {feed}, {label}, ..."""
        return _PLACE.sub(lambda place: self.values[place[1]], text)

    @property
    def _picture(self) -> Path | None:
        """The file of the snapshot."""
        return None if self.snapshot is None else self.snapshot.path

    @cached_property
    def json(self) -> str:
        """The alert record with ``feed`` and ``at``, as a JSON object in one line."""
        record: dict[str, Any] = {"feed": self.feed, "at": self.at, **to_json(self.alert)}
        if self.clip is not None:
            record["clip"] = str(self.clip)
        if self._picture is not None:
            record["snapshot"] = str(self._picture)
            record["snapshot_url"] = self._picture.resolve().as_uri()
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


def check_places(text: str) -> None:
    """Raise UsageError if ``text`` has a name in braces that ``AlertEvent.fill`` does not know."""
    unknown = [place for place in _LIKE_PLACE.findall(text) if not _PLACE.match(place)]
    if unknown:
        known = " ".join(f"{{{name}}}" for name in NAMES)
        hint = f"known are {known}; to write braces, add a space: {unknown[0][:-1]} }}"
        raise UsageError(f"there is no placeholder {unknown[0]}", where=text, hint=hint)


class SaveSnapshot:
    """Writes the snapshots of alerts, as an action: failures are counted and logged."""

    name = "snapshots"
    wants_clip = False

    def do(self, event: AlertEvent) -> None:
        """Write the snapshot of an alert, if it has one. OutputError when that fails."""
        if event.snapshot is not None:
            event.snapshot.save()

    def cancel(self) -> None:
        """Do nothing: a picture takes no time."""


class AppendLine:
    """Appends each alert to a file as one line of JSON; other programs may append to it too."""

    wants_clip = False

    def __init__(self, path: str) -> None:
        """Folders are created at the first write. Raises UsageError if that is not possible."""
        self._path = Path(path)
        there = self._path.exists()
        if not path or (there and (self._path.is_dir() or not os.access(self._path, os.W_OK))):
            raise UsageError("not a file that can be appended to", where=path or "''")
        if not there:
            check_folder(self._path.parent)
        self.name = f"append to {display_name(path)}"

    def do(self, event: AlertEvent) -> None:
        """Append the line. OutputError when that fails, as on a full disk."""
        line = f"{event.json}\n".encode("utf-8", "backslashreplace")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                # A single call, so that lines of several writers never mix.
                written = os.write(file, line)
                end = os.lseek(file, 0, os.SEEK_CUR) if written < len(line) else 0
                if end and os.fstat(file).st_size == end:  # nobody has written behind it
                    os.ftruncate(file, end - written)
            finally:
                os.close(file)
        except OSError as error:
            raise OutputError(f"cannot write ({error.strerror})", where=self.name) from error
        if written < len(line):
            raise OutputError("the disk is full: a line was left out", where=self.name)

    def cancel(self) -> None:
        """Do nothing: writing a line takes no time."""


class RunCommand:
    """Runs a program for each alert, without a shell, and waits for it.

    ``command`` is split into arguments once, as a shell would, without any other expansion.
    ``{feed}`` and the other NAMES are substituted afterwards, so that a value never spans several
    arguments, whatever it holds. The environment has COSTREAM_FEED, ... and COSTREAM_ALERT, the
    alert as JSON, but no SECRET_VARIABLES. The program's output is discarded.
    """

    def __init__(self, command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        """Raise UsageError if ``command`` cannot be split, or its program does not exist."""
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"cannot be split into arguments ({error})", where=command) from error
        if not self._arguments:
            raise UsageError("no program is named")
        check_places(command)
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
        """Run the program until it ends, or ``cancel``. Raises OutputError if it fails."""
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
        if code != 0 and not self._cancelled:
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
        arguments = [event.fill(text) for text in self._arguments]
        variables = {f"COSTREAM_{name.upper()}": value for name, value in values.items()}
        inherited = {k: v for k, v in os.environ.items() if k not in SECRET_VARIABLES}
        with self._lock:
            if self._cancelled:
                raise OSError("stopped")
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**inherited, **variables, "COSTREAM_ALERT": event.json},
                start_new_session=True,  # its own process group, so that Ctrl-C does not reach it
            )
            return self._process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its process group."""
    if process.poll() is not None:
        return  # ended already, and its process id may have been reused
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class PostJson:
    """POSTs each alert as JSON; user and password in the URL become basic authentication.

    Up to three attempts while the server cannot be reached, is too busy or reports an internal
    error. Redirects are not followed: they would turn the POST into a GET. Messages name only
    the host, as the path of such a URL is often a secret.
    """

    wants_clip = False
    most_bytes = 0  # of an answer, that are read

    def __init__(
        self, url: str, timeout_s: float = POST_TIMEOUT_S, pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        """UsageError when ``url`` is not an http or https URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or _BLANK.search(parts.geturl()):
            # An invalid URL cannot be redacted, and may hold a password.
            raise UsageError("not a URL", hint="write http://HOST/... or https://HOST/...")
        host = f"[{host}]" if ":" in host else host
        place = host if port is None else f"{host}:{port}"
        self.name = f"POST to {parts.scheme}://{place}"
        self._url, login = split_login(parts._replace(fragment="").geturl())
        self._headers = {"Content-Type": "application/json", "User-Agent": "costream"}
        if login:
            self._headers["Authorization"] = login
        self._timeout_s, self._pauses_s = timeout_s, pauses_s
        self._cancelled = threading.Event()
        self._connections = _Connections()
        self._opener = build_opener(self._connections, _Stay())

    def do(self, event: AlertEvent) -> None:
        """Send the alert. OutputError when it was not accepted."""
        self.send(event.json.encode("utf-8", "backslashreplace"))

    def send(self, body: bytes, path: str = "") -> bytes:
        """Send JSON to the URL, or to a path below it; return the answer, up to ``most_bytes``.

        OutputError when it was not accepted.
        """
        answer = self._attempt(body, path)
        for pause_s in self._pauses_s:
            if isinstance(answer, bytes) or self._cancelled.wait(pause_s):
                break
            answer = self._attempt(body, path)
        if isinstance(answer, str):
            raise OutputError(answer, where=self.name)
        return answer

    def cancel(self) -> None:
        """Abort the request in progress and send no more."""
        self._cancelled.set()
        self._connections.cut()

    def _attempt(self, body: bytes, path: str) -> bytes | str:
        """Send once. Return the answer, or the reason why there is none; the caller may retry.

        OutputError when retrying would not help.
        """
        url = self._url.rstrip("/") + path if path else self._url
        request = Request(url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                found: bytes = answer.read(self.most_bytes)
                return found
        except HTTPError as error:
            with error:
                reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                raise OutputError(reason, where=self.name) from error
            return reason
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            return f"not delivered ({reason})"


class _Connections(HTTPHandler, HTTPSHandler):
    """Opens connections, and can shut down the one in use from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: http.client.HTTPConnection | None = None

    def cut(self) -> None:
        """Shut down the newest connection, which ends any wait for its response."""
        sock = getattr(self._newest, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)

    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connect, http.client.HTTPConnection), request)

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connect, http.client.HTTPSConnection), request)

    def _connect(
        self, kind: type[http.client.HTTPConnection], host: str, **options: Any
    ) -> http.client.HTTPConnection:
        self._newest = kind(host, **options)
        return self._newest


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
