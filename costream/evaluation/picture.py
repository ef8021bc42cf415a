"""Metrics as a PNG: class metrics, reliability and precision over cost, or a table."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np

from costream.draw.canvas import COLORS, Canvas, Color, dots, fill, path, text_width, write
from costream.tables import Table

_PAPER: Color = (255, 255, 255)
_INK: Color = (28, 31, 36)
_DIM: Color = (120, 127, 138)
_GROUND: Color = (236, 238, 241)
_BLUE, _ORANGE, _GREEN = COLORS[4], COLORS[0], COLORS[2]
_EDGE = 24  # pixels around a panel
_LINE = 22  # height of a row of bars
_BAR = 300  # width of a bar of 1
_LONGEST = 24  # most letters of a name
_MOST = 60  # most classes shown
_SIDE = 320  # of a square plot
_LETTER = 12  # width of a letter


def draw(result: Mapping[str, Any]) -> bytes:
    """Return the PNG of a result of ``costream evaluate``."""
    panels = [_bars(*_classes(result))]
    if result.get("frames") and result["frames"]["frames"]:
        panels.append(_reliability(result["frames"]))
    if len(result.get("budgets", ())) > 1:
        panels.append(_budgets(result["budgets"]))
    height = max(len(panel) for panel in panels)
    page = _blank(sum(panel.shape[1] for panel in panels), height + 2 * _LINE)
    write(page, _EDGE, _LINE, f"{result.get('model')} on {result['data']}", _INK)
    x = 0
    for panel in panels:
        page[2 * _LINE : 2 * _LINE + len(panel), x : x + panel.shape[1]] = panel
        x += panel.shape[1]
    return _png(page)


def draw_table(table: Table) -> bytes:
    """Return the PNG of a table."""
    lines = table.to_text().split("\n")
    head, last = 2, 4 + len(table.rows)  # index of the header and of the line after the rows
    wide = 2 * _EDGE + _LETTER * max(map(len, lines))
    page = _blank(wide, 2 * _EDGE + _LINE * len(lines))
    for k, line in enumerate(lines):
        y = _EDGE + _LINE * k
        if head + 1 < k < last and k % 2:
            fill(page, _EDGE, y - 4, wide - 2 * _EDGE, _LINE, _GROUND)
        for word in re.finditer(r"\S+", line):
            color = _INK if k < last else _DIM
            write(page, _EDGE + _LETTER * word.start(), y, word[0], color)
    return _png(page)


def _classes(result: Mapping[str, Any]) -> tuple[str, dict[str, float | None]]:
    """Return the name and the per-class values of the main metric."""
    if "budgets" in result:
        first = result["budgets"][0]
        title = "AP50" if first["tokens"] is None else f"AP50, {first['tokens']} tokens"
        return title, {name: row["AP50"] for name, row in first["classes"].items()}
    if "sequences" in result:
        rows = result["sequences"]["classes"]
        title = "average precision of examples"
    elif result["frames"]:
        rows, title = result["frames"]["classes"], "average precision of frames"
    else:
        rows = result["segments"]["classes"]
        return "F1 of segments, tIoU 0.5", {name: row["f1"]["0.5"] for name, row in rows.items()}
    return title, {name: row["average_precision"] for name, row in rows.items()}


def _bars(title: str, values: Mapping[str, float | None]) -> Canvas:
    shown = list(values.items())[:_MOST]
    names = [name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}~" for name, _ in shown]
    left = _EDGE + max([text_width(name, 2) for name in names], default=0) + 12
    panel = _blank(left + _BAR + 6 * _LETTER + _EDGE, _LINE * (len(shown) + 2) + _EDGE)
    more = f" (first {_MOST} of {len(values)})" if len(values) > _MOST else ""
    write(panel, _EDGE, _EDGE, title + more, _INK)
    for k, (name, (_, value)) in enumerate(zip(names, shown, strict=True)):
        y = _EDGE + _LINE * (k + 1) + 8
        write(panel, left - 12 - text_width(name, 2), y, name, _INK)
        fill(panel, left, y - 2, _BAR, _LINE - 4, _GROUND)
        if value is None or math.isnan(value):
            write(panel, left + 6, y, "-", _DIM)
        else:
            fill(panel, left, y - 2, _BAR * value, _LINE - 4, _BLUE)
            write(panel, left + _BAR + 8, y, f"{value:.3f}", _INK)
    return panel


def _reliability(frames: Mapping[str, Any]) -> Canvas:
    """Draw accuracy over confidence, with the ideal diagonal."""
    error = frames["calibration_error"]
    title = f"accuracy by confidence; ECE {error:.3f}"
    panel, square = _axes(title, 1.0, 1.0, "confidence")
    total = max(frames["frames"], 1)
    for one in frames["reliability"]:
        if one["count"]:
            x, width = _SIDE * one["low"], _SIDE * (one["high"] - one["low"]) - 1
            height = _SIDE * one["accuracy"]
            # Bins with few frames are pale.
            color = _BLUE if one["count"] >= 0.01 * total else (165, 205, 230)
            fill(square, x, _SIDE - height, width, height, color)
    diagonal = path(np.array([0.0, _SIDE]), np.array([float(_SIDE), 0.0]), 1)
    dots(square, diagonal, _ORANGE, 2)
    return panel


def _budgets(rows: Sequence[Mapping[str, Any]]) -> Canvas:
    """Draw precision over cost for each token budget."""
    known = sorted((r for r in rows if not math.isnan(r["AP50"])), key=lambda r: r["macs"])
    right = 1.1 * max((row["macs"] for row in known), default=1e6) / 1e6
    best = max((row["AP50"] for row in known), default=0.0)
    top = next(end for end in (0.1, 0.2, 0.5, 1.0) if best <= end)
    panel, square = _axes("AP50 over cost, by tokens", right, top, "MMAC per image")
    marks: dict[tuple[int, int], list[str]] = {}
    for row in known:
        x, y = row["macs"] / 1e6 / right, 1 - row["AP50"] / top
        tokens = "all" if row["tokens"] is None else str(row["tokens"])
        marks.setdefault((round(_SIDE * x), round(_SIDE * y)), []).append(tokens)
    points = [np.array(place, np.float64) for place in marks]
    for before, after in itertools.pairwise(points):
        dots(square, path(before, after, 1), _GREEN, 2)
    for point, together in zip(points, marks.values(), strict=True):
        dots(square, point[None], _GREEN, 9)
        name = "/".join(together)
        x = min(int(point[0]) - 6, _SIDE - text_width(name, 2))
        write(square, x, max(0, int(point[1]) - 24), name, _INK)
    return panel


def _axes(title: str, right: float, top: float, below: str) -> tuple[Canvas, Canvas]:
    """Return a panel with empty axes from 0 to ``right`` and ``top``, and its plot area."""
    wide = max(3 * _EDGE + _SIDE, _EDGE + text_width(title, 2)) + _EDGE
    panel = _blank(wide, _SIDE + 2 * _LINE + 3 * _EDGE)
    x, y = 3 * _EDGE, 2 * _LINE + _EDGE
    write(panel, _EDGE, _EDGE, title, _INK)
    fill(panel, x, y, _SIDE, _SIDE, _GROUND)
    for share in (1.0, 0.5, 0.0):
        text = f"{share * top:.2g}"
        at = y + _SIDE * (1 - share)
        write(panel, x - 8 - text_width(text, 2), int(at) - 7, text, _DIM)
        fill(panel, x, at, _SIDE, 1, _DIM)
    end = f"{right:.3g}"
    for text, place in (
        ("0", 0),
        (below, (_SIDE - text_width(below, 2)) // 2),
        (end, _SIDE - text_width(end, 2)),
    ):
        write(panel, x + place, y + _SIDE + 8, text, _DIM)
    return panel, panel[y : y + _SIDE, x : x + _SIDE]


def _blank(width: int, height: int) -> Canvas:
    return np.full((height, width, 3), _PAPER, np.uint8)


def _png(page: Canvas) -> bytes:
    encoder = av.CodecContext.create("png", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.height, encoder.width = page.shape[:2]
    encoder.pix_fmt, encoder.time_base = "rgb24", Fraction(1)
    frame = av.VideoFrame.from_ndarray(page, "rgb24")
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
