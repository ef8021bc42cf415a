"""Views of a run that finds objects: content and fit to any size."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from costream.checkpoints.card import Timeline
from costream.records import (
    OBJECT_DETECTION,
    Box,
    Compute,
    FeatureRow,
    Gap,
    Header,
    Objects,
    Picture,
    Record,
    Segment,
    StageTimes,
    Summary,
)
from costream.ui.plain import PlainLines
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport
from costream.ui.timeline import FinalTimeline

RATE_HZ = 10.0
HEADER = Header(
    *("0.1.0", "eventful-vitdet", "0" * 64, ("car", "person", "\x1b[2Jdog\n"), None, RATE_HZ, 0.0),
    *("clip.mp4", "video", 60.0, {"timeline": Timeline()}),
    task=OBJECT_DETECTION,
)
SUMMARY = Summary(600, 2, 0, 0, 60.0, 30.0, 2.0, 100, 400, complete=True, exit=0)


def boxes(*labels: str, tracked: bool = True) -> tuple[Box, ...]:
    return tuple(
        Box(0, 0, 9, 9, 0.9 - 0.1 * k, label, 10 + k if tracked else None)
        for k, label in enumerate(labels)
    )


def step(i: int, found: tuple[Box, ...], **cost: float | None) -> list[Record]:
    of_step = {"tokens": 255, "budget_ms": 40.0, **cost}
    ms = StageTimes(0.5, 1.0, 20.0, 0.25)
    compute = Compute(i, i / RATE_HZ, 100_000_000, 400_000_000, ms)
    return [Objects(i, i / RATE_HZ, i, i, found), replace(compute, **of_step)]


def state_of(*records: Record, header: Header = HEADER) -> RunState:
    state = RunState(header, 100.0)
    for record in records:
        state.add(record)
    state.add_input(
        Picture(
            0.0, FeatureRow(0, 0.0, np.zeros(1, np.float32)), None, None, np.ones((30, 34), bool)
        )
    )
    return state


def traffic(steps: int = 200) -> list[Record]:
    """Two cars and a person, from half of the time on one car."""
    found = (boxes("car", "person", "car"), boxes("car"))
    return [r for i in range(steps) for r in step(i, found[2 * i >= steps])]


def text_of(state: RunState, width: int = 79, height: int = 23) -> str:
    lines = LiveLayout(state, "clip.mp4").lines(Viewport(width, height), 110.0)
    return "\n".join(line.plain.rstrip() for line in lines)


def test_before_the_first_step() -> None:
    text = text_of(state_of())
    assert "waiting for the first step" in text
    assert "\nnow\n" in text


def test_every_figure() -> None:
    segment = Segment(0.0, 10.0, "car", 0.8, count=2)
    text = text_of(state_of(*traffic(), segment, *step(200, boxes("car", "person", "car"))))
    lines = text.split("\n")
    assert lines[3].startswith("car #10      ███")
    assert lines[3].endswith("  0.90")
    assert [line[:12] for line in lines[4:6]] == ["person #11  ", "car #12     "]
    assert "now     2 car, 1 person" in lines
    assert "before  0:00.0 – 0:10.0  car ×2  0.80" in lines
    timeline = [line for line in lines if line.startswith(("car     2", "person  1"))]
    # A third of the minute has passed, a sixth of it with all of them.
    assert timeline[0].startswith("car     222222222222111")
    assert timeline[0][8:].strip("12") == ""
    assert timeline[1].startswith("person  11111111111")
    assert timeline[1].endswith("········")
    assert text.index(" 255 of 1020 tokens") - text.index("\ntokens ") == text.index(
        " 25 % of dense, budget 40 ms"
    ) - text.index("\ndense  ")
    assert "cost    100 M of 400 M MAC a step: 4.0x less" in lines


def test_the_curve_ends_with_the_newest_step() -> None:
    records = [r for i in range(90) for r in step(i, (), tokens=1020 if i == 88 else 100)]
    text = text_of(state_of(*records))
    assert "▁▁█▁ 100 of 1020 tokens" in text
    assert "▃▃▃▃ 25 % of dense, budget 40 ms" in text


def test_lines_stay_where_they_are_when_objects_go() -> None:
    full, empty = traffic(), step(200, ())
    before, after = text_of(state_of(*full)), text_of(state_of(*full, *empty))
    assert "now     nothing" in after
    assert [line[:6] == "now   " for line in before.split("\n")] == [
        line[:6] == "now   " for line in after.split("\n")
    ]


def test_what_was_before_a_gap_is_not_in_sight() -> None:
    state = state_of(*traffic(), Gap(20.0, 30.0, "no data"))
    assert "now     nothing" in text_of(state)


def test_without_ids_tokens_and_budget() -> None:
    state = RunState(HEADER, 100.0)
    for record in step(0, boxes("car", tracked=False), tokens=None, budget_ms=None):
        state.add(record)
    text = text_of(state)
    assert "\ncar     ████" in text
    assert "tokens" not in text
    assert " 25 % of dense\n" in text


@pytest.mark.parametrize("unicode", [False, True])
def test_it_fits_any_terminal(unicode: bool) -> None:
    found = boxes("car", "\x1b[2Jdog\n", "person", "car", "car", "dog", "cat")
    segment = Segment(0.0, 2.0, "\x1b[2Jdog\n", 0.75, count=3)
    header = replace(HEADER, labels=(*HEADER.labels, "dog", "cat"))
    for records in ([], [*step(0, ()), *step(1, found), segment, *step(2, found[:1])]):
        state = state_of(*records, header=header)
        for width, height in itertools.product((1, 5, 20, 39, 79, 130), (1, 3, 7, 11, 14, 23, 39)):
            lines = LiveLayout(state, "clip.mp4").lines(Viewport(width, height, unicode), 110.0)
            assert len(lines) <= height
            assert all(line.cell_len <= width for line in lines)
            assert all(line.plain.isprintable() for line in lines)
            assert unicode or "".join(line.plain for line in lines).isascii()


def test_small_ones_keep_what_matters() -> None:
    lines = text_of(state_of(*traffic()), 39, 9).split("\n")
    starts = ("clip.mp4", "━", "car #10", "now", "car", "tokens", "dense", "speed", "cost")
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def test_colors_are_those_of_the_label() -> None:
    text = Text("\n").join(
        LiveLayout(state_of(*traffic()), "clip.mp4").lines(Viewport(79, 23), 110.0)
    )
    at = text.plain.index("222")
    assert [s.style for s in text.spans if s.start <= at < s.end] == ["black on green"]


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().split("\n")]


def test_plain_lines() -> None:
    console = Console(file=io.StringIO(), width=30)
    view = PlainLines(console, "clip.mp4", every_s=0.0)
    view.open(HEADER)
    for record in [*step(0, boxes("person", "car", "car")), *step(1, ())]:
        view.write(record)
    view.close(SUMMARY)
    lines = written(console)
    assert lines[1].endswith("x  2 car, 1 person  255 tokens, 25 % of dense  dropped 0")
    assert lines[3].endswith("x  nothing  255 tokens, 25 % of dense  dropped 0")


def test_the_final_timeline_says_how_many_there_were() -> None:
    segments = [Segment(2.0, 3.0, "person", 0.7, count=12), Segment(1.0, 9.0, "car", 0.8, count=2)]
    for shown in (segments, []):
        console = Console(file=io.StringIO(), width=80)
        view = FinalTimeline(console, "clip.mp4")
        view.open(HEADER)
        for segment in shown:
            view.write(segment)
        view.close(SUMMARY)
        lines = written(console)
        assert lines[1:4] == [
            "  start      end  length  label   max  score",
            "0:01.00  0:09.00  8.00 s  car       2   0.80",
            "0:02.00  0:03.00  1.00 s  person   12   0.70",
        ] or (not shown and lines[1] == "No object was found.")
