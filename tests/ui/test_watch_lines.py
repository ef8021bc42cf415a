"""Plain lines of a watch: changes at once, all feeds at intervals, totals at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costream.core.records import Alert
from costream.core.status import FeedStatus, SeenLabel, WatchStatus
from costream.ui.watch.lines import StateChanges, WatchLines
from kit.shown import console, written
from kit.watched import feed, watch


def changes(*story: FeedStatus) -> list[str]:
    """What is said of one feed that is shown once a second."""
    taken = StateChanges()
    return [
        line for k, each in enumerate(story) for line in taken.take(watch(each, uptime_s=float(k)))
    ]


CONNECTING = feed(state="connecting", age_s=None)
LIVE = feed()
CLOSED = feed(state="waiting", age_s=1.0, message="server closed")


AGAIN = replace(LIVE, reconnects=1)
TRYING = replace(CLOSED, state="connecting", age_s=2.0)
REFUSED = replace(CLOSED, age_s=None, message="connection refused")
LOST = feed(state="lost", age_s=None, message="404 Not Found")
STALLED = feed(state="stalled", age_s=3.2)


@pytest.mark.parametrize(
    ("story", "lines"),
    [
        (
            (CONNECTING, CONNECTING, LIVE, LIVE, CLOSED, TRYING, CLOSED, *[TRYING] * 8, AGAIN),
            ["live", "back after 12 s"],
        ),
        (
            (CONNECTING, REFUSED, CONNECTING, REFUSED, LOST, LOST),
            [],
        ),
        (
            (LIVE, STALLED, STALLED, CLOSED, LIVE),
            ["live", "no data for 3 s", "back after 6 s"],
        ),
        ((LIVE, LIVE, AGAIN, AGAIN), ["live", "back after a moment"]),
        ((LIVE, feed(state="ended")), ["live", "ended"]),
    ],
    ids=["loss and return", "never live", "stall", "too short to be shown", "end"],
)
def test_changes_of_a_feed(story: tuple[FeedStatus, ...], lines: list[str]) -> None:
    assert changes(*story) == [f"door: {line}" for line in lines]


def test_a_feed_that_comes_and_goes_all_the_time_has_a_few_lines_a_minute() -> None:
    story = [replace(each, reconnects=k) for k in range(150) for each in (LIVE, CLOSED)]
    lines = changes(*story, replace(LIVE, reconnects=150))
    assert lines[:3] == ["door: live", "door: back after 2 s", "door: back after 2 s"]
    assert len(lines) <= 6 * 6
    told = [int(line.split()[4]) for line in lines if "times" in line]
    assert told
    assert all(number > 10 for number in told)
    assert sum(told) + len(lines) >= 100


def test_a_change_that_was_left_out_and_lasts_is_reported() -> None:
    story = [replace(each, reconnects=k) for k in range(10) for each in (LIVE, STALLED)]
    lines = changes(*story, *[replace(STALLED, reconnects=9, age_s=30.0 + k) for k in range(60)])
    assert "away now" in lines[-1] or "no data" in lines[-1]


def test_feeds_join_and_leave() -> None:
    taken = StateChanges()
    assert taken.take(watch(feed("a"))) == ["a: live"]
    assert taken.take(watch(feed("a"), feed("b"))) == ["b: live"]
    assert taken.take(watch(feed("b"))) == []
    assert taken.take(watch(feed("a"), feed("b"))) == ["a: live"]


# --- printed ---------------------------------------------------------------------------------


def printed(*story: WatchStatus, every_s: float) -> list[str]:
    target = console()
    view = WatchLines(target, every_s=every_s)
    for status in story:
        view.show(status)
    view.close()
    view.close()
    return written(target)


ALERT = Alert(9.0, "falling>=0.8 for 2s", "falling", 0.921, 7.0)


def test_a_line_for_all_feeds_when_it_is_time() -> None:
    names = ("a", "b", "c")
    three = [feed(name, dropped=2, lag_s=0.1 * k) for k, name in enumerate(names, start=1)]
    status = watch(*three, replace(CLOSED, lag_s=99.0, alerts=2), failed_actions=1)
    line = (
        "up 01:02:03  feeds 3/4 live, 1 waiting  lag 0.30 s  dropped 6  alerts 2  1 action failed"
    )
    assert printed(status, every_s=0.0)[3] == line
    assert line not in printed(status, every_s=3600.0)


def test_each_alert_once() -> None:
    later = replace(ALERT, time_s=11.0, clip="door-1.mkv")
    story = [
        watch(LIVE, alerts=(("door", ALERT),)),
        watch(LIVE, alerts=(("door", replace(ALERT, clip="known-now.mkv")),)),
        watch(LIVE, alerts=(("door", ALERT), ("door", later))),
        watch(LIVE, alerts=(("door", later),)),
    ]
    lines = printed(*story, every_s=3600.0)
    assert [line for line in lines if "alert: " in line] == [
        "door: alert: falling 0.92 (falling>=0.8 for 2s)",
        "door: alert: falling 0.92 (falling>=0.8 for 2s), clip door-1.mkv",
    ]


def test_the_end_says_what_each_feed_came_to() -> None:
    lost = feed("yard", "lost", message="404 Not Found", gaps=3, errors=1, dropped=5, reconnects=2)
    lines = printed(watch(LIVE, lost), every_s=3600.0)[1:]
    assert lines[0] == "2 feeds watched for 01:02:03 with cooadtr"
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "feed steps dropped reconnects gaps errors alerts state",
        "door 14893 0 0 0 0 0 live",
        "yard 14893 5 2 3 1 0 GIVEN-UP",
    ]
    assert lines[4] == "yard: given-up (404 Not Found)"
    assert lines[5] == "No label was seen."
    assert lines[6] == "29786 steps, 43x less computation than without continual inference"


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_the_end_names_the_feeds_on_narrow_terminals_too(width: int) -> None:
    target = console(width=width)
    view = WatchLines(target, every_s=3600.0)
    view.show(watch(feed("front door"), feed("yard", "lost", reconnects=2)))
    view.close()
    lines = written(target)
    begin = next(k for k, line in enumerate(lines) if line.startswith("feed  "))
    assert lines[begin + 1].startswith("front door ")
    assert lines[begin + 2].startswith("yard ")
    assert lines[begin + 2].endswith("GIVEN-UP")
    assert "steps" in lines[begin]
    assert ("reconnects" in lines[begin]) == (width >= 60)  # not all are 0
    assert ("errors" in lines[begin]) == (width == 80)


def test_a_name_of_the_end_is_in_one_line_and_columns_of_zeros_make_room() -> None:
    names = "front-door-camera-20.mp4", "warehouse-north-gate-camera.mp4"
    target = console(width=80)
    view = WatchLines(target, every_s=3600.0)
    view.show(watch(*(feed(name, "ended", dropped=18, gaps=2) for name in names)))
    view.close()
    lines = [" ".join(line.split()) for line in written(target)]
    begin = next(k for k, line in enumerate(lines) if line.startswith("feed "))
    assert lines[begin : begin + 3] == [
        "feed steps dropped gaps errors alerts state",
        *(f"{name} 14893 18 2 0 0 ended" for name in names),
    ]


def test_the_end_has_the_labels_of_each_feed_the_most_frequent_first() -> None:
    seen = SeenLabel("walk", 2, 71.5), SeenLabel("sit", 12, 3690.25)
    lines = printed(watch(feed(seen=seen), feed("yard", seen=seen[:1])), every_s=3600.0)
    begin = next(k for k, line in enumerate(lines) if "label seen" in line)
    assert [" ".join(line.split()) for line in lines[begin : begin + 4]] == [
        "feed label seen times last until",
        "door ● sit 12 1:01:30.2",
        "● walk 2 1:11.5",
        "yard ● walk 2 1:11.5",
    ]


def test_a_watch_that_showed_nothing_prints_nothing() -> None:
    assert printed(every_s=0.0) == [""]


@pytest.mark.parametrize("every_s", [0.0, 3600.0])
def test_no_credentials_come_out(every_s: float) -> None:
    url = "rtsp://admin:hunter2@cam/live"
    bad = feed(url, "waiting", message=f"cannot open {url}\nat all")
    text = "\n".join(printed(watch(bad, alerts=((url, ALERT),)), every_s=every_s))
    assert "hunter2" not in text
    assert "rtsp://***@cam/live: lost" not in text
    assert "waiting (cannot open rtsp://***@cam/live at all)" in text
