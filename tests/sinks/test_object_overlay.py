"""Boxes, tokens and cost in the annotated video stand where they belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.formatting import budget_text, share_text, tokens_text
from costream.core.records import (
    OBJECT_DETECTION,
    Box,
    Compute,
    Gap,
    Head,
    Header,
    Objects,
    Picture,
    Prediction,
    StageTimes,
    VideoFrame,
)
from costream.draw.box_overlay import draw_boxes, draw_tokens, token_side
from costream.draw.canvas import WHITE
from costream.draw.lettering import text_width
from costream.draw.palette import Palette
from costream.draw.panels import PANEL
from kit.overlays import near, play

GREY = 110
LABELS = ("car", "person")
PALETTE = Palette()
PALETTE.add(LABELS, LABELS, ())
CAR, PERSON = (PALETTE.paint(label).rgb for label in LABELS)
CURVE = (86, 180, 233)


def page(width: int, height: int) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.uint8)


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what is set."""
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_a_box_goes_from_source_to_page() -> None:
    canvas = page(960, 540)
    box = Box(480, 270, 960, 810, 0.9, "car")
    draw_boxes(canvas, [box], PALETTE.paint, (1920, 1080), (960, 540))
    # Below the tag, which is above the box.
    assert extent((canvas[135:] == CAR).all(-1)) == (240, 0, 480, 270)
    assert (canvas[200:300, 300:400] == GREY).all()  # what is in it stays in sight
    assert (canvas[:, :239] == GREY).all()  # one pixel of rim


def test_tags_stay_in_the_picture() -> None:
    for box in (
        Box(900, 0, 960, 60, 1, "car", 12),
        Box(0, 0, 5, 5, 1, "car"),
        Box(-9, -9, 999, 999, 1, "car"),
    ):
        canvas = page(960, 720)
        draw_boxes(canvas, [box], PALETTE.paint, (960, 720), (960, 720))
        assert near(canvas, (17, 17, 17), 20).sum() > 200  # letters and rims
    canvas = page(20, 10)
    draw_boxes(canvas, [Box(5, 5, 8, 8, 1, "a long name")], PALETTE.paint, (20, 10), (20, 10))


def test_a_box_says_what_the_person_does() -> None:
    """The tag is as wide as its words; without an action it has the score of the box."""
    for action, words in (("walk 0.87", "person #7: walk 0.87"), ("", "person #7 0.90")):
        canvas, actions = page(960, 720), {7: action}
        box = Box(100, 300, 300, 600, 0.9, "person", 7)
        draw_boxes(canvas, [box], PALETTE.paint, (960, 720), (960, 720), actions.__getitem__)
        left, _, right, _ = extent((canvas[:299] == PERSON).all(-1))
        assert (left, right - left) == (100, text_width(words, 20) + 2 * 6)


def test_the_best_is_on_top() -> None:
    sure, other = Box(10, 50, 200, 200, 0.9, "car"), Box(20, 60, 190, 190, 0.4, "person")
    canvas = page(300, 240)
    draw_boxes(canvas, [sure, replace(other, x1=10, y1=50)], PALETTE.paint, (300, 240), (300, 240))
    assert (canvas[50:52, 80:180] == CAR).all()


