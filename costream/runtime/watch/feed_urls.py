"""User names and passwords in the URLs of feeds, encoded so that FFmpeg reads them correctly."""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from costream.core.errors import UsageError

log = logging.getLogger("costream")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+://)(?P<authority>[^/?#]*)(?P<rest>.*)", re.S)
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_HOST = re.compile(r"(?P<name>[^:\[\]]*|\[[^\[\]]+\])(:(?P<port>[0-9]*))?")
_WITH_HOST = {"rtsp", "rtsps", "rtmp", "rtmps", "http", "https"}  # schemes that need a host
_NETWORK = {*_WITH_HOST, "srt", "udp", "tcp"}


class Url(NamedTuple):
    """A parsed URL. ``user`` and ``password`` are percent-encoded, None where absent.

    ``str(url)`` is its text, including the password.
    """

    scheme: str  # with "://"
    user: str | None
    password: str | None
    host: str  # and port
    rest: str  # path, query and fragment

    def __str__(self) -> str:
        """Return the URL."""
        password = "" if self.password is None else f":{self.password}"
        user = "" if self.user is None else f"{self.user}{password}@"
        return f"{self.scheme}{user}{self.host}{self.rest}"

    def error(self) -> str | None:
        """Return why no connection to this host and port is possible, or None."""
        scheme = self.scheme.partition(":")[0].lower()
        if scheme not in _NETWORK:
            return None
        host = _HOST.fullmatch(self.host)
        if host is None:
            return "has no valid host and port; write IPv6 in brackets"
        if scheme in _WITH_HOST and not host["name"]:
            return "has no host"
        port = host["port"] or ""
        if len(port) > 5 or int(port or 0) > 65_535:
            return "has a port above 65535"
        return None

    def having(self, user: str | None, password: str | None) -> Url:
        """Return a copy with this user and password, which are not encoded; None: unchanged."""
        return self._replace(
            user=self.user if user is None else quote(user, safe=""),
            password=self.password if password is None else quote(password, safe=""),
        )


def parse_url(text: str, *, variables: bool = True) -> Url | None:
    """Parse a URL; return None when ``text`` is not one.

    ``variables``: substitute environment variables for ``${NAME}``. In a user or password their
    values are taken literally, and so is a ``%`` there that encodes nothing. UsageError when a
    variable is not set, or the password holds characters that make the URL ambiguous.
    """
    match = _URL.fullmatch(text)
    if match is None:
        return None
    login, at, host = match["authority"].rpartition("@")
    host, rest = (fill(part) if variables else part for part in (host, match["rest"]))
    if not at and "@" in rest and not _HOST.fullmatch(host):
        hint = "write / ? # in the password as %2F %3F %23"
        raise UsageError("its password cannot be separated from its path", where=text, hint=hint)
    if not at:
        return Url(match["scheme"], None, None, host, rest)
    user, colon, password = login.partition(":")
    encoded = _encode(password, variables) if colon else None
    return Url(match["scheme"], _encode(user, variables), encoded, host, rest)


def fill(text: str) -> str:
    """Substitute environment variables for ``${NAME}``. UsageError for one that is not set."""
    return _VARIABLE.sub(lambda match: _value(match[1]), text)


def has_password(text: str) -> bool:
    """Return whether a URL holds a literal password, not only a variable."""
    match = _URL.fullmatch(text)
    login, at, _ = ("", "", "") if match is None else match["authority"].rpartition("@")
    return bool(at and _VARIABLE.sub("", login.partition(":")[2]))


def read_password(path: Path) -> str:
    """Return the first line of a file. UsageError when it cannot be read or is empty."""
    try:
        with path.open(encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"the password cannot be read ({reason})", where=path) from error
    if not password:
        raise UsageError("holds no password in its first line", where=path)
    warn_of_readers(path)
    return password


def warn_of_readers(path: Path) -> None:
    """Log a warning if a file with a password is readable by everybody."""
    if os.name != "nt" and path.stat().st_mode & stat.S_IROTH:
        log.warning("%s: holds a password and may be read by everybody; chmod o-r it", path)


def _encode(text: str, variables: bool) -> str:
    """Percent-encode a part of the login in which some characters may be encoded already."""
    parts = _VARIABLE.split(text) if variables else [text]
    encoded = [quote(unquote_to_bytes(part), safe="") for part in parts[::2]]
    values = [quote(_value(name), safe="") for name in parts[1::2]]
    return "".join(a + b for a, b in zip(encoded, [*values, ""], strict=True))


def _value(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise UsageError("this environment variable is not set", where="${" + name + "}")
    return value
