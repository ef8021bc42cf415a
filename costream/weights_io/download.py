"""Resumable HTTP downloads, verified by a digest and visible only when complete.

Received data are stored in a ``PartFile``; a later run, also after a SIGKILL, requests the rest
(RFC 9110, section 13.1.5, If-Range). Proxies are taken from the environment (HTTP_PROXY,
HTTPS_PROXY, NO_PROXY) or the system.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeVar

from costream.core.errors import ModelError, OutputError, display_name
from costream.core.locks import open_own
from costream.core.urls import split_login
from costream.core.version import __version__

_T = TypeVar("_T")
_BLOCK = 1 << 16  # bytes
_TRANSIENT = {408, 425, 429}  # HTTP errors, in addition to those from 500
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class RetryPolicy:
    """Timeout and retry policy of a download."""

    timeout_s: float = 30.0  # without receiving a byte
    tries: int = 4  # consecutive attempts without progress
    pause_s: float = 1.0  # before the second attempt; doubles before each further one


class ProgressListener(Protocol):
    """Receiver of progress notifications."""

    def at(self, done: int, total: int | None) -> None:
        """Report ``done`` of ``total`` bytes; None where the server does not state the total."""

    def lost(self, reason: str, pause_s: float) -> None:
        """Report that the connection was lost and is retried after the pause."""


class _LostError(Exception):
    """An attempt failed for a transient reason."""

    def __init__(self, reason: object, pause_s: float = 0.0) -> None:
        super().__init__(" ".join(str(reason).split()))
        self.pause_s = pause_s  # minimum requested by the server


def download(
    url: str,
    target: Path,
    watcher: ProgressListener,
    algorithm: str | None = None,
    digest: str = "",
    patience: RetryPolicy | None = None,
    *,
    most: int | None = None,
) -> None:
    """Download ``url`` to ``target``; user and password in the URL become basic authentication.

    ``digest`` is the beginning of the file's hexadecimal digest by hashlib's ``algorithm``. A file
    with another digest, or of more than ``most`` bytes, is deleted. Raises ModelError for that and
    when the server does not deliver the file, OutputError when it cannot be written; a later call
    resumes from the data received.
    """
    patience = patience or RetryPolicy()
    part = PartFile(target, url)
    failures = 0
    while True:
        before = part.size()
        try:
            _attempt(url, part, watcher, patience.timeout_s, most)
            break
        except _LostError as lost:
            failures = 1 if part.size() > before else failures + 1
            if failures >= patience.tries:
                hint = _advice(part.size() if part.version() else 0)
                raise ModelError(f"cannot be fetched ({lost})", where=url, hint=hint) from lost
            pause_s = max(patience.pause_s * 2 ** (failures - 1), lost.pause_s)
            watcher.lost(str(lost), pause_s)
            time.sleep(pause_s)
    if algorithm is not None:
        _check(part, url, algorithm, digest)
    part.finish()


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Follow a redirect, but not from an encrypted to an unencrypted connection."""
        allowed = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.lower().startswith(allowed):
            raise ModelError(f"redirect to {newurl} not followed", where=req.full_url)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (request.type, request.host) == (req.type, req.host):
            request.unredirected_hdrs |= req.unredirected_hdrs  # the login, for its server alone
        return request


def _request(url: str, headers: dict[str, str]) -> urllib.request.Request:
    """Return a request, with the login of the URL as a header. ValueError if it is invalid."""
    bare, login = split_login(url)
    request = urllib.request.Request(bare, headers=headers)
    if login is not None:
        request.add_unredirected_header("Authorization", login)
    return request


def _attempt(
    url: str, part: PartFile, watcher: ProgressListener, timeout_s: float, most: int | None
) -> None:
    """Download the missing part; _LostError when it should be retried."""
    headers = {"User-Agent": f"costream/{__version__}"}
    version, have = part.version(), part.size()
    if version is not None:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        request = _request(url, headers)
        opener = urllib.request.build_opener(_Redirects())
        response = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and _range(error.headers) == (None, have):
                return  # already complete
            raise _refused(url, part, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, error) from error
    with response:
        if response.status == 206:
            begin, total = _range(response.headers)
            if begin != have:
                part.delete()
                raise _LostError("the server sent another range than requested")
        elif response.status != 200:
            raise ModelError(f"the server answers {response.status}, not a file", where=url)
        else:
            part.begin(_version(response.headers))
            have, total = 0, _length(response.headers)
        _receive(response, part, have, total, watcher, most)


