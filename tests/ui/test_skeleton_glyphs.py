"""Skeletons in the live view: glyphs, position and fit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from costream.draw.skeleton import SkeletonView
from costream.formatting import cost_line
from costream.layouts import BODY_15, MEDIAPIPE_33
from costream.records import (
    Compute,
    Header,
    Picture,
    Prediction,
    Segment,
    SkeletonFrame,
    StageTimes,
    Summary,
)
from costream.sinks.base import PictureSink
from costream.ui.run.glyphs import stick_lines
from costream.ui.run.state import RunState
from costream.ui.run.view import LiveLayout, LiveView
from costream.ui.screen import Viewport

HEADER = Header(
    *("0.1.0", "costgcn", "0" * 64, ("walk", "sit"), None, 15.0, 0.5),
    *("poses.csv", "skeleton", 20.0, {}),
)
BLANK = "\u2800"


def skeleton(layout: Any = BODY_15, **more: Any) -> SkeletonFrame:
    count = len(layout.joints)
    joints = np.random.default_rng(0).standard_normal((1, count, 3)).astype(np.float32)
    return SkeletonFrame(0, 0.0, joints, np.ones((1, count), np.float32), layout, **more)


def state(*, outputs: bool = True) -> RunState:
    state = RunState(HEADER, 0.0)
    for i in range(60):
        time_s = i / 15
        if outputs and i % 4 == 0:
            state.add(Prediction(i, time_s, i, None, (("walk", 0.9), ("sit", 0.1))))
        state.add(Compute(i, time_s, 10, 100, StageTimes(1, 1, 1, 1)))
    state.add(Segment(0.0, 1.0, "sit", 0.7))
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


def text_of(shown: RunState, name: str, look: Viewport) -> str:
    return "\n".join(line.plain for line in LiveLayout(shown, name).lines(look, 5.0))


@pytest.mark.parametrize(("width", "height"), [(79, 23), (60, 16), (130, 50), (79, 17)])
def test_the_figure_stands_beside_the_scores(width: int, height: int) -> None:
    shown = state()
    without = text_of(shown, "poses.csv", Viewport(width, height))
    shown.add_input(Picture(1.0, skeleton(), skeleton()))
    text = text_of(shown, "poses.csv", Viewport(width, height))
    lines = text.split("\n")
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    assert len(dots(text)) >= 5
    for part in ("walk", "0.90", "now", "before", "speed", "cost"):
        assert part in text
    assert text.split("\n")[:2] == without.split("\n")[:2]
    assert not dots(without)


def test_no_figure_where_there_is_no_room_or_no_braille() -> None:
    shown = state()
    shown.add_input(Picture(1.0, skeleton(), skeleton()))
    for look in (Viewport(50, 23), Viewport(79, 10), Viewport(79, 23, unicode=False)):
        text = text_of(shown, "poses.csv", look)
        assert not dots(text)
        assert "walk" in text


def test_a_run_without_skeletons_has_none() -> None:
    shown = state()
    shown.add_input(Picture(1.0, skeleton(), None))
    assert shown.figure is None


def test_persons_in_a_picture_stand_where_they_are_seen() -> None:
    """In space MediaPipe gives each person around its own hips."""
    places = np.zeros((2, 33, 2), np.float32)
    places[0], places[1] = (0.1, 0.5), (0.9, 0.5)
    both = SkeletonFrame(
        0,
        0.0,
        np.zeros((2, 33, 3), np.float32),
        np.ones((2, 33), np.float32),
        MEDIAPIPE_33,
        places=places,
    )
    points = SkeletonView().figure(both).points
    assert points[1, 0, 0] - points[0, 0, 0] > 0.8


def test_steps_without_output_leave_no_holes_in_the_timeline() -> None:
    text = text_of(state(), "poses.csv", Viewport(79, 23))
    (strip,) = [line for line in text.split("\n") if line.startswith("walk  ") and "0." not in line]
    cells = state().head_states[None].strip.cells(40, 4.0)  # type: ignore[union-attr]
    assert all(label == "walk" for label, _ in cells)
    assert strip


def test_before_the_first_output_it_says_what_it_waits_for() -> None:
    assert "waiting for the first output" in text_of(
        state(outputs=False), "poses.csv", Viewport(79, 23)
    )


def test_the_live_view_takes_pictures() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = LiveView(console, "poses.csv")
    assert isinstance(view, PictureSink)
    view.open(HEADER)
    view.draw(Picture(0.0, skeleton(), skeleton()))
    view._drawn_s = 0.0
    view.write(Prediction(0, 0.0, 0, None, (("walk", 0.9),)))
    summary = Summary(1, 0, 0, 0, 1.0, 1.0, 1.0, 1, 1, True, 0)
    view.close(summary)
    assert dots(console.file.getvalue())  # type: ignore[attr-defined]
    assert "1.0 s of skeletons" in cost_line(summary, "skeleton")
