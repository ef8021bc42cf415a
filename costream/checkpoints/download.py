"""A file from an HTTP server: resumed where it was cut, checked, and there only when complete.

What has come is in a ``PartFile``; a later run, or one after a SIGKILL, asks for the rest
(RFC 9110, section 13.1.5, If-Range). Proxies are those of the environment (HTTP_PROXY,
HTTPS_PROXY, NO_PROXY) or of the system.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Protocol

from costream import __version__
from costream.checkpoints.part_file import PartFile
from costream.errors import ModelError

_BLOCK = 1 << 16  # bytes
_PASSING = {408, 425, 429}  # HTTP errors that may go away, as those from 500 on may
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for."""

    timeout_s: float = 30.0  # without a byte
    tries: int = 4  # in a row that bring nothing new
    pause_s: float = 1.0  # before the second try; twice as long before each one after it


class Watcher(Protocol):
    """Who is told how it goes."""

    def at(self, done: int, total: int | None) -> None:
        """So many bytes are here, of so many; None where the server does not say."""

    def lost(self, reason: str, pause_s: float) -> None:
        """The connection is lost; it is tried again after the pause."""


class _LostError(Exception):
    """An attempt failed for a reason that may go away."""

    def __init__(self, reason: object, pause_s: float = 0.0) -> None:
        super().__init__(" ".join(str(reason).split()))
        self.pause_s = pause_s  # the least that the server asks for


def download(
    url: str,
    target: Path,
    watcher: Watcher,
    algorithm: str | None = None,
    digest: str = "",
    patience: Patience | None = None,
) -> None:
    """Fetch ``url`` to ``target``.

    ``digest`` is what that of the file begins with, hexadecimal, by ``algorithm`` of hashlib. A
    file with another one is deleted. Raises ModelError for that and when the server does not give
    the file, OutputError when it cannot be written; what has come is then kept and gone on from.
    """
    patience = patience or Patience()
    part = PartFile(target, url)
    failures = 0
    while True:
        before = part.size()
        try:
            _attempt(url, part, watcher, patience.timeout_s)
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
        """Follow, but not from an encrypted connection to an open one."""
        allowed = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.lower().startswith(allowed):
            raise ModelError(f"leads to {newurl}: not followed", where=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _attempt(url: str, part: PartFile, watcher: Watcher, timeout_s: float) -> None:
    """Fetch what is missing; _LostError when that should be tried again."""
    headers = {"User-Agent": f"costream/{__version__}"}
    version, have = part.version(), part.size()
    if version is not None:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        request = urllib.request.Request(url, headers=headers)
        opener = urllib.request.build_opener(_Redirects())
        response = opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and _range(error.headers) == (None, have):
                return  # it was complete already
            raise _refused(url, part, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, error) from error
    with response:
        if response.status == 206:
            begin, total = _range(response.headers)
            if begin != have:
                part.delete()
                raise _LostError("the server gives another part than it was asked for")
        elif response.status != 200:
            raise ModelError(f"the server answers {response.status}, not a file", where=url)
        else:
            part.begin(_version(response.headers))
            have, total = 0, _length(response.headers)
        _receive(response, part, have, total, watcher)


def _receive(response: Any, part: PartFile, have: int, total: int | None, watcher: Watcher) -> None:
    with part.open() as file:
        watcher.at(have, total)
        while True:
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
    said = f"the server answers {error.code} ({error.reason})"
    if error.code == 416:  # what is here is longer than the file
        part.delete()
        return _LostError(said)
    if error.code >= 500 or error.code in _PASSING:
        after = (error.headers.get("Retry-After") or "").strip()
        pause_s = float(after) if after.isdecimal() else 0.0
        return _LostError(said, min(pause_s, _LONGEST_PAUSE_S))
    return ModelError(said, where=url)


def _unreachable(url: str, error: Exception) -> Exception:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ModelError(
            f"its certificate is not trusted ({cause.verify_message})",
            where=url,
            hint="SSL_CERT_FILE may name a file of certificates to trust",
        )
    if isinstance(error, (ValueError, http.client.InvalidURL)):
        return ModelError(f"cannot be asked for ({error})", where=url)
    return _LostError(_reason(cause))


def _reason(error: object) -> str:
    told = getattr(error, "strerror", None) or str(error)
    return str(told) or type(error).__name__


def _advice(kept: int) -> str:
    if kept:
        return f"{kept / 1e6:.1f} MB are kept: the same command goes on from there"
    return "is there a network? HTTPS_PROXY names a proxy"


def _version(headers: Message) -> str | None:
    """Give what If-Range may name: a strong entity tag, else the date of the last change."""
    tag = headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):
        return tag
    return headers.get("Last-Modified")


def _range(headers: Message) -> tuple[int | None, int | None]:
    """Give first byte and total length of Content-Range; None where it does not say."""
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
    found = part.digest(algorithm)[: len(digest)]
    if found != digest:
        part.delete()
        raise ModelError(
            f"the {algorithm.upper()} of what came begins with {found}, not {digest}: deleted",
            where=url,
            hint="fetch it again; a proxy or portal may have put in a page of its own",
        )
