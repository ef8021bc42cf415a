"""Logins and other secrets in URLs: taken out of them, and hidden where they are shown."""

from __future__ import annotations

import base64
import json
import os
import re
import string
import threading
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

HIDDEN = "***"
_SCHEME = string.ascii_letters + string.digits + "+.-"
_LETTER = re.compile("[A-Za-z]")
_STORE = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
_FILE = "file://"
_RUN = re.compile(r"\S{5,}")
_PATH, _QUERY = re.compile("[/?#]"), re.compile("[?#]")  # where they begin
# Keys of queries whose values are shown. All others are hidden: no list of secret ones ends.
_PLAIN_KEYS = {
    word
    for line in (
        "action bitrate cam camera channel channels chn codec compression date day duration end",
        "format fps frames height hls lang language mode n name no number page pixel_format",
        "pkt_size proto quality rate rate_hz res resolution size speed start starttime stop stream",
        "streamtype subtype t time track transport type unicast v version video videocodec view",
        "width xywh",
    )
    for word in line.split()
}
_PLAIN_VALUE = re.compile(r"[\w.,:+-]{0,40}")
_KEY = re.compile(r"[\w.\[\]-]{1,60}")
# Secret keys where others are shown: in paths, and in text that is not a URL.
_SECRET_KEY = (
    r"[\w.-]{0,60}(?:pass|pwd|token|secret|key|auth|sig|jwt|sid|session|code|access|cred|ticket"
    r"|login|otp|hash|nonce)[\w.-]{0,60}"
)
_SECRET_IN_PATH = re.compile(rf"({_SECRET_KEY})=.*", re.IGNORECASE | re.DOTALL)
_SECRET_QUERY = re.compile(
    rf"(?P<key>[?&](?=[\w.-]{{1,120}}=){_SECRET_KEY}=)(?P<value>[^&\s#]*)", re.IGNORECASE
)
_HOST = re.compile(r"(?P<name>[^:\[\]@]*|\[[^\[\]@]+\])(?::[0-9]{0,5})?")
_ADDRESS = re.compile(r"localhost|\[.+\]|.*[^.]\.[^.].*", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(r"[^:@]*:(?:[A-Z]+|\$?\{\w*\}?)")  # as in "write http://HOST:PORT"
# What may follow a URL in a text. A quote belongs to a URL where a letter follows.
_AFTER = ")]}>'\",.;:!"
_LONGEST_AFTER = 4
_MOST_NESTED = 20  # URLs in one another
_MOST = 1000  # remembered texts
_SHORTEST = 6  # secret that is hidden wherever it stands
_STREAM_KEYS = ("rtmp", "rtmps", "rtmpt", "rtmpe", "rtmpte", "rtmpts")


def split_login(url: str) -> tuple[str, str | None]:
    """Return a URL without its login, and the value of the header Authorization in its place.

    None: it has no login. ValueError, which shows nothing of it, if the URL is invalid.
    """
    rest = url.partition("://")[2]
    host = rest[: _first_of(rest, _PATH)].rpartition("@")[2]
    if not _HOST.fullmatch(host):
        raise ValueError("no valid host and port; write / ? # in a password as %2F %3F %23")
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    token = base64.b64encode(unquote_to_bytes(f"{user}:{password}")).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {token}" if at else None


def is_url(text: str) -> bool:
    """Return whether a text begins as a URL does: with a scheme and "://"."""
    scheme, mark, _ = text.partition("://")
    return bool(mark and _LETTER.match(scheme) and not scheme.strip(_SCHEME))


def is_store_url(argument: str) -> bool:
    """Return whether an argument is a URL of a store. ``file://`` is a local path."""
    scheme = _STORE.match(argument)
    return scheme is not None and scheme[0].lower() != _FILE and not os.path.exists(argument)


def local_path(argument: str) -> str:
    """Return the path of a ``file://`` URL; everything else unchanged."""
    if not argument.lower().startswith(_FILE) or os.path.exists(argument):
        return argument
    from urllib.request import url2pathname  # slow to import

    return url2pathname(path_of(argument))


def redact_url(url: str) -> str:
    """Return a URL with its login, the values of its query and its fragment as ``***``.

    Values of keys that name a channel, a size or the like are shown; of RTMP, the key of a stream
    is not. What was hidden is remembered, so that ``redact`` also finds it where other programs
    write it in their own way.
    """
    scheme, _, rest = url.partition("://")
    hidden: list[str] = []
    shown = f"{scheme}://{_redact_rest(scheme, rest, hidden)}"
    if hidden:
        _SECRETS.remember(url, shown, hidden)
    return shown


def redact(text: str) -> str:
    """Return a text with the secrets of the URLs in it replaced by ``***``.

    ``rtsp://user:p@ss@host/x?token=1`` becomes ``rtsp://***@host/x?token=***``. Where a URL ends
    in a text, is not certain: rather too much is hidden.
    """
    text = _SECRETS.hide(text)
    if "://" in text:
        text = _redact_lost_logins(_RUN.sub(lambda match: _redact_run(match[0]), text))
    return _SECRET_QUERY.sub(_hide_value, text) if "=" in text else text


def path_of(url: str) -> str:
    """Return the path of a URL, as it is there."""
    rest = url.partition("://")[2]
    rest = rest[login_end(rest) :]
    _, slash, path = rest[: _first_of(rest, _QUERY)].partition("/")
    return slash + path


def login_end(rest: str) -> int:
    """Return where the host begins in what follows "://".

    A login ends at the last "@" before the path. As passwords hold "/", "?" and "#" that should be
    encoded, an "@" further on counts too, unless what stands before it is a host for certain.
    """
    path = _first_of(rest, _PATH)
    _, at, host = rest[:path].rpartition("@")
    query = _first_of(rest, _QUERY) if _is_address(host) else len(rest)
    if not at and (_is_address(host) or (_HOST.fullmatch(host) and ":" not in host)):
        return 0
    return rest.rfind("@", 0, query) + 1


def _first_of(text: str, characters: re.Pattern[str]) -> int:
    """Return the position of the first of these characters, the length if there is none."""
    match = characters.search(text)
    return len(text) if match is None else match.start()


def _is_address(host: str) -> bool:
    """Return whether a host and port can hardly be a user and a password."""
    match = _HOST.fullmatch(host)
    return match is not None and bool(_ADDRESS.fullmatch(match["name"]))


def _redact_rest(scheme: str, rest: str, hidden: list[str], after: str = "") -> str:
    """Return what follows "://" in a URL, redacted; add what is secret to ``hidden``.

    ``after``: characters that may follow the URL.
    """
    shown = ""
    for _ in range(_MOST_NESTED):
        start, end = login_end(rest), _first_of(rest, _QUERY)
        inner = -1 if start else rest.find("://", 0, end)
        if inner < 0:
            return shown + _redact_login(scheme, rest, start, hidden, after)
        # A URL in the path of another, as archives and proxies have it.
        outer, rest = rest[:inner], rest[inner + 3 :]
        shown += f"{_redact_path(scheme, outer, hidden, '')}://"
        scheme = outer[len(outer.rstrip(_SCHEME)) :]
    return shown + HIDDEN


def _redact_login(scheme: str, rest: str, start: int, hidden: list[str], after: str) -> str:
    """Return what follows "://", redacted; ``start``: of the host."""
    login = rest[: start - 1] if start else ""
    rest, lead = rest[start:], "@" * bool(start)
    if login:
        lead = f"{HIDDEN}@"
        hidden.extend(part for part in (login, login.partition(":")[2] or login) if part != HIDDEN)
    host = login[: _first_of(login, _PATH)].rpartition("@")[2]
    if _QUERY.search(login) and host and _HOST.fullmatch(host):
        # With a query before the "@", what follows may be the rest of a value in it.
        _, mark, more = rest.partition("&")
        return f"{lead}{HIDDEN}{mark}{_redact_query(more, hidden, after)}"
    end = _first_of(rest, _QUERY)
    path = _redact_path(scheme, rest[:end], hidden, after if end == len(rest) else "")
    query, mark, fragment = rest[end:].partition("#")
    shown = lead + path
    if query:
        shown += f"?{_redact_query(query[1:], hidden, '' if mark else after)}"
    if fragment:
        parts = (_redact_parameter(part, hidden, after, keys=False) for part in fragment.split("&"))
        fragment = "&".join(dict.fromkeys(parts))
    return f"{shown}{mark}{fragment}"


def _redact_path(scheme: str, path: str, hidden: list[str], after: str) -> str:
    """Return a host and a path without stream keys and secrets of the kind ``;key=value``."""
    host, *parts = path.split("/")
    if scheme.rpartition("+")[2].rpartition(":")[2].lower() in _STREAM_KEYS and len(parts) > 1:
        key = "/".join(parts[1:])
        bare = key.rstrip(after)
        if bare and bare != HIDDEN:
            hidden.append(bare)
        return "/".join((host, parts[0], (HIDDEN if bare else "") + key[len(bare) :]))
    if "=" not in path:
        return path
    return "/".join((host, *(_redact_segment(part, hidden, after) for part in parts)))


def _redact_segment(segment: str, hidden: list[str], after: str) -> str:
    found = []
    for part in segment.split(";"):
        match = _SECRET_IN_PATH.fullmatch(part)
        found.append(_redact_parameter(part, hidden, after) if match else part)
    return ";".join(found)


def _redact_query(query: str, hidden: list[str], after: str) -> str:
    *parts, last = query.split("&")
    shown = [_redact_parameter(part, hidden, "") for part in parts]
    return "&".join((*shown, _redact_parameter(last, hidden, after)))


def _redact_parameter(text: str, hidden: list[str], after: str, *, keys: bool = True) -> str:
    """Return ``key=value`` with the value hidden, unless its key is known to be harmless.

    ``keys``: the key is shown.
    """
    bare = text.rstrip(after)
    tail = text[len(bare) :]
    key, _, value = bare.partition("=")
    if key.lower() in _PLAIN_KEYS and _PLAIN_VALUE.fullmatch(value):
        return text
    if not bare:  # nothing but what may follow a URL
        return HIDDEN if len(text) > _LONGEST_AFTER else text
    if not (keys and value.strip("=") and _KEY.fullmatch(key)):
        key, value = "", bare
    if value not in ("", HIDDEN):
        hidden.append(value)
    return f"{key}{'=' * bool(key)}{HIDDEN if value else ''}{tail}"


def _hide_value(match: re.Match[str]) -> str:
    key, value = match["key"], match["value"]
    if key[1:-1].lower() in _PLAIN_KEYS:
        return match[0]
    bare = value.rstrip(_AFTER)
    return f"{key}{HIDDEN if value else ''}{value[len(bare) :] if bare else ''}"


def _redact_run(run: str) -> str:
    """Return a text without white space with the secrets of the URL in it hidden."""
    start = 0
    while (colon := run.find("://", start)) >= 0:
        before = run[start:colon]
        scheme = before[len(before.rstrip(_SCHEME)) :]
        start = colon + 3
        if letter := _LETTER.search(scheme):
            rest = _redact_rest(scheme[letter.start() :], run[start:], [], after=_AFTER)
            return run[:start] + rest
    return run


_LOGIN_CUT = re.compile(
    r"(?<=://)(?P<host>[^\s/?#@]+:[^\s/?#@]*)(?P<more>[^@]{0,60}@)?(?P<inner>//)?"
)


def _redact_lost_logins(text: str) -> str:
    """Hide what looks like a user and a password whose "@" was cut off or comes after a space."""

    def hide(match: re.Match[str]) -> str:
        host = match["host"].rstrip(_AFTER + "\u2026")
        plain = _HOST.fullmatch(host) or _PLACEHOLDER.fullmatch(host) or match["inner"]
        if plain:
            return match[0]
        return f"{HIDDEN}@" if match["more"] else HIDDEN + match["host"][len(host) :]

    return _LOGIN_CUT.sub(hide, text)


class _Secrets:
    """The secrets of the URLs in use, in the forms in which libraries write them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: dict[str, str] = {}  # by secret text, the newest last
        self._pairs: tuple[tuple[str, str], ...] | None = ()  # long ones first; None: to be made

    def remember(self, url: str, shown: str, hidden: list[str]) -> None:
        """Remember a URL, what is shown of it, and its secret parts."""
        parts = {form for part in filter(_is_distinct, hidden) for form in _forms(part)}
        found = {
            **dict.fromkeys(filter(_is_distinct, parts), HIDDEN),
            **dict.fromkeys(_forms(url), shown),
        }
        if found.keys() <= self._shown.keys():
            return
        with self._lock:
            secrets = {**self._shown, **found}
            self._shown = dict(list(secrets.items())[-_MOST:])
            self._pairs = None

    def hide(self, text: str) -> str:
        """Return a text without what is remembered."""
        pairs = self._pairs
        if pairs is None:  # one may be part of another
            pairs = tuple(sorted(self._shown.items(), key=lambda pair: -len(pair[0])))
            self._pairs = pairs
        for secret, shown in pairs:
            if secret in text:
                text = text.replace(secret, shown)
        return text


def _forms(text: str) -> set[str]:
    """Return a text as programs write it: as it is, encoded, decoded, in quotes."""
    plain = {text, unquote(text)}
    plain |= {quote(unquote(text), safe=safe) for safe in ("", "/", ":/?#[]@!$&'()*+,;=")}
    plain |= {repr(each)[1:-1] for each in (text, unquote(text))}
    return plain | {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _is_distinct(secret: str) -> bool:
    """Return whether a secret is rare enough to be hidden in any text."""
    kinds = (str.islower, str.isupper, str.isdecimal, lambda c: not c.isalnum())
    several = sum(any(map(kind, secret)) for kind in kinds) > 1
    return len(secret) >= _SHORTEST and several


_SECRETS = _Secrets()
