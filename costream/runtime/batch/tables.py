"""Tables over all inputs of a batch, built from the records of each in constant memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from costream.core.errors import OutputError
from costream.core.records import Box, Segment, plain
from costream.sinks.atomic import AtomicFile
from costream.sinks.parquet import ParquetRows
from costream.sinks.prediction_columns import PREDICTION_COLUMNS, PredictionColumns
from costream.sinks.tables import OBJECT_COLUMNS, CsvRows, SegmentColumns, object_cells

PredictionTableKind = Literal["csv", "parquet", "none"]

TABLES = (
    *("predictions.csv", "predictions.parquet", "objects.csv", "objects.parquet"),
    *("timeline.csv", "compute.csv", "failures.csv", "summary.json"),
)
_COST_COLUMNS = (
    *("name", "kind", "complete", "steps", "segments", "dropped", "errors", "media_s"),
    *("macs", "dense_macs", "macs_per_step", "dense_macs_per_step", "unfamiliar_s"),
)
_FAILURE_COLUMNS = ("name", "status", "exit", "reason")


@dataclass(frozen=True)
class MergedInput:
    """One input of the tables."""

    name: str
    status: str
    reason: str = ""
    exit: int = 0
    kind: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)  # the summary record
    records: Path | None = None  # its JSON lines; None: no records


@dataclass(frozen=True)
class BatchTotals:
    """What ``summary.json`` of a batch holds after the settings of its runs."""

    complete: bool  # false: the batch was interrupted
    exit: int  # exit code
    inputs: dict[str, int]  # number of inputs in all, and by status
    skipped: dict[str, int]  # number of inputs by reason
    media_s: float
    unfamiliar_s: float | None  # null: no model measures familiarity
    steps: int
    segments: int
    errors: int
    macs: int  # multiply-accumulates
    dense_macs: int  # with all windows recomputed
    labels: dict[str, dict[str, float]]  # number of segments and seconds of each label


class MergedTables:
    """Tables over all inputs: ``open``, ``add`` each input in table order, ``close``.

    ``predictions.csv`` (or ``.parquet``): one row per step; ``objects.csv``: one row per box;
    ``timeline.csv``: one row per segment; ``compute.csv``: one row per input; ``failures.csv``: one
    row per input that failed, ended early or was damaged. The first column is the input's name; the
    second of predictions and segments of several heads, or of several models, is ``model``.
    ``summary.json`` holds counts and sums.
    """

    def __init__(
        self,
        folder: Path,
        predictions: PredictionTableKind = "csv",
        *,
        objects: bool = False,
        classes: bool = True,
        several: bool = False,
    ) -> None:
        """``objects``, ``classes``: whether there are boxes, and predictions, of the models.

        ``several``: inputs have different models.
        """
        self._folder = folder
        rows = _csv_rows(folder / "timeline.csv")
        self._timeline = _SegmentRows(rows, counts=objects, several=several)
        self._compute = _csv_rows(folder / "compute.csv")
        self._failures = _csv_rows(folder / "failures.csv")
        self._steps: dict[str, _ObjectRows | _PredictionRows] = {}  # by type of the records
        self._kept: list[str] = []
        if objects and predictions != "none":
            self._steps["objects"] = _ObjectRows(self._step_rows("objects", predictions))
        if classes and predictions != "none":
            kind = self._step_rows("predictions", predictions)
            self._steps["prediction"] = _PredictionRows(kind, several=several)
        self._counts: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._sums = dict.fromkeys(("steps", "segments", "errors", "macs", "dense_macs"), 0)
        self._media_s = 0.0
        self._unfamiliar_s: float | None = None  # None: no model measures familiarity
        self._labels: dict[str, list[float]] = {}  # label: number, seconds

    def open(self) -> None:
        """Open the tables, and remove tables of steps of another kind."""
        for name in TABLES[:4]:
            if name not in self._kept:
                (self._folder / name).unlink(missing_ok=True)
        self._compute.open(_COST_COLUMNS)
        self._failures.open(_FAILURE_COLUMNS)

    def add(self, item: MergedInput) -> None:
        """Add one input. Raise OutputError if its records can no longer be read."""
        self._counts[item.status] = self._counts.get(item.status, 0) + 1
        if item.status in ("failed", "partial"):
            self._failures.add((item.name, item.status, item.exit, item.reason))
        elif item.status == "done" and item.reason:
            self._failures.add((item.name, "damaged", item.exit, item.reason))
        elif item.status == "skipped":
            self._skipped[item.reason] = self._skipped.get(item.reason, 0) + 1
        if item.records is None:
            return
        self._cost(item)
        header: dict[str, Any] = {}
        for record in _records(item.records):
            if record["type"] == "header":
                header = record
            elif record["type"] == "segment":
                self._timeline.add(item.name, record, header)
                total = self._labels.setdefault(record["label"], [0, 0.0])
                total[0] += 1
                total[1] += record["end_s"] - record["start_s"]
            elif record["type"] in self._steps:
                self._steps[record["type"]].add(item.name, record, header)

    def close(self, head: dict[str, Any]) -> None:
        """Finish the tables, and write ``summary.json``, which begins with ``head``."""
        for rows in (self._timeline, self._compute, self._failures):
            rows.finish()
        for steps in self._steps.values():
            steps.finish()
        totals = BatchTotals(
            complete=head["complete"],
            exit=head["exit"],
            inputs={"total": sum(self._counts.values()), **dict(sorted(self._counts.items()))},
            skipped=dict(sorted(self._skipped.items())),
            media_s=self._media_s,
            unfamiliar_s=self._unfamiliar_s,
            **self._sums,
            labels={
                label: {"segments": int(number), "seconds": seconds}
                for label, (number, seconds) in sorted(self._labels.items())
            },
        )
        document = {**head, **asdict(totals)}
        file = AtomicFile(self._folder / "summary.json", overwrite=True)
        file.open()
        file.write(json.dumps(plain(document), ensure_ascii=False, indent=1) + "\n")
        file.finish()

    def _step_rows(self, name: str, kind: PredictionTableKind) -> CsvRows | ParquetRows:
        """Return the rows of a table of steps, which is kept."""
        path = self._folder / f"{name}.{kind}"
        self._kept.append(path.name)
        return _csv_rows(path) if kind == "csv" else ParquetRows(path)

    def _cost(self, item: MergedInput) -> None:
        summary = item.summary
        steps = summary["steps"]
        each = [summary[key] / steps if steps else None for key in ("macs", "dense_macs")]
        counts = [summary[key] for key in _COST_COLUMNS[2:10]]
        unfamiliar_s = summary.get("unfamiliar_s")
        self._compute.add((item.name, item.kind, *counts, *each, unfamiliar_s))
        if unfamiliar_s is not None:
            self._unfamiliar_s = (self._unfamiliar_s or 0.0) + unfamiliar_s
        for key in self._sums:
            self._sums[key] += summary[key]
        self._media_s += summary["media_s"]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records that the tables need; compute records are skipped without parsing."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if not line.startswith('{"type": "compute"'):
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot be read ({error})", where=path) from error


def _csv_rows(path: Path) -> CsvRows:
    return CsvRows(AtomicFile(path, overwrite=True))


class _SegmentRows:
    """Segments as rows, with the columns of the first one's run."""

    def __init__(self, rows: CsvRows, *, counts: bool, several: bool) -> None:
        self._rows, self._counts, self._several = rows, counts, several
        self._columns: SegmentColumns | None = None  # no row yet

    def add(self, name: str, record: dict[str, Any], header: dict[str, Any]) -> None:
        columns = self._columns or self._open(header)
        known: dict[str, Any] = {f.name: record.get(f.name) for f in fields(Segment)}
        segment = Segment(**{**known, "model": record.get("model") or header.get("model")})
        self._rows.add((name, *columns.row(segment)))

    def finish(self) -> None:
        if self._columns is None:
            self._open({})
        self._rows.finish()

    def _open(self, header: dict[str, Any]) -> SegmentColumns:
        self._columns = SegmentColumns(
            heads=bool(header.get("heads")) or self._several,
            persons=header.get("persons") is not None,
            counts=self._counts,
        )
        self._rows.open(("name", *self._columns.names()))
        return self._columns


