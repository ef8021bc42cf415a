"""``--web``: a page with the feeds, their newest pictures, events and alerts of a watch."""

from __future__ import annotations

import gzip
import hmac
import json
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from costream.core.clock import began_of, parse_utc
from costream.core.errors import CostreamError, SourceError
from costream.core.records import Alert, AlertNote, Header, Record, Summary
from costream.core.status import FeedStatus, WatchStatus
from costream.core.units import counted
from costream.core.urls import redact
from costream.options.options import Options
from costream.runtime.alerts.actions import SECRET_VARIABLES, AlertEvent
from costream.runtime.alerts.snapshots import AlertPicture, RemoteScene, Scene
from costream.runtime.watch.http_server import HttpAnswer, HttpRequest, StatusServer
from costream.sinks.events import (
    Event,
    event_of,
    event_page,
    events_in,
    known_by,
    stored_events,
)
from costream.sinks.mean_levels import MeanLevels
from costream.sinks.rotation import journal_files

TOKEN = "COSTREAM_WEB_TOKEN"  # environment variable
MOST_EVENTS = 5000  # kept in memory and shown
_MOST_PICTURES = 60  # of alerts, in memory
_MOST_STREAMS = 32  # pages that are kept up to date at one time
_EARLIER_S = 86400.0  # events of an earlier watch are shown that are younger than this
_LEVELS_S = 2 * 86400.0  # levels are shown that are younger than this
_SHOW_S = 1.0  # interval of sending the status
_READ_S = 10.0  # a page waits at most this long for the events of earlier watches
_ALIVE_S = 10.0  # interval of a sign of life
_CHUNK = 1 << 16
_FILES = ("clip", "picture")  # fields of events with files
_GZIP_FROM = 1024  # bytes
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WebPage:
    """Serves the page at ``address``: PORT (on loopback) or HOST:PORT.

    It is a view of the watch (``show``), an action of every alert (``do``), and makes a sink for
    the records of each feed. On loopback everybody on the machine may read it; elsewhere only who
    knows the token: the value of COSTREAM_WEB_TOKEN, or one made up at the start.
    """

    wants_clip = False
    name = "page"

    def __init__(self, address: str) -> None:
        """Raise UsageError if nothing can be served there."""
        self._changed = threading.Condition()  # guards the rest
        self._events: deque[_Shown] = deque(maxlen=MOST_EVENTS)
        self._newest = 0  # number of the newest event
        self._status: dict[str, Any] = {"feeds": [], "title": "costream", "about": "", "now": 0.0}
        self._status_number = 0
        self._shown_s = float("-inf")
        self._labels: tuple[str, ...] = ()
        self._levels, self._unit = MeanLevels(), "dB of full scale"
        self._early: deque[tuple[str, AlertNote]] = deque(maxlen=_MOST_PICTURES)
        self._folder: Path | None = None  # of clips
        self._pictures: OrderedDict[str, AlertPicture] = OrderedDict()  # by name
        self._scenes: Mapping[str, Callable[[], Scene | RemoteScene | None]] = {}
        self._read = threading.Event()  # the events of earlier watches
        self._watch = secrets.token_hex(4)  # tells a page that another watch answers
        self._streams = 0
        self._closed = False
        SECRET_VARIABLES.add(TOKEN)
        self._server = StatusServer(address, self, "--web")
        self._token = os.environ.get(TOKEN, "")
        if not self._token and not self._server.loopback:
            self._token = secrets.token_urlsafe(12)
        self.url = f"{self._server.url}/"

    @property
    def url_with_token(self) -> str:
        """The address that opens the page."""
        return f"{self.url}?token={self._token}" if self._token else self.url

    def begin(
        self,
        scenes: Mapping[str, Callable[[], Scene | RemoteScene | None]],
        earlier: Callable[[float], list[Event]] | None = None,
        folder: Path | None = None,
        full_scale_db: float = 0.0,
    ) -> None:
        """Begin to show the feeds; ``scenes`` returns the newest picture of each.

        ``earlier(since_s)`` returns the events that earlier watches have left since then, with
        the paths of their files. ``folder``: of clips. ``full_scale_db``: level of full scale; 0:
        it is not known.
        """
        self._unit = "dB" if full_scale_db else self._unit
        self._scenes, self._folder = scenes, folder
        if earlier is None:
            self._read.set()
        else:
            threading.Thread(target=self._read_earlier, args=(earlier,), daemon=True).start()

    def show(self, status: WatchStatus) -> None:
        """Show a status, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._shown_s < _SHOW_S:
            return
        self._shown_s = now_s
        values = self._status_json(status)
        with self._changed:
            self._status, self._labels = values, status.labels
            for feed in status.feeds:
                if feed.state == "live" and feed.level_db is not None:
                    self._levels.add(feed.name, values["now"], feed.level_db, self._unit)
            values["levels"] = self._levels.to_json(values["now"])
            self._status_number += 1
            self._changed.notify_all()

    def do(self, event: AlertEvent) -> None:
        """Show an alert, with its picture and clip."""
        self._show_alert(event)
        for _ in range(len(self._early)):
            self.note(*self._early.popleft())

    def _show_alert(self, event: AlertEvent) -> None:
        shown = event_of(event.alert, event.feed, parse_utc(event.at) - event.alert.time_s)
        assert shown is not None
        picture, files = event.snapshot, {} if event.clip is None else {"clip": event.clip}
        if picture is None:
            self.event(shown, files, event.alert)
            return
        picture.jpeg()  # drawn here, as the frame is kept until then
        if picture.path is not None:
            files["picture"] = picture.path
        with self._changed:
            name = f"{self._newest}.jpg" if picture.path is None else picture.path.name
            self._pictures[name] = picture
            while len(self._pictures) > _MOST_PICTURES:
                self._pictures.popitem(last=False)
        self.event(replace(shown, more={**shown.more, "picture": name}), files, event.alert)

    def cancel(self) -> None:
        """Do nothing: showing takes no time."""

    def sink(self, feed: str) -> PageSink:
        """Return a sink that shows the events of a feed."""
        return PageSink(self, feed)

    def event(
        self,
        event: Event,
        files: Mapping[str, Path] = MappingProxyType({}),
        alert: Alert | None = None,
    ) -> None:
        """Show an event; ``files``: its clip and picture, as far as they are written."""
        with self._changed:
            self._newest += 1
            self._events.append(_Shown.of(self._newest, event, files, alert))
            self._changed.notify_all()

    def note(self, feed: str, note: AlertNote) -> None:
        """Show what became known of an alert, now or when the alert is shown."""
        with self._changed:
            found = (
                k
                for k in range(len(self._events) - 1, -1, -1)
                if self._events[k].event["feed"] == feed and self._events[k].is_of(note)
            )
            k = next(found, None)
            if k is None:
                self._early.append((feed, note))
                return
            shown, files = self._events[k], dict(self._events[k].files)
            if note.clip is not None and self._folder is not None:
                files["clip"] = self._folder / note.clip
            self._newest += 1
            event = {**shown.event, **known_by(note)}
            self._events[k] = _Shown(self._newest, event, files, shown.alert)
            self._changed.notify_all()

    def close(self) -> None:
        """End the streams and stop listening. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.close()

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request."""
        query = {key: values[-1] for key, values in parse_qs(request.query).items()}
        refused = self._refusal(request, query)
        if refused is not None:
            return refused
        if request.path == "/":
            return self._page(request)
        if request.path == "/stream":
            return self._stream(query.get("watch", ""), query.get("after", ""))
        return self._media(request.path, query.get("feed", ""), query.get("name", ""))

    # Requests.

    def _refusal(self, request: HttpRequest, query: Mapping[str, str]) -> HttpAnswer | None:
        """Return the answer for who may not read the page, or has shown the token just now."""
        cookie = f"costream_{self._server.port}"
        if not self._token:
            host = urlsplit(f"//{request.host}").hostname or ""
            if host in ("localhost", "127.0.0.1", "::1"):
                return None
            # A page of another server, under a name that leads here.
            return _text(HTTPStatus.FORBIDDEN, "open this page under its address\n")
        given = query.get("token", "")
        if _same(given, self._token):
            if request.path != "/":
                return None
            set_cookie = f"{cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            headers = {**_HEADERS, "Location": "/", "Set-Cookie": set_cookie}
            return HttpAnswer(HTTPStatus.SEE_OTHER, headers=headers)
        parts = (part.strip().partition("=") for part in request.cookie.split(";"))
        if any(name == cookie and _same(value, self._token) for name, _, value in parts):
            return None
        return _text(HTTPStatus.UNAUTHORIZED, "open the address with ?token= that watch printed\n")

    def _page(self, request: HttpRequest) -> HttpAnswer:
        self._read.wait(_READ_S)
        with self._changed:
            data = {
                "live": True,
                "events": [shown.event for shown in self._events],
                "watch": self._watch,
                "newest": self._newest,
                "most": MOST_EVENTS,
                "labels": self._labels,
                "status": self._status,
                "levels": self._levels.to_json(time.time() - _LEVELS_S),
            }
        head, tail, policy = event_page(data)
        body = (head + tail).encode("utf-8", "backslashreplace")
        headers = {**_HEADERS, "Content-Security-Policy": policy}
        if len(body) >= _GZIP_FROM and "gzip" in request.encodings:
            body = gzip.compress(body, 5)
            headers["Content-Encoding"] = "gzip"
        return HttpAnswer(HTTPStatus.OK, "text/html; charset=utf-8", body, headers)

    def _stream(self, watch: str, after: str) -> HttpAnswer:
        if self._streams >= _MOST_STREAMS:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many open pages\n")
        known = watch == self._watch and after.isdecimal() and len(after) < 18
        parts = self._parts(int(after)) if known else iter([b"event: reload\ndata: {}\n\n"])
        return HttpAnswer(HTTPStatus.OK, "text/event-stream", b"", _HEADERS, parts)

    def _parts(self, number: int) -> Iterator[bytes]:
        """Yield the server-sent events after event ``number``, to the end of the watch."""
        with self._changed:
            self._streams += 1
        try:
            yield b"retry: 2000\n\n"
            shown = -1
            while not self._closed:
                with self._changed:
                    if self._newest <= number and self._status_number == shown:
                        self._changed.wait(_ALIVE_S)
                    come = [each.event for each in self._events if each.number > number]
                    number, new_status = self._newest, self._status_number != shown
                    status, shown = self._status, self._status_number
                if come:
                    yield _message("events", come, number)
                yield _message("status", status, number) if new_status else b": \n\n"
            yield b"event: end\ndata: {}\n\n"
        finally:
            with self._changed:
                self._streams -= 1

    def _media(self, path: str, feed: str, name: str) -> HttpAnswer:
        if path == "/picture" and feed in self._scenes:
            scene = self._scenes[feed]()
            if scene is not None:
                return _jpeg(AlertPicture(scene, None).jpeg())
        if path == "/snapshot" and name in self._pictures:
            return _jpeg(self._pictures[name].jpeg())
        file = self._file(path, feed, name)
        if file is not None:
            try:
                return _sent(file)
            except OSError:
                return _text(HTTPStatus.NOT_FOUND, "the file is not there, or not there yet\n")
        return _text(HTTPStatus.NOT_FOUND, "not found; try /\n")

    def _file(self, path: str, feed: str, name: str) -> Path | None:
        """Return the file that an event of a feed has named."""
        field = {"/clip": "clip", "/snapshot": "picture"}.get(path, "")
        with self._changed:
            files = [each.files for each in self._events if each.event["feed"] == feed]
        found = (each[field] for each in reversed(files) if field in each)
        return next((file for file in found if file.name == name), None)

    # What is shown.

    def _status_json(self, status: WatchStatus) -> dict[str, Any]:
        names = [feed.name for feed in status.feeds]
        title = ", ".join(names) if len(names) <= 3 else counted(len(names), "feed")
        began = datetime.fromtimestamp(parse_utc(status.began))
        return {
            "now": time.time(),
            "title": title,
            "about": f"{status.model}, since {began:%Y-%m-%d %H:%M}, costream {status.version}",
            "feeds": [self._feed_json(feed) for feed in status.feeds],
        }

    def _feed_json(self, feed: FeedStatus) -> dict[str, Any]:
        scene = self._scenes.get(feed.name)
        return {
            "name": feed.name,
            "state": feed.state,
            "message": redact(feed.message) if feed.state != "live" else "",
            "labels": _labels_of(feed),
            "figures": _figures(feed),
            "picture": scene is not None and scene() is not None,
        }

    def _read_earlier(self, earlier: Callable[[float], list[Event]]) -> None:
        """Put the events of the last day before those that have come meanwhile."""
        began_s = time.time()
        found: list[Event] = []
        try:
            with suppress(CostreamError):
                found = [e for e in earlier(began_s - _EARLIER_S) if e.end_s < began_s]
            with self._changed:
                room = MOST_EVENTS - len(self._events)
                for number, event in enumerate(reversed(found[max(0, len(found) - room) :])):
                    files = {
                        name: Path(event.more[name]) for name in _FILES if event.more.get(name)
                    }
                    self._events.appendleft(_Shown.of(-number, event, files))
        finally:
            self._read.set()


@dataclass(frozen=True)
class _Shown:
    """An event on the page, its number, and its files by the name of their field."""

    number: int
    event: dict[str, Any]
    files: Mapping[str, Path]
    alert: Alert | None = None  # that it shows

    @classmethod
    def of(
        cls,
        number: int,
        event: Event,
        files: Mapping[str, Path],
        alert: Alert | None = None,
    ) -> _Shown:
        """Return an event whose files are called by their names."""
        names = {field: path.name for field, path in files.items()}
        return cls(number, {**event.to_json(), **names}, files, alert)

    def is_of(self, note: AlertNote) -> bool:
        """Return whether a note is about this alert."""
        return self.alert is not None and note.is_about(self.alert)


def earlier_events(options: Options, feeds: Sequence[str], since_s: float) -> list[Event]:
    """Return the events since then that earlier watches have left, in their order.

    They are in the store, or else in the files of the feeds.
    """
    if options.db is not None:
        return stored_events(Path(options.db), feeds, since_s, MOST_EVENTS)
    folder = options.output_folder
    if folder is None:
        return []
    found: list[Event] = []
    for feed in feeds:
        for path in journal_files(folder, feed):
            with suppress(OSError, SourceError):  # it has been deleted, or is not there yet
                if path.stat().st_mtime >= since_s:
                    found += [event for event in events_in(path, feed) if event.end_s > since_s]
    for k, event in enumerate(found):
        more = dict(event.more)
        for name, where in zip(_FILES, (folder, options.snapshot_folder), strict=True):
            file = more.get(name)
            if file is not None and where is not None and Path(file).name == file:
                more[name] = str(where / file)
            else:
                more[name] = None
        found[k] = replace(event, more=more)
    return sorted(found, key=lambda event: event.end_s)


class PageSink:
    """Shows the events of one feed on the page."""

    def __init__(self, page: WebPage, feed: str) -> None:
        self._page, self._feed = page, feed
        self._began_s: float | None = None

    def open(self, header: Header) -> None:
        """Begin with a run."""
        self._began_s = began_of(header)

    def write(self, record: Record) -> None:
        """Show a record that is an event; alerts are shown by ``WebPage.do``."""
        if self._began_s is None or isinstance(record, Alert):
            return
        if isinstance(record, AlertNote):
            self._page.note(self._feed, record)
            return
        event = event_of(record, self._feed, self._began_s)
        if event is not None:
            self._page.event(event)

    def close(self, summary: Summary) -> None:
        """Do nothing: the page ends with the watch."""


def _labels_of(feed: FeedStatus) -> list[str]:
    """Return what a feed shows now, as words."""
    if feed.persons:
        doing = [(p.number, p.active) for p in feed.persons if p.active is not None]
        persons = [f"person {number}: {label}" for number, label in doing]
        return persons or [counted(len(feed.persons), "person")]
    labels = [label for label in feed.heads.values() if label is not None]
    return labels or ([] if feed.active is None else [feed.active])


def _figures(feed: FeedStatus) -> str:
    parts = [f"{feed.steps_hz:.1f} steps a second", f"{feed.lag_s:.1f} s behind"]
    if feed.level_db is not None:
        parts.append(f"{feed.level_db:.0f} dB")
    if feed.alerts:
        parts.append(counted(feed.alerts, "alert"))
    return ", ".join(parts)


def _message(kind: str, values: Any, number: int) -> bytes:
    text = json.dumps(values, ensure_ascii=False)
    return f"event: {kind}\nid: {number}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def _text(status: HTTPStatus, words: str) -> HttpAnswer:
    return HttpAnswer(status, body=words.encode(), headers=_HEADERS)


def _jpeg(picture: bytes) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, "image/jpeg", picture, _HEADERS)


def _sent(path: Path) -> HttpAnswer:
    """Return a file in parts. Raises OSError if it cannot be read."""
    kind = "image/jpeg" if path.suffix == ".jpg" else "video/x-matroska"
    file = path.open("rb")

    def parts() -> Iterator[bytes]:
        with file:
            while part := file.read(_CHUNK):
                yield part

    return HttpAnswer(HTTPStatus.OK, kind, b"", _HEADERS, parts())
