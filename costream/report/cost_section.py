"""The cost of a run in a report: operations and time, by stage and against the dense model."""

from __future__ import annotations

from typing import Any

from costream.core.formatting import (
    counted,
    saving,
    short_time,
    si,
    three_digits,
)
from costream.core.records import STAGES
from costream.report.curves import cost_chart, time_chart, track
from costream.report.html_tables import Cell, number, table
from costream.report.markup import Html, join, note, percent, tag
from costream.report.run_summary import RunSummary
from costream.report.swatches import plain_swatch
from costream.report.time_axis import TimeAxis


def cost_section(summary: RunSummary) -> Html | None:
    """Return the cost: against the dense model, and by stage; None if it is unknown."""
    costs = summary.cost_json()
    if not costs.get("steps"):
        return None
    axis = TimeAxis(*summary.span_s)
    dense = "if all were computed" if summary.finds_objects else "if the window were recomputed"
    parts: list[Html | None] = [_against_dense(costs, dense)]
    operations, milliseconds = cost_chart(summary), time_chart(summary)
    if operations is not None:
        parts.append(track(Html("Operations a step"), operations, axis.scale()))
    if milliseconds is not None:
        parts.append(track(Html("Time a step"), milliseconds, axis.scale()))
    parts += [_stages(costs), _losses(summary, costs)]
    return tag("section", tag("h3", "Cost"), join(*parts), class_="tracks")


def _against_dense(costs: dict[str, Any], how: str) -> Html | None:
    macs, dense = costs.get("macs_per_step") or 0.0, costs.get("dense_macs_per_step") or 0.0
    top = max(macs, dense)
    if top <= 0:
        return None
    less = saving(macs, dense)
    rows = [
        ("This run", macs, "fill:var(--accent)", f" a step{f', {less}' if less else ''}"),
        ("Recomputed", dense, "fill:var(--grey)", f" a step, {how}"),
    ]
    bars = (
        tag(
            "div",
            tag("dt", title),
            tag("dd", _bar(value / top, style), tag("strong", si(value, "MAC")), more),
        )
        for title, value, style, more in rows
    )
    return tag("dl", bars, class_="dense")


def _bar(share: float, style: str) -> Html:
    inner = tag("rect", width=percent(share), height="16", rx="3", style=style)
    return tag("svg", inner, width="100%", height="16", aria_hidden="true")


def _stages(costs: dict[str, Any]) -> Html | None:
    ms, total = costs.get("ms"), costs.get("total_s")
    if not isinstance(ms, dict) or not isinstance(total, dict) or not total.get("step"):
        return None
    rows: list[list[Cell]] = []
    for k, stage in enumerate((*STAGES, "step")):
        figures = ms.get(stage)
        if not isinstance(figures, dict):
            continue
        square = plain_swatch(style=f"fill:var(--stage{k})")
        shown = "all together" if stage == "step" else stage
        title = tag("span", square if stage != "step" else None, shown, class_="label")
        values = [_ms(figures.get(key)) for key in ("mean", "p50", "p90", "p99", "max")]
        seconds = total.get(stage)
        total_text = short_time(seconds) if isinstance(seconds, (int, float)) else "–"
        rows.append([title, *(number(value) for value in values), number(total_text)])
    columns = ("ms a step", "mean", "median", "90 %", "99 %", "max", "total")
    return table(columns, rows, numbers=range(1, 7))


def _ms(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:.2f}" if value < 9.995 else three_digits(value)


def _losses(summary: RunSummary, costs: dict[str, Any]) -> Html | None:
    losses = []
    if summary.warmup_steps:
        losses.append(f"{counted(summary.warmup_steps, 'step')} before the window was full")
    if costs.get("dropped"):
        losses.append(f"{counted(int(costs['dropped']), 'frame')} dropped")
    if costs.get("max_lag_s"):
        losses.append(f"{costs['max_lag_s']:.2f} s late at most")
    return note(f"{', '.join(losses)}." if losses else "")
