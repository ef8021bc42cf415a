"""The feeds of a watch, from the command line or from TOML files.

Such a file has one table per feed. Keys above the tables are defaults for every feed in the file,
and take precedence over the command line::

    user = "viewer"
    password-env = "CAMERA_PASSWORD"
    on = ["fall>=0.8 for 2s"]

    [[feed]]
    name = "door"
    url = "rtsp://192.168.1.20/stream1"

    [[feed]]
    url = "https://${HOST}/live.m3u8?token=${TOKEN}"
    user = ""
    timeout = 20
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from costream.core.clock import parse_time
from costream.core.declared import convert
from costream.core.errors import UsageError, display_name
from costream.core.formatting import suggest_names
from costream.core.places import KINDS, Kind, Place, check_places, parse_place
from costream.core.schema import comments, schema_of
from costream.core.settings import read_toml
from costream.core.spelling import folded
from costream.options.options import Options
from costream.options.values import parse_stream
from costream.runtime.alerts.actions import SECRET_VARIABLES
from costream.runtime.alerts.alerts import KEYS, AlertOptions, read_options
from costream.runtime.watch.feed_urls import (
    Url,
    fill,
    has_password,
    parse_url,
    read_password,
    warn_of_readers,
)
from costream.sinks.rotation import safe_name
from costream.sources.uris import name_of

Transport = Literal["tcp", "udp"]
LIST = ".toml"  # file extension of a list of feeds
_PASSWORDS = ("password", "password-env", "password-file")
# Keys whose values are not shown.
_SECRET = ("url", "user", "post", "notify", "describe", "run", *_PASSWORDS)
_STEM_BYTES = 70  # so that a number after it is still in the names of clips
_RESERVED = '/\\:*?"<>|'
_LONGEST_NAME = 100
_NO_FILE_NAME = re.compile(
    rf"[\x00-\x1f{re.escape(_RESERVED)}]|^[.\s]|[.\s]$|^$|.{{{_LONGEST_NAME + 1}}}"
)


class SharedSettings(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """Keys of a list of feeds that may stand above the feeds, and in each."""

    user: str | None = None  # user name for the URL
    password: str | None = None  # may have ${VARIABLE} in it
    password_env: str | None = None  # the environment variable that holds it
    password_file: str | None = None  # the file that holds it, relative to the list
    channel: Annotated[int, msgspec.Meta(ge=1)] | None = None  # audio channel, from 1
    stream: int | str | None = None  # video stream: its number from 1, or WIDTHxHEIGHT
    transport: Transport | None = None  # of RTSP
    timeout: int | float | str | None = None  # a feed without data for this time is reconnected
    tls_verify: bool | None = None  # refuse servers without a valid certificate
    zone: str | list[str] | None = None  # polygons: NAME=X,Y X,Y ...
    line: str | list[str] | None = None  # lines whose crossings are counted
    mask: str | list[str] | None = None  # polygons that the model does not see
    on: str | list[str] | None = None  # alert rules
    run: str | list[str] | None = None  # commands that an alert starts
    post: str | list[str] | None = None  # URLs to which alerts are posted
    append: str | list[str] | None = None  # files to which alerts are appended
    notify: str | list[str] | None = None  # services to which alerts are sent
    describe: str | list[str] | None = None  # models that describe the pictures of alerts
    clips: bool | int | float | str | list[float] | None = None  # seconds before and after: "5,5"


class FeedTable(SharedSettings, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """A table [[feed]] of a list."""

    url: str  # URL, camera, microphone or file
    name: str | None = None  # unique; files of the feed are named after it


class FeedList(SharedSettings, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """A TOML file of feeds."""

    feed: Annotated[list[FeedTable], msgspec.Meta(min_length=1)]


def feed_keys() -> dict[str, str]:
    """Return the keys of a feed and what they mean, without ``url``."""
    about = {**comments(FeedTable), **comments(SharedSettings)}
    return {name.replace("_", "-"): words for name, words in about.items() if name != "url"}


def feeds_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of lists of feeds."""
    schema = schema_of(FeedList, described=(SharedSettings, FeedTable))
    shared = schema["$defs"].pop("SharedSettings")["properties"]
    for name in ("FeedTable", "FeedList"):
        properties = schema["$defs"][name]["properties"]
        properties.update({key: {**properties[key], **value} for key, value in shared.items()})
    return schema


