"""Errors: one line, without credentials of URLs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import CostreamError, SourceError, say
from costream.core.urls import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://u:secret@cam/1", "rtsp://***@cam/1"),
        ("rtsp://u:se@cret@cam/1", "rtsp://***@cam/1"),
        ("cannot open 'rtsp://u:secret@cam/1': refused", "cannot open 'rtsp://***@cam/1': refused"),
        ("http://cam/x?user=a&password=secret&n=1", "http://cam/x?user=***&password=***&n=1"),
        ("http://cam/x?token=secret", "http://cam/x?token=***"),
        ("http://cam/x?token=se:cret: the server sent", "http://cam/x?token=***: the server sent"),
        ("clip.mp4", "clip.mp4"),
        ("http://cam/plain", "http://cam/plain"),
        ("a@b.c", "a@b.c"),
    ],
)
def test_examples(text, shown):
    assert redact(text) == shown


SAFE = st.text(st.characters(codec="ascii", exclude_characters=" \t\n\r\x0b\x0c'\"<>"), min_size=8)


@given(password=SAFE.filter(str.isprintable))
def test_any_password_is_hidden(password):
    secret = f"Z{password}Z"
    assert secret not in redact(f"opening rtsp://admin:{secret}@10.1.2.3:554/live failed")


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    [
        *("a", "a://b", "a:", "://", "@", "?a=", "?key", "?key=", "&", "'", "a' ", "1://@"),
        *("a://b:c", "a://b:c ", "a://b/", "rtmp://a/b/c", "a://b?c&", "a://b?c=d@", ";key="),
    ],
)
def test_a_megabyte_takes_no_time(part):
    text = part * (1_000_000 // len(part))
    start = time.process_time()
    redact(f"a{text}")
    assert time.process_time() - start < 2  # measured: 6 to 700 ms
    assert len(str(SourceError(f"read 'a{text}', not a number"))) < 2100


def test_long_quotes_are_cut_after_their_passwords():
    error = SourceError(f"'rtsp://u:{'p@' * 200}cam/{'x' * 300}' is no file", hint="look")
    assert str(error) == f"'rtsp://***@cam/{'x' * 185}…' is no file; look"


def test_twice_is_once():
    once = redact("rtsp://u:p@h/x?token=1")
    assert redact(once) == once


def test_errors_are_redacted_single_lines():
    error = SourceError("no\nanswer", where="rtsp://u:secret@cam/1", hint="check the cable")
    assert str(error) == "rtsp://***@cam/1: no answer; check the cable"
    assert isinstance(error, CostreamError)


def test_no_message_has_control_characters_or_is_long(capsys):
    error = SourceError("a\x1b[31m\x9b\u202eb", where="x\x1b]0;t\x07" + "y" * 9999, hint="h" * 9999)
    assert "a?[31m??b" in str(error)
    assert str(error).startswith("x?]0;t?yyy")
    assert len(str(error)) < 3000
    say("rtsp://u:secret@cam/1 \x1b[2J\nend")
    assert capsys.readouterr().err == "rtsp://***@cam/1 ?[2J end\n"