class _ObjectRows:
    """Boxes as rows."""

    def __init__(self, rows: CsvRows | ParquetRows) -> None:
        self._rows = rows
        self._opened = False

    def add(self, name: str, record: dict[str, Any], header: dict[str, Any]) -> None:
        self._open()
        for box in record["boxes"]:
            row = (record["time_s"], record["frame"], record["i"], *object_cells(Box(*box)))
            self._rows.add((name, *row))

    def finish(self) -> None:
        self._open()
        self._rows.finish()

    def _open(self) -> None:
        if not self._opened:
            self._rows.open(("name", *OBJECT_COLUMNS))
        self._opened = True


class _PredictionRows:
    """Predictions as rows, with the columns of the first one, as in each input's table."""

    def __init__(self, rows: CsvRows | ParquetRows, *, several: bool) -> None:
        self._rows, self._several = rows, several
        self._columns: PredictionColumns | None = None

    def add(self, name: str, record: dict[str, Any], header: dict[str, Any]) -> None:
        future = [step[0] for step in record.get("anticipation", ())]
        top, scores = record["top"], record.get("scores", ())
        columns = self._columns
        if columns is None:
            heads = header.get("heads")
            labels = {head["model"]: head["labels"] for head in heads} if heads else None
            if labels is None and self._several:
                labels = {header["model"]: header["labels"]}
            persons = header.get("persons") is not None
            columns = PredictionColumns(
                header["labels"], labels, top, future, scores, persons=persons
            )
            self._open(columns)
        fixed = [record[key] for key in PREDICTION_COLUMNS[:6]]
        model = record.get("model") or (header.get("model") if self._several else None)
        named = model, record.get("person")
        self._rows.add([name, *columns.row(fixed, top, future, scores, *named)])

    def finish(self) -> None:
        if self._columns is None:
            self._open(PredictionColumns((), None))
        self._rows.finish()

    def _open(self, columns: PredictionColumns) -> None:
        self._columns = columns
        self._rows.open(["name", *columns.names()])