def _receive(
    response: Any,
    part: PartFile,
    have: int,
    total: int | None,
    watcher: ProgressListener,
    most: int | None,
) -> None:
    with part.open() as file:
        watcher.at(have, total)
        while True:
            if most is not None and max(have, total or 0) > most:
                part.delete()
                size = "more than" if total is None else f"{total / 1e6:.1f} MB instead of at most"
                raise ModelError(f"the server sends {size} {most / 1e6:.1f} MB", where=part.url)
            try:
                block = response.read1(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise _LostError(_reason(error)) from error
            if not block:
                break
            part.write(file, block)
            have += len(block)
            watcher.at(have, total)
    if total is not None and have != total:
        raise _LostError(f"ended after {have} of {total} bytes")


def _refused(url: str, part: PartFile, error: urllib.error.HTTPError) -> Exception:
    message = f"the server answers {error.code} ({error.reason})"
    if error.code == 416:  # the stored part is longer than the file
        part.delete()
        return _LostError(message)
    if error.code >= 500 or error.code in _TRANSIENT:
        after = (error.headers.get("Retry-After") or "").strip()
        pause_s = float(after) if after.isdecimal() else 0.0
        return _LostError(message, min(pause_s, _LONGEST_PAUSE_S))
    return ModelError(message, where=url)


def _unreachable(url: str, error: Exception) -> Exception:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ModelError(
            f"its certificate is not trusted ({cause.verify_message})",
            where=url,
            hint="set SSL_CERT_FILE to a file of certificates to trust",
        )
    if isinstance(error, (ValueError, http.client.InvalidURL)):
        return ModelError(f"not a valid URL ({error})", where=url)
    return _LostError(_reason(cause))


def _reason(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text) or type(error).__name__


def _advice(stored: int) -> str:
    if stored:
        return f"{stored / 1e6:.1f} MB are stored: run the same command again to resume"
    return "check the network connection; HTTPS_PROXY sets a proxy"


def _version(headers: Message) -> str | None:
    """Return a validator for If-Range: a strong entity tag, else the Last-Modified date."""
    tag = headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return tag
    return headers.get("Last-Modified")


def _range(headers: Message) -> tuple[int | None, int | None]:
    """Return first byte and total length from Content-Range; None for a missing value."""
    match = re.fullmatch(
        r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", (headers.get("Content-Range") or "").strip()
    )
    if match is None:
        return None, None
    begin, total = match.groups()
    return None if begin is None else int(begin), None if total == "*" else int(total)


def _length(headers: Message) -> int | None:
    length = (headers.get("Content-Length") or "").strip()
    return int(length) if length.isdecimal() else None


def _check(part: PartFile, url: str, algorithm: str, digest: str) -> None:
    received = part.digest(algorithm)[: len(digest)]
    if received != digest:
        part.delete()
        raise ModelError(
            f"the {algorithm.upper()} of the download begins with {received}, not {digest}:"
            " deleted",
            where=url,
            hint="fetch it again; a proxy or login portal may have sent another page",
        )


class PartFile:
    """The part of a URL received so far, ``NAME.part``, which will become ``target``.

    ``NAME.part.json`` has the version of the file. All writing methods raise OutputError when the
    system cannot write.
    """

    def __init__(self, target: Path, url: str) -> None:
        self._target, self.url = target, display_name(url)
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")

    def size(self) -> int:
        """Return the number of stored bytes."""
        is_file = self.path.is_file() and not self.path.is_symlink()
        return self.path.stat().st_size if is_file else 0

    def version(self) -> str | None:
        """Return the version identifier of the file; None: the stored part cannot be used."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
            version = note["version"] if note["url"] == self.url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return version if isinstance(version, str) and self.size() else None

    def begin(self, version: str | None) -> None:
        """Discard the stored part and record the version of the new one."""

        def write() -> None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            note = {"url": self.url, "version": version}
            for path, text in ((self.path, ""), (self._note, json.dumps(note))):
                with open(path, "w", encoding="utf-8", opener=open_own) as file:
                    file.write(text)

        self._do(write)

    def open(self) -> FileIO:
        """Open it for appending, unbuffered: ``close`` would write a buffer once more."""
        return self._do(lambda: FileIO(self.path, "ab", opener=open_own))

    def write(self, file: FileIO, block: bytes) -> None:
        """Append a block so that it survives the end of this process."""
        left = memoryview(block)
        while left:
            left = left[self._do(partial(file.write, left)) :]

    def digest(self, algorithm: str) -> str:
        """Return the hexadecimal digest of the stored part."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def delete(self) -> None:
        """Delete the part and its version file."""
        for path in (self.path, self._note):
            with suppress(OSError):
                path.unlink()

    def finish(self) -> None:
        """Rename the part to the target and delete the version file."""

        def rename() -> None:
            with open(self.path, "ab", opener=open_own) as file:
                os.fsync(file.fileno())
            os.replace(self.path, self._target)

        self._do(rename)
        self.delete()

    def _do(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except OSError as error:
            hint = "the data received so far are kept" if self.size() else None
            message = f"cannot be written ({error.strerror or error})"
            raise OutputError(message, where=self.path, hint=hint) from error
