"""Section of a report on one run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from costream.core.errors import UsageError
from costream.core.formatting import (
    counted,
    network_saving,
    nothing_found,
    saving,
    short_time,
    si,
    three_digits,
    times,
    unfamiliar_line,
)
from costream.core.records import STAGES, Segment, plain
from costream.draw.palette import Palette
from costream.report.curves import cost_chart, score_rows, shown_labels, time_chart, track
from costream.report.digest import Digest
from costream.report.markup import Html, folded, join, name, note, percent, tag, unlisted
from costream.report.page import page_foot, page_head
from costream.report.tables import Cell, label_table, number, score_bar, table
from costream.report.thumbnails import Thumbnails
from costream.report.timeline import TimeAxis, plain_swatch, strip, swatch
from costream.sinks.atomic import AtomicFile

MOST_OPEN = 60  # cards that are shown at once
_MOST_LEGEND = 16


@dataclass(frozen=True)
class Run:
    """One run, as it is shown."""

    title: str
    digest: Digest
    written: str  # when the results were written
    anchor: str = "r1"
    thumbnails: Thumbnails = field(default_factory=Thumbnails)


def section(run: Run, palette: Palette, *, alone: bool) -> Html:
    """Return the article of a run. ``alone``: its title is that of the page."""
    digest = run.digest
    head = tag("header", tag("h1" if alone else "h2", name(run.title)), _who(run))
    parts = [
        *(head, facts(digest), _timeline(run, palette), _segments(run, palette)),
        *(_labels(digest, palette), _places(digest), cost_section(digest)),
        *(_alerts(digest), _unfamiliar(digest), _troubles(digest), _settings(digest)),
    ]
    back = None if alone else tag("p", tag("a", "Back to the overview", href="#top"), class_="back")
    return tag("article", join(*parts, back), id=run.anchor, class_="run")


def facts(digest: Digest) -> Html:
    """Return the key figures of a run."""
    summary, costs = digest.summary, digest.cost_json()
    start_s, end_s = digest.span_s
    media_s = summary.media_s if summary is not None else end_s - start_s
    cards = [
        fact("Segments", f"{digest.segment_count:,}", counted(len(digest.stats), "label")),
        fact("Length", short_time(media_s), f"{digest.steps:,} steps"),
    ]
    if summary is not None and summary.x_realtime:
        took = f"{short_time(summary.wall_s)} of work"
        cards.append(fact("Speed", f"{times(summary.x_realtime)} real time", took))
    macs, dense = costs.get("macs_per_step"), costs.get("dense_macs_per_step")
    if macs and dense:
        anew = "computing everything" if digest.finds_objects else "recomputing the window"
        less = saving(macs, dense)
        text = f"{less or 'as much'} {'than' if less else 'as'} {anew}"
        text += f" ({si(dense, 'MAC')})" if less else ""
        alone = "" if summary is None else network_saving(summary)
        text += f"; network alone {alone}" if alone else ""
        cards.append(fact("Cost a step", si(macs, "MAC"), text))
    word, sentence = status(digest)
    cards.append(fact("Status", word, sentence, warn=word != "complete"))
    return tag("dl", cards, class_="facts")


def status(digest: Digest) -> tuple[str, str]:
    """Return the outcome of a run as a word and as a sentence."""
    summary = digest.summary
    if digest.live and summary is None and not digest.broken_off:
        return "unfinished", "no summary: it is running, continues in another file, or was killed"
    if digest.broken_off or summary is None:
        return "truncated", "no summary: the run was killed, or the file is truncated"
    if not summary.complete:
        why = {130: "stopped by Ctrl-C", 143: "stopped by SIGTERM"}.get(summary.exit)
        return "incomplete", why or f"ended early, exit code {summary.exit}"
    if digest.gap_count or digest.fault_count:
        troubles = [counted(digest.gap_count, "gap"), counted(digest.fault_count, "error")]
        return "complete", ", ".join(t for t in troubles if not t.startswith("0 "))
    return "complete", "no gaps, no errors"


def fact(title: str, value: str, more: str, *, warn: bool = False) -> Html:
    """Return a key figure: its name, its value and a remark; ``warn``: highlighted."""
    inner = (tag("dt", title), tag("dd", value, class_="value"), tag("dd", more, class_="more"))
    return tag("div", *inner, class_="warn" if warn else None)


def _who(run: Run) -> Html:
    header = run.digest.header
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
    digest = run.digest
    axis = TimeAxis(*digest.span_s)
    rows = score_rows(digest, palette)
    strips = [
        track(
            Html("Timeline") if head is None else name(head),
            strip(digest, palette, run.anchor, head),
            *([axis.scale()] if head == digest.heads.names[-1] else []),
        )
        for head in digest.heads.names
    ]
    parts: list[Html] = [*strips, _legend(digest, palette)]
    if rows:
        parts += [tag("h3", "Scores"), *rows, track(Html(""), axis.scale())]
        parts.append(tag("p", _how_drawn(digest), class_="note"))
    return tag("section", tag("h3", "Timeline", class_="unseen"), parts, class_="tracks")


def _legend(digest: Digest, palette: Palette) -> Html:
    shown = sorted(digest.stats, key=lambda label: -digest.stats[label].total_s)[:_MOST_LEGEND]
    items = [
        tag("li", swatch(palette.paint(label)), name(label))
        for label in _ordered(digest)
        if label in shown
    ]
    if len(digest.stats) > len(shown):
        rest = len(digest.stats) - len(shown)
        items.append(tag("li", f"and {rest} more, listed below", class_="dim"))
    if digest.gap_count:
        items.append(tag("li", plain_swatch(fill="url(#gap)"), "gap"))
    return tag("ul", items, class_="legend")


def _how_drawn(digest: Digest) -> str:
    curves = digest.curves
    sentences = []
    if curves is not None and curves.most_in_a_bin() > 1:
        sentences.append(
            f"A point stands for up to {curves.most_in_a_bin()} steps: their mean and, lighter, "
            "their highest score."
        )
    if len(digest.heads.names) > 1 and digest.header is not None and digest.header.persons:
        sentences.append("The scores are those of the first person.")
    if digest.finds_objects:
        sentences.append("The score is that of the label's best object, 0 without an object.")
    elif not digest.all_scores:
        sentences.append(
            "If a label is not among the best of a step, its score was not written and is "
            "drawn as 0 (detect --scores writes all scores)."
        )
    has_threshold = digest.header is not None and "timeline" in digest.header.options
    dashes = ", the dashes mark the threshold" if has_threshold else ""
    sentences.append(f"The line at the bottom marks the label's segments{dashes}.")
    left = len(digest.labels) - len(shown_labels(digest))
    if left > 0:
        sentences.append(f"Not drawn: {counted(left, 'other label')} with lower scores.")
    return " ".join(sentences)


def _segments(run: Run, palette: Palette) -> Html:
    digest = run.digest
    cards = [
        _card(segment, f"{run.anchor}s{k}", run, palette)
        for k, segment in enumerate(digest.segments, 1)
    ]
    title = tag("h3", "Segments")
    if not cards:
        kind = "" if digest.header is None else digest.header.kind
        empty = nothing_found(kind) if digest.steps else "There are no predictions."
        return tag("section", title, note(empty))
    notes = [run.thumbnails.note]
    if digest.segment_count > len(cards):
        rest = digest.segment_count - len(cards)
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
    most = tag("span", f"up to {segment.count} at once") if segment.count else None
    if len(run.digest.heads.names) > 1 and segment.person is not None:
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


def _ordered(digest: Digest) -> list[str]:
    return sorted(digest.stats, key=lambda label: digest.labels.get(label, 0))


def _labels(digest: Digest, palette: Palette) -> Html | None:
    if not digest.stats:
        return None
    start_s, end_s = digest.span_s
    stats = {label: digest.stats[label] for label in _ordered(digest)}
    return tag("section", tag("h3", "Labels"), label_table(stats, palette, end_s - start_s))


def _places(digest: Digest) -> Html | None:
    if not digest.visits:
        return None
    rows: list[Sequence[Cell]] = []
    for (place, label), it in digest.visits.items():
        zone = it.most is not None
        mean_s = it.dwell_s / it.outs if zone and it.outs else 0.0
        dwells = [short_time(s) if zone else "" for s in (mean_s, it.longest_s)]
        counts = [f"{it.ins:,}", f"{it.outs:,}", f"{it.most:,}" if it.most is not None else ""]
        rows.append((name(place), name(label), *map(number, (*counts, *dwells))))
    columns = ("Zone or line", "Label", "In", "Out", "Most at once", "Mean stay", "Longest")
    return tag("section", tag("h3", "Places"), table(columns, rows, numbers=range(2, 7)))


def _alerts(digest: Digest) -> Html | None:
    if not digest.alerts:
        return None
    rows: list[Sequence[Cell]] = [
        (
            number(short_time(a.time_s)),
            name(a.label),
            number(f"{a.score:.2f}"),
            a.rule,
            a.clip or "",
        )
        for a in digest.alerts
    ]
    more = unlisted(digest.alert_count - len(digest.alerts))
    columns = ("When", "Label", "Score", "Rule", "Clip")
    return tag("section", tag("h3", "Alerts"), table(columns, rows, numbers=(0, 2)), more)


def _unfamiliar(digest: Digest) -> Html | None:
    told = None
    if digest.header is not None and digest.summary is not None:
        told = unfamiliar_line(digest.header, digest.summary)
    return None if told is None else tag("section", tag("h3", "Unfamiliar input"), note(f"{told}."))


def _troubles(digest: Digest) -> Html | None:
    rows: list[Sequence[Cell]] = [
        ("gap", number(short_time(g.start_s)), f"{g.end_s - g.start_s:.1f} s: {g.reason}")
        for g in digest.gaps
    ]
    for fault in digest.faults:
        when = "" if fault.time_s is None else short_time(fault.time_s)
        last = "; nothing could be read after it" if fault.fatal else ""
        rows.append(("error", number(when), fault.message + last))
    for damage in digest.damages:
        where = "end" if damage.last else f"line {damage.line}" if damage.line else ""
        rows.append(("results", number(where), f"unreadable: {damage.reason}"))
    if not rows:
        return None
    together = f"{counted(digest.gap_count, 'gap')} of {short_time(digest.gap_s)} together"
    counts = [together] if digest.gap_count else []
    counts += [counted(digest.fault_count, "error")] if digest.fault_count else []
    words = note(f"{', '.join(counts)}." if counts else "")
    listed = table(("What", "When", "Why"), rows, numbers=(1,))
    return tag("section", tag("h3", "Gaps and errors"), words, listed)


def _settings(digest: Digest) -> Html | None:
    header = digest.header
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


def cost_section(digest: Digest) -> Html | None:
    """Return the cost: against the dense model, and by stage; None if it is unknown."""
    costs = digest.cost_json()
    if not costs.get("steps"):
        return None
    axis = TimeAxis(*digest.span_s)
    dense = "if all were computed" if digest.finds_objects else "if the window were recomputed"
    parts: list[Html | None] = [_against_dense(costs, dense)]
    operations, milliseconds = cost_chart(digest), time_chart(digest)
    if operations is not None:
        parts.append(track(Html("Operations a step"), operations, axis.scale()))
    if milliseconds is not None:
        parts.append(track(Html("Time a step"), milliseconds, axis.scale()))
    parts += [_stages(costs), _losses(digest, costs)]
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
        whole = short_time(seconds) if isinstance(seconds, (int, float)) else "–"
        rows.append([title, *(number(value) for value in values), number(whole)])
    columns = ("ms a step", "mean", "median", "90 %", "99 %", "max", "total")
    return table(columns, rows, numbers=range(1, 7))


def _ms(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:.2f}" if value < 9.995 else three_digits(value)


def _losses(digest: Digest, costs: dict[str, Any]) -> Html | None:
    losses = []
    if digest.warmup_steps:
        losses.append(f"{counted(digest.warmup_steps, 'step')} before the window was full")
    if costs.get("dropped"):
        losses.append(f"{counted(int(costs['dropped']), 'frame')} dropped")
    if costs.get("max_lag_s"):
        losses.append(f"{costs['max_lag_s']:.2f} s late at most")
    return note(f"{', '.join(losses)}." if losses else "")


_OURS = re.compile(r"r\d+\.html")


class Pages:
    """Separate pages for the runs of a long report, in ``report_files`` beside ``report.html``."""

    def __init__(self, report: Path, *, overwrite: bool) -> None:
        """``report``: the page that links to them."""
        self._report, self._overwrite = report, overwrite
        self._folder = report.with_name(f"{report.stem}_files")
        self._written: set[str] = set()

    def check(self) -> None:
        """Raise UsageError if pages of an earlier report exist and must not be replaced."""
        if not self._overwrite and any(self._earlier()):
            raise UsageError("exists already", where=self._folder, hint="use --overwrite")

    def href(self, run: Run) -> str:
        """Return the link to the page of a run."""
        return quote(f"{self._folder.name}/{run.anchor}.html")

    def put(self, run: Run, palette: Palette) -> None:
        """Write the page of a run."""
        path = self._folder / f"{run.anchor}.html"
        link = tag("a", "Back to the overview", href=quote(f"../{self._report.name}"))
        back = tag("p", link, class_="back")
        out = AtomicFile(path, overwrite=True)
        out.open()
        out.write(page_head(f"{run.title} – costream report"))
        out.write(back + section(run, palette, alone=True) + back)
        out.write(page_foot())
        out.finish()
        self._written.add(path.name)

    def remove_earlier(self) -> None:
        """Remove pages of the replaced report that this one does not have."""
        if not self._overwrite:
            return
        for path in self._earlier():
            if path.name not in self._written:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or not empty
            self._folder.rmdir()

    def _earlier(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if _OURS.fullmatch(path.name)]
