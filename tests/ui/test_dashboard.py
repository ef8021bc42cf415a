"""Dashboard of a watch: content and fit to any size."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.places import PlaceCount
from costream.core.records import Alert, FeedState
from costream.core.status import FeedStatus, WatchStatus
from costream.draw.palette import Palette
from costream.ui.run.glyphs import Legend
from costream.ui.screen import Viewport
from costream.ui.watch.dashboard import Board, Dashboard
from costream.ui.watch.rows import age, count5, figure4, recent_strip, seconds5, share, uptime
from kit.shown import check_fit, console, written
from kit.watched import LABELS, feed, many, watch

ORDINARY = Viewport(79, 23)


def shown(status: WatchStatus, look: Viewport = ORDINARY) -> list[str]:
    return [line.plain.rstrip() for line in Board().lines(status, look)]


def row(status: FeedStatus, look: Viewport = ORDINARY) -> str:
    lines = shown(watch(status), look)
    return next(line for line in lines[1:] if line.startswith(status.name))


# --- what it says ----------------------------------------------------------------------------


def test_one_live_feed() -> None:
    status = watch(feed(dropped=7, reconnects=2), strips={"door": (None, None, *["walk"] * 6)})
    lines = shown(status)
    assert lines[0] == " 1/1 live   up 01:02:03  cooadtr"
    head, values = lines[2].split(), lines[3].split()
    assert head == ["feed", "state", "drops", "recon", "fps", "lag", "macs", "ms", "now"]
    assert values == ["door", "live", "7", "2", "25.0", "0.12s", "2.3%", "0.52", "walk", "0.91"]
    assert f"door {'':52}··walk" in lines  # eight of the newest sixty seconds
    assert " w  walk" in lines
    assert "0 alerts  7 dropped  4 steps/s  network 23% busy  412 MB" in lines


def test_the_bar_is_as_long_as_the_score_of_the_active_label() -> None:
    for score, cells in ((1.0, 23), (0.5, 12), (0.0, 0)):
        line = Board().lines(watch(feed(top=(("walk", score),))), ORDINARY)[3]
        bars = [span for span in line.spans if span.style == WALK]
        assert [span.end - span.start for span in bars] == ([cells] if cells else [])
    line = Board().lines(watch(feed(active=None, top=(("sit", 0.4),))), ORDINARY)[3]
    assert line.plain.split()[-2:] == ["sit", "0.40"]
    assert line.spans[-1].style == "dim"
    assert row(feed(active=None, top=())).split()[-1] == "0.52"
    assert row(feed(active="jump")).split()[-1] == "jump"  # its score is not known


@pytest.mark.parametrize("state", get_args(FeedState))
def test_every_state_has_its_word_and_its_reason(state: FeedState) -> None:
    line = row(feed(state=state, age_s=12.4, message="server closed"))
    assert line.split()[1].lower() == ("given-up" if state == "lost" else state)
    if state not in ("live", "ended"):
        assert line.endswith("for 12 s: server closed")
        assert "25.0" not in line  # frames a second of what does not come any more
        never = row(feed(state=state, age_s=None, away_s=75.0, message="refused"))
        assert never.endswith("for 75 s: refused")


def test_a_lost_feed_is_seen_at_once() -> None:
    lines = Board().lines(many(16), ORDINARY)
    (lost,) = [line for line in lines if " GIVEN-UP " in line.plain]
    assert {str(span.style) for span in lost.spans[:3]} == {"bold white on red"}
    assert sum(span.end - span.start for span in lost.spans[:5]) >= 60
    assert "1 given-up" in lines[0].plain
    assert lines[0].spans[0].style == "bold white on red"


@pytest.mark.parametrize(
    ("states", "style"),
    [
        (("live", "ended"), "black on green"),
        (("connecting", "live"), "black on cyan"),
        (("connecting", "live", "stalled"), "black on yellow"),
        (("waiting", "live"), "black on yellow"),
        (("waiting", "live", "lost"), "bold white on red"),
    ],
)
def test_the_title_has_the_colour_of_the_worst(states: tuple[FeedState, ...], style: str) -> None:
    feeds = [feed(f"cam {k}", state) for k, state in enumerate(states)]
    assert Board().lines(watch(*feeds), ORDINARY)[0].spans[0].style == style


def test_feeds_keep_their_places_while_all_fit() -> None:
    names = [name.name for name in many(4).feeds]
    lines = shown(many(4))
    assert [line.split("  ")[0].split(" l")[0].strip() for line in lines[3:5]] == names[:2]
    assert lines[6].startswith("lab        GIVEN-UP")


@pytest.mark.parametrize(("count", "left"), [(17, 0), (18, 2), (40, 24)])
def test_more_feeds_than_lines(count: int, left: int) -> None:
    lines = shown(many(count))
    assert len(lines) <= 23
    more = [line for line in lines if line.startswith("…")]
    assert more == ([f"… and {left} more, all live"] if left else [])
    if left:
        states = [line[11:21].strip() for line in lines[2:7]]
        assert states == ["GIVEN-UP", "waiting", "stalled", "connecting", "live"]


def test_what_is_left_out_is_reported_even_if_not_all_live() -> None:
    status = watch(*(feed(f"cam {k}", state="lost" if k < 30 else "live") for k in range(40)))
    assert "… and 24 more, 10/24 live, 14 given-up" in shown(status)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_every_feed_has_its_minute_on_an_ordinary_terminal(count: int) -> None:
    board = Board()
    lines = board.lines(many(count), ORDINARY)
    with_strips = [line for line in lines if "···" in line.plain]
    colored = [x for x in lines if any("#111111 on #" in str(s.style) for s in x.spans[-3:])]
    assert len(with_strips) >= min(count, 4) - 1
    assert len(colored) >= count
    assert any(re.match(r"( \w  (sit|stand up|walk|falling) +){3}", x.plain) for x in lines)
    if count == 16:
        assert lines[1].plain.endswith(" last 60 s")


def test_wide_terminals_have_the_strips_in_the_rows() -> None:
    head, *rows = shown(many(4), Viewport(199, 23))[2:7]
    begin = head.index(" last 60 s")
    assert begin == 199 - 60 - 1
    assert {row[begin] for row in rows} == {" "}
    assert rows[2][begin + 1 :].startswith("falling")


def test_alerts_stand_below_the_newest_first() -> None:
    board, alert = Board(), Alert(1.0, "fall>=0.8", "fall", 0.9, 0.5, "door-1.mkv")
    for k in range(7):
        alerts = tuple(("door", replace(alert, time_s=float(n))) for n in range(k + 1))
        status = watch(feed(alerts=k + 1), alerts=alerts[-3:])
        lines = [line.plain for line in board.lines(status, ORDINARY)]
    assert "7 alerts" in lines[-7]
    assert len([line for line in lines if "fall 0.90 (fall>=0.8), clip door-1.mkv" in line]) == 5
    assert all(re.match(r"\d\d:\d\d:\d\d  door  fall", line) for line in lines[-5:])


def test_places_have_a_line_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.ui.watch.dashboard.time.strftime", lambda _: "13:18:27")
    places = (
        PlaceCount("hall", "zone", "person", 2, 5, 3),
        PlaceCount("yard", "zone", "car", 0, 1, 1),
        PlaceCount("gate", "line", "car", 0, 3, 1),
    )
    status = watch(feed(places=places), feed("yard"))
    assert "door  hall 2 person, gate 3 in 1 out car" in shown(status)
    full = many(18)
    there = replace(full, feeds=tuple(replace(f, places=places) for f in full.feeds))
    assert shown(there) == shown(full)  # rows and alerts come first


def test_labels_keep_their_letters_and_colours() -> None:
    board = Board()
    first = board.lines(watch(feed(active="walk")), ORDINARY)[3].spans[-2]
    board.lines(watch(feed(active="wait"), strips={"door": ("wake", "wait")}), ORDINARY)
    again = board.lines(watch(feed(active="walk")), ORDINARY)[3].spans[-2]
    assert first.style == again.style == WALK


def test_no_credentials_come_out() -> None:
    url = "rtsp://admin:hunter2@cam/live?token=hunter2"
    bad = feed(url, "waiting", message=f"cannot open {url}", active=url)
    alert = Alert(1.0, url, url, 0.9, 0.5)
    status = replace(watch(bad, alerts=((url, alert),), strips={url: (url,) * 60}), model=url)
    for look in (ORDINARY, Viewport(200, 50), Viewport(30, 6)):
        assert "hunter2" not in "\n".join(shown(status, look))
    target = console(200, force_terminal=True, height=50)
    view = Dashboard(target)
    view.show(status)
    view.close()
    text = "\n".join(written(target))
    assert "hunter2" not in text
    assert "***" in text


def test_figures_keep_to_their_columns() -> None:
    assert [count5(n) for n in (0, 99_999, 123_456, 9_999_999, 12_345_678, 2 * 10**10)] == [
        *("0", "99999", "123k", "9999k", "12M", "20G")
    ]
    assert [seconds5(s) for s in (0.0, 0.124, 12.34, 123.4, 5400.0, 360_000.0, 9e6)] == [
        *("0.00s", "0.12s", "12.3s", "123s", "1.5h", "4d", "104d")
    ]
    assert [figure4(x) for x in (0.0, 9.994, 9.996, 99.96, 1234.0)] == [
        *("0.00", "9.99", "10.0", "100", "1234")
    ]
    assert [share(a, b) for a, b in ((1, 0), (23, 1000), (1, 2), (2, 1))] == [
        *("", "2.3%", "50%", "200%")
    ]
    assert [uptime(s) for s in (0.9, 3723.0, 86_399.9, 6 * 86_400 + 5)] == [
        *("00:00:00", "01:02:03", "23:59:59", "6d 00:00:05")
    ]
    assert [age(s) for s in (-1.0, 12.4, 119.4, 119.6)] == ["0 s", "12 s", "119 s", "00:01:59"]


# --- strips ----------------------------------------------------------------------------------

PALETTE = Palette()
PALETTE.add(LABELS, LABELS, ())
LEGEND = Legend(PALETTE)
WALK = LEGEND.block("walk")


def strip(seconds: tuple[str | None, ...], width: int, each_s: int = 1) -> str:
    return recent_strip(seconds, LEGEND, width, each_s, unicode=True).plain


def test_a_strip_ends_with_the_newest_second() -> None:
    assert strip((None, "fall", "fall", "sit", "sit", "sit", None), 9) == "  ·f sit·"


def test_what_was_short_is_seen_in_a_cell_of_many_seconds() -> None:
    assert strip((*[None] * 11, "fall", *[None] * 6), 3, 6) == "·f·"
    assert strip(("sit", None, None, "sit", "fall", None, "fall"), 3, 3) == "s f"


# --- it fits ---------------------------------------------------------------------------------

texts = st.text(max_size=40)
feeds = st.builds(
    feed,
    texts,
    st.sampled_from(get_args(FeedState)),
    message=texts,
    age_s=st.none() | st.floats(0, 1e7),
    lag_s=st.floats(0, 1e6),
    frames_hz=st.floats(0, 5000),
    dropped=st.integers(0, 10**12),
    reconnects=st.integers(0, 10**7),
    active=st.none() | texts,
)


@given(
    st.lists(feeds, max_size=20, unique_by=lambda each: each.name),
    st.lists(st.none() | texts, max_size=180),
    st.integers(1, 250),
    st.integers(1, 60),
    st.booleans(),
)
def test_it_fits_any_terminal(
    given: list[FeedStatus], strip: list[str | None], width: int, height: int, unicode: bool
) -> None:
    alerts = tuple((each.name, Alert(1.0, "a>0.5", "a", 0.9, 0.5)) for each in given[:7])
    strips = {each.name: tuple(strip) for each in given[::2]}
    status = watch(*given, alerts=alerts, strips=strips)
    lines = Board().lines(status, Viewport(width, height, unicode))
    assert lines
    check_fit(lines, width, height, ascii=not unicode)
    for line in lines:
        assert all(a.end <= b.start for a, b in zip(line.spans, line.spans[1:], strict=False))


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 119, 159, 220])
def test_rows_are_as_wide_as_the_terminal(width: int) -> None:
    rows = [line for line in Board().lines(many(16), Viewport(width, 40)) if " live" in line.plain]
    assert {line.cell_len for line in rows[1:]} == {width}
