"""Lists of feeds, and the passwords in them, which must never be shown."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import av
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.options.options import Options
from costream.runtime.alerts.actions import SECRET_VARIABLES
from costream.runtime.watch.feed_list import FeedSpec, read_feeds
from costream.runtime.watch.feed_urls import parse_url
from kit.http_server import Quiet, http_server
from kit.media import make_video

SECRET = "p@:/#?%41 ä"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def feeds(*arguments: object, **options: Any) -> tuple[FeedSpec, ...]:
    return read_feeds(Options(sources=tuple(map(str, arguments)), **options))


def listed(folder: Path, text: str, **more: Any) -> tuple[FeedSpec, ...]:
    path = folder / "feeds.toml"
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return feeds(path, **more)


def test_arguments_are_feeds(tmp_path: Path) -> None:
    got = feeds("rtsp://cam1/a", "camera:0", "mic", "a/clip.mp4", "b/clip.mp4", "rtsp://u:p@cam1/a")
    assert [spec.uri for spec in got][:3] == ["rtsp://cam1/a", "camera:0", "mic"]
    names = [spec.name for spec in got]
    assert names == ["cam1_a", "camera_0", "mic", "clip.mp4", "clip.mp4~2", "cam1_a~2"]
    assert got[-1].shown == "rtsp://***@cam1/a"


@pytest.mark.parametrize(
    "url", ["udp://@:5000", "srt://:5000", "tcp://[::1]:1", "rtsp://a:/x", "file:///x", "HTTP://a"]
)
def test_urls_that_may_be_opened(url: str) -> None:
    assert feeds(url)[0].uri == url


def test_names_differ_in_the_names_of_clips(tmp_path: Path) -> None:
    long = 50 * "ä"
    (tmp_path / "feeds.toml").write_text("[[feed]]\nurl = 'mic'\nname = 'cam1 A'", "utf-8")
    got = feeds(tmp_path / "feeds.toml", "rtsp://cam1/a", f"{long}.mp4", f"{long}.mkv")
    assert [spec.name for spec in got] == ["cam1 A", "cam1_a~2", f"{long}.mp4", f"{35 * 'ä'}~2"]


def test_a_list_with_what_holds_for_all(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CAMERA_PASSWORD", SECRET)
    monkeypatch.setenv("HOST", "media.example:8443")
    monkeypatch.setenv("TOKEN", "t0k/en")
    (tmp_path / "other.txt").write_text("b@ck\n")
    got = listed(
        tmp_path,
        """
        user = "viewer"
        password-env = "CAMERA_PASSWORD"
        timeout = 20
        on = ["falling>=0.8 for 2s"]

        [[feed]]
        name = "door"
        url = "rtsp://192.168.1.20/stream1"
        transport = "udp"
        tls-verify = true
        channel = 2
        stream = 1

        [[feed]]
        url = "https://${HOST}/live.m3u8?token=${TOKEN}"
        stream = "640x480"
        user = ""
        timeout = "1:30"
        on = "sitting>=0.5"
        run = ["echo {label}"]

        [[feed]]
        url = "rtsp://back@cam3/a"
        password-file = "other.txt"

        [[feed]]
        url = "camera:1"
        """,
        run=("echo {feed}",),
    )
    door, web, back, camera = got
    assert "CAMERA_PASSWORD" in SECRET_VARIABLES  # which programs of alerts do not get
    assert door.name == "door"
    assert door.uri == "rtsp://viewer:p%40%3A%2F%23%3F%2541%20%C3%A4@192.168.1.20/stream1"
    assert (door.transport, door.channel, door.timeout_s) == ("udp", 2, 20.0)
    assert door.tls_verify is True
    assert (web.uri, web.timeout_s) == ("https://media.example:8443/live.m3u8?token=t0k/en", 90.0)
    assert back.uri == "rtsp://back:b%40ck@cam3/a"
    assert camera.uri == "camera:1"
    assert [spec.stream for spec in got] == ["1", "640x480", None, None]
    assert [spec.alerts.run for spec in got] == [
        *[("echo {feed}",)],
        *[("echo {label}",)],
        *2 * [("echo {feed}",)],
    ]
    assert [len(spec.alerts.on) for spec in got] == [1] * 4
    assert web.alerts.on != door.alerts.on


def test_nothing_shows_a_password(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("URL", "rtsp://me:hunter2@cam4/x")
    got = (
        *feeds("rtsp://me:hunter2@cam1/x?pwd=hunter2", "rtsp://me:hunt@er2@cam1/y", "${URL}"),
        *listed(tmp_path, '[[feed]]\nurl = "rtsp://cam2/x"\nuser = "me"\npassword = "hunter2"'),
    )
    assert all("hunter2" in unquote(spec.uri).replace("@er", "er") for spec in got)
    for spec in got:
        text = f"{spec!r} {spec.name} {spec.shown}"
        assert "hunt" not in text
        assert "me:" not in text


@given(user=TEXTS.filter(lambda t: ":" not in t), password=TEXTS)
@example(user="admin", password=SECRET)
@example(user="a@b", password="%41%zz+ ${HOME}")
def test_users_and_passwords_come_through_any_url(user: str, password: str) -> None:
    url = parse_url("rtsp://host:554/live?a=b#c")
    assert url is not None
    text = str(url.having(user, password))
    parts = urlsplit(text)
    assert (unquote(parts.username or ""), unquote(parts.password or "")) == (user, password)
    assert (parts.hostname, parts.port, parts.path) == ("host", 554, "/live")
    again = parse_url(text)
    assert str(again) == text


@given(user=TEXTS, password=TEXTS, host=st.sampled_from(["cam", "10.0.0.1:554", "[::1]:554"]))
def test_variables_are_taken_as_they_are(user: str, password: str, host: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "WHO", user)
        patch.setitem(os.environ, "WORD", password)
        patch.setitem(os.environ, "WHERE", host)
        url = parse_url("rtsp://${WHO}:x${WORD}y@${WHERE}/live")
    assert url is not None
    assert (unquote(url.user or ""), unquote(url.password or "")) == (user, f"x{password}y")
    assert (url.host, url.rest) == (host, "/live")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rtsp://me:p@ss@cam/a", "rtsp://me:p%40ss@cam/a"),
        ("rtsp://me:p%40ss@cam/a", "rtsp://me:p%40ss@cam/a"),
        ("rtsp://me:100%@cam/a", "rtsp://me:100%25@cam/a"),
        ("rtsp://me:a:b@cam/a", "rtsp://me:a%3Ab@cam/a"),
        ("rtsp://me:@cam/a", "rtsp://me:@cam/a"),
        ("rtsp://me@cam/a", "rtsp://me@cam/a"),
        ("http://cam:80/a@720p", "http://cam:80/a@720p"),
        ("http://[fe80::1%25eth0]:80/a@b", "http://[fe80::1%25eth0]:80/a@b"),
        ("file:///a@b.mp4", "file:///a@b.mp4"),
    ],
)
def test_urls_are_written_so_that_they_can_be_read(text: str, expected: str) -> None:
    assert str(parse_url(text)) == expected


class _Guarded(Quiet, BaseHTTPRequestHandler):
    """A server that sends a video to clients with the password."""

    video = b""
    login = ""

    def do_GET(self) -> None:
        said = self.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(said).decode("utf-8") != self.login:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.video)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    path = tmp_path / "clip.ts"
    make_video(path, 12)
    _Guarded.video = path.read_bytes()
    with http_server(_Guarded) as server:
        yield server


@pytest.mark.parametrize("password", [SECRET, "a:b@c", "%", "+ &=", "${HOME}", "日本"])
def test_ffmpeg_reads_them(password: str, guarded: Any, tmp_path: Path) -> None:
    guarded.RequestHandlerClass.login = f"my user:{password}"
    (tmp_path / "secret").write_text(password + "\n", "utf-8")
    url = f"http://my%20user@127.0.0.1:{guarded.server_port}/clip.ts"
    (spec,) = feeds(url, password_file=str(tmp_path / "secret"))
    with av.open(spec.uri) as container:
        assert container.streams.video
    guarded.RequestHandlerClass.login = "my user:other"
    with pytest.raises(av.FFmpegError, match="401"):
        av.open(spec.uri)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "feeds.toml: the list of feeds is empty"),
        ("feed = 3", "feeds.toml: feed is not a list of tables; begin each with [[feed]]"),
        ("feed = []", "feeds.toml: the list of feeds is empty"),
        ("[[feed]]\nname = 'a'", "feeds.toml, feed 1: url is missing"),
        ("[[feed]]\nurl = 3", "feed 1: url is not a string"),
        ("[[feed]]\nurl = 'rtsp://'", "feed 1: url has no host"),
        ("[[feed]]\nurl = 'http://me:hush@:80/x'", "feed 1: url has no host"),
        ("[[feed]]\nurl = 'rtsp://a:99999/x'", "feed 1: url has a port above 65535"),
        ("[[feed]]\nurl = 'udp://a:5000000/x'", "feed 1: url has a port above 65535"),
        ("[[feed]]\nurl = 'rtsp://[::1/x'", "feed 1: url has no valid host and port; write"),
        ("[[feed]]\nurl = 'tcp://a:b:1/x'", "feed 1: url has no valid host and port"),
        ("colour = 1\n[[feed]]\nurl = 'mic'", "feeds.toml: unknown setting 'colour'; known are "),
        ("[[feed]]\nurl = 'mic'\nnmae = 'x'", "feed 1: unknown setting 'nmae'; did you mean name?"),
        (
            "[[feed]]\nurl = 'mic'\nname = 'a/b<c>/d'",
            "feed 1: name 'a/b<c>/d' cannot be used as a file name: leave out / < >",
        ),
        (
            "[[feed]]\nurl = 'mic'\nname = '.a'",
            "name '.a' cannot be used as a file name: it begins or ends with a dot or a space",
        ),
        (
            f"[[feed]]\nurl = 'mic'\nname = '{'a' * 101}'",
            "cannot be used as a file name: it has more than 100 characters",
        ),
        ("[[feed]]\nurl = 'mic'\nname = '.a'", "feed 1: name '.a' cannot be"),
        ("[[feed]]\nurl = 'mic'\nname = ''", "feed 1: name '' cannot be"),
        (
            "[[feed]]\nurl = '0'\nname = 'a'\n[[feed]]\nurl = '1'\nname = 'A'",
            "feed 2: name 'A' is already used by",
        ),
        (
            "[[feed]]\nurl = '0'\nname = 'a b'\n[[feed]]\nurl = '1'\nname = '_A_b'",
            "feed 2: name '_A_b' would name clips like those of ",
        ),
        (
            "[[feed]]\nurl = 'mic'\nchannel = 0",
            "channel 0 is not an integer of at least 1",
        ),
        ("[[feed]]\nurl = 'mic'\nchannel = true", "feed 1: channel True is not an integer"),
        ("[[feed]]\nurl = 'mic'\ntls-verify = 'yes'", "tls-verify 'yes' is not true or false"),
        (
            "[[feed]]\nurl = 'mic'\nstream = 0",
            "feed 1: stream: 0 is neither a number from 1 on nor",
        ),
        (
            "[[feed]]\nurl = 'mic'\nstream = true",
            "stream True is not an integer or a string",
        ),
        ("[[feed]]\nurl = 'mic'\nstream = 'main'", "stream: 'main' is neither a number from 1"),
        ("stream = '4x'\n[[feed]]\nurl = 'mic'", "feed 1: stream: '4x' is neither a number"),
        ("[[feed]]\nurl = 'mic'\ntransport = 'sctp'", "transport 'sctp' is not tcp or udp"),
        ("[[feed]]\nurl = 'mic'\ntimeout = -3", "feed 1: timeout -3 is not a time above 0"),
        ("[[feed]]\nurl = 'mic'\ntimeout = 0", "feed 1: timeout 0 is not a time above 0"),
        ("[[feed]]\nurl = 'mic'\nclips = 'loud'", "feeds.toml, feed 1: clips: "),
        ("on = 'a>=2'\n[[feed]]\nurl = 'mic'", "feeds.toml, feed 1: on 'a>=2', column 4: "),
        ("[[feed]]\nurl = 'mic'\nuser = 'me'", "feed 1: only a URL can have a user and a password"),
        ("[[feed]]\nurl = 'rtsp://a'\nuser = 'a:b'", "feed 1: user must not contain a colon"),
        ("[[feed]]\nurl = 'rtsp://a@b'\nuser = 'c'", "feed 1: user is in the URL already"),
        ("[[feed]]\nurl = 'rtsp://a'\npassword = 'hush'", "feed 1: has a password, but no user"),
        (
            "[[feed]]\nurl = 'rtsp://a@b'\npassword = 'hush'\npassword-env = 'X'",
            "feed 1: password cannot be combined with password-env",
        ),
        ("[[feed]]\nurl = 'rtsp://a@b'\npassword = ['hush']", "feed 1: password is not a string"),
        ("[[feed]]\nurl = 'rtsp://a@b'\npassword-env = 'NO_SUCH'", "${NO_SUCH}: this environment"),
        ("[[feed]]\nurl = 'rtsp://a:${NO_SUCH}@b'", "${NO_SUCH}: this environment variable is no"),
        ("[[feed]]\nurl = 'rtsp://a@b'\npassword-file = 'no'", "/no: the password cannot be read"),
        (
            "[[feed]]\nurl = 'rtsp://a:hu/sh@b'",
            "rtsp://***@b: its password cannot be separated from",
        ),
        ("[[feed]\nurl = 'rtsp://a:hush@b'", "feeds.toml: not valid TOML"),
    ],
)
def test_mistakes_are_reported_with_their_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        listed(tmp_path, text)
    assert message in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such"):
        feeds(tmp_path / "feeds.toml")


@pytest.mark.skipif(os.name == "nt", reason="files there have no modes")
def test_a_password_that_everybody_may_read_is_reported_once(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "feeds.toml"
    for mode, table, warns in (
        (0o644, "url = 'rtsp://a'\nuser = 'b'\npassword = 'c'", True),
        (0o644, "url = 'rtsp://a:b@c'", True),
        (0o644, "url = 'rtsp://a:${HOME}@c'", False),
        (0o640, "url = 'rtsp://a:b@c'", False),
    ):
        caplog.clear()
        path.write_text(f"[[feed]]\n{table}\n[[feed]]\n{table}")
        path.chmod(mode)
        feeds(path)
        assert [r.levelno for r in caplog.records] == [logging.WARNING] * warns
        assert all("may be read by everybody" in r.message for r in caplog.records)
