"""What --on, --run, --post, --append and --clips, or the same keys of a TOML table, mean."""

from __future__ import annotations

import pytest

from costream.errors import UsageError
from costream.runtime.alerts.alerts import KEYS, AlertOptions, ClipSpan, read_options


def test_nothing_asked_for():
    assert read_options({}) == AlertOptions()
    assert read_options(dict.fromkeys(KEYS) | {"url": "rtsp://x"}) == AlertOptions()
    assert read_options({"on": (), "run": (), "clips": False}) == AlertOptions()


def test_one_or_several_of_each():
    one = read_options({"on": "fall", "run": "echo {label}", "append": "a.jsonl"})
    several = read_options({"on": ["fall"], "run": ("echo {label}",), "append": ["a.jsonl"]})
    assert one == several
    assert [rule.text for rule in read_options({"on": ["fall", "lost"]}).on] == ["fall", "lost"]
    assert list(one.actions()) == [("run", "echo {label}"), ("append", "a.jsonl")]


@pytest.mark.parametrize(
    ("told", "span"),
    [
        ("5,10", (5, 10)),
        ("0:30, 1.5s", (30, 1.5)),
        ("7", (7, 7)),
        (True, (5, 5)),
        (8, (8, 8)),
        ([2, 3.5], (2, 3.5)),
        (["2s", 3], (2, 3)),
    ],
)
def test_the_span_of_clips(told, span):
    assert read_options({"on": "fall", "clips": told}).clips == ClipSpan(*span)


@pytest.mark.parametrize("told", ["", "5,", "5,5,5", "a,b", "-1,5", [], [1, 2, 3], -5, {"a": 1}])
def test_spans_that_are_none(told):
    with pytest.raises(UsageError, match="expected seconds before and after, not"):
        read_options({"on": "fall", "clips": told})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"on": "fall>=2"}, "column 7"),
        ({"on": 3}, "on: must be a string or a list"),
        ({"on": ["fall", 3]}, "on: must be a string or a list"),
        ({"on": "fall", "run": "no-such-program-here"}, "no such program"),
        ({"on": "fall", "post": "example.org"}, "not a URL"),
        ({"on": "fall", "append": "/"}, "not a file"),
        ({"on": "fall", "clips": "5,3600"}, "at most 600 s"),
        ({"run": "echo"}, "actions or clips need a rule"),
        ({"clips": True}, "actions or clips need a rule"),
    ],
)
def test_mistakes_are_found_before_anything_runs(told, message):
    with pytest.raises(UsageError, match=message):
        read_options(told)
