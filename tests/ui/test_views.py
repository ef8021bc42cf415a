"""Plain lines, the final timeline, consoles and formatting."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from costream.core.formatting import (
    clean,
    counted,
    network_saving,
    saving,
    saving_line,
    short_time,
    si,
    times,
    unfamiliar_line,
    work_line,
)
from costream.core.records import (
    OBJECT_DETECTION,
    Box,
    Compute,
    Fault,
    Head,
    Header,
    Objects,
    Prediction,
    Record,
    Segment,
    StageTimes,
    Summary,
)
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
from kit.shown import console, written

ABOUT = ("0.1.0", "cooadtr", "0" * 64, ("background", "walk"), "background", 10.0, 0.0)
HEADER = Header(*ABOUT, "clip.mp4", "video", 75.0, {})
OBJECTS = replace(HEADER, labels=("car", "person"), background=None, task=OBJECT_DETECTION)
HEADS = replace(
    HEADER,
    source="mic",
    kind="audio",
    heads=(
        Head("cotrans", "0" * 64, ("rock", "jazz"), None, 0.0, 0.5),
        Head("cosounds", "0" * 64, ("dog", "siren"), None, 0.0, 0.5),
    ),
)
MS = StageTimes(1.0, 1.0, 1.0, 1.0)
SUMMARY = Summary(
    *(1200, 2, 0, 0, 75.0, 9.1, 8.2417),
    macs=12_400_000_000,
    dense_macs=410_000_000_000,
    complete=True,
    exit=0,
)


# --- plain lines -----------------------------------------------------------------------------


def plain_lines(
    header: Header, *records: Record, width: int = 20, every_s: float = 0.0, last: bool = True
) -> list[str]:
    target = console(width)
    return play(PlainLines(target, "clip.mp4", every_s=every_s, last=last), target, header, records)


def timeline(*segments: Segment, header: Header, summary: Summary = SUMMARY) -> list[str]:
    target = console()
    return play(FinalTimeline(target, "clip.mp4"), target, header, segments, summary)


def play(
    view: PlainLines | FinalTimeline,
    target: Console,
    header: Header,
    records: Sequence[Record],
    summary: Summary = SUMMARY,
) -> list[str]:
    view.open(header)
    for record in records:
        view.write(record)
    view.close(summary)
    return written(target)


def walk(count: int = 3) -> list[Record]:
    out: list[Record] = []
    for i in range(count):
        out.append(Prediction(i, i * 30.0, i, i, (("walk", 0.912), ("background", 0.05))))
        out.append(Compute(i, i * 30.0, 1, 1, MS, dropped=i))
    return [*out, Fault(60.0, "broken")]


def test_plain_lines_say_where_it_is() -> None:
    lines = plain_lines(HEADER, *walk())
    assert lines[0].startswith("t=0.0 s  ")
    assert lines[5].startswith("t=60.0 s  ")
    assert lines[5].endswith("x  walk 0.91  dropped 2")  # one line, however narrow
    assert lines[6].endswith("dropped 2  errors 1")
    assert lines[7].startswith("clip.mp4: 75.0 s of video in 9.1 s (8.2x real time)")
    assert len(plain_lines(HEADER, *walk(), every_s=3600.0)) == 3
    assert plain_lines(HEADER, *walk(), every_s=3600.0, last=False) == [""]


def test_plain_lines_name_the_best_of_each_head() -> None:
    first = Prediction(0, 0.25, 0, 0, (("rock", 0.8), ("jazz", 0.2)), model="cotrans")
    second = Prediction(0, 0.25, 0, 0, (("dog", 0.6), ("siren", 0.4)), model="cosounds")
    lines = plain_lines(HEADS, first, second)
    assert lines[1].endswith("  rock 0.80  dog 0.60  dropped 0")


def test_plain_lines_count_objects() -> None:
    records: list[Record] = []
    for i, labels in enumerate((("person", "car", "car"), ())):
        boxes = tuple(Box(0, 0, 9, 9, 0.9 - 0.1 * k, label) for k, label in enumerate(labels))
        records.append(Objects(i, i / 10, i, i, boxes))
        records.append(Compute(i, i / 10, 100, 400, MS, tokens=255))
    lines = plain_lines(OBJECTS, *records, width=30)
    assert lines[1].endswith("x  car x2, person  255 tokens, 25 % of full cost  dropped 0")
    assert lines[3].endswith("x  nothing  255 tokens, 25 % of full cost  dropped 0")


def test_the_timeline_is_a_table_and_a_line_of_cost() -> None:
    segments = Segment(1.5, 4.25, "walk", 0.913), Segment(3600.0, 3725.5, "[bold]sit[/bold]", 0.5)
    assert timeline(*segments, header=HEADER) == [
        "clip.mp4",
        "     start         end    length  label               score",
        "   0:01.50     0:04.25    2.75 s  ● walk               0.91",
        "1:00:00.00  1:02:05.50  125.50 s  ● [bold]sit[/bold]   0.50",
        "75.0 s of video in 9.1 s (8.2x real time)",
        "33x less computation than processing every frame completely",
        "",
    ]


@pytest.mark.parametrize(
    ("macs", "network", "saved"),
    [
        ((120, 480), (10, 370), ": 4.0x less, the network alone 37x less"),
        ((470, 480), (10, 20), ": the network alone 2.0x less"),
        ((10, 370), (10, 370), ": 37x less"),
        ((480, 480), (20, 20), ""),
    ],
)
def test_the_network_and_the_whole_are_compared_with_recomputing(
    macs: tuple[int, int], network: tuple[int, int], saved: str
) -> None:
    costs = ("macs", "dense_macs", "network_macs", "network_dense_macs")
    summary = replace(SUMMARY, **dict(zip(costs, (*macs, *network), strict=True)))
    assert work_line(summary) == f"1200 steps, {macs[0]} MAC{saved}"
    same = "the network computed each step once, with the same answer as recomputing its window"
    assert saving_line(summary) == (same if saved else "")
    other = "the network computed each step once; recomputing its window can give other answers"
    shown = timeline(header=replace(HEADER, options={"exact": False}), summary=summary)
    assert (other in shown) == bool(saved)
    assert network_saving(replace(summary, network_macs=None)) == ""


@pytest.mark.parametrize(("unfamiliar_s", "is_told"), [(3.7, False), (3.8, True), (None, False)])
def test_unfamiliar_input_is_reported_where_it_is_more_than_a_twentieth(
    unfamiliar_s: float | None, is_told: bool
) -> None:
    summary = replace(SUMMARY, unfamiliar_s=unfamiliar_s)
    line = "unfamiliar for 3.8 s of 75.0 s: its predictions are unreliable"
    assert unfamiliar_line(HEADER, summary) == (line if is_told else None)
    sure = Head("a", "", ("x",), None, 0.0, 0.5)
    heads = (sure, replace(sure, model="b", familiar=0.5), replace(sure, model="c", familiar=0.4))
    told = unfamiliar_line(replace(HEADER, heads=heads), summary)
    assert told == (line.replace("unfamiliar", "unfamiliar to b and c") if is_told else None)


def test_the_timeline_says_when_there_is_none() -> None:
    for header, words in (
        (HEADER, "No action was found."),
        (HEADS, "Nothing was recognised."),
        (OBJECTS, "Nothing was found."),
    ):
        assert timeline(header=header)[1] == words
    summary = replace(SUMMARY, persons=2, persons_s=9.5, acting_s=0.0)
    lines = timeline(header=HEADER, summary=summary)
    assert lines[1] == "No action is known of 2 persons."
    assert lines[2] == "2 persons for 9.5 s, 9.5 s without a known action"
    changed = {"steps": 0, "macs": 0, "x_realtime": None, "errors": 1, "dropped": 2}
    lines = timeline(header=HEADER, summary=replace(SUMMARY, complete=False, **changed))
    assert lines[1] == "Nothing was read."
    assert lines[2] == "75.0 s of video in 9.1 s, 2 dropped, 1 error, incomplete"


def test_the_timeline_says_how_many_objects_there_were() -> None:
    segments = Segment(2.0, 3.0, "person", 0.7, count=12), Segment(1.0, 9.0, "car", 0.8, count=2)
    assert timeline(*segments, header=OBJECTS)[1:4] == [
        "  start      end  length  label     at once  score",
        "0:01.00  0:09.00  8.00 s  ● car           2   0.80",
        "0:02.00  0:03.00  1.00 s  ● person       12   0.70",
    ]


def test_the_timeline_names_the_model_of_each_segment_in_order_of_time() -> None:
    segments = Segment(3.0, 4.0, "dog", 0.5, "cosounds"), Segment(1.0, 9.0, "rock", 0.9, "cotrans")
    lines = timeline(*segments, header=HEADS, summary=replace(SUMMARY, drift_ppm=-31.4))
    assert [line.split() for line in lines[1:4]] == [
        ["start", "end", "length", "model", "label", "score"],
        ["0:01.00", "0:09.00", "8.00", "s", "cotrans", "●", "rock", "0.90"],
        ["0:03.00", "0:04.00", "1.00", "s", "cosounds", "●", "dog", "0.50"],
    ]
    assert lines[4].endswith(", clock drift -31 ppm")
    assert "75.0 s of audio" in lines[4]
    strange = timeline(*segments, header=HEADS, summary=replace(SUMMARY, unfamiliar_s=12.5))
    told = "unfamiliar for 12.5 s of 75.0 s: its predictions are unreliable"
    assert strange[4] == told
    mute = replace(HEADS, options={**HEADS.options, "sound": "none (only video)"})
    assert timeline(*segments, header=mute)[4] == "sound: none (only video)"
    hinting = replace(HEADS, options={**HEADS.options, "unfamiliar": "unlike a studio"})
    strange = timeline(*segments, header=hinting, summary=replace(SUMMARY, unfamiliar_s=12.5))
    assert strange[4] == "unfamiliar for 12.5 s of 75.0 s: unlike a studio"


def test_very_long_timelines_keep_the_end() -> None:
    segments = (Segment(float(i), i + 1.0, "walk", 0.5) for i in range(1234))
    lines = timeline(*segments, header=HEADER)
    assert len(lines) == 1000 + 6
    assert lines[2].split()[0] == "3:54.00"
    assert lines[-4] == "The first 234 segments are left out; -o writes them all."


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
    for env in ({**xterm, "JPY_PARENT_PID": "7"},):  # a cell of a notebook
        assert not live_allowed(_Terminal(), env=env)
    assert not live_allowed(_Terminal(), env=xterm, quiet=True)
    assert not live_allowed(_Terminal(), env=xterm, no_live=True)
    assert not live_allowed(_Terminal(), env=xterm, flag="never")
    assert not live_allowed(_Terminal(), env=xterm, data_on_terminal=True)


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", True), ("cp1252", False)])
def test_a_stream_that_is_not_a_terminal(encoding: str, expected: bool) -> None:
    memory = io.BytesIO()
    stream = io.TextIOWrapper(memory, encoding=encoding)
    assert is_unicode(Console(file=stream)) is expected
    restore_cursor(stream)
    stream.flush()
    assert memory.getvalue() == b""


# --- small parts -----------------------------------------------------------------------------


def test_numbers_with_prefixes() -> None:
    for number, text in (
        (0, "0 MAC"),
        (512, "512 MAC"),
        (1000, "1.0 kMAC"),
        (9_640_000, "9.6 MMAC"),
        (43_100_000, "43.1 MMAC"),
        (410_900_000, "411 MMAC"),
        (999_700_000, "1.0 GMAC"),
        (2.5e12, "2.5 TMAC"),
    ):
        assert si(number, "MAC") == text
        assert si(number) == text.removesuffix("MAC").rstrip()


def test_small_texts() -> None:
    assert [times(x) for x in (0.84, 8.24, 9.96, 43.4)] == ["0.8x", "8.2x", "10x", "43x"]
    assert saving(9.6e6, 410.9e6) == "43x less"
    assert saving(10, 10) == saving(0, 10) == saving(12, 10) == ""
    assert [counted(n, "error") for n in (0, 1, 2)] == ["0 errors", "1 error", "2 errors"]
    assert clean(" a\tb\nc \x1b[2J\x07 日本 ") == "a b c ?[2J? 日本"
    for seconds, decimals, text in (
        (0.0, 1, "0:00.0"),
        (59.96, 1, "1:00.0"),
        (61.25, 2, "1:01.25"),
        (3599.999, 1, "1:00:00.0"),
        (36_061.0, 0, "10:01:01"),
        (-3.0, 1, "0:00.0"),
    ):
        assert short_time(seconds, decimals) == text


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
