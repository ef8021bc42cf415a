"""Charts and shaded tables of training reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costream.draw.palette import COLORS, Paint
from costream.evaluation.metrics.reliability import Bin
from costream.report.html_tables import Cell, number, table
from costream.report.markup import Html, join, name, percent, tag
from costream.report.swatches import swatch
from costream.report.time_axis import round_up

HEIGHT = 150  # of a curve chart, CSS pixels
_TICKS = 6
_MOST_SHADE = 0.5  # opacity of a cell, low enough to keep its number readable


def curves(history: Sequence[dict[str, float]], names: Sequence[str], words: str) -> Html:
    """Return a line chart of a training history over its steps, from 0 to a rounded maximum.

    ``names``: keys of the plotted figures, which a row may lack. ``words``: the chart's label.
    """
    found = {
        n: [(r["step"], r[n]) for r in history if np.isfinite(r.get(n, np.nan))] for n in names
    }
    last = max(row["step"] for row in history)
    top = round_up(max((value for pairs in found.values() for _, value in pairs), default=1.0))
    lines = (
        tag("path", d=_path(pairs, last, top), class_="line", stroke=COLORS[k % len(COLORS)])
        for k, pairs in enumerate(found.values())
        if pairs
    )
    ticks = _ticks(last)
    inside = join(
        tag("rect", width="100%", height=HEIGHT, class_="ground"),
        (_grid(step / last) for step in ticks),
        tag("line", x1="0", x2="100%", y1="50%", y2="50%", class_="grid"),
        tag("svg", lines, viewBox="0 0 1000 100", preserveAspectRatio="none"),
        tag("text", f"{top:g}", x="6", y="15", class_="top"),
    )
    chart = tag(
        "svg", inside, class_="chart", width="100%", height=HEIGHT, role="img", aria_label=words
    )
    marks = (
        tag(
            "text", f"{step:,.0f}", x=percent(step / last), y="13", text_anchor=_anchor(step / last)
        )
        for step in ticks
    )
    scale = tag("svg", marks, class_="scale", width="100%", height="18", aria_hidden="true")
    keys = (
        tag("li", swatch(Paint(COLORS[k % len(COLORS)])), n.replace("_", " "))
        for k, n in enumerate(found)
        if found[n]
    )
    return tag("div", chart, scale, tag("ul", keys, class_="legend"), class_="curves")


def reliability_chart(bins: Sequence[Bin], title: str) -> Html:
    """Return a reliability diagram: accuracy over confidence, with the ideal diagonal.

    The more predictions a bar holds, the darker it is.
    """
    most = max((b.count for b in bins), default=0)
    bars = (
        tag(
            "rect",
            x=f"{100 * b.low:.2f}",
            width=f"{100 * (b.high - b.low) - 0.6:.2f}",
            y=f"{100 * (1 - b.accuracy):.2f}",
            height=f"{100 * b.accuracy:.2f}",
            fill="var(--accent)",
            opacity=f"{0.25 + 0.75 * b.count / most:.2f}",
        )
        for b in bins
        if b.accuracy is not None
    )
    chart = tag(
        "svg",
        tag("rect", width="100", height="100", class_="ground"),
        bars,
        tag("line", x1="0", y1="100", x2="100", y2="0", class_="ideal"),
        viewBox="0 0 100 100",
        role="img",
        aria_label=title,
    )
    return tag("figure", chart, tag("figcaption", title))


def confusion_table(counts: npt.NDArray[np.int64], labels: Sequence[str]) -> Html:
    """Return a confusion matrix [K, K] as a table shaded by rows."""
    columns = ["True class, predicted as", *(str(k + 1) for k in range(len(labels)))]
    rows: list[list[Cell]] = []
    for k, (label, row) in enumerate(zip(labels, counts.tolist(), strict=True)):
        total = max(1, sum(row))
        shades: list[Cell] = [_shaded(value, value / total, k == j) for j, value in enumerate(row)]
        rows.append([join(tag("span", f"{k + 1} ", class_="dim"), name(label)), *shades])
    return table(columns, rows, numbers=range(1, len(labels) + 1))


def _shaded(value: int, share: float, right: bool) -> Html:
    color = "var(--accent)" if right else "var(--warn)"
    back = tag(
        "span", class_="shade", style=f"background:{color};opacity:{_MOST_SHADE * share:.2f}"
    )
    return join(back, tag("span", number(str(value)), class_="over") if value else "")


def _path(pairs: Sequence[tuple[float, float]], last: float, top: float) -> str:
    places = [f"{1000 * step / last:.1f} {100 * (1 - value / top):.1f}" for step, value in pairs]
    if len(places) == 1:  # a single point would have no length
        places.append(f"{1000 * pairs[0][0] / last + 1:.1f} {places[0].split()[1]}")
    return "M" + "L".join(places)


def _ticks(last: float) -> list[float]:
    step = max(1.0, round_up(last / _TICKS))
    return [k * step for k in range(int(last / step) + 1)]


def _grid(share: float) -> Html:
    x = percent(share)
    return tag("line", x1=x, x2=x, y1="0", y2="100%", class_="grid")


def _anchor(share: float) -> str:
    return "start" if share < 0.03 else "end" if share > 0.97 else "middle"
