"""How notebooks show single records: scores as bars, boxes as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from costream.core.errors import clean
from costream.core.units import short_time

_WIDE = 480  # pixels


def scores_html(time_s: float, top: Sequence[tuple[str, float]]) -> str:
    """Return a table of labels with their scores as bars."""
    rows = (
        f'<tr><td style="text-align:left">{escape(clean(label))}</td><td>{score:.2f}</td>'
        f'<td style="text-align:left"><div style="background:#3b7dd8;height:.8em;'
        f'width:{max(0.0, min(score, 1.0)) * 12:.2f}em"></div></td></tr>'
        for label, score in top
    )
    return f"<table><caption>{short_time(time_s, 2)}</caption>{''.join(rows)}</table>"


def boxes_html(time_s: float, boxes: Sequence[Any]) -> str:
    """Return a drawing of boxes (``records.Box``), in pixels of the source, as SVG."""
    caption = f"<div>{short_time(time_s, 2)}: {len(boxes)} boxes</div>"
    wide = max((box.x2 for box in boxes), default=1.0) * 1.05
    high = max((box.y2 for box in boxes), default=0.0) * 1.05
    if not 0 < wide * high < float("inf"):
        return caption
    size = wide / 40
    shapes = (
        f'<rect x="{box.x1:.1f}" y="{box.y1:.1f}" width="{box.x2 - box.x1:.1f}"'
        f' height="{box.y2 - box.y1:.1f}" fill="#3b7dd8" fill-opacity=".12" stroke="#3b7dd8"'
        f' stroke-width="{size / 6:.2f}"/><text x="{box.x1 + size / 3:.1f}"'
        f' y="{box.y1 + 1.1 * size:.1f}" font-size="{size:.1f}" fill="currentColor">'
        f"{escape(clean(box.label))} {box.score:.2f}</text>"
        for box in boxes
    )
    view = f'viewBox="0 0 {wide:.1f} {high:.1f}" width="{_WIDE}" style="border:1px solid #8888"'
    return f'{caption}<svg xmlns="http://www.w3.org/2000/svg" {view}>{"".join(shapes)}</svg>'
