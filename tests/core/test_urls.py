"""Secrets of URLs: nothing of them is shown, whatever characters they have."""

from __future__ import annotations

import json
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costream.core.errors import SourceError, display_name, message
from costream.core.urls import redact, redact_url

# What RFC 3986 allows, what browsers accept besides, and letters of other alphabets.
ANY = st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp"))


def secrets(without: str) -> st.SearchStrategy[str]:
    """Return secrets whose ends cannot be confused with the rest of a URL."""
    inner = st.text(ANY, min_size=2, max_size=12).filter(lambda text: not set(text) & set(without))
    return inner.map(lambda text: f"Z9{text}q7")


def shows(text: str) -> bool:
    """Return whether an end of a secret is in a text."""
    return "Z9" in text or "q7" in text


def url_of(user: str, password: str, key: str, value: str, fragment: str) -> str:
    return f"https://{user}:{password}@10.0.0.5:80/live/x.m3u8?channel=2&{key}={value}#{fragment}"


SHOWN = "https://***@10.0.0.5:80/live/x.m3u8?channel=2&{}=***#***"
KEYS = st.sampled_from(["jwt", "sid", "code", "access", "token", "x", "signature", "p-w.d[0]"])


@given(secrets("/?#:"), secrets("/?#"), KEYS, secrets("&#"), secrets("&"))
@example("Z9meq7", "Z9SEC'retq7", "token", "Z9TO'Kretq7", 'Z9<"> q7')
def test_no_secret_of_a_url_is_shown(user, password, key, value, fragment):
    url = url_of(user, password, key, value, fragment)
    assert redact_url(url) == display_name(url) == SHOWN.format(key)
    error = str(SourceError("no answer", where=url))
    assert error == f"{SHOWN.format(key)}: no answer"


@given(secrets("/?#:"), secrets("/?#"), KEYS, secrets("&#"), secrets("&"))
@example("Z9meq7", "Z9a b'c\"dq7", "jwt", "Z9 'q7", "Z9 @q7")
def test_no_secret_of_a_url_in_use_is_shown_in_the_messages_of_others(
    user, password, key, value, fragment
):
    url = url_of(user, password, key, value, fragment)
    redact_url(url)
    for text in (
        f"opening {url} failed",
        f"[Errno 5] Input/output error: {url!r}",
        json.dumps({"url": url}),
        json.dumps({"url": url}, ensure_ascii=False),
        f"GET {quote(url)} HTTP/1.1",
        f"bad password {password}, not {unquote(password)}",
        f"no such key: {value}",
    ):
        assert not shows(message(text))


@given(secrets("/?# \u3000\xa0"), KEYS, secrets("&# \u3000\xa0"), st.sampled_from("'\"<( "))
def test_no_secret_of_an_unknown_url_is_shown(password, key, value, before):
    password, value = ("".join(text.split()) for text in (password, value))
    after = {"<": ">", "(": ")"}.get(before, before)
    for url in (f"rtsp://me:{password}@cam/1", f"http://cam/x?{key}={value}&n=1"):
        text = message(f"cannot open {before}{url}{after}: refused")
        assert not shows(text)
        assert text.endswith(": refused")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtmp://live.host/app/STREAM-key?x=1", "rtmp://live.host/app/***?x=***"),
        ("rtmps://a:b@host:443/app/instance/key", "rtmps://***@host:443/app/***"),
        ("rtmp://host/live", "rtmp://host/live"),
        ("http://h/a;jsessionid=1F/b.mp4", "http://h/a;jsessionid=***/b.mp4"),
        ("http://h/token=abc/b.mp4", "http://h/token=***/b.mp4"),
        ("http://h/year=2026/b.mp4", "http://h/year=2026/b.mp4"),
        ("http://h/x?SECRET", "http://h/x?***"),
        ("http://h/x?SECRET==", "http://h/x?***"),
        ("http://h/x#access_token=SECRET&n=1", "http://h/x#***&n=1"),
        ("srt://h:9000?streamid=x&passphrase=hush", "srt://h:9000?streamid=***&passphrase=***"),
        ("https://TOKEN@h/x", "https://***@h/x"),
        ("http://1.2.3.4:80/x?user=me&password=p@ss", "http://1.2.3.4:80/x?user=***&password=***"),
        ("http://u:p@h/x?mail=a@b&n=1", "http://***@***&n=1"),
        ("rtsp://admin:12/34@cam", "rtsp://***@cam"),
        ("rtsp://admin:12?34@cam", "rtsp://***@***"),
        ("https://host/@name", "https://host/@name"),
        ("zip://a.mp4::https://u:p@h/a.zip?sig=1", "zip://***@h/a.zip?sig=***"),
        ("zip://a.mp4::https://h/a.zip?sig=1", "zip://a.mp4::https://h/a.zip?sig=***"),
        ("http://proxy/rtsp://u:p@cam/1", "http://proxy/rtsp://***@cam/1"),
        (
            "rtsp://[fe80::1]:554/x?channel=1&subtype=0",
            "rtsp://[fe80::1]:554/x?channel=1&subtype=0",
        ),
        ("udp://@239.0.0.1:1234", "udp://@239.0.0.1:1234"),
        ("http://h/x?channel=eyJhbGciOiJIUzI1NiJ9/x", "http://h/x?channel=***"),
    ],
)
def test_what_is_shown_of_urls(url, shown):
    assert redact_url(url) == shown
    assert redact_url(shown) == redact(shown) == shown
    assert redact(f"cannot open '{url}': refused") == f"cannot open '{shown}': refused"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read 'rtsp://user:longpassw\u2026", "read 'rtsp://***\u2026"),
        ("opening rtsp://me:a b@cam/1 failed", "opening rtsp://***@cam/1 failed"),
        ("write mqtt://HOST, mqtts://HOST:PORT", "write mqtt://HOST, mqtts://HOST:PORT"),
        ("rtsp://cam:554: no answer", "rtsp://cam:554: no answer"),
        ("http://a/x,rtsp://u:p@h/1", "http://a/x,rtsp://***@h/1"),
        ("GET /x?jwt=abc HTTP/1.1", "GET /x?jwt=*** HTTP/1.1"),
    ],
)
def test_what_is_shown_of_texts(text, shown):
    assert redact(text) == shown


def test_common_words_are_not_taken_for_secrets():
    redact_url("rtsp://admin:walk@cam/1?pin=1234")
    assert redact("walk 0.95 at 1234") == "walk 0.95 at 1234"
