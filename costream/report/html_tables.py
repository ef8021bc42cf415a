"""HTML tables, and the small bars in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from costream.core.formatting import short_time
from costream.draw.palette import Paint, Palette
from costream.report.label_stats import LabelStats
from costream.report.markup import Html, join, name, percent, tag
from costream.report.swatches import swatch

Cell: TypeAlias = "str | Html"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, numbers: Sequence[int] = ()
) -> Html:
    """Return a table. The first cell of a row names it; columns in ``numbers`` align right."""

    def cells(row: Sequence[Cell], kind: str) -> Html:
        elements = (
            tag(
                kind if k else "th",
                cell,
                class_="num" if k in numbers else None,
                scope="row" if k == 0 and kind == "td" else "col" if kind == "th" else None,
            )
            for k, cell in enumerate(row)
        )
        return tag("tr", elements)

    head = tag("thead", cells(columns, "th"))
    body = tag("tbody", (cells(row, "td") for row in rows))
    # Wide tables scroll by themselves, also with the keyboard; the page does not.
    inner = tag("table", head, body)
    words = ", ".join(str(column) for column in columns if column)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=words)


def number(value: str) -> Html:
    """Return a number with digits of equal width and without line breaks."""
    return tag("span", value, class_="n")


def score_bar(score: float, paint: Paint) -> Html:
    """Return a score as a bar and in digits."""
    if not math.isfinite(score):
        return tag("div", tag("span", "no score"), class_="score")
    share = percent(min(1.0, max(0.0, score)))
    back = tag("rect", width="100%", height="6", rx="3", class_="ground")
    front = tag("rect", width=share, height="6", rx="3", fill=paint.color or "var(--grey)")
    bar = tag("svg", back, front, width="100%", height="6", aria_hidden="true")
    return tag("div", bar, tag("span", f"{score:.2f}"), class_="score")


def share_bar(share: float, paint: Paint, text: str | None = None) -> Html:
    """Return a share as a bar and in per cent, or with another text."""
    width = percent(min(1.0, max(0.0, share)))
    front = tag("rect", width=width, height="10", rx="2", fill=paint.color or "var(--grey)")
    bar = tag("svg", front, width="100%", height="10", aria_hidden="true")
    return tag("div", bar, tag("span", text or f"{100 * share:.1f} %", class_="n"), class_="share")


def label_table(
    stats: Mapping[str, LabelStats],
    palette: Palette,
    length_s: float,
    files: Mapping[str, int] | None = None,
) -> Html:
    """Return the statistics of labels over ``length_s`` seconds; ``files``: label -> files."""
    rows: list[list[Cell]] = []
    for label, entry in stats.items():
        paint = palette.paint(label)
        longest = entry.longest
        at = "" if longest is None or files is not None else f" at {short_time(longest.start_s)}"
        score = f"{entry.score:.2f}" if math.isfinite(entry.score) else "–"
        rows.append(
            [
                tag("span", swatch(paint), name(label), class_="label"),
                number(f"{entry.count:,}"),
                number(short_time(entry.total_s)),
                share_bar(entry.total_s / length_s if length_s > 0 else 0.0, paint),
                number(score),
                join(number(f"{entry.longest_s:.1f} s"), tag("span", at, class_="dim")),
            ]
        )
        if files is not None:
            rows[-1].insert(1, number(f"{files.get(label, 0):,}"))
    columns = ["Label", "Segments", "Total", "Share of the time", "Mean score", "Longest"]
    if files is not None:
        columns.insert(1, "Files")
        return table(columns, rows, numbers=(1, 2, 3, 5, 6))
    return table(columns, rows, numbers=(1, 2, 4, 5))
