"""CSV tables: one of predictions or objects, one of segments, one of costs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costream.core.records import (
    Box,
    Compute,
    Header,
    Objects,
    Prediction,
    Record,
    Scored,
    Segment,
    Summary,
    finds_objects,
    plain,
)
from costream.sinks.atomic import AtomicFile, TextOutput
from costream.sinks.base import TextSink, output_file
from costream.sinks.prediction_columns import PredictionColumns

OBJECT_COLUMNS = ("time_s", "frame", "i", "label", "score", "x1", "y1", "x2", "y2", "id")
TIMELINE_COLUMNS = ("start_s", "end_s", "length_s", "label", "score")
COMPUTE_COLUMNS = (
    *("i", "time_s", "macs", "dense_macs", "decode_ms", "frontend_ms", "network_ms", "sink_ms"),
    *("lag_s", "dropped", "tokens", "budget", "budget_ms", "budget_macs", "budget_share"),
    *("ran", "joules", "area", "policy", "parts"),
)


_FORMULA = re.compile("'*[=+@\t\r-]")


class CsvRows:
    """CSV rows of an output. Numbers are as in JSON records; missing values are empty."""

    def __init__(self, out: TextOutput) -> None:
        self._out = out
        self._text = io.StringIO(newline="")
        self._csv = csv.writer(self._text, lineterminator="\n")

    def open(self, columns: Iterable[str]) -> None:
        """Open the output and write the names of the columns."""
        self._out.open()
        self.add(columns)

    def add(self, values: Iterable[Any], *, flush: bool = False) -> None:
        """Write a row; ``flush``: at once."""
        self._csv.writerow([csv_cell(value) for value in values])
        self._out.write(self._text.getvalue(), flush=flush)
        self._text.seek(0)
        self._text.truncate()

    def finish(self) -> None:
        """Finish the output."""
        self._out.finish()


def csv_cell(value: Any) -> Any:
    """Return a value for a cell; a ' is put before text that spreadsheets take for a formula."""
    value = plain(value)
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return str(value).lower() if isinstance(value, bool) else value


class _Table(TextSink):
    """Base of the tables of a run."""

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._rows = CsvRows(out)