@dataclass(frozen=True)
class FeedSpec:
    """A feed to watch and its settings; None: the setting for all feeds."""

    name: str  # unique; its files are named after it
    uri: str = field(repr=False)  # with password
    shown: str  # the URI without password
    alerts: AlertOptions = field(repr=False)  # may hold secret URLs
    channel: int | None = None  # audio channel, from 1
    stream: str | None = None  # video stream, see SourceOptions
    transport: Transport | None = None
    timeout_s: float | None = None
    tls_verify: bool | None = None
    places: tuple[Place, ...] = ()  # zones, lines and masks


def read_feeds(options: Options) -> tuple[FeedSpec, ...]:
    """Return the feeds that the arguments name: URLs, cameras, mic, files and TOML files of feeds.

    Default names are made unique. UsageError names the file and the mistake; only lists of feeds
    and password files are opened.
    """
    flags: dict[str, Any] = {key: getattr(options, key) for key in KEYS}
    flags["password-file"] = options.password_file
    flags |= {kind: getattr(options, kind) for kind in KINDS}
    entries = [entry for text in options.sources for entry in _entries(text, flags)]
    taken: dict[str, _Entry] = {}
    for entry in entries:
        name = entry.name()
        if name is None:
            continue
        other = taken.setdefault(_in_files(name), entry)
        if other is not entry:
            same = folded(name) == folded(str(other.name()))
            what = "is already used by" if same else "would name clips like those of"
            raise entry.error("name", f"{name!r} {what} {other.where}")
    return tuple(entry.spec(taken) for entry in entries)


def _in_files(name: str) -> str:
    """Return the beginning of the names of a feed's files, in lower case."""
    return folded(safe_name(name))


