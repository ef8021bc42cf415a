"""The page of a watch: who may read it, what it shows, files, streams, a real browser."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from costream.core.clock import began_of
from costream.core.errors import SourceError
from costream.core.records import Alert, AlertNote, Gap, Header, Segment, VideoFrame, dumps, to_json
from costream.options.options import Options
from costream.runtime.alerts.actions import AlertEvent
from costream.runtime.alerts.snapshots import AlertPicture, Scene
from costream.runtime.watch.web import TOKEN, WebPage, earlier_events
from costream.sinks.events import Event, event_of, events_in
from costream.sinks.mean_levels import MeanLevels
from kit.browser import browse, console, fit, needs_browser
from kit.watched import feed, watch

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\"'&"
BEGAN = "2026-11-22T04:00:00.000Z"
HEADER = Header(
    *("0.1.0", "cooadtr", "0" * 64, ("background", "fall"), "background", 4.0, 0.0),
    *("rtsp://cam", "video", None, {}),
    began=BEGAN,
)


def scene() -> Scene:
    frame = VideoFrame(0, 0.0, 0, lambda: np.full((48, 64, 3), 128, np.uint8))
    return Scene(frame, (), ())


def get(url: str, **headers: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as r:
            return r.status, r.headers["Content-Type"], r.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


@pytest.fixture
def page(monkeypatch) -> Iterator[WebPage]:
    monkeypatch.delenv(TOKEN, raising=False)
    served = WebPage("0")
    served.begin({"door": scene, HOSTILE: lambda: None})
    served.show(watch(feed(), feed(name=HOSTILE, active=HOSTILE, state="waiting")))
    yield served
    served.close()


def data_of(body: bytes) -> dict:
    text = body.decode().partition('<script type="application/json" id="data">')[2]
    return json.loads(text.partition("</script>")[0])


def test_the_page_has_feeds_events_and_alerts(page):
    sink = page.sink("door")
    sink.open(HEADER)
    sink.write(Segment(1.0, 3.0, HOSTILE, 0.9))
    page.do(AlertEvent("door", "2026-11-22T04:00:03.000Z", Alert(3.0, "fall", "fall", 0.9, 1.0)))
    status, kind, body = get(page.url)
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert body.count(b"</script>") == 2  # no text ends a script
    data = data_of(body)
    assert [f["name"] for f in data["status"]["feeds"]] == ["door", HOSTILE]
    assert data["status"]["feeds"][0]["labels"] == ["walk"]
    begun = began_of(HEADER)
    segment, alert = data["events"]
    assert segment | {"start": begun + 1, "end": begun + 3, "label": HOSTILE} == segment
    assert alert | {"kind": "alert", "start": begun + 3, "feed": "door"} == alert
    assert len(body) < 50_000


def test_a_page_of_another_server_cannot_read_it_under_its_name(page):
    port = urlsplit(page.url).port
    assert get(f"http://127.0.0.1:{port}/", Host="evil.example")[0] == 403
    assert get(f"http://127.0.0.1:{port}/", Host=f"localhost:{port}")[0] == 200
    assert get(f"http://127.0.0.1:{port}/", Host=f"[::1]:{port}")[0] == 200


def test_elsewhere_than_on_loopback_a_token_is_needed(monkeypatch):
    monkeypatch.setenv(TOKEN, "secret")
    page = WebPage("0.0.0.0:0")
    page.begin({})
    try:
        at = f"http://127.0.0.1:{urlsplit(page.url).port}"
        assert page.url_with_token.endswith("/?token=secret")
        for path in ("/", "/stream", "/picture?feed=door", "/?token=wrong", "/?token=", "/?token"):
            assert get(at + path)[0] == 401, path
        connection = HTTPConnection("127.0.0.1", urlsplit(page.url).port)
        connection.request("GET", "/?token=secret")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        pair = cookie.partition(";")[0]
        assert get(at, Cookie=pair)[0] == 200
        assert get(at, Cookie=pair.replace("secret", "secre"))[0] == 401
    finally:
        page.close()
    monkeypatch.delenv(TOKEN)
    made_up = [WebPage("0.0.0.0:0") for _ in range(2)]
    assert (
        made_up[0].url_with_token.partition("=")[2] != made_up[1].url_with_token.partition("=")[2]
    )
    for page in made_up:
        page.close()


def test_pictures_and_files_are_those_of_events_only(page, tmp_path):
    clip = tmp_path / "door_1.mkv"
    clip.write_bytes(b"clip")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    alert = Alert(3.0, "fall", "fall", 0.9, 1.0, clip=clip.name)
    picture = AlertPicture(scene(), None)
    page.do(AlertEvent("door", "2026-11-22T04:00:03.000Z", alert, clip, picture))
    shown = data_of(get(page.url)[2])["events"][-1]
    assert get(f"{page.url}snapshot?feed=door&name={shown['picture']}")[2][:2] == b"\xff\xd8"
    assert get(f"{page.url}clip?feed=door&name=door_1.mkv") == (200, "video/x-matroska", b"clip")
    assert get(f"{page.url}picture?feed=door")[2][:2] == b"\xff\xd8"
    for path in (
        "picture?feed=none",
        "clip?feed=door&name=secret.txt",
        "clip?feed=door&name=../secret.txt",
        f"clip?feed=door&name={tmp_path}/secret.txt",
        "clip?feed=other&name=door_1.mkv",
        "snapshot?feed=door&name=door_1.mkv",
        "../../etc/passwd",
        "%2e%2e/etc/passwd",
        "favicon.ico",
    ):
        assert get(page.url + path)[0] == 404, path
    clip.unlink()  # --keep has deleted it
    assert get(f"{page.url}clip?feed=door&name=door_1.mkv")[0] == 404


def read_stream(page: WebPage, after: str, until: str) -> str:
    data = data_of(get(page.url)[2])
    at = f"{page.url}stream?watch={data['watch']}&after={after}"
    text = ""
    with urllib.request.urlopen(at, timeout=60) as stream:
        while until not in text:
            line = stream.readline().decode()
            if not line:
                break
            text += line
    return text


def test_a_stream_brings_what_has_come_since(page):
    sink = page.sink("door")
    sink.open(HEADER)
    sink.write(Segment(1.0, 3.0, "walk", 0.9))
    sink.write(Gap(3.0, 4.0, "refused"))
    text = read_stream(page, "1", "event: status")
    assert "refused" in text
    assert "walk" not in text.partition("event: status")[0]
    sink.write(AlertNote(9.0, "fall", "fall", description="before its alert"))
    for time_s in (3.0, 9.0):
        alert = Alert(time_s, "fall", "fall", 0.9, 1.0)
        page.do(AlertEvent("door", "2026-11-22T05:00:00.000Z", alert))
    sink.write(AlertNote(3.0, "fall", "fall", clip="c.mkv", description="after its alert"))
    text = read_stream(page, "5", "event: status")  # the alert again, as it is now
    assert ("after its alert" in text, "before its alert" in text) == (True, False)
    events = [e for e in data_of(get(page.url)[2])["events"] if e["kind"] == "alert"]
    assert [(e.get("description"), e.get("clip")) for e in events] == [
        ("after its alert", "c.mkv"), ("before its alert", None),
    ]  # fmt: skip
    assert "event: reload" in get(f"{page.url}stream?watch=other&after=1")[2].decode()
    later = threading.Timer(0.2, page.close)
    later.start()
    assert "event: end" in read_stream(page, "2", "event: end")
    later.join()


def test_twenty_slow_clients_hold_nobody_up(page):
    watch_id = data_of(get(page.url)[2])["watch"]
    port = urlsplit(page.url).port
    slow = []
    for _ in range(40):  # which never read
        connection = HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/stream?watch={watch_id}&after=0")
        slow.append(connection)
    began_s = time.monotonic()
    assert get(page.url)[0] == 200
    assert time.monotonic() - began_s < 3
    assert get(f"{page.url}stream?watch={watch_id}&after=0")[0] == 503  # not without end
    for connection in slow:
        connection.close()


def test_events_of_the_last_day_are_read_from_the_files(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    now = time.time()
    began = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now - 3600))
    long_ago = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now - 90_000))
    lines = [
        *(replace(HEADER, began=long_ago), Segment(0.0, 1.0, "old", 0.9)),
        *(replace(HEADER, began=began), Segment(5.0, 6.0, "walk", 0.9)),
    ]
    lines += [Alert(7.0, "walk", "walk", 0.9, 6.0), Alert(7.0, "walk", "walk", 0.9, 6.0, person=2)]
    lines.append(AlertNote(7.0, "walk", "walk", clip="gone.mkv", description="A walk."))
    text = "".join(dumps(to_json(line)) + "\n" for line in lines)
    (tmp_path / "door.jsonl").write_text(text + '{"type": "segment", "start_s"', "utf-8")
    part = tmp_path / "door.2026-11-22T04-00-00.jsonl"
    part.write_text(dumps(to_json(lines[2])) + "\nnonsense\n" + dumps(to_json(Gap(1, 2, "x"))))
    page = WebPage("0")
    try:
        options = Options(output=str(tmp_path))
        page.begin({"door": lambda: None}, partial(earlier_events, options, ["door"]))
        sink = page.sink("door")
        sink.open(HEADER)
        sink.write(Segment(1.0, 3.0, "new", 0.9))
        events = data_of(get(page.url)[2])["events"]
        assert [e["label"] for e in events] == ["x", "walk", "walk", "walk", "new"]
        assert [e.get("description") for e in events[2:]] == ["A walk.", None, None]
    finally:
        page.close()


def test_a_folder_that_is_not_there_yet_has_no_earlier_events(tmp_path):
    options = Options(output=str(tmp_path / "log"))
    assert earlier_events(options, ["door"], 0.0) == []


def test_whatever_the_reading_of_earlier_events_meets_the_page_opens(page, monkeypatch):
    def fails(since_s: float) -> list[Event]:
        raise SourceError("not a store")

    page._read.clear()
    page.begin({}, fails)
    assert page._read.wait(60)


def test_pictures_that_are_no_longer_in_memory_are_read_from_their_files(page, tmp_path):
    alert = Alert(3.0, "fall", "fall", 0.9, 1.0)
    for name in ["yard"] + ["door"] * 70:
        (tmp_path / name).mkdir(exist_ok=True)
        picture = AlertPicture(scene(), tmp_path / name / "yard.jpg" if name == "yard" else None)
        page.do(AlertEvent(name, "2026-11-22T04:00:03.000Z", alert, None, picture))
    assert get(f"{page.url}snapshot?feed=yard&name=yard.jpg")[2][:2] == b"\xff\xd8"
    assert get(f"{page.url}snapshot?feed=door&name=yard.jpg")[0] == 404


def test_every_kind_of_record_is_one_event_or_none():
    assert event_of(Segment(1.0, 2.0, "a", 0.5, person=3), "door", 100.0).to_json() == {
        "feed": "door",
        "kind": "segment",
        "start": 101.0,
        "end": 102.0,
        "label": "a",
        "score": 0.5,
        "person": 3,
    }
    assert event_of(HEADER, "door", 0.0) is None
    assert list(events_in(Path("/dev/null"), "door")) == []


@needs_browser
@pytest.mark.long
def test_a_browser_shows_it(tmp_path, monkeypatch):
    """The page as a file: the same script and style as over HTTP."""
    from costream.sinks.events import event_page

    at = began_of(HEADER)
    records = [Segment(1.0, 300.0, HOSTILE, 0.9), Gap(400.0, 500.0, "refused")]
    records.append(Alert(3.0, "fall>=0.8", "fall", 0.9, 1.0))
    events = [event_of(record, HOSTILE, at).to_json() for record in records]
    data = {"live": False, "title": HOSTILE, "about": "x", "labels": ["fall"], "events": events}
    levels = MeanLevels()
    for k in range(201):  # 10 s of 0 dB, then 10 s of -20 dB, and so on
        levels.add(HOSTILE, at + 10 * k, -20.0 if k % 2 else 0.0, "dB of full scale")
    data["levels"] = levels.to_json()
    head, tail, _ = event_page(data)
    file = tmp_path / "page.html"
    file.write_text(head + tail, "utf-8")
    done = browse(file, tmp_path / "p", "--dump-dom", "--virtual-time-budget=2000")
    assert console(done) == []
    assert done.stdout.count('<tr><td class="ev-when">') == 3
    assert "Alerts (1)" in done.stdout
    assert "<img src=x" not in done.stdout
    assert done.stdout.count(">-3</td>") == 3  # in its hour, by night or by day, and in all
    inner, scroll, _ = fit(file, 390, tmp_path)
    assert (inner, scroll) == (390, 390)
