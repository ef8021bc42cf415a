"""A label has one colour wherever it is shown: on terminals, in reports, pictures and videos."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.style import Style

from costream.__main__ import main
from costream.core.records import (
    Box,
    Compute,
    FeatureRow,
    Header,
    Objects,
    Picture,
    Prediction,
    Record,
    Segment,
    StageTimes,
    Summary,
)
from costream.draw.palette import BACKGROUND, Color, Palette
from costream.evaluation.metric_charts import draw
from costream.sinks.registry import make_sinks
from costream.ui.run.view import LiveLayout
from costream.ui.screen import Viewport
from costream.ui.timeline import FinalTimeline
from costream.ui.watch.dashboard import Board
from kit.overlays import near, play
from kit.shown import console, state_of
from kit.watched import feed, watch

LABELS = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie")
SHOWN = "fall"  # not the first that is seen or listed
HEADER = Header(
    *("0.1.0", "cooadtr", "0" * 64, LABELS, "background", 4.0, 0.0),
    *("clip.csv", "features", 5.0, {}),
)
SUMMARY = Summary(20, 1, 0, 0, 5.0, 1.0, 5.0, 20, 20, complete=True, exit=0)
MS = StageTimes(1, 1, 1, 1)
Colors = set[Color]


def records() -> list[Record]:
    top = ((SHOWN, 0.9), ("background", 0.1))
    out: list[Record] = []
    for i in range(20):
        out += [Prediction(i, i / 4, i, None, top), Compute(i, i / 4, 1, 1, MS)]
    return [*out, Segment(0.0, 5.0, SHOWN, 0.9)]


def of_lines(lines: Any) -> Colors:
    styles = (Style.parse(str(span.style)) for line in lines for span in line.spans)
    colors = (c for style in styles for c in (style.color, style.bgcolor) if c is not None)
    return {tuple(color.get_truecolor()) for color in colors}  # type: ignore[misc]


def live_view(tmp_path: Path) -> Colors:
    lines = LiveLayout(state_of(HEADER, *records()), "x").lines(Viewport(79, 23), 103.0)
    named = {key: next(x for x in lines if x.plain.startswith(key)) for key in ("now", "before")}
    for line in named.values():
        assert Palette.of(HEADER).paint(SHOWN).rgb in of_lines([line])
    return of_lines(lines)


def final_timeline(tmp_path: Path) -> Colors:
    target = console(force_terminal=True, color_system="truecolor")
    view = FinalTimeline(target, "x")
    view.open(HEADER)
    for record in records():
        view.write(record)
    view.close(SUMMARY)
    text = target.file.getvalue()  # type: ignore[attr-defined]
    codes = (part.split("m")[0] for part in text.split("38;2;")[1:])
    return {tuple(map(int, code.split(";")[:3])) for code in codes}  # type: ignore[misc]


def dashboard(tmp_path: Path) -> Colors:
    status = watch(feed(active=SHOWN, top=((SHOWN, 0.9),)), labels=LABELS[1:])
    return of_lines(Board().lines(status, Viewport(79, 23)))


def results(tmp_path: Path) -> Path:
    (sink,) = make_sinks(("jsonl",), tmp_path, "x")
    sink.open(HEADER)
    for record in records():
        sink.write(record)
    sink.close(SUMMARY)
    return tmp_path / "x.jsonl"


def html_report(tmp_path: Path) -> Colors:
    assert main(["report", str(results(tmp_path)), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text("utf-8").lower()
    begins = (part[:6] for part in page.split('fill="#')[1:])
    return {tuple(bytes.fromhex(text)) for text in begins if text.isalnum()}  # type: ignore[misc]


def of_pixels(rgb: np.ndarray) -> Colors:
    colors, counts = np.unique(rgb.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(c) for c in colors[counts > 50].tolist()}  # type: ignore[misc]


def png_report(tmp_path: Path) -> Colors:
    pytest.importorskip("matplotlib", reason="needs the extra 'report'")
    assert main(["report", str(results(tmp_path)), "-f", "png", "-o", str(tmp_path / "r.png")]) == 0
    return of_pixels(np.asarray(Image.open(tmp_path / "r.png").convert("RGB")))


def overlay(tmp_path: Path) -> Colors:
    run = type("Run", (), {"header": HEADER, "summary": SUMMARY})
    row = Picture(0.0, FeatureRow(0, 0.0, np.zeros(1, np.float32)), None)
    (image,) = play(tmp_path / "x.mp4", run, *records()[:1], row)
    wanted = Palette.of(HEADER).paint(SHOWN).rgb  # the codec shifts colours a little
    return {wanted} if near(image, wanted, 12).sum() > 1000 else of_pixels(image)


def evaluation(tmp_path: Path) -> Colors:
    classes = {label: {"average_precision": 0.5} for label in LABELS[1:]}
    frames = {"classes": classes, "frames": 0}
    result = {"model": "m", "data": "d", "labels": LABELS, "background": LABELS[0]}
    return of_pixels(np.asarray(Image.open(io.BytesIO(draw({**result, "frames": frames})))))


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [live_view, final_timeline, dashboard, html_report, png_report, overlay, evaluation],
)
def test_a_label_has_its_colour_everywhere(place: Callable[[Path], Colors], tmp_path: Path) -> None:
    assert Palette.of(HEADER).paint(SHOWN).rgb in place(tmp_path)


def test_the_background_is_never_the_loudest() -> None:
    state = state_of(HEADER, Prediction(0, 0.0, 0, None, (("background", 0.93), ("walk", 0.05))))
    lines = LiveLayout(state, "x").lines(Viewport(79, 23), 101.0)
    quiet, walk = (next(x for x in lines if x.plain.startswith(n)) for n in ("backg", "walk"))
    assert BACKGROUND.rgb in of_lines([quiet])
    assert "─" * 40 in quiet.plain
    assert "█" not in quiet.plain
    assert "█" in walk.plain
    assert len(set(BACKGROUND.rgb)) == 1


def test_objects_have_the_colours_of_their_indices(tmp_path: Path) -> None:
    header = Header(
        *("0.1.0", "m", "0" * 64, LABELS, None, 4.0, 0.0, "x", "video", 5.0, {}),
        task="object detection",
    )
    objects = Objects(0, 0.0, 0, 0, (Box(0, 0, 9, 9, 0.9, SHOWN), Box(0, 0, 9, 9, 0.8, "walk")))
    lines = LiveLayout(state_of(header, objects), "x").lines(Viewport(79, 23), 101.0)
    paint = Palette.of(header).paint
    assert {paint(SHOWN).rgb, paint("walk").rgb} <= of_lines(lines)
