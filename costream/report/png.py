"""Report as a PNG image, drawn with matplotlib (extra ``report``)."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from costream.core.formatting import clean, counted, saving, short_time, si
from costream.core.records import STAGES
from costream.draw.palette import Paint
from costream.report.bins import Array
from costream.report.curves import shown_labels
from costream.report.run_summary import DENSE, FIRST_STAGE, MACS, RunSummary
from costream.report.section import Run, status
from costream.report.time_axis import TimeAxis
from costream.report.timeline_strip import MOST_OUTLINED, stretches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from costream.report.overview import Report

MOST_FILES = 60
_LONGEST = 22  # characters of a name
_WIDTH = 12.0  # inches
_DPI = 120
_GREY, _GROUND, _INK, _DIM = "#a7adb7", "#eceef1", "#1c1f24", "#5c636e"
_HATCHES = ("", "//", "..", "||")
_STAGES = ("#3a5fc8", "#4fa3a5", "#e2a33d", "#a7adb7")
_STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": _GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _DIM,
    "ytick.color": _DIM,
    "hatch.linewidth": 0.8,
    "xtick.labelsize": 9,
    "text.parse_math": False,  # a label may hold dollar signs
}


def draw(report: Report) -> bytes:
    """Return the PNG of a report: of its one run, or of the timelines of all files."""
    with matplotlib.rc_context(_STYLE):
        figure = _overview(report) if report.only is None else _run(report.only, report)
        out = io.BytesIO()
        with warnings.catch_warnings():
            # Characters missing in matplotlib's font become boxes; the page has them.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
        return out.getvalue()


def _run(run: Run, report: Report) -> Figure:
    """Draw the timeline, the scores and the cost of one run below each other."""
    summary = run.summary
    labels = shown_labels(summary)
    heads = summary.heads.names
    heights = [*(0.6 for _ in heads), *(0.5 for _ in labels), *([1.1] * (summary.cost is not None))]
    figure, grid = _figure(heights, _title(run))
    grid = list(grid)
    begin_s, end_s = summary.span_s
    for axes in grid:
        axes.set_xlim(begin_s, end_s)
        axes.set_xticks(TimeAxis(begin_s, end_s).ticks())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: short_time(t, 0)))
    for axes in grid[:-1]:
        axes.tick_params(labelbottom=False, length=0)
    for head in heads:
        _strip(grid.pop(0), summary, head, report)
    for label in labels:
        axes = grid.pop(0)
        _curve(axes, summary, label, report.palette.paint(label))
        _name(axes, clean(label)[:_LONGEST])
    if summary.cost is not None:
        _cost(grid.pop(0), summary)
    return figure


def _strip(axes: Axes, summary: RunSummary, head: str | None, report: Report) -> None:
    axes.set_facecolor(_GROUND)
    begin_s, end_s = summary.span_s
    outlined = summary.segment_count <= MOST_OUTLINED
    for start_s, stop_s, label in stretches(summary, head):
        _block(axes, start_s, stop_s, label, report, (end_s - begin_s) / 140, outlined)
    for gap in summary.gaps:
        axes.axvspan(gap.start_s, gap.end_s, facecolor="white", hatch="xxx", edgecolor=_GREY)
    _name(axes, "timeline" if head is None else clean(head)[:_LONGEST])


def _overview(report: Report) -> Figure:
    """Draw the timelines of the files below each other, each scaled to the full width."""
    rows = report.overview.rows[:MOST_FILES]
    count = len(report.overview.rows)
    title = f"{clean(report.title)}: {counted(count, 'run')}"
    if count > len(rows):
        title += f", the first {len(rows)} shown"
    figure, grid = _figure([0.32] * len(rows) + [0.4], title)
    for axes, row in zip(grid, rows, strict=False):
        axes.set_facecolor(_GROUND)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        for k, timeline in enumerate(row.stretches, 1):
            part = (1 - k / len(row.stretches), 1 - (k - 1) / len(row.stretches))
            for start, end, label in timeline:
                outlined = row.segments <= MOST_OUTLINED
                _block(axes, start, end, label, report, 1.0, outlined, part)
        title = clean(row.title)
        _name(axes, title if len(title) <= _LONGEST else f"…{title[1 - _LONGEST :]}")
        length = short_time(row.media_s) + ("" if row.word == "complete" else f"  {row.word}")
        axes.text(1.005, 0.5, length, transform=axes.transAxes, va="center", fontsize=8)
    last = grid[-1]
    last.axis("off")
    patches = [
        Patch(label=clean(label)[:_LONGEST], **_fill(report.palette.paint(label)))
        for label in list(report.overview.stats)[:12]
    ]
    if patches:
        last.legend(handles=patches, ncols=6, loc="center", frameon=False, fontsize=8)
    return figure


def _figure(heights: list[float], title: str) -> tuple[Figure, list[Axes]]:
    top, bottom = 0.55, 0.4
    height = sum(heights) * 1.25 + top + bottom
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    axes: Any = figure.subplots(
        len(heights),
        1,
        squeeze=False,
        gridspec_kw={
            "height_ratios": heights,
            "left": 0.16,
            "right": 0.895,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "hspace": 0.25,
        },
    )
    figure.text(0.012, 1 - 0.3 / height, title, fontsize=12, va="center")
    return figure, list(axes[:, 0])


def _title(run: Run) -> str:
    summary, costs = run.summary, run.summary.cost_json()
    header = summary.header
    parts = [clean(run.title)] + ([clean(header.model)] if header is not None else [])
    macs, dense = costs.get("macs_per_step") or 0, costs.get("dense_macs_per_step") or 0
    if macs:
        less = saving(macs, dense)
        parts.append(f"{si(macs, 'MAC')} a step" + (f", {less} than recomputed" if less else ""))
    word, _ = status(summary)
    return "   ".join([*parts, counted(summary.segment_count, "segment"), word])


def _fill(paint: Paint) -> dict[str, Any]:
    return {
        "facecolor": paint.color or _GREY,
        "hatch": _HATCHES[paint.pattern],
        "edgecolor": "white",
        "linewidth": 0.5,
    }


def _block(
    axes: Axes,
    start: float,
    end: float,
    label: str,
    report: Report,
    letter: float,
    outlined: bool,
    part: tuple[float, float] = (0.0, 1.0),
) -> None:
    """Draw a segment of the timeline, with its label if letters of width ``letter`` fit.

    ``part``: lower and upper edge as shares of the height.
    """
    paint = report.palette.paint(label)
    axes.axvspan(start, end, *part, **{**_fill(paint), "linewidth": 0.5 if outlined else 0})
    shown = clean(label)
    if end - start > letter * (len(shown) + 1):
        middle = (start + end) / 2
        axes.text(middle, 0.5, shown, ha="center", va="center", fontsize=8, color=paint.ink)


def _name(axes: Axes, name: str) -> None:
    axes.set_yticks([])
    axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=_INK)


def _curve(axes: Axes, summary: RunSummary, label: str, paint: Paint) -> None:
    assert summary.curves is not None  # shown_labels is empty otherwise
    column, color = summary.labels[label], paint.color or _GREY
    times, means = _broken(summary, summary.curves.times(), summary.curves.means(column))
    axes.set_ylim(0, 1.02)
    axes.fill_between(times, means, color=color, alpha=0.85, linewidth=0)
    if summary.curves.most_in_a_bin() > 1:
        times, tops = _broken(summary, summary.curves.times(), summary.curves.maxima(column))
        axes.fill_between(times, tops, color=color, alpha=0.3, linewidth=0)


def _cost(axes: Axes, summary: RunSummary) -> None:
    """Draw the milliseconds of the stages, or the operations if no times were written."""
    cost = summary.cost
    assert cost is not None
    times = cost.times()
    layers = [cost.means(FIRST_STAGE + k) for k in range(len(STAGES))]
    total = np.sum(layers, axis=0)
    if total.max() > 0:
        below = np.zeros(len(times))
        for layer, color, stage in zip(layers, _STAGES, STAGES, strict=True):
            at, bottom = _broken(summary, times, below)
            _, top = _broken(summary, times, below + layer)
            axes.fill_between(at, bottom, top, color=color, label=stage, linewidth=0)
            below = below + layer
        axes.set_ylim(0, 1.2 * float(np.percentile(total, 99)) or None)
        unit = "ms a step"
    else:
        axes.plot(times, cost.means(DENSE) / 1e6, color=_GREY, linestyle="--", label="dense")
        axes.fill_between(times, cost.means(MACS) / 1e6, color=_STAGES[0], label="this run")
        axes.set_ylim(0, None)
        unit = "MMAC a step"
    axes.legend(loc="upper right", ncols=4, fontsize=8, frameon=False)
    axes.set_ylabel(unit, rotation=0, ha="right", va="center", fontsize=9, color=_INK, labelpad=22)


def _broken(summary: RunSummary, times: Array, values: Array) -> tuple[Array, Array]:
    """Return the curve, interrupted at each gap."""
    places = np.searchsorted(times, [(gap.start_s + gap.end_s) / 2 for gap in summary.gaps])
    return np.insert(times, places, np.nan), np.insert(values, places, np.nan)