def _entries(argument: str, flags: Mapping[str, Any]) -> Iterator[_Entry]:
    """Yield the entries of one argument: one feed, or all feeds of a TOML file."""
    if not argument.lower().endswith(LIST):
        yield _Entry(display_name(argument), ChainMap({"url": argument}, dict(flags)))
        return
    path = Path(argument)
    shared = read_toml(path)
    tables = shared.pop("feed", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        hint = "begin each with [[feed]]"
        raise UsageError("feed is not a list of tables", where=path, hint=hint)
    if not tables:
        hint = "each is a table [[feed]] with a url"
        raise UsageError("the list of feeds is empty", where=path, hint=hint)
    _check(shared, SharedSettings, str(path), path.parent)
    for number, table in enumerate(tables, 1):
        where = f"{path}, feed {number}"
        _check(table, FeedTable, where, path.parent)
        yield _Entry(where, ChainMap(table, shared, dict(flags)))
    if any("password" in t or has_password(str(t.get("url"))) for t in (shared, *tables)):
        warn_of_readers(path)


def _why_not(name: str) -> str:
    """Return why this cannot be a file name."""
    wrong = dict.fromkeys(c for c in name if c < " " or c in _RESERVED)
    if wrong:
        return f"leave out {' '.join(c if c >= ' ' else repr(c) for c in wrong)}"
    if len(name) > _LONGEST_NAME:
        return f"it has more than {_LONGEST_NAME} characters"
    return "it begins or ends with a dot or a space" if name else "it is empty"


def _check(table: dict[str, Any], kind: type[Any], where: str, folder: Path) -> None:
    """Raise UsageError for unknown keys and wrong types.

    Makes "password-file" relative to ``folder``.
    """
    keys = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in table:
        if key not in keys:
            what = f"unknown setting {key!r}"
            raise UsageError(what, where=where, hint=suggest_names(key, keys))
    try:
        convert(table, kind, _SECRET)
    except ValueError as error:
        raise UsageError(str(error), where=where) from error
    if (file := table.get("password-file")) is not None:
        table["password-file"] = str(folder / Path(file).expanduser())


@dataclass(frozen=True)
class _Entry:
    """The settings of a feed, from its table, its file and the command line, in this order."""

    where: str  # for messages
    settings: ChainMap[str, Any]

    def name(self) -> str | None:
        """Return the name in the settings, or None. Raises UsageError if it is not a file name."""
        name: str | None = self.settings.get("name")
        if name is not None and _NO_FILE_NAME.search(name):
            raise self.error("name", f"{name!r} cannot be used as a file name: {_why_not(name)}")
        return name

    def spec(self, taken: dict[str, _Entry]) -> FeedSpec:
        """Return the feed under a name that is not in ``taken``, and add that name."""
        uri, name = self._uri(), self.name()
        if name is None:
            name = stem = name_of(uri)
            number = 1
            while _in_files(name) in taken:
                number += 1
                name = f"{stem.encode()[:_STEM_BYTES].decode(errors='ignore')}~{number}"
            taken[_in_files(name)] = self
        places = tuple(place for kind in KINDS for place in self._places(kind))
        check_places(places, self.where)
        return FeedSpec(
            name=name,
            uri=uri,
            shown=display_name(uri),
            alerts=read_options(self.settings, self._of_key),
            channel=self.settings.get("channel"),
            stream=self._stream(),
            transport=self.settings.get("transport"),
            timeout_s=self._timeout_s(),
            tls_verify=self.settings.get("tls-verify"),
            places=places,
        )

    def _places(self, kind: Kind) -> tuple[Place, ...]:
        """Return the zones, lines or masks."""
        value = self.settings.get(kind) or ()
        values = (value,) if isinstance(value, str) else value
        where = self._of_key(kind)
        return tuple(
            each if isinstance(each, Place) else parse_place(each, kind, where) for each in values
        )

    def error(self, key: str, what: str) -> UsageError:
        """Return an error about the value of ``key``."""
        return UsageError(f"{key} {what}", where=self.where)

    def _of_key(self, key: str) -> str:
        """Return the name of a setting in messages: its option, or its file and key."""
        in_file = any(key in table for table in self.settings.maps[:-1])
        return f"{self.where}: {key}" if in_file else f"--{key}"

    def _uri(self) -> str:
        """Return the URL with user and password; a source that is not a URL unchanged."""
        text: str = self.settings["url"]
        if not text:
            raise self.error("url", "is empty")
        is_variable = text.startswith("${")  # all of the URL may be in it
        if is_variable:
            text = fill(text)
        url = parse_url(text, variables=not is_variable)
        if url is None:
            if self.settings.maps[0].keys() & {"user", *_PASSWORDS}:
                raise UsageError("only a URL can have a user and a password", where=self.where)
            return text
        if (wrong := url.error()) is not None:
            raise self.error("url", wrong)
        return str(self._with_login(url))

    def _with_login(self, url: Url) -> Url:
        """Return a URL with the user and password of the settings, if it has none."""
        feed, user = self.settings.maps[0], self.settings.get("user")
        if url.user is None and user:
            if ":" in user:  # the password would begin there
                raise self.error("user", "must not contain a colon")
            url = url.having(user, None)
        elif user and "user" in feed:
            raise self.error("user", "is in the URL already")
        if url.user is None and feed.keys() & {*_PASSWORDS}:
            raise UsageError("has a password, but no user", where=self.where)
        if url.user is not None and url.password is None:
            url = url.having(None, self._password())
        return url

    def _password(self) -> str | None:
        """Return the password from the most specific table that has one."""
        for table in self.settings.maps:
            keys = [key for key in _PASSWORDS if table.get(key) is not None]
            if len(keys) > 1:
                raise self.error(keys[0], f"cannot be combined with {keys[1]}")
            if keys:
                value: str = table[keys[0]]
                if keys[0] == "password-env":
                    SECRET_VARIABLES.add(value)
                    return fill("${" + value + "}")
                return read_password(Path(value)) if keys[0] == "password-file" else value
        return None

    def _stream(self) -> str | None:
        value = self.settings.get("stream")
        return None if value is None else parse_stream(value, self._of_key("stream"))

    def _timeout_s(self) -> float | None:
        value = self.settings.get("timeout")
        if value is None:
            return None
        try:
            timeout_s = parse_time(str(value))
        except UsageError:
            timeout_s = 0.0
        if timeout_s <= 0:
            raise self.error("timeout", f"{value!r} is not a time above 0")
        return timeout_s
