"""Errors: one line, without credentials of URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.errors import CostreamError, SourceError, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://u:secret@cam/1", "rtsp://***@cam/1"),
        ("rtsp://u:se@cret@cam/1", "rtsp://***@cam/1"),
        ("cannot open 'rtsp://u:secret@cam/1': refused", "cannot open 'rtsp://***@cam/1': refused"),
        ("http://cam/x?user=a&password=secret&n=1", "http://cam/x?user=a&password=***&n=1"),
        ("http://cam/x?token=secret", "http://cam/x?token=***"),
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


def test_twice_is_once():
    once = redact("rtsp://u:p@h/x?token=1")
    assert redact(once) == once


def test_errors_are_redacted_single_lines():
    error = SourceError("no\nanswer", where="rtsp://u:secret@cam/1", hint="check the cable")
    assert str(error) == "rtsp://***@cam/1: no answer; check the cable"
    assert isinstance(error, CostreamError)