@given(st.integers(240, 900), st.integers(20, 900), st.sampled_from([8, 14, 16]))
def test_the_side_of_a_token_follows_from_their_number(width: int, height: int, side: int) -> None:
    updated = np.zeros((-(-height // side), -(-width // side)), np.bool_)
    assert token_side(updated, (width, height)) == side


@pytest.mark.parametrize("seen", [(512, 288), (480, 270), (320, 180), (270, 480)])
def test_tokens_cover_what_they_are_of(seen: tuple[int, int]) -> None:
    """A token of 16 x 16 pixels; the page shows the picture three times as large."""
    size = (3 * seen[0], 3 * seen[1])
    rows, columns = -(-seen[1] // 16), -(-seen[0] // 16)
    for row, column in ((0, 0), (3, 5), (rows - 1, columns - 1)):
        updated = np.zeros((rows, columns), np.bool_)
        updated[row, column] = True
        canvas = page(size[0] + 7, size[1] + 9)
        draw_tokens(canvas, updated, seen, size)
        right, bottom = min(48 * (column + 1), size[0]), min(48 * (row + 1), size[1])
        assert extent((canvas != GREY).any(-1)) == (48 * column, 48 * row, right, bottom)
        outline, inside = canvas[48 * row, 48 * column], canvas[48 * row + 4, 48 * column + 4]
        assert abs(int(inside[0]) - GREY) < 12 < abs(int(outline[0]) - GREY)


def test_tokens_on_a_page_that_is_cut_off() -> None:
    canvas = page(50, 40)
    draw_tokens(canvas, np.ones((18, 32), np.bool_), (512, 288), (960, 540))
    assert (canvas != GREY).any(-1).all()


def test_what_it_cost_in_words() -> None:
    cost = Compute(0, 0.0, 31, 100, StageTimes(1, 1, 1, 1), tokens=256, budget_ms=40.0)
    assert (tokens_text(cost, 1020), tokens_text(cost, None)) == (
        "256 of 1020 tokens",
        "256 tokens",
    )
    assert (share_text(cost), budget_text(cost)) == ("31 % of full cost", "budget 40 ms")
    assert budget_text(replace(cost, budget_ms=None, budget_macs=2.5e9)) == "budget 2.5 GMAC"
    bare = replace(cost, tokens=None, budget_ms=None, dense_macs=0)
    words = (tokens_text(bare, 9), share_text(bare), budget_text(bare))
    assert words == (
        "",
        "100 % of full cost",
        "",
    )


HEADER = Header(
    *("0.1.0", "eventful-vitdet", "0" * 64, ("car", "person"), None, 1.0, 0.0),
    *("clip.mp4", "video", 10.0, {}),
    task=OBJECT_DETECTION,
)


def frame(i: int) -> VideoFrame:
    return VideoFrame(
        i, float(i), i, lambda: page(320, 180), drawing=lambda: page(640, 360), size=(1280, 720)
    )


def test_a_video_of_objects(run: Any, tmp_path: Path) -> None:
    """A dense step, then steps at a quarter of its cost; an object in every other one."""
    records: list[Any] = []
    for i in range(8):
        updated = np.zeros((12, 20), np.bool_)
        updated[:3] = True
        boxes = (Box(640, 360, 960, 680, 0.9, "person", 7),) if i % 2 else ()
        macs = 100 if i == 0 else 25
        compute = Compute(i, float(i), macs, 100, StageTimes(1, 1, 1, 1), tokens=60, budget_ms=40.0)
        records += [Objects(i, float(i), i, i, boxes), compute]
        records += [Gap(4.0, 5.0, "no data")] if i == 4 else []
        records += [Picture(float(i), frame(i), None, updated=updated)]
    shown = play(tmp_path / "x.mp4", replace(run, header=HEADER), *records)
    assert len(shown) == 8
    assert near(shown[3][180:340, 320:484], PERSON).sum() > 500
    assert not near(shown[4][180:340, 320:484], PERSON).any()  # it has gone
    tint = shown[4][:, :, 2].astype(int) - shown[4][:, :, 0]
    assert tint[5:85, 5:635].mean() > 15
    assert abs(tint[100:355].mean()) < 3
    curve = near(shown[7][360 + 48 : 360 + 134], CURVE)
    heights = curve.sum(0)
    assert (heights[4:60] > 80).all()  # the dense step, and the others
    assert (abs(heights[72:440] - 86 / 4) < 4).all()
    assert not heights[520:].any()  # not there yet
    assert near(shown[7][370:394, :500], WHITE).sum() > 200  # words


def test_persons_with_boxes_are_captioned_with_what_they_do(run: Any, tmp_path: Path) -> None:
    heads = (
        Head("nanodet", "0" * 64, ("car", "person"), None, 0.0, 0.5),
        Head("moves", "1" * 64, ("background", "walk"), "background", 0.0, 0.5),
    )
    header = replace(HEADER, heads=heads)
    box = Box(100, 360, 400, 680, 0.9, "person", 7)
    records: list[Any] = []
    for i, score in enumerate((0.1, 0.9)):
        top = (("walk", score), ("background", 1 - score))
        records += [
            Objects(i, float(i), i, i, (box,)),
            Prediction(i, float(i), i, i, top, model="moves", person=7),
            Picture(float(i), frame(i), None),
        ]
    shown = play(tmp_path / "x.mp4", replace(run, header=header), *records)
    tags = [near(image[140:178, 50:], PERSON).any(0).sum() for image in shown]
    assert tags[1] > 1.3 * tags[0] > 0  # "person #7: walk 0.90" is longer than "person #7 0.90"


def test_a_narrow_video_shows_what_fits(run: Any, tmp_path: Path) -> None:
    item = VideoFrame(0, 0.0, 0, lambda: page(48, 64))
    compute = Compute(0, 0.0, 10, 10, StageTimes(1, 1, 1, 1), tokens=12, budget_ms=40.0)
    picture = Picture(0.0, item, None, updated=np.ones((4, 3), np.bool_))
    header = replace(HEADER, duration_s=None)
    (shown,) = play(tmp_path / "x.mp4", replace(run, header=header), compute, picture)
    assert shown.shape == (64 + PANEL, 48, 3)


def test_cost_of_a_stream_without_an_end_scrolls(run: Any, tmp_path: Path) -> None:
    records: list[Any] = []
    for i in range(0, 130, 2):
        compute = Compute(i, float(i), 100 if i > 115 else 10, 100, StageTimes(1, 1, 1, 1))
        records += [
            compute,
            Picture(float(i), VideoFrame(i, float(i), i, lambda: page(120, 40)), None),
        ]
    endless = replace(run, header=replace(HEADER, duration_s=None))
    image = play(tmp_path / "x.mp4", endless, *records)[-1]
    heights = near(image[40 + 48 : 40 + 134], CURVE).sum(0)
    assert (heights[100:114] > 80).all()
    assert (heights[2:90] < 16).all()
    assert (heights[2:90] > 0).any()


def test_the_legend_has_the_labels_seen(run: Any, tmp_path: Path) -> None:
    """Also of many classes, whose colours are those of their indices."""
    labels = tuple(f"class {k}" for k in range(80))
    palette = Palette()
    palette.add(labels, labels, ())
    boxes = tuple(
        Box(100 + 400 * k, 300, 400 + 400 * k, 700, 0.9, f"class {7 * k}") for k in (0, 1)
    )
    records = (Objects(0, 0.0, 0, 0, boxes), Picture(0.0, frame(0), None))
    header = replace(HEADER, labels=labels)
    (shown,) = play(tmp_path / "x.mp4", replace(run, header=header), *records)
    for k in (0, 1):
        color = palette.paint(f"class {7 * k}").rgb
        assert near(shown[200:300, 50 + 200 * k : 200 + 200 * k], color).sum() > 300
        assert near(shown[360 + 140 :], color).sum() > 100
