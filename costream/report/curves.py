"""Curves over time: one row per label for the scores, one chart for the cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from costream.core.formatting import si, three_digits
from costream.core.records import STAGES
from costream.draw.palette import Palette
from costream.report.bins import Array
from costream.report.markup import Html, join, name, tag
from costream.report.run_summary import DENSE, FIRST_STAGE, MACS, RunSummary
from costream.report.swatches import swatch
from costream.report.time_axis import TimeAxis, round_up
from costream.report.timeline_strip import bands

ROW = 54  # CSS pixels
CHART = 120
MOST_ROWS = 12
_WORTH = 0.25  # a label without segments is drawn only if its score reaches this


def shown_labels(summary: RunSummary) -> list[str]:
    """Return the labels that get a row, in the model's order, backgrounds last."""
    curves = summary.curves
    if curves is None:
        return []
    weights = {
        label: (label in summary.stats, curves.total(column))
        for label, column in summary.labels.items()
        if label in summary.stats or curves.peak(column) >= _WORTH
    }
    backgrounds = summary.heads.backgrounds()
    best = sorted(weights, key=lambda label: weights[label], reverse=True)[:MOST_ROWS]
    return sorted(best, key=lambda lb: (lb in backgrounds, summary.labels[lb]))


def score_rows(summary: RunSummary, palette: Palette) -> list[Html]:
    """Return a row for each of ``shown_labels``: its score over time."""
    axis = TimeAxis(*summary.span_s)
    curves = summary.curves
    if curves is None:
        return []
    times = curves.times()
    rows = []
    for label in shown_labels(summary):
        paint, column = palette.paint(label), summary.labels[label]
        means, tops = curves.means(column), curves.maxima(column)
        color = paint.color or "var(--grey)"
        drawn = [_area(summary, axis, times, means, "mean", color)]
        if curves.most_in_a_bin() > 1:
            drawn.insert(0, _area(summary, axis, times, tops, "most", color))
        threshold = summary.heads.threshold(label)
        level = f"{100 * (1 - threshold):.1f}%" if threshold is not None else ""
        line = tag("line", x1="0", x2="100%", y1=level, y2=level, class_="threshold")
        inside = join(
            axis.grid(),
            tag("svg", drawn, viewBox="0 0 1000 100", preserveAspectRatio="none"),
            line if threshold is not None else None,
            bands(summary, label, axis, paint),
        )
        words = f"Score of {label} over time, at most {curves.peak(column):.2f}"
        chart = tag(
            "svg", inside, class_="row", width="100%", height=ROW, role="img", aria_label=words
        )
        rows.append(track(join(swatch(paint), name(label)), chart))
    return rows


def track(label: Html, *content: Html) -> Html:
    """Return a row of the page: a name, and content with time from left to right."""
    return tag("div", tag("div", label, class_="name"), tag("div", content), class_="track")


def cost_chart(summary: RunSummary) -> Html | None:
    """Return operations per step over time, and the dense model's; None if they are constant."""
    cost = summary.cost
    if cost is None:
        return None
    macs, dense = cost.means(MACS), cost.means(DENSE)
    if max(np.ptp(macs), np.ptp(dense)) <= 0.02 * max(1.0, float(macs.max())):
        return None
    top = round_up(max(float(macs.max()), float(dense.max())))
    axis = TimeAxis(*summary.span_s)
    drawn = [
        _area(summary, axis, cost.times(), dense / top, "dense", "none"),
        _area(summary, axis, cost.times(), macs / top, "mean", "var(--accent)"),
    ]
    words = f"Operations a step over time: {si(float(macs.mean()), 'MAC')} on average"
    return _chart(axis, drawn, si(top, "MAC"), words)


def time_chart(summary: RunSummary) -> Html | None:
    """Return the milliseconds of each stage over time, stacked; None if they are unknown."""
    cost = summary.cost
    if cost is None:
        return None
    axis = TimeAxis(*summary.span_s)
    layers = np.cumsum([cost.means(FIRST_STAGE + k) for k in range(len(STAGES))], axis=0)
    if layers[-1].max() <= 0:  # a batch writes no times unless asked to
        return None
    # The first step is often a hundred times as slow; it would flatten all others.
    top = round_up(float(np.percentile(layers[-1], 99)))
    drawn = [
        _area(summary, axis, cost.times(), layers[k] / top, f"stage{k}", f"var(--stage{k})")
        for k in reversed(range(len(STAGES)))
    ]
    words = f"Milliseconds a step over time, up to {three_digits(top)}"
    return _chart(axis, drawn, f"{top:g} ms", words)


def _chart(axis: TimeAxis, drawn: Sequence[Html], top: str, words: str) -> Html:
    inside = join(
        tag("rect", width="100%", height=CHART, class_="ground"),
        axis.grid(),
        tag("svg", drawn, viewBox="0 0 1000 100", preserveAspectRatio="none"),
        tag("text", top, x="6", y="15", class_="top"),
    )
    return tag(
        "svg", inside, class_="chart", width="100%", height=CHART, role="img", aria_label=words
    )


def _area(
    summary: RunSummary, axis: TimeAxis, times: Array, values: Array, class_: str, color: str
) -> Html:
    """Return the area under values from 0 to 1, interrupted at gaps in the data."""
    pieces = (_piece(axis, times[a:b], values[a:b]) for a, b in _between_gaps(summary, times))
    return tag("path", d="".join(pieces), class_=class_, fill=color)


def _between_gaps(summary: RunSummary, times: Array) -> list[tuple[int, int]]:
    # The middle of a gap: the bin at its start may hold steps from before it.
    middles = [(g.start_s + g.end_s) / 2 for g in summary.gaps]
    cuts = [0, *np.searchsorted(times, middles).tolist(), len(times)]
    return [(a, b) for a, b in pairwise(sorted(cuts)) if b > a]


def _piece(axis: TimeAxis, times: Array, values: Array) -> str:
    xs = [f"{1000 * axis.share(t):.1f}".removesuffix(".0") for t in times.tolist()]
    ys = [str(round(100 * (1 - min(1.0, max(0.0, v))))) for v in values.tolist()]
    if len(xs) == 1:  # a single step would have no width
        xs, ys = [xs[0], f"{float(xs[0]) + 1:.1f}"], [ys[0]] * 2
    line = "L".join(f"{x} {y}" for x, y in zip(xs, ys, strict=True))
    return f"M{xs[0]} 100L{line}L{xs[-1]} 100Z"
