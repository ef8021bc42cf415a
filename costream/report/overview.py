"""Overview section of a report on many runs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from costream.core.errors import SourceError
from costream.core.formatting import counted, saving, short_time, si, times
from costream.draw.palette import Palette
from costream.report.html_tables import Cell, label_table, number, table
from costream.report.label_stats import LabelStats
from costream.report.markup import Html, folded, name, tag, unlisted
from costream.report.section import WELL, Run, fact, status
from costream.report.time_axis import TimeAxis
from costream.report.timeline_strip import small_strip, stretches

MOST_FAILURES = 500
_MOST_OPEN = 12  # labels, and inputs without results, that are shown at once


@dataclass(frozen=True)
class OverviewRow:
    """One run in the overview."""

    title: str
    href: str  # link to the run
    model: str
    media_s: float
    segments: int
    wall_s: float
    macs: float
    dense_macs: float
    word: str
    sentence: str
    strip: Html
    # for each head: start and end as shares of the length, and the label
    stretches: tuple[tuple[tuple[float, float, str], ...], ...]


@dataclass(frozen=True)
class MissingResult:
    """A file or an input without results, and the reason."""

    title: str
    reason: str


@dataclass
class ReportOverview:
    """Totals over the runs, and a row for each."""

    rows: list[OverviewRow] = field(default_factory=list)
    refused: list[MissingResult] = field(default_factory=list)
    stats: dict[str, LabelStats] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)  # label -> number of runs
    most_blocks: int = 200  # in the strip of a row

    def add(self, run: Run, palette: Palette, href: str) -> None:
        """Add a run; ``href``: link to it."""
        summary = run.summary
        for label, entry in summary.stats.items():
            self.stats.setdefault(label, LabelStats()).merge(entry)
            self.files[label] = self.files.get(label, 0) + 1
        self.rows.append(_row(run, href, small_strip(summary, palette, self.most_blocks)))

    def section(self, title: str, palette: Palette) -> Html:
        """Return the overview."""
        return tag(
            "div",
            tag("header", tag("h1", name(title)), self._models()),
            self._facts(),
            self._refusals(),
            self._labels(palette),
            tag("section", tag("h3", "Files"), self._files()),
            class_="overview",
        )

    def _models(self) -> Html:
        models = sorted({row.model for row in self.rows if row.model})
        words = f"{counted(len(self.rows), 'run')} of {', '.join(models) or 'an unknown model'}"
        return tag("p", words, class_="who")

    def _facts(self) -> Html:
        rows = self.rows
        media_s, wall_s = sum(r.media_s for r in rows), sum(r.wall_s for r in rows)
        macs, dense = sum(r.macs for r in rows), sum(r.dense_macs for r in rows)
        speed = f"{times(media_s / wall_s)} real time" if wall_s > 0 else "all files together"
        bad = sum(r.word not in WELL for r in rows)
        outcome = f"{bad} not complete" if bad else "all complete"
        segments = sum(r.segments for r in rows)
        cards = [
            fact("Files", f"{len(rows):,}", outcome, warn=bad > 0),
            fact("Length", short_time(media_s, 0), speed),
            fact("Segments", f"{segments:,}", counted(len(self.stats), "label")),
        ]
        if macs:
            less = saving(macs, dense) or "as much as dense"
            cards.append(fact("Cost", si(macs, "MAC"), f"{si(dense, 'MAC')} dense: {less}"))
        if self.refused:
            cards.append(fact("Without results", f"{len(self.refused):,}", "see below", warn=True))
        return tag("dl", cards, class_="facts")

    def _labels(self, palette: Palette) -> Html | None:
        if not self.stats:
            return None
        ordered = sorted(self.stats.items(), key=lambda kv: -kv[1].total_s)
        media_s = sum(row.media_s for row in self.rows)
        parts = [label_table(dict(ordered[:_MOST_OPEN]), palette, media_s, self.files)]
        if rest := dict(ordered[_MOST_OPEN:]):
            listed = label_table(rest, palette, media_s, self.files)
            parts.append(folded(f"Show {len(rest):,} more labels", listed))
        return tag("section", tag("h3", "Labels"), parts)

    def _refusals(self) -> Html | None:
        if not self.refused:
            return None
        rows = [(name(r.title), r.reason) for r in self.refused[:MOST_FAILURES]]
        parts = [table(("Name", "Why"), rows[:_MOST_OPEN])]
        if rest := rows[_MOST_OPEN:]:
            parts.append(folded(f"Show {len(rest):,} more", table(("Name", "Why"), rest)))
        more = unlisted(len(self.refused) - MOST_FAILURES)
        return tag("section", tag("h3", "Without results"), parts, more)

    def _files(self) -> Html:
        columns = ("File", "Timeline", "Length", "Segments", "Cost", "Status")
        rows = (_cells(row) for row in self.rows)
        return tag("div", table(columns, rows, numbers=(2, 3, 4)), class_="files")


def _cells(row: OverviewRow) -> Sequence[Cell]:
    class_ = "pill" if row.word in WELL else "pill warn"
    less = saving(row.macs, row.dense_macs)
    return (
        tag("a", name(row.title), href=row.href),
        row.strip,
        number(short_time(row.media_s)),
        number(f"{row.segments:,}"),
        number(less or (si(row.macs, "MAC") if row.macs else "–")),
        tag("span", row.word, class_=class_, title=row.sentence),
    )


def _row(run: Run, href: str, strip: Html) -> OverviewRow:
    summary = run.summary
    header, final, costs = summary.header, summary.final, summary.cost_json()
    start_s, end_s = summary.span_s
    word, sentence = status(summary)
    axis = TimeAxis(start_s, end_s)
    return OverviewRow(
        title=run.title,
        href=href,
        model="" if header is None else header.model,
        media_s=final.media_s if final is not None else end_s - start_s,
        segments=summary.segment_count,
        wall_s=final.wall_s if final is not None else 0.0,
        macs=float(costs.get("macs") or 0),
        dense_macs=float(costs.get("dense_macs") or 0),
        word=word,
        sentence=sentence,
        strip=strip,
        stretches=tuple(
            tuple((axis.share(a), axis.share(b), label) for a, b, label in stretches(summary, head))
            for head in summary.heads.names
        ),
    )


def read_failures(folder: Path) -> list[MissingResult]:
    """Return the inputs that a batch has recorded as failed; empty without such a table."""
    try:
        with (folder / "failures.csv").open(encoding="utf-8", newline="") as file:
            rows = list(islice(csv.DictReader(file), 100_000))
    except (OSError, ValueError, csv.Error):
        return []
    return [
        MissingResult(str(row["name"]), str(row["reason"]))
        for row in rows
        if row.get("status") == "failed" and row.get("name") and row.get("reason")
    ]


@dataclass
class Report:
    """Content of a report, from which the page and the PNG are made."""

    title: str
    overview: ReportOverview = field(default_factory=ReportOverview)
    palette: Palette = field(default_factory=Palette)
    only: Run | None = None  # the run, when there is just one
    skipped: list[str] = field(default_factory=list)  # files that are not results
    failed: list[SourceError] = field(default_factory=list)  # results that cannot be read
