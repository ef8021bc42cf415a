"""Plain lines, the final timeline, consoles and formatting."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from costream.formatting import clean, counted, saving, short_time, si, times
from costream.records import Compute, Fault, Head, Header, Prediction, Segment, StageTimes, Summary
from costream.ui.console import (
    ColorMode,
    color_mode,
    is_unicode,
    live_allowed,
    restore_cursor,
    stderr_console,
    stdout_console,
)
from costream.ui.plain import PlainLines
from costream.ui.run.tracks import Strip
from costream.ui.timeline import FinalTimeline

ABOUT = ("0.1.0", "cooadtr", "0" * 64, ("background", "walk"), "background", 10.0, 0.0)
HEADER = Header(*ABOUT, "clip.mp4", "video", 75.0, {})
SUMMARY = Summary(
    *(1200, 2, 0, 0, 75.0, 9.1, 8.2417),
    macs=12_400_000_000,
    dense_macs=410_000_000_000,
    complete=True,
    exit=0,
)


def console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)


def written(target: Console) -> list[str]:
    assert isinstance(target.file, io.StringIO)
    return [line.rstrip() for line in target.file.getvalue().split("\n")]


# --- plain lines -----------------------------------------------------------------------------


def play_plain(every_s: float, **options: Any) -> list[str]:
    target = console(20)
    view = PlainLines(target, "clip.mp4", every_s=every_s, **options)
    view.open(HEADER)
    for i in range(3):
        view.write(Prediction(i, i * 30.0, i, i, (("walk", 0.912), ("background", 0.05))))
        view.write(Compute(i, i * 30.0, 1, 1, StageTimes(1.0, 1.0, 1.0, 1.0), dropped=i))
    view.write(Fault(60.0, "broken"))
    view.close(SUMMARY)
    return written(target)


def test_plain_lines_say_where_it_is() -> None:
    lines = play_plain(0.0)
    assert lines[0].startswith("t=0.0 s  ")
    assert lines[5].startswith("t=60.0 s  ")
    assert lines[5].endswith("x  walk 0.91  dropped 2")  # one line, however narrow
    assert lines[6].endswith("dropped 2  errors 1")
    assert lines[7].startswith("clip.mp4: 1200 steps, 75.0 s of video in 9.1 s (8.2x real time)")


def test_plain_lines_name_the_best_of_each_head() -> None:
    target = console(20)
    view = PlainLines(target, "mic", every_s=0.0)
    view.open(heads_header())
    view.write(Prediction(0, 0.25, 0, 0, (("rock", 0.8), ("jazz", 0.2)), model="cotrans"))
    view.write(Prediction(0, 0.25, 0, 0, (("dog", 0.6), ("siren", 0.4)), model="cosounds"))
    view.close(SUMMARY)
    assert written(target)[1].endswith("  rock 0.80  dog 0.60  dropped 0")


def heads_header() -> Header:
    heads = (
        Head("cotrans", "0" * 64, ("rock", "jazz"), None, 0.0, 0.5),
        Head("cosounds", "0" * 64, ("dog", "siren"), None, 0.0, 0.5),
    )
    return replace(HEADER, source="mic", kind="audio", heads=heads)


def test_plain_lines_are_rare_and_the_last_can_be_left_out() -> None:
    assert len(play_plain(3600.0)) == 2
    assert play_plain(3600.0, last=False) == [""]


# --- final timeline --------------------------------------------------------------------------


def play_timeline(
    *segments: Segment, summary: Summary = SUMMARY, header: Header = HEADER, width: int = 80
) -> list[str]:
    target = console(width)
    view = FinalTimeline(target, "clip.mp4")
    view.open(header)
    view.write(Prediction(0, 0.0, 0, 0, (("background", 0.9),)))
    for segment in segments:
        view.write(segment)
    view.close(summary)
    return written(target)


def test_the_timeline_is_a_table_and_a_line_of_cost() -> None:
    segments = Segment(1.5, 4.25, "walk", 0.913), Segment(3600.0, 3725.5, "[bold]sit[/bold]", 0.5)
    assert play_timeline(*segments) == [
        "clip.mp4",
        "     start         end    length  label             score",
        "   0:01.50     0:04.25    2.75 s  walk               0.91",
        "1:00:00.00  1:02:05.50  125.50 s  [bold]sit[/bold]   0.50",
        "1200 steps, 75.0 s of video in 9.1 s (8.2x real time), "
        "12.4 GMAC of 410 GMAC dense (33x less)",
        "",
    ]


def test_the_timeline_says_when_there_is_none() -> None:
    assert play_timeline()[1] == "No action was found."
    assert play_timeline(header=heads_header())[1] == "Nothing was recognised."
    nothing = replace(
        SUMMARY, steps=0, macs=0, x_realtime=None, complete=False, errors=1, dropped=2
    )
    lines = play_timeline(summary=nothing)
    assert lines[1] == "Nothing was read."
    assert lines[2] == "0 steps, 75.0 s of video in 9.1 s, 2 dropped, 1 error, incomplete"


def test_the_timeline_names_the_model_of_each_segment_in_order_of_time() -> None:
    segments = Segment(3.0, 4.0, "dog", 0.5, "cosounds"), Segment(1.0, 9.0, "rock", 0.9, "cotrans")
    lines = play_timeline(
        *segments, header=heads_header(), summary=replace(SUMMARY, drift_ppm=-31.4)
    )
    assert [line.split() for line in lines[1:4]] == [
        ["start", "end", "length", "model", "label", "score"],
        ["0:01.00", "0:09.00", "8.00", "s", "cotrans", "rock", "0.90"],
        ["0:03.00", "0:04.00", "1.00", "s", "cosounds", "dog", "0.50"],
    ]
    assert lines[4].endswith(", clock drift -31 ppm")
    assert "75.0 s of audio" in lines[4]


def test_very_long_timelines_keep_the_end() -> None:
    lines = play_timeline(*(Segment(float(i), i + 1.0, "walk", 0.5) for i in range(1234)))
    assert len(lines) == 1000 + 5
    assert lines[2].split()[0] == "3:54.00"
    assert lines[-3] == "The first 234 segments are left out; -o writes them all."


# --- consoles --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "env", "mode"),
    [
        ("auto", {}, "auto"),
        ("auto", {"NO_COLOR": "0"}, "never"),
        ("auto", {"NO_COLOR": ""}, "auto"),
        ("auto", {"FORCE_COLOR": "1"}, "always"),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, "never"),
        ("always", {"NO_COLOR": "1"}, "always"),
        ("never", {"FORCE_COLOR": "1"}, "never"),
    ],
)
def test_color_mode(flag: ColorMode, env: dict[str, str], mode: ColorMode) -> None:
    assert color_mode(flag, env) == mode


def test_colors_in_a_pipe_only_when_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    modes: tuple[ColorMode, ...] = ("auto", "never", "always")
    for mode in modes:
        for make in (stdout_console, stderr_console):
            make(mode).print("walk", style="bold red")
            out, err = capsys.readouterr()
            assert "walk" in (out if make is stdout_console else err)
            assert ("\x1b[" in out + err) is (mode == "always")
    assert stdout_console("auto") is stdout_console("auto")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_view_needs_a_terminal_and_a_reader() -> None:
    xterm = {"TERM": "xterm"}
    assert live_allowed(_Terminal(), env=xterm)
    assert not live_allowed(io.StringIO(), env=xterm)
    for env in ({}, {"TERM": "dumb"}, {**xterm, "CI": "1"}, {**xterm, "NO_COLOR": "1"}):
        assert not live_allowed(_Terminal(), env=env)
    assert not live_allowed(_Terminal(), env=xterm, quiet=True)
    assert not live_allowed(_Terminal(), env=xterm, no_live=True)
    assert not live_allowed(_Terminal(), env=xterm, flag="never")
    assert not live_allowed(_Terminal(), env=xterm, data_on_terminal=True)


def test_the_cursor_is_not_restored_off_a_terminal() -> None:
    stream = io.StringIO()
    restore_cursor(stream)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", True), ("cp1252", False)])
def test_is_unicode(encoding: str, expected: bool) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert is_unicode(Console(file=stream)) is expected


# --- small parts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 MAC"),
        (512, "512 MAC"),
        (1000, "1.0 kMAC"),
        (9_640_000, "9.6 MMAC"),
        (43_100_000, "43.1 MMAC"),
        (410_900_000, "411 MMAC"),
        (999_700_000, "1.0 GMAC"),
        (2.5e12, "2.5 TMAC"),
    ],
)
def test_si(number: float, text: str) -> None:
    assert si(number, "MAC") == text
    assert si(number) == text.removesuffix("MAC").rstrip()


def test_times_and_savings() -> None:
    assert [times(x) for x in (0.84, 8.24, 9.96, 43.4)] == ["0.8x", "8.2x", "10x", "43x"]
    assert saving(9.6e6, 410.9e6) == "43x less"
    assert saving(10, 10) == saving(0, 10) == saving(12, 10) == ""
    assert [counted(n, "error") for n in (0, 1, 2)] == ["0 errors", "1 error", "2 errors"]


@pytest.mark.parametrize(
    ("seconds", "decimals", "text"),
    [
        (0.0, 1, "0:00.0"),
        (59.96, 1, "1:00.0"),
        (61.25, 2, "1:01.25"),
        (3599.999, 1, "1:00:00.0"),
        (36_061.0, 0, "10:01:01"),
        (-3.0, 1, "0:00.0"),
    ],
)
def test_short_time(seconds: float, decimals: int, text: str) -> None:
    assert short_time(seconds, decimals) == text


def test_clean() -> None:
    assert clean(" a\tb\nc \x1b[2J\x07 日本 ") == "a b c ?[2J? 日本"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 60)), max_size=40),
    st.sampled_from([None, 10.0, 100.0, 1000.0]),
    st.integers(1, 100),
)
def test_strip_against_counting(
    runs: list[tuple[str | None, int]], length_s: float | None, width: int
) -> None:
    labels = [label for label, count in runs for _ in range(count)]
    strip = Strip(5.0, length_s, 0.1)
    for i, label in enumerate(labels):
        strip.add(5.0 + i / 10, label)
    cells = strip.cells(width, length_s)
    assert len(cells) == width
    assert {label for label, _ in cells} <= {*labels, None}
    seen = len(labels) / 10 / (length_s or max(len(labels), 1) / 10)
    for k, (label, known) in enumerate(cells):
        # A cell knows something when it begins before the newest step, give or take a slice.
        if abs(k / width - seen) > 1 / width + 1 / 64:
            assert known is (k / width < seen)
        assert known or label is None
    if len(set(labels)) == 1 and length_s is None:
        assert all(cell == (labels[0], True) for cell in cells)


def test_strip_of_an_endless_run_stays_small() -> None:
    strip = Strip(0.0, None, 0.1)
    for i in range(100_000):
        strip.add(i / 10, "a" if i < 50_000 else "b")
    assert len(strip._slices) <= 256
    cells = [label for label, _ in strip.cells(80, None)]
    middle = cells.index("b")
    assert cells == ["a"] * middle + ["b"] * (80 - middle)
    assert abs(middle - 40) <= 1