@output_file(
    "predictions.csv",
    format="csv",
    about="tables of steps or boxes, segments, costs",
    objects=False,
    order=3,
)
class PredictionTable(_Table):
    """Table with one row per step, and per head if there are several.

    The columns follow from the first prediction: ``model`` with several heads, ``person`` where
    persons are followed, PREDICTION_COLUMNS, ``label_2, score_2, ...`` for the further
    ranks, ``ahead_1_label, ahead_1_score, ...`` (best label of each future step) if the model
    anticipates, and ``p(LABEL)`` for each label if all scores are requested.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._labels: tuple[str, ...] = ()
        self._heads: dict[str, tuple[str, ...]] | None = None
        self._persons = False
        self._columns: PredictionColumns | None = None

    def open(self, header: Header) -> None:
        """Store the labels; the columns follow from the first prediction."""
        super().open(header)
        self._labels, self._persons = header.labels, header.persons is not None
        if header.heads is not None:
            self._heads = {head.model: head.labels for head in header.heads}

    def write(self, record: Record) -> None:
        """Write a prediction; other records are ignored."""
        if not isinstance(record, Prediction):
            return
        future = [step[0] for step in record.anticipation or ()]
        scores = record.scores or ()
        columns = self._columns or self._head(record.top, future, scores)
        row = (record.i, record.time_s, record.frame, record.pts, record.warmup, record.fresh)
        named = record.model, record.person
        self._rows.add(columns.row(row, record.top, future, scores, *named))

    def close(self, summary: Summary) -> None:
        """Finish; a run without predictions leaves only the column names."""
        if self._columns is None:
            self._head()
        super().close(summary)

    def _head(
        self,
        top: Sequence[Scored] = (),
        future: Sequence[Scored] = (),
        scores: Sequence[float] = (),
    ) -> PredictionColumns:
        self._columns = PredictionColumns(
            self._labels, self._heads, top, future, scores, persons=self._persons
        )
        self._rows.add(self._columns.names())
        return self._columns


@output_file("objects.csv", format="csv", objects=True, order=3)
class ObjectTable(_Table):
    """Table with one row per box, so none for a step without objects."""

    def open(self, header: Header) -> None:
        """Write the column names."""
        super().open(header)
        self._rows.add(OBJECT_COLUMNS, flush=True)

    def write(self, record: Record) -> None:
        """Write the boxes of a step; other records are ignored."""
        if isinstance(record, Objects):
            for box in record.boxes:
                self._rows.add((record.time_s, record.frame, record.i, *object_cells(box)))


def object_cells(box: Box) -> tuple[Any, ...]:
    """Return a box as the last of OBJECT_COLUMNS, from ``label`` on."""
    return box.label, box.score, box.x1, box.y1, box.x2, box.y2, box.id


@output_file("timeline.csv", format="csv", order=3)
class TimelineTable(_Table):
    """Table with one row per segment; its columns are ``SegmentColumns``."""

    _columns: SegmentColumns

    def open(self, header: Header) -> None:
        """Write the column names."""
        super().open(header)
        self._columns = SegmentColumns(
            heads=header.heads is not None,
            persons=header.persons is not None,
            counts=finds_objects(header),
        )
        self._rows.add(self._columns.names(), flush=True)

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if isinstance(record, Segment):
            self._rows.add(self._columns.row(record), flush=True)


class SegmentColumns:
    """Columns of a timeline: ``model`` and ``person`` if there are several, TIMELINE_COLUMNS.

    Its last is ``count`` for objects: their maximum number at one time.
    """

    def __init__(self, *, heads: bool, persons: bool, counts: bool) -> None:
        self._named = ["model"] * heads + ["person"] * persons
        self._counts = ["count"] * counts

    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [*self._named, *TIMELINE_COLUMNS, *self._counts]

    def row(self, segment: Segment) -> list[Any]:
        """Return a segment as a row."""
        times = (segment.start_s, segment.end_s, segment.end_s - segment.start_s)
        named, counts = ([getattr(segment, n) for n in c] for c in (self._named, self._counts))
        return [*named, *times, segment.label, segment.score, *counts]


class MergedTimeline:
    """One table of the segments of several runs of a model; a sink for each run in turn.

    Its columns are ``source`` and the columns of TimelineTable. ``finish`` completes ``path``.
    """

    def __init__(self, path: Path, columns: SegmentColumns, *, overwrite: bool) -> None:
        """Open the file."""
        self.path, self.segments = path, 0
        self._columns, self._source, self._model = columns, "", ""
        self._rows = CsvRows(AtomicFile(path, overwrite=overwrite))
        self._rows.open(("source", *columns.names()))

    def open(self, header: Header) -> None:
        """Start a run."""
        self._source, self._model = header.source, header.model

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if isinstance(record, Segment):
            record = replace(record, model=record.model or self._model)
            self._rows.add((self._source, *self._columns.row(record)), flush=True)
            self.segments += 1

    def close(self, summary: Summary) -> None:
        """End a run; the file stays open for the next."""

    def finish(self) -> None:
        """Finish the file."""
        self._rows.finish()


@output_file("compute.csv", format="csv", order=3)
class ComputeTable(_Table):
    """Table with one row per step: its cost."""

    def open(self, header: Header) -> None:
        """Write the column names."""
        super().open(header)
        self._rows.add(COMPUTE_COLUMNS, flush=True)

    def write(self, record: Record) -> None:
        """Write the cost of a step; other records are ignored."""
        if isinstance(record, Compute):
            spent = (record.i, record.time_s, record.macs, record.dense_macs)
            ms = (record.ms.decode, record.ms.frontend, record.ms.network, record.ms.sink)
            state = (record.lag_s, record.dropped, record.tokens, record.budget)
            budgets = (record.budget_ms, record.budget_macs, record.budget_share)
            ran, parts = (
                "; ".join(f"{model}: {what}" for model, what in (found or {}).items())
                for found in (record.ran, record.parts)
            )
            chosen = (record.joules, record.area, record.policy)
            self._rows.add([*spent, *ms, *state, *budgets, ran, *chosen, parts])
