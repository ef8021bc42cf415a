"""Metrics as a PNG: class metrics, reliability and precision over cost, or a table."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from costream.core.tables import Table
from costream.draw.canvas import Canvas, draw_line, fill
from costream.draw.lettering import fit_text, text_width, write
from costream.draw.palette import Color, Palette

_PAPER: Color = (255, 255, 255)
_INK: Color = (28, 31, 36)
_DIM: Color = (105, 112, 123)
_GROUND: Color = (236, 238, 241)
_BLUE: Color = (58, 95, 200)
_PALE: Color = (186, 200, 236)
_ORANGE: Color = (214, 120, 30)
_EDGE = 24  # pixels around a panel
_LINE = 24  # height of a row
_BAR = 320  # width of a bar of 1
_NAMES = 240  # most of a column of names
_MOST = 60  # most classes shown
_SIDE = 340  # of a square plot
_TITLE, _TEXT = 17, 14  # sizes of letters
_GAP = 24  # between columns of a table


def draw(result: Mapping[str, Any]) -> bytes:
    """Return the PNG of a result of ``costream evaluate``."""
    palette = Palette()
    palette.add(result["labels"], result["labels"], {result.get("background")})
    panels = [_bars(*_classes(result), palette)]
    if result.get("frames") and result["frames"]["frames"]:
        panels.append(_reliability(result["frames"]))
    if len(result.get("budgets", ())) > 1:
        panels.append(_budgets(result["budgets"]))
    title = f"{result.get('model')} on {result['data']}"
    height = max(len(panel) for panel in panels)
    width = max(sum(panel.shape[1] for panel in panels), 2 * _EDGE + text_width(title, _TITLE))
    page = _blank(width, height + 2 * _LINE)
    write(page, _EDGE, _LINE, title, _INK, _TITLE)
    x = 0
    for panel in panels:
        page[2 * _LINE : 2 * _LINE + len(panel), x : x + panel.shape[1]] = panel
        x += panel.shape[1]
    return _png(page)


def draw_table(table: Table) -> bytes:
    """Return the PNG of a table."""
    cells, numeric = table.cells(), table.numeric()
    widths = [max(text_width(c, _TEXT) for c in column) for column in zip(*cells, strict=True)]
    texts = [text_width(table.title, _TITLE), *(text_width(note, _TEXT) for note in table.notes)]
    width = 2 * _EDGE + max(sum(widths) + _GAP * (len(widths) - 1), *texts)
    page = _blank(width, 2 * _EDGE + _LINE * (len(cells) + 2 + len(table.notes)))
    write(page, _EDGE, _EDGE, table.title, _INK, _TITLE)
    for k, row in enumerate(cells):
        y, x = _EDGE + _LINE * (k + 1) + 10, _EDGE
        if k and k % 2 == 0:
            fill(page, _EDGE - 8, y - 4, width - 2 * _EDGE + 16, _LINE, _GROUND)
        for text, wide, number in zip(row, widths, numeric, strict=True):
            left = x + wide - text_width(text, _TEXT) if number else x
            write(page, left, y, text, _INK if k else _DIM, _TEXT)
            x += wide + _GAP
    fill(page, _EDGE - 8, _EDGE + 2 * _LINE + 5, width - 2 * _EDGE + 16, 1, _DIM)
    for k, note in enumerate(table.notes):
        write(page, _EDGE, _EDGE + _LINE * (len(cells) + 1 + k) + 18, note, _DIM, _TEXT)
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


def _bars(title: str, values: Mapping[str, float | None], palette: Palette) -> Canvas:
    shown = list(values.items())[:_MOST]
    names = [fit_text(name, _NAMES, _TEXT) for name, _ in shown]
    left = _EDGE + max([text_width(name, _TEXT) for name in names], default=0) + 12
    right = left + _BAR
    panel = _blank(right + 60 + _EDGE, _LINE * (len(shown) + 2) + _EDGE)
    more = f" (first {_MOST} of {len(values)})" if len(values) > _MOST else ""
    write(panel, _EDGE, _EDGE, title + more, _INK, _TEXT)
    for k, (name, (label, value)) in enumerate(zip(names, shown, strict=True)):
        y = _EDGE + _LINE * (k + 1) + 8
        write(panel, left - 12 - text_width(name, _TEXT), y, name, _INK, _TEXT)
        fill(panel, left, y, _BAR, _LINE - 7, _GROUND)
        if value is None or math.isnan(value):
            write(panel, left + 6, y, "–", _DIM, _TEXT)
        else:
            fill(panel, left, y, _BAR * value, _LINE - 7, palette.paint(label).rgb)
            write(panel, right + 8, y, f"{value:.3f}", _INK, _TEXT)
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
            color = _BLUE if one["count"] >= 0.01 * total else _PALE
            fill(square, x, _SIDE - height, width, height, color)
    draw_line(square, np.array([0.0, _SIDE]), np.array([_SIDE, 0.0]), _ORANGE, 2)
    return panel


def _budgets(rows: Sequence[Mapping[str, Any]]) -> Canvas:
    """Draw precision over cost for each token budget."""
    defined = sorted((r for r in rows if not math.isnan(r["AP50"])), key=lambda r: r["macs"])
    right = 1.1 * max((row["macs"] for row in defined), default=1e6) / 1e6
    best = max((row["AP50"] for row in defined), default=0.0)
    top = next(end for end in (0.1, 0.2, 0.5, 1.0) if best <= end)
    panel, square = _axes("AP50 over cost, by tokens", right, top, "MMAC per image")
    marks: dict[tuple[int, int], list[str]] = {}
    for row in defined:
        x, y = row["macs"] / 1e6 / right, 1 - row["AP50"] / top
        tokens = "all" if row["tokens"] is None else str(row["tokens"])
        marks.setdefault((round(_SIDE * x), round(_SIDE * y)), []).append(tokens)
    points = [np.array(place, np.float64) for place in marks]
    for before, after in itertools.pairwise(points):
        draw_line(square, before, after, _BLUE, 2)
    for point, together in zip(points, marks.values(), strict=True):
        draw_line(square, point, point, _BLUE, 9)
        name = "/".join(together)
        x = min(int(point[0]) - 6, _SIDE - text_width(name, _TEXT))
        write(square, x, max(0, int(point[1]) - 26), name, _INK, _TEXT)
    return panel


def _axes(title: str, right: float, top: float, below: str) -> tuple[Canvas, Canvas]:
    """Return a panel with empty axes from 0 to ``right`` and ``top``, and its plot area."""
    wide = max(3 * _EDGE + _SIDE, _EDGE + text_width(title, _TEXT)) + _EDGE
    panel = _blank(wide, _SIDE + 2 * _LINE + 3 * _EDGE)
    x, y = 3 * _EDGE, 2 * _LINE + _EDGE
    write(panel, _EDGE, _EDGE, title, _INK, _TEXT)
    fill(panel, x, y, _SIDE, _SIDE, _GROUND)
    for share in (1.0, 0.5, 0.0):
        text = f"{share * top:.2g}"
        at = y + _SIDE * (1 - share)
        write(panel, x - 8 - text_width(text, _TEXT), int(at) - 9, text, _DIM, _TEXT)
        fill(panel, x, at, _SIDE, 1, _DIM)
    end = f"{right:.3g}"
    for text, place in (
        ("0", 0),
        (below, (_SIDE - text_width(below, _TEXT)) // 2),
        (end, _SIDE - text_width(end, _TEXT)),
    ):
        write(panel, x + place, y + _SIDE + 8, text, _DIM, _TEXT)
    return panel, panel[y : y + _SIDE, x : x + _SIDE]


def _blank(width: int, height: int) -> Canvas:
    return np.full((height, width, 3), _PAPER, np.uint8)


def _png(page: Canvas) -> bytes:
    out = io.BytesIO()
    Image.fromarray(page).save(out, "png")
    return out.getvalue()
