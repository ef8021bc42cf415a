"""Live view as text, without a terminal: content and fit to any size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from costream.checkpoints.card import Timeline
from costream.records import (
    AudioBlock,
    Compute,
    Fault,
    Gap,
    Head,
    Header,
    Picture,
    Prediction,
    Record,
    Segment,
    StageTimes,
)
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport

LABELS = ("background", "walk", "sit", "歩く人", "\x1b[31mred\x1b[0m\nline", "w" * 70, "[bold]x[/]")
RATE_HZ = 10.0


def header(duration_s: float | None = 60.0, delay_s: float = 0.0) -> Header:
    about = ("0.1.0", "cooadtr", "0" * 64, LABELS, "background", RATE_HZ, delay_s)
    return Header(*about, "clip.mp4", "video", duration_s, {"timeline": Timeline()})


def steps(*labels: str, begin: int = 0, score: float = 0.9, dropped: int = 0) -> list[Record]:
    out: list[Record] = []
    for i, label in enumerate(labels, begin):
        other = "background" if label != "background" else "walk"
        top = ((label, score), (other, 1 - score))
        ms = StageTimes(0.5, 1.0, 2.0, 0.25)
        out.append(Prediction(i, i / RATE_HZ, i, i, top))
        out.append(Compute(i, i / RATE_HZ, 9_600_000, 410_000_000, ms, dropped=dropped))
    return out


def state_of(*records: Record, **about: float | None) -> RunState:
    state = RunState(header(**about), 100.0)
    for record in records:
        state.add(record)
    return state


def text_of(state: RunState, width: int = 79, height: int = 23, now_s: float = 101.0) -> str:
    return "\n".join(
        line.plain for line in LiveLayout(state, "clip.mp4").lines(Viewport(width, height), now_s)
    )


@st.composite
def states(draw: st.DrawFn) -> RunState:
    records: list[Record] = []
    for run in draw(st.lists(st.tuples(st.sampled_from(LABELS), st.integers(1, 30)), max_size=8)):
        begin = sum(isinstance(r, Compute) for r in records)
        records += steps(*[run[0]] * run[1], begin=begin, dropped=draw(st.integers(0, 1)))
        records.append(Segment(begin / 10, begin / 10 + 3600.0, run[0], 0.5))
    records += draw(st.sampled_from([[], [Fault(1.0, "broken", count=3)], [Gap(0.0, 9.0, "lost")]]))
    return state_of(*records, duration_s=draw(st.sampled_from([None, 0.0, 1.0, 90000.0])))


@settings(max_examples=150, deadline=None)
@given(states(), st.integers(1, 130), st.integers(1, 45), st.booleans())
def test_it_fits_and_holds_nothing_a_terminal_acts_upon(
    state: RunState, width: int, height: int, unicode: bool
) -> None:
    lines = LiveLayout(state, "x\x1b[2J\r.mp4").lines(Viewport(width, height, unicode), 103.0)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    assert all(line.plain.isprintable() for line in lines)
    if not unicode:
        plain = "".join(line.plain for line in lines)
        assert plain.replace("歩く人", "").replace("歩く", "").replace("歩", "").isascii()


def test_before_the_first_step() -> None:
    text = text_of(state_of())
    assert text.startswith("clip.mp4  cooadtr, 10 steps a second\n")
    assert "waiting for the first step" in text
    assert "  0 %  0:00 / 1:00" in text


def test_every_figure() -> None:
    segments = [Segment(0.0, 2.0, "sit", 0.75), Segment(2.0, 3.5, "walk", 0.5)]
    state = state_of(*steps(*["sit"] * 20, *["walk"] * 100), *segments, Fault(1.0, "x", count=2))
    text = text_of(state, now_s=102.0)  # 12 s of video in 2 s
    assert " 20 %  0:12 / 1:00  0:08 left" in text
    assert "now     walk  for 9.9 s, since 0:02.0" in text
    assert "before  0:02.0 – 0:03.5  walk  0.50\n        0:00.0 – 0:02.0  sit   0.75" in text
    assert "speed   6.0x real time, 3.8 ms a step" in text
    assert "decode 0.50  frontend 1.00  network 2.00  sink 0.25 ms" in text
    assert "cost    9.6 M of 410 M MAC a step: 43x less" in text
    assert "lost    0 dropped, 2 errors" in text


def test_small_ones_keep_what_matters() -> None:
    state = state_of(*steps(*["sit"] * 20, *["walk"] * 100), Segment(0.0, 2.0, "sit", 0.75))
    lines = text_of(state, 39, 9).split("\n")
    starts = ("clip.mp4", "━", "walk", "now", "swalk", " s ", "speed", "cost", "lost")
    assert len(lines) == 9
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    assert lines[7] == "cost    9.6 M of 410 M a step: 43x less"


def test_the_strip_names_what_fits_and_leaves_the_rest_open() -> None:
    state = state_of(*steps(*["walk"] * 100, *["sit"] * 10, *["background"] * 90))
    text = text_of(state, 60)
    strip, legend = text.split("\n")[-7:-5]
    assert strip == "walk      s·········" + 40 * " "  # a cell a second
    assert legend == " w  walk   s  sit  "


def test_colors_are_those_of_the_legend() -> None:
    state = state_of(*steps(*["walk"] * 300, *["sit"] * 300))
    text = Text("\n").join(LiveLayout(state, "clip.mp4").lines(Viewport(60, 23), 101.0))
    at = text.plain.index("\nwalk", text.plain.index("now")) + 1
    legend = text.plain.index(" w  walk")
    styles = {k: [s.style for s in text.spans if s.start <= k < s.end] for k in (at, legend)}
    assert styles[at] == styles[legend] == ["black on green"]


@pytest.mark.parametrize(("delay_s", "since"), [(0.0, "0:01.0"), (0.5, "0:00.5"), (2.0, "0:00.0")])
def test_delay_is_taken_off(delay_s: float, since: str) -> None:
    state = state_of(*steps(*["background"] * 10, *["walk"] * 10), delay_s=delay_s)
    assert f"since {since}" in text_of(state)


def test_the_current_label_has_hysteresis() -> None:
    state = state_of(*steps("walk", "walk"))
    for record in steps("walk", begin=2, score=0.35):  # above 0.6 x 0.5
        state.add(record)
    assert state.head_states[None].current is not None
    for record in steps("walk", begin=3, score=0.25):
        state.add(record)
    assert state.head_states[None].current is None
    for record in [*steps("walk", begin=4), *steps("sit", begin=5), Gap(0.5, 9.0, "lost")]:
        state.add(record)
    assert state.head_states[None].current is None


def test_streams_of_unknown_length() -> None:
    state = state_of(*steps(*["walk"] * 100), duration_s=None)
    assert "\n0:10 so far\n" in text_of(state)
    assert state.eta_s(101.0) is None
    assert "walk" + " " * 40 in text_of(state)  # the strip is full all the time


def test_dense_models_claim_no_saving() -> None:
    state = state_of(Compute(0, 0.0, 500, 500, StageTimes(1.0, 1.0, 1.0, 1.0)))
    assert "cost    500 MAC a step" in text_of(state)
    assert "less" not in text_of(state)


def hearing_state(*, heads: bool, duration_s: float | None = None) -> RunState:
    """Twenty seconds of sound, by one or two models."""
    own = (
        Head("cotrans", "0" * 64, LABELS, "background", 0.0, 0.5),
        Head("cosounds", "0" * 64, ("silence", "dog", "siren"), "silence", 0.5, 0.3),
    )
    about = ("0.1.0", "cotrans,cosounds", "0" * 64, LABELS, "background", 4.0, 0.0)
    state = RunState(
        Header(*about, "mic", "audio", duration_s, {}, heads=own if heads else None), 100.0
    )
    sound = (0.1 * np.sin(np.arange(4000) * 0.2)).astype(np.float32)
    for i in range(80):
        time_s = (i + 1) / 4
        top = (("walk" if i < 40 else "sit", 0.9), ("background", 0.1))
        state.add(Prediction(i, time_s, i, i, top, model="cotrans" if heads else None))
        if heads:
            top = (("dog", 0.4), ("silence", 0.3))
            state.add(Prediction(i, time_s, i, i, top, model="cosounds"))
        ms = StageTimes(0.5, 1.0, 2.0, 0.25)
        state.add(Compute(i, time_s, 9_600_000, 410_000_000, ms, 0.125, dropped=2))
        spectrum = np.random.default_rng(i).normal(-8, 4, (16, 64)).astype(np.float32)
        state.add_input(Picture(time_s, AudioBlock(i, time_s, sound), None, spectrum))
    return state


def test_sound_has_a_meter_and_a_spectrogram() -> None:
    lines = text_of(hearing_state(heads=False), 79, 30).split("\n")
    assert lines[1] == "0:20 so far, 0.12 s late"
    assert lines[2].startswith("level   ███")
    assert lines[2].endswith("  -23 dBFS, peak -20")
    assert all(len(line) == 79 and set(line) <= set(" ▀▄█") for line in lines[3:7])
    assert "lost    2 dropped, 0 errors" in lines


def test_live_sound_of_a_known_length_tells_its_lag() -> None:
    text = text_of(hearing_state(heads=False, duration_s=60.0))
    assert "lost    2 dropped, 0 errors, 0.12 s late" in text


def test_each_head_has_scores_a_label_and_a_timeline() -> None:
    text = text_of(hearing_state(heads=True))
    assert "\ncotrans  sit  for 9.8 s, since 0:10.2\n" in text
    assert "\ncosounds dog  for 19.2 s, since 0:00.2\n" in text
    assert "\n w  walk   s  sit  \n" in text
    assert "\n d  dog  \n" in text
    assert text.count("0.90") == text.count("0.40") == 1


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("unicode", [False, True])
def test_sound_fits_any_terminal(heads: bool, unicode: bool) -> None:
    state = hearing_state(heads=heads)
    for width, height in itertools.product((1, 5, 20, 39, 79, 130), (1, 3, 7, 11, 14, 23, 39)):
        lines = LiveLayout(state, "mic").lines(Viewport(width, height, unicode), 101.0)
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        assert unicode or "".join(line.plain for line in lines).isascii()


def test_small_terminals_keep_the_meter_and_every_head() -> None:
    lines = text_of(hearing_state(heads=True), 39, 11).split("\n")
    starts = ("clip", "0:20", "level", "sit", "dog", "cotrans", "cosounds", "walk", "dog")
    for line, start in zip(lines, starts, strict=False):
        assert line.startswith(start)
    assert len(lines) == 11


def test_what_nobody_reads_at_a_glance_is_made_anew_once_a_second() -> None:
    state = state_of(*steps(*["walk"] * 20))
    view = LiveLayout(state, "clip.mp4")
    assert "speed   2.0x real" in shown(view, 101.0)
    for record in steps(*["sit"] * 20, begin=20):
        state.add(record)
    soon, later = shown(view, 101.5), shown(view, 102.0)
    assert "now     sit" in soon
    assert "speed   2.0x real" in soon
    assert "speed   2.0x real" in later
    assert " s  sit" not in soon
    assert " s  sit" in later
    narrow = view.lines(Viewport(40, 23), 102.1)
    assert max(line.cell_len for line in narrow) == 40


def shown(view: LiveLayout, now_s: float) -> str:
    return "\n".join(line.plain for line in view.lines(Viewport(79, 23), now_s))
