"""Live view as text, without a terminal: labels, sound, objects, skeletons; fit to any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from costream.core.formatting import cost_line
from costream.core.layouts import BODY_15, MEDIAPIPE_33
from costream.core.records import (
    OBJECT_DETECTION,
    AudioBlock,
    Box,
    Compute,
    Fault,
    FeatureRow,
    Gap,
    Head,
    Header,
    Objects,
    Picture,
    Prediction,
    Record,
    Segment,
    SkeletonFrame,
    StageTimes,
    Summary,
)
from costream.draw.skeleton import SkeletonView
from costream.sinks.base import PictureSink
from costream.ui.run.glyphs import stick_lines
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout, LiveView
from costream.ui.screen import Viewport
from costream.weights_io.card import Timeline
from kit.shown import SIZES, check_fit, console, state_of, text_of, written

LABELS = ("background", "walk", "sit", "歩く人", "\x1b[31mred\x1b[0m\nline", "w" * 70, "[bold]x[/]")
RATE_HZ = 10.0
MS = StageTimes(0.5, 1.0, 2.0, 0.25)


def header(**changed: Any) -> Header:
    about = ("0.1.0", "cooadtr", "0" * 64, LABELS, "background", RATE_HZ, 0.0)
    made = Header(*about, "clip.mp4", "video", 60.0, {"timeline": Timeline()})
    return replace(made, **changed)


def steps(*labels: str, begin: int = 0, score: float = 0.9, dropped: int = 0) -> list[Record]:
    out: list[Record] = []
    for i, label in enumerate(labels, begin):
        other = "background" if label != "background" else "walk"
        top = ((label, score), (other, 1 - score))
        out.append(Prediction(i, i / RATE_HZ, i, i, top))
        out.append(Compute(i, i / RATE_HZ, 9_600_000, 410_000_000, MS, dropped=dropped))
    return out


def run_of(*labels: str, **changed: Any) -> RunState:
    """A run whose labels are these, one after the other, a step each."""
    return state_of(header(**changed), *steps(*labels))


def styles_at(text: Text, at: int) -> list[str]:
    return [str(span.style) for span in text.spans if span.start <= at < span.end]


@st.composite
def states(draw: st.DrawFn) -> RunState:
    records: list[Record] = []
    for run in draw(st.lists(st.tuples(st.sampled_from(LABELS), st.integers(1, 30)), max_size=8)):
        begin = sum(isinstance(r, Compute) for r in records)
        records += steps(*[run[0]] * run[1], begin=begin, dropped=draw(st.integers(0, 1)))
        records.append(Segment(begin / 10, begin / 10 + 3600.0, run[0], 0.5))
    records += draw(st.sampled_from([[], [Fault(1.0, "broken", count=3)], [Gap(0.0, 9.0, "lost")]]))
    return state_of(header(duration_s=draw(st.sampled_from([None, 0.0, 1.0, 90000.0]))), *records)


@settings(max_examples=150, deadline=None)
@given(states(), st.integers(1, 130), st.integers(1, 45), st.booleans())
def test_it_fits_and_holds_nothing_a_terminal_acts_upon(
    state: RunState, width: int, height: int, unicode: bool
) -> None:
    lines = LiveLayout(state, "x\x1b[2J\r.mp4").lines(Viewport(width, height, unicode), 103.0)
    check_fit(lines, width, height, ascii=False)
    if not unicode:
        plain = "".join(line.plain for line in lines)
        assert plain.replace("歩く人", "").replace("歩く", "").replace("歩", "").isascii()


def test_before_the_first_step() -> None:
    text = text_of(run_of())
    assert text.startswith("clip.mp4  cooadtr, 10 steps a second\n")
    assert "waiting for the first step" in text
    assert "  0 %  0:00 / 1:00" in text


def test_every_figure() -> None:
    segments = [Segment(0.0, 2.0, "sit", 0.75), Segment(2.0, 3.5, "walk", 0.5)]
    records = [*steps(*["sit"] * 20, *["walk"] * 100), *segments, Fault(1.0, "x", count=2)]
    text = text_of(state_of(header(), *records), now_s=102.0)  # 12 s of video in 2 s
    assert " 20 %  0:12 / 1:00  0:08 left" in text
    assert "now      walk   for 9.9 s, since 0:02.0" in text
    assert "before  0:02.0 – 0:03.5  ● walk  0.50\n        0:00.0 – 0:02.0  ● sit   0.75" in text
    assert "speed   6.0x real time, 3.8 ms a step" in text
    assert "decode 0.50  frontend 1.00  network 2.00  sink 0.25 ms" in text
    assert "cost    9.6 M of 410 M MAC a step: 43x less" in text
    assert "lost    0 dropped, 2 errors" in text


def test_the_strip_names_what_fits_and_leaves_the_rest_open() -> None:
    state = run_of(*["walk"] * 100, *["sit"] * 10, *["background"] * 90)
    lines = LiveLayout(state, "clip.mp4").lines(Viewport(60, 23), 101.0)
    strip, legend = (line.plain for line in lines[-7:-5])
    assert strip == "walk      s·········" + 40 * " "  # a cell a second
    assert legend == " w  walk   s  sit  "


def test_colors_are_those_of_the_legend() -> None:
    state = run_of(*["walk"] * 300, *["sit"] * 300)
    text = Text("\n").join(LiveLayout(state, "clip.mp4").lines(Viewport(60, 23), 101.0))
    at = text.plain.index("\nwalk", text.plain.index("now")) + 1
    now = text.plain.index(" sit ", text.plain.index("now"))
    legend = text.plain.index(" w  walk")
    assert styles_at(text, at) == styles_at(text, legend) == ["#111111 on #6c72dc"]
    assert styles_at(text, now) == ["#111111 on #ffa94c"]


@pytest.mark.parametrize(("delay_s", "since"), [(0.0, "0:01.0"), (0.5, "0:00.5"), (2.0, "0:00.0")])
def test_delay_is_taken_off(delay_s: float, since: str) -> None:
    state = run_of(*["background"] * 10, *["walk"] * 10, delay_s=delay_s)
    assert f"since {since}" in text_of(state)


def test_the_current_label_has_hysteresis() -> None:
    state = run_of("walk", "walk")
    for record in steps("walk", begin=2, score=0.35):  # above 0.6 x 0.5
        state.add(record)
    assert state.head_states[None].current is not None
    for record in steps("walk", begin=3, score=0.25):
        state.add(record)
    assert state.head_states[None].current is None
    for record in [*steps("walk", begin=4), *steps("sit", begin=5), Gap(0.5, 9.0, "lost")]:
        state.add(record)
    assert state.head_states[None].current is None


def strip_of(state: RunState, width: int = 20) -> str:
    """Return the initials of the labels on the strip, a dot for none, a blank for what is ahead."""
    strip = state.head_states[None].strip
    assert strip is not None
    cells = strip.cells(width, state.header.duration_s)
    return "".join((label or ".")[0] if seen else " " for label, seen in cells)


def test_a_label_is_shown_at_once_and_goes_if_nobody_was_there_for_long() -> None:
    """As the timeline would be if the run ended now."""
    lasting = header(options={"timeline": Timeline(presence_s=1.0)}, duration_s=2.0)
    state = state_of(lasting, *steps(*["background"] * 5, *["walk"] * 3))
    assert strip_of(state) == ".....www            "
    assert "now      walk" in text_of(state)
    for record in steps(*["background"] * 2, begin=8):
        state.add(record)
    assert state.head_states[None].current is None
    assert strip_of(state) == "..........          "
    for record in steps(*["walk"] * 8, *["sit"] * 2, begin=10):
        state.add(record)
    assert strip_of(state) == "..........wwwwwwwwss"
    state.add(Gap(1.6, 9.0, "lost"))
    assert state.head_states[None].current is None


def test_the_strip_has_the_segments_of_the_timeline() -> None:
    """Also where they begin earlier than a label was seen, and nothing that is not in one."""
    labels = ["walk", *["background"] * 4, *["walk"] * 5, "sit", *["walk"] * 4, *["sit"] * 5]
    state = state_of(header(duration_s=2.0), *steps(*labels))
    assert strip_of(state) == "w....wwwwwswwwwsssss"
    state.add(Segment(0.3, 1.5, "walk", 0.8))
    assert strip_of(state) == "...wwwwwwwwwwwwsssss"


def test_the_current_label_begins_where_its_segment_would() -> None:
    labels = ["walk"] * 5 + ["background"] * 3 + ["walk"] * 4
    state = state_of(header(duration_s=2.0), *steps(*labels))
    assert "since 0:00.8" in text_of(state)
    pending = (Segment(0.0, 1.2, "walk", 0.8),)
    state.add_input(replace(WINDOWS, pending=pending, updated=None))
    assert "since 0:00.0" in text_of(state)
    assert strip_of(state) == "wwwwwwwwwwww        "


def test_the_current_label_is_of_smoothed_scores() -> None:
    smooth = header(options={"timeline": Timeline(smooth_s=1.0)})
    state = state_of(smooth, *steps(*["background"] * 10, *["walk"] * 3))
    assert state.head_states[None].current is None
    for record in steps(*["walk"] * 10, begin=13):
        state.add(record)
    assert state.head_states[None].current is not None


def test_streams_of_unknown_length() -> None:
    state = run_of(*["walk"] * 100, duration_s=None)
    assert "\n0:10 so far\n" in text_of(state)
    assert state.eta_s(101.0) is None
    (strip,) = [
        line.plain
        for line in LiveLayout(state, "clip.mp4").lines(Viewport(79, 23), 101.0)
        if line.plain.startswith("walk" + " " * 40)
    ]
    assert len(strip) == 79  # it is full all the time


def test_dense_models_claim_no_saving() -> None:
    cost = Compute(0, 0.0, 500, 500, StageTimes(1.0, 1.0, 1.0, 1.0))
    text = text_of(state_of(header(), cost))
    assert "cost    500 MAC a step" in text
    assert "less" not in text


def test_all_parts_are_of_the_same_moment() -> None:
    state = run_of(*["walk"] * 20)
    view = LiveLayout(state, "clip.mp4")
    assert "speed   2.0x real" in text_of(view)
    for record in [*steps(*["sit"] * 20, begin=20), Segment(0.0, 2.0, "walk", 0.75)]:
        state.add(record)
    soon = text_of(view, now_s=101.1)
    assert all(part in soon for part in ("now      sit", " s  sit", "0:00.0 – 0:02.0", "3.6x real"))
    narrow = view.lines(Viewport(40, 23), 102.1)
    assert max(line.cell_len for line in narrow) == 40


# --- sound -----------------------------------------------------------------------------------


def sound_state(*, heads: bool, duration_s: float | None = None) -> RunState:
    """Twenty seconds of sound, by one or two models."""
    own = (
        Head("cotrans", "0" * 64, LABELS, "background", 0.0, 0.5),
        Head("cosounds", "0" * 64, ("silence", "dog", "siren"), "silence", 0.5, 0.3),
    )
    about = {"model": "cotrans,cosounds", "source": "mic", "kind": "audio", "rate_hz": 4.0}
    state = state_of(header(**about, duration_s=duration_s, heads=own if heads else None))
    sound = (0.1 * np.sin(np.arange(4000) * 0.2)).astype(np.float32)
    for i in range(80):
        time_s = (i + 1) / 4
        top = (("walk" if i < 40 else "sit", 0.9), ("background", 0.1))
        state.add(Prediction(i, time_s, i, i, top, model="cotrans" if heads else None))
        if heads:
            top = (("dog", 0.4), ("silence", 0.3))
            state.add(Prediction(i, time_s, i, i, top, model="cosounds"))
        state.add(Compute(i, time_s, 9_600_000, 410_000_000, MS, 0.125, dropped=2))
        spectrum = np.random.default_rng(i).normal(-8, 4, (16, 64)).astype(np.float32)
        state.add_input(Picture(time_s, AudioBlock(i, time_s, sound), None, spectrum))
    return state


def test_sound_has_a_meter_and_a_spectrogram() -> None:
    view = LiveLayout(sound_state(heads=False), "clip.mp4")
    lines = [line.plain for line in view.lines(Viewport(79, 30), 101.0)]
    assert lines[1] == "0:20 so far, 0.12 s late"
    assert lines[2].startswith("level   ███")
    assert lines[2].endswith("  -23 dBFS, peak -20")
    assert all(len(line) == 79 and set(line) <= set(" ▀▄█") for line in lines[3:7])
    assert "lost    2 dropped, 0 errors" in lines
    known = text_of(sound_state(heads=False, duration_s=60.0))
    assert "lost    2 dropped, 0 errors, 0.12 s late" in known


def test_each_head_has_scores_a_label_and_a_timeline() -> None:
    text = text_of(sound_state(heads=True))
    assert "\ncotrans   sit   for 9.8 s, since 0:10.2\n" in text
    assert "\ncosounds  dog   for 19.2 s, since 0:00.2\n" in text
    assert "\ncotrans  walk  " in text
    assert "\ncosounds dog\n" in text
    assert "\n          w  walk   s  sit\n" in text
    assert "\n          d  dog\n" in text
    assert text.count("0.90") == text.count("0.40") == 1


# --- objects ---------------------------------------------------------------------------------

BEAST = "\x1b[2Jdog\n"
OBJECTS = header(
    model="eventful-vitdet",
    labels=("car", "person", BEAST, "dog", "cat"),
    background=None,
    task=OBJECT_DETECTION,
)
WINDOWS = Picture(
    0.0, FeatureRow(0, 0.0, np.zeros(1, np.float32)), None, None, np.ones((30, 34), bool)
)


def boxes(*labels: str, tracked: bool = True) -> tuple[Box, ...]:
    return tuple(
        Box(0, 0, 9, 9, 0.9 - 0.1 * k, label, 10 + k if tracked else None)
        for k, label in enumerate(labels)
    )


def step(i: int, found: tuple[Box, ...], **cost: float | None) -> list[Record]:
    ms = StageTimes(0.5, 1.0, 20.0, 0.25)
    compute = Compute(i, i / RATE_HZ, 100_000_000, 400_000_000, ms)
    more = {"tokens": 255, "budget_ms": 40.0, **cost}
    return [Objects(i, i / RATE_HZ, i, i, found), replace(compute, **more)]


def object_text(*records: Record, **size: int) -> str:
    return text_of(state_of(OBJECTS, *records, WINDOWS), now_s=110.0, **size)


def traffic(count: int = 200) -> list[Record]:
    """Two cars and a person, from half of the time on one car."""
    found = (boxes("car", "person", "car"), boxes("car"))
    return [r for i in range(count) for r in step(i, found[2 * i >= count])]


def test_objects_before_the_first_step() -> None:
    text = object_text()
    assert "waiting for the first step" in text
    assert "\nnow\n" in text


def test_every_figure_of_objects() -> None:
    segment = Segment(0.0, 10.0, "car", 0.8, count=2)
    text = object_text(*traffic(), segment, *step(200, boxes("car", "person", "car")))
    lines = text.split("\n")
    assert lines[3].startswith("car #10      ███")
    assert lines[3].endswith("  0.90")
    assert [line[:12] for line in lines[4:6]] == ["person #11  ", "car #12     "]
    assert "now     ● car ×2  ● person" in lines
    assert "before  0:00.0 – 0:10.0  ● car ×2  0.80" in lines
    timeline = [line for line in lines if line.startswith(("car     2", "person  1"))]
    # A third of the minute has passed, a sixth of it with all of them.
    assert timeline[0].startswith("car     222222222222111")
    assert timeline[0][8:].strip("12") == ""
    assert timeline[1].startswith("person  11111111111")
    assert timeline[1].endswith("········")
    tokens, share = " 255 of 1020 tokens", " 25 % of full cost, budget 40 ms"
    begins = text.index("\ntokens "), text.index("\nshare  ")
    assert text.index(tokens) - begins[0] == text.index(share) - begins[1]
    assert "cost    100 M of 400 M MAC a step: 4.0x less" in lines


def test_the_curve_ends_with_the_newest_step() -> None:
    records = [r for i in range(90) for r in step(i, (), tokens=1020 if i == 88 else 100)]
    text = object_text(*records)
    assert "▁▁█▁ 100 of 1020 tokens" in text
    assert "▃▃▃▃ 25 % of full cost, budget 40 ms" in text


def test_lines_stay_where_they_are_when_objects_go() -> None:
    before, after = object_text(*traffic()), object_text(*traffic(), *step(200, ()))
    assert "now     nothing" in after
    assert [line[:6] == "now   " for line in before.split("\n")] == [
        line[:6] == "now   " for line in after.split("\n")
    ]


def test_what_was_before_a_gap_is_not_in_sight() -> None:
    assert "now     nothing" in object_text(*traffic(), Gap(20.0, 30.0, "no data"))


def test_without_ids_tokens_and_budget() -> None:
    records = step(0, boxes("car", tracked=False), tokens=None, budget_ms=None)
    text = text_of(state_of(OBJECTS, *records))
    assert "\ncar     ████" in text
    assert "tokens" not in text
    assert "of full cost" not in text  # the cost says it


def test_colors_are_those_of_the_label() -> None:
    state = state_of(OBJECTS, *traffic(), WINDOWS)
    text = Text("\n").join(LiveLayout(state, "clip.mp4").lines(Viewport(79, 23), 110.0))
    assert styles_at(text, text.plain.index("222")) == ["#111111 on #6c72dc"]


# --- skeletons -------------------------------------------------------------------------------

BLANK = "\u2800"
POSES = Header(
    *("0.1.0", "costgcn", "0" * 64, ("walk", "sit"), None, 15.0, 0.5),
    *("poses.csv", "skeleton", 20.0, {}),
)


def skeleton() -> SkeletonFrame:
    joints = np.random.default_rng(0).standard_normal((1, 15, 3)).astype(np.float32)
    return SkeletonFrame(0, 0.0, joints, np.ones((1, 15), np.float32), BODY_15)


FIGURE = Picture(1.0, skeleton(), skeleton())


def pose_state(*inputs: Picture, outputs: bool = True) -> RunState:
    state = state_of(POSES)
    for i in range(60):
        time_s = i / 15
        if outputs and i % 4 == 0:
            state.add(Prediction(i, time_s, i, None, (("walk", 0.9), ("sit", 0.1))))
        state.add(Compute(i, time_s, 10, 100, StageTimes(1, 1, 1, 1)))
    state.add(Segment(0.0, 1.0, "sit", 0.7))
    for each in inputs:
        state.add_input(each)
    return state


def dots(text: str) -> list[str]:
    return [line for line in text.split("\n") if any("\u2800" < c <= "\u28ff" for c in line)]


def test_lines_of_dots() -> None:
    upright = skeleton()
    upright.joints[:] = 0
    upright.joints[0, BODY_15.joints.index("head"), 1] = 1.0
    upright.joints[0, BODY_15.joints.index("right wrist"), 0] = 1.0  # at the camera's left
    lines = stick_lines(SkeletonView().figure(upright), 8)
    assert [len(line) for line in lines] == [16] * 8
    filled = np.array([[c != BLANK for c in line] for line in lines])
    assert filled.any(1).all()  # from top to bottom
    assert filled[-1, :8].sum() > 5  # and to the left at the bottom
    assert filled[:6, :6].sum() == 0
    upright.scores[:] = 0
    assert set("".join(stick_lines(SkeletonView().figure(upright), 8))) == {BLANK}


@pytest.mark.parametrize(("width", "height"), [(79, 23), (60, 16), (130, 50), (79, 17)])
def test_the_figure_stands_next_to_the_scores(width: int, height: int) -> None:
    without, text = (text_of(pose_state(*given), width, height) for given in ([], [FIGURE]))
    assert len(dots(text)) >= 5
    for part in ("walk", "0.90", "now", "before", "speed", "cost"):
        assert part in text
    assert text.split("\n")[:2] == without.split("\n")[:2]
    assert not dots(without)


def test_no_figure_where_there_is_not_a_room_or_no_braille() -> None:
    for width, height, unicode in ((50, 23, True), (79, 10, True), (79, 23, False)):
        text = text_of(pose_state(FIGURE), width, height, unicode=unicode)
        assert not dots(text)
        assert "walk" in text
    assert pose_state(Picture(1.0, skeleton(), None)).figure is None  # a run without skeletons


def test_persons_in_a_picture_stand_where_they_are_seen() -> None:
    """In space each person of a video is around its own hips."""
    places = np.zeros((2, 33, 2), np.float32)
    places[0], places[1] = (0.1, 0.5), (0.9, 0.5)
    arrays = np.zeros((2, 33, 3), np.float32), np.ones((2, 33), np.float32)
    both = SkeletonFrame(0, 0.0, *arrays, MEDIAPIPE_33, places=places)
    points = SkeletonView().figure(both).points
    assert points[1, 0, 0] - points[0, 0, 0] > 0.8


def test_steps_without_output_leave_no_holes_in_the_timeline() -> None:
    lines = text_of(pose_state(), now_s=5.0).split("\n")
    assert len([x for x in lines if x.startswith("sit walk")]) == 1
    cells = pose_state().head_states[None].strip.cells(40, 4.0)  # type: ignore[union-attr]
    assert {label for label, _ in cells} == {"sit", "walk"}


def test_before_the_first_output_it_says_what_it_waits_for() -> None:
    assert "waiting for the first output" in text_of(pose_state(outputs=False))


def test_a_head_of_sound_has_lines_only_where_there_is_sound() -> None:
    heads = (
        Head("nanodet", "0" * 64, LABELS, None, 0.0, 0.5),
        Head("mn04", "0" * 64, ("Siren", "Dog"), None, 0.5, 0.3),
    )
    options = {"timeline": Timeline(), "sound": "none (there is no sound in it, only video)"}
    silent = text_of(state_of(header(heads=heads, options=options)))
    assert silent.splitlines()[0].endswith(", no sound")
    assert "mn04" not in silent
    assert "waiting for the first step" in silent  # the pictures
    heard = text_of(state_of(header(heads=heads)))
    assert re.search(r"^mn04 +waiting for the first step", heard, re.MULTILINE)


def test_a_live_source_that_is_lost_does_not_look_live() -> None:
    target, heard = console(force_terminal=True, height=24), header(kind="audio", duration_s=None)
    view = LiveView(target, "mic", live=True)
    view.open(heard)
    for record in (*steps("walk"), Fault(1.0, "the device is gone")):
        view.write(record)  # the last one is drawn at once
    assert re.search(r"no data since \d\d:\d\d:\d\d: the device is gone", "".join(written(target)))
    state = RunState(heard, 0.0, live=True)
    for record in (*steps("walk"), Fault(1.0, "the device is gone")):
        state.add(record)
    shown = text_of(state).splitlines()
    assert sum("unknown" in line for line in shown) == 3  # level, scores and label
    for record in steps("walk", begin=9):
        state.add(record)
    assert "no data" not in text_of(state)


def test_the_live_view_takes_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.ui.run.view.REFRESH_S", 0.0)
    target = console(force_terminal=True, height=24)
    view = LiveView(target, "poses.csv")
    assert isinstance(view, PictureSink)
    view.open(POSES)
    view.draw(FIGURE)
    view.write(Prediction(0, 0.0, 0, None, (("walk", 0.9),)))
    summary = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)
    view.close(summary)
    assert dots("\n".join(written(target)))
    assert "1.0 s of skeletons" in cost_line(summary, "skeleton")


# --- all of them -----------------------------------------------------------------------------


def crowd() -> RunState:
    found = boxes("car", BEAST, "person", "car", "car", "dog", "cat")
    segment = Segment(0.0, 2.0, BEAST, 0.75, count=3)
    records = [*step(0, ()), *step(1, found), segment, *step(2, found[:1])]
    return state_of(OBJECTS, *records, WINDOWS)


@pytest.mark.parametrize("unicode", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: sound_state(heads=False),
        lambda: sound_state(heads=True),
        lambda: state_of(OBJECTS, WINDOWS),
        crowd,
        lambda: pose_state(FIGURE),
    ],
    ids=["sound", "heads", "no objects", "objects", "skeletons"],
)
def test_it_fits_any_terminal(make: Callable[[], RunState], unicode: bool) -> None:
    layout = LiveLayout(make(), "clip.mp4")
    for width, height in SIZES:
        lines = layout.lines(Viewport(width, height, unicode), 110.0)
        check_fit(lines, width, height, ascii=not unicode)


@pytest.mark.parametrize(
    ("make", "starts"),
    [
        (
            lambda: state_of(
                header(),
                *steps(*["sit"] * 20, *["walk"] * 100),
                Segment(0.0, 2.0, "sit", 0.75),
            ),
            "clip.mp4|━|walk|now|swalk| s |speed|cost    9.6 M of 410 M a step: 43x less|lost",
        ),
        (
            lambda: sound_state(heads=True),
            "clip|0:20|level|cotrans  sit|cosounds dog|cotrans|cosounds|cotrans  w|cosounds d||",
        ),
        (
            lambda: state_of(OBJECTS, *traffic(), WINDOWS),
            "clip.mp4|━|car #10|now|car|tokens|share|speed|cost",
        ),
    ],
    ids=["labels", "heads", "objects"],
)
def test_small_ones_keep_what_matters(make: Callable[[], RunState], starts: str) -> None:
    expected = starts.split("|")
    lines = text_of(make(), 39, len(expected)).split("\n")
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
