"""Section of a report on one run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from costream.core.formatting import (
    counted,
    network_saving,
    nothing_found,
    saving,
    short_time,
    si,
    times,
    unfamiliar_line,
)
from costream.core.records import Segment, plain
from costream.draw.palette import Palette
from costream.report.cost_section import cost_section
from costream.report.curves import score_rows, shown_labels, track
from costream.report.html_tables import Cell, label_table, number, score_bar, table
from costream.report.markup import Html, folded, join, name, note, tag, unlisted
from costream.report.run_summary import RunSummary
from costream.report.swatches import plain_swatch, swatch
from costream.report.thumbnails import Thumbnails
from costream.report.time_axis import TimeAxis
from costream.report.timeline_strip import strip

MOST_OPEN = 60  # cards that are shown at once
_MOST_LEGEND = 16
WELL = ("complete", "ended")  # words of ``status`` that need no attention


@dataclass(frozen=True)
class Run:
    """One run, as it is shown."""

    title: str
    summary: RunSummary
    written: str  # when the results were written
    anchor: str = "r1"
    thumbnails: Thumbnails = field(default_factory=Thumbnails)


def section(run: Run, palette: Palette, *, alone: bool) -> Html:
    """Return the article of a run. ``alone``: its title is the title of the page."""
    summary = run.summary
    head = tag("header", tag("h1" if alone else "h2", name(run.title)), _who(run))
    parts = [
        *(head, facts(summary), _timeline(run, palette), _segments(run, palette)),
        *(_labels(summary, palette), _places(summary), cost_section(summary)),
        *(_alerts(summary), _unfamiliar(summary), _troubles(summary), _settings(summary)),
    ]
    back = None if alone else tag("p", tag("a", "Back to the overview", href="#top"), class_="back")
    return tag("article", join(*parts, back), id=run.anchor, class_="run")


def facts(summary: RunSummary) -> Html:
    """Return the key figures of a run."""
    final, costs = summary.final, summary.cost_json()
    start_s, end_s = summary.span_s
    media_s = final.media_s if final is not None else end_s - start_s
    steps = f"{summary.steps if final is None else final.steps:,} steps"
    if summary.sampled:
        steps = f"{steps}, {summary.steps:,} written" if final else f"{steps} written"
    cards = [
        fact("Segments", f"{summary.segment_count:,}", counted(len(summary.stats), "label")),
        fact("Length", short_time(media_s), steps),
    ]
    if final is not None and final.x_realtime:
        took = f"{short_time(final.wall_s)} of work"
        cards.append(fact("Speed", f"{times(final.x_realtime)} real time", took))
    macs, dense = costs.get("macs_per_step"), costs.get("dense_macs_per_step")
    if macs and dense:
        alternative = "computing everything" if summary.finds_objects else "recomputing the window"
        less = saving(macs, dense)
        text = f"{less or 'as much'} {'than' if less else 'as'} {alternative}"
        text += f" ({si(dense, 'MAC')})" if less else ""
        alone = "" if final is None else network_saving(final)
        text += f"; network alone {alone}" if alone else ""
        cards.append(fact("Cost a step", si(macs, "MAC"), text))
    word, sentence = status(summary)
    cards.append(fact("Status", word, sentence, warn=word not in WELL))
    return tag("dl", cards, class_="facts")


def status(summary: RunSummary) -> tuple[str, str]:
    """Return the outcome of a run as a word and as a sentence."""
    final = summary.final
    if summary.live and final is None and not summary.broken_off:
        return "unfinished", "no summary: it is running, continues in another file, or was killed"
    if summary.broken_off or final is None:
        return "truncated", "no summary: the run was killed, or the file is truncated"
    if not final.complete:
        why = {130: "stopped by Ctrl-C", 143: "stopped by SIGTERM"}.get(final.exit)
        if summary.live and why is not None:  # the way in which a watch ends
            return "ended", why
        return "incomplete", why or f"ended early, exit code {final.exit}"
    if summary.gap_count or summary.fault_count:
        troubles = [counted(summary.gap_count, "gap"), counted(summary.fault_count, "error")]
        return "complete", ", ".join(t for t in troubles if not t.startswith("0 "))
    return "complete", "no gaps, no errors"


def fact(title: str, value: str, more: str, *, warn: bool = False) -> Html:
    """Return a key figure: its name, its value and a remark; ``warn``: highlighted."""
    inner = (tag("dt", title), tag("dd", value, class_="value"), tag("dd", more, class_="more"))
    return tag("div", *inner, class_="warn" if warn else None)


def _who(run: Run) -> Html:
    header = run.summary.header
    if header is None:
        return tag("p", f"The header is missing. Written {run.written}", class_="who")
    weights = header.weights_sha256[:12] or "unknown"
    rows = [
        ("Source", name(header.source)),
        *([("Began", tag("span", header.began))] if header.began else []),
        ("Model", name(header.model)),
        ("Weights", tag("code", weights, title=header.weights_sha256)),
        ("Written", tag("span", f"{run.written} by costream {header.version}")),
    ]
    return tag("dl", (tag("div", tag("dt", k), tag("dd", v)) for k, v in rows), class_="who")


def _timeline(run: Run, palette: Palette) -> Html:
    summary = run.summary
    axis = TimeAxis(*summary.span_s)
    rows = score_rows(summary, palette)
    strips = [
        track(
            Html("Timeline") if head is None else name(head),
            strip(summary, palette, run.anchor, head),
            *([axis.scale()] if head == summary.heads.names[-1] else []),
        )
        for head in summary.heads.names
    ]
    parts: list[Html] = [*strips, _legend(summary, palette)]
    if rows:
        parts += [tag("h3", "Scores"), *rows, track(Html(""), axis.scale())]
        parts.append(tag("p", _how_drawn(summary), class_="note"))
    return tag("section", tag("h3", "Timeline", class_="unseen"), parts, class_="tracks")


def _legend(summary: RunSummary, palette: Palette) -> Html:
    shown = sorted(summary.stats, key=lambda label: -summary.stats[label].total_s)[:_MOST_LEGEND]
    items = [
        tag("li", swatch(palette.paint(label)), name(label))
        for label in _ordered(summary)
        if label in shown
    ]
    if len(summary.stats) > len(shown):
        rest = len(summary.stats) - len(shown)
        items.append(tag("li", f"and {rest} more, listed below", class_="dim"))
    if summary.gap_count:
        items.append(tag("li", plain_swatch(fill="url(#gap)"), "gap"))
    return tag("ul", items, class_="legend")


def _how_drawn(summary: RunSummary) -> str:
    curves = summary.curves
    sentences = []
    if summary.sampled:
        sentences.append("Steps were written around events, and one every 10 s (--write events).")
    if curves is not None and curves.most_in_a_bin() > 1:
        sentences.append(
            f"A point stands for up to {curves.most_in_a_bin()} steps: their mean and, lighter, "
            "their highest score."
        )
    if len(summary.heads.names) > 1 and summary.header is not None and summary.header.persons:
        sentences.append("The scores belong to the first person.")
    if summary.finds_objects:
        sentences.append("The score is the one of the label's best object, 0 without an object.")
    elif not summary.all_scores:
        sentences.append(
            "If a label is not among the best of a step, its score was not written and is "
            "drawn as 0 (detect --scores writes all scores)."
        )
    has_threshold = summary.header is not None and "timeline" in summary.header.options
    dashes = ", the dashes mark the threshold" if has_threshold else ""
    sentences.append(f"The line at the bottom marks the label's segments{dashes}.")
    hidden = len(summary.labels) - len(shown_labels(summary))
    if hidden > 0:
        sentences.append(f"Not drawn: {counted(hidden, 'other label')} with lower scores.")
    return " ".join(sentences)


def _segments(run: Run, palette: Palette) -> Html:
    summary = run.summary
    cards = [
        _card(segment, f"{run.anchor}s{k}", run, palette)
        for k, segment in sorted(
            enumerate(summary.segments, 1), key=lambda numbered: numbered[1].start_s
        )
    ]
    title = tag("h3", "Segments")
    if not cards:
        header = summary.header
        about = ("", None) if header is None else (header.kind, header.task)
        empty = nothing_found(*about) if summary.steps else "There are no predictions."
        return tag("section", title, note(empty))
    notes = [run.thumbnails.note]
    if summary.segment_count > len(cards):
        rest = summary.segment_count - len(cards)
        notes.append(f"{rest:,} later segments are not listed; the numbers below include them.")
    shown = tag("ol", cards[:MOST_OPEN], class_="segments")
    more = None
    if len(cards) > MOST_OPEN:
        rest_of = tag("ol", cards[MOST_OPEN:], class_="segments", start=MOST_OPEN + 1)
        more = folded(f"Show {len(cards) - MOST_OPEN:,} more", rest_of)
    return tag("section", title, shown, more, join(*map(note, notes)))


def _card(segment: Segment, anchor: str, run: Run, palette: Palette) -> Html:
    picture = None
    url = run.thumbnails.pictures.get(segment.start_s)
    if url is not None:
        alt = f"{segment.label} at {short_time(segment.start_s)}"
        picture = tag("img", src=Html(url), alt=alt, loading="lazy", decoding="async")
    length_s = segment.end_s - segment.start_s
    most = tag("span", f"up to {segment.count} at once") if (segment.count or 0) > 1 else None
    if len(run.summary.heads.names) > 1 and segment.person is not None:
        most = tag("span", f"person {segment.person}")
    paint = palette.paint(segment.label)
    when = f"{short_time(segment.start_s)} – {short_time(segment.end_s)}"
    return tag(
        "li",
        picture,
        tag("div", swatch(paint), name(segment.label), class_="label"),
        tag("div", tag("span", when), tag("span", f"{length_s:.1f} s"), most, class_="when"),
        score_bar(segment.score, paint),
        id=anchor,
    )


def _ordered(summary: RunSummary) -> list[str]:
    return sorted(summary.stats, key=lambda label: summary.labels.get(label, 0))


def _labels(summary: RunSummary, palette: Palette) -> Html | None:
    if not summary.stats:
        return None
    start_s, end_s = summary.span_s
    stats = {label: summary.stats[label] for label in _ordered(summary)}
    return tag("section", tag("h3", "Labels"), label_table(stats, palette, end_s - start_s))


def _places(summary: RunSummary) -> Html | None:
    if not summary.visits:
        return None
    rows: list[Sequence[Cell]] = []
    for (place, label), it in summary.visits.items():
        zone = it.most is not None
        mean_s = it.dwell_s / it.outs if zone and it.outs else 0.0
        dwells = [short_time(s) if zone else "" for s in (mean_s, it.longest_s)]
        counts = [f"{it.ins:,}", f"{it.outs:,}", f"{it.most:,}" if it.most is not None else ""]
        rows.append((name(place), name(label), *map(number, (*counts, *dwells))))
    columns = ("Zone or line", "Label", "In", "Out", "Most at once", "Mean stay", "Longest")
    return tag("section", tag("h3", "Places"), table(columns, rows, numbers=range(2, 7)))


def _alerts(summary: RunSummary) -> Html | None:
    if not summary.alerts:
        return None
    rows: list[Sequence[Cell]] = [
        (
            number(short_time(a.time_s)),
            name(a.label),
            number(f"{a.score:.2f}"),
            a.rule,
            a.clip or "",
        )
        for a in summary.alerts
    ]
    more = unlisted(summary.alert_count - len(summary.alerts))
    columns = ("When", "Label", "Score", "Rule", "Clip")
    return tag("section", tag("h3", "Alerts"), table(columns, rows, numbers=(0, 2)), more)


def _unfamiliar(summary: RunSummary) -> Html | None:
    line = None
    if summary.header is not None and summary.final is not None:
        line = unfamiliar_line(summary.header, summary.final)
    return None if line is None else tag("section", tag("h3", "Unfamiliar input"), note(f"{line}."))


def _troubles(summary: RunSummary) -> Html | None:
    rows: list[Sequence[Cell]] = [
        ("gap", number(short_time(g.start_s)), f"{g.end_s - g.start_s:.1f} s: {g.reason}")
        for g in summary.gaps
    ]
    for fault in summary.faults:
        when = "" if fault.time_s is None else short_time(fault.time_s)
        last = "; nothing could be read after it" if fault.fatal else ""
        rows.append(("error", number(when), fault.message + last))
    for damage in summary.damages:
        where = "end" if damage.last else f"line {damage.line}" if damage.line else ""
        rows.append(("results", number(where), f"unreadable: {damage.reason}"))
    if not rows:
        return None
    together = f"{counted(summary.gap_count, 'gap')} of {short_time(summary.gap_s)} together"
    counts = [together] if summary.gap_count else []
    counts += [counted(summary.fault_count, "error")] if summary.fault_count else []
    words = note(f"{', '.join(counts)}." if counts else "")
    listed = table(("What", "When", "Why"), rows, numbers=(1,))
    return tag("section", tag("h3", "Gaps and errors"), words, listed)


def _settings(summary: RunSummary) -> Html | None:
    header = summary.header
    if header is None:
        return None
    rate, delay = header.rate_hz, header.delay_s
    pairs: list[tuple[str, Any]] = [
        ("schema", header.schema),
        ("weights_sha256", header.weights_sha256),
        ("labels", ", ".join(header.labels)),
        *([("heads", header.heads)] if header.heads else []),
        ("background", header.background),
        ("rate_hz", rate if math.isfinite(rate) else None),
        ("delay_s", delay if math.isfinite(delay) else None),
        ("kind", header.kind),
        ("duration_s", header.duration_s),
        *((key, value) for key, value in header.options.items() if key != "unfamiliar"),
    ]
    texts = (
        (key, value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False))
        for key, value in pairs
    )
    rows = [(key, tag("code", value)) for key, value in texts]
    return folded("Settings of the run", table(("Name", "Value"), rows))
