"""Results of a run in memory: records, tables, files and a page to look at."""

from __future__ import annotations

import html
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costream.api.keywords import checked_path
from costream.core.errors import SourceError, UsageError
from costream.core.formatting import listed
from costream.core.records import (
    AnyRecord,
    Compute,
    Fault,
    Gap,
    Header,
    Objects,
    Prediction,
    Record,
    Segment,
    Summary,
    finds_objects,
    to_json,
)
from costream.sinks.atomic import AtomicFile, exists_error
from costream.sinks.base import OUTPUT_FILES, Sink
from costream.sinks.registry import FORMATS, check_outputs, make_sinks, parse_formats, paths_for

if TYPE_CHECKING:
    from costream.runtime.instances import Instance

_TABLES: dict[str, type[Any]] = {
    "segments": Segment,
    "predictions": Prediction,
    "objects": Objects,
    "compute": Compute,
    "gaps": Gap,
    "errors": Fault,
}
_REPORT = ".html"
REPLACE = "use overwrite=True"  # hint for a file that exists


@dataclass(frozen=True)
class Results:
    """All records of one run over one source: iterate over them, ``len`` counts them.

    ``print`` shows the timeline, a notebook the page of the report.
    """

    header: Header
    records: tuple[Record, ...]
    summary: Summary

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Results:
        """Return the results in a ``.jsonl`` or ``.json`` file; the last run, if it has several.

        Raises SourceError if the file cannot be read or holds no complete run.
        """
        from costream.sinks.result_reader import read_results

        file = checked_path(path, "read")
        header: Header | None = None
        records: list[Record] = []
        summary: Summary | None = None
        for content in read_results(file):
            if isinstance(content, Header):
                header, records, summary = content, [], None
            elif isinstance(content, Summary):
                summary = content
            elif isinstance(content, Record):
                records.append(content)
        if header is None or summary is None:
            raise SourceError("there is no finished run in this file", where=path)
        return cls(header, tuple(records), summary)

    @property
    def segments(self) -> list[Segment]:
        """The timeline: what was seen or heard, from when to when."""
        return self._of(Segment)

    @property
    def predictions(self) -> list[Prediction]:
        """The class scores of every step."""
        return self._of(Prediction)

    def instances(self, look_back_s: float = 0.0, person: int | None = None) -> list[Instance]:
        """Return all reports of action instances in the order of the steps that show them.

        Each instance is reported when it begins, ends, is revised and is final; the timeline has
        only the last. ``look_back_s``: how far a start may reach back to steps above the lower
        threshold. ``person``: number of the person, where each has predictions.

        Raises UsageError without all scores (``scores=True``), and for models of which several
        labels may be true at once.
        """
        from costream.runtime.instances import instances_of

        if self.header.background is None or self.header.heads is not None:
            raise UsageError(f"labels of {self.header.model} do not exclude one another")
        found = [p for p in self.predictions if p.person == person and p.scores is not None]
        if self.predictions and not found:
            raise UsageError("there are no scores of all labels", hint="run with scores=True")
        return instances_of(self.header, found, look_back_s)

    @property
    def objects(self) -> list[Objects]:
        """The objects of every step, of models that detect objects."""
        return self._of(Objects)

    @property
    def gaps(self) -> list[Gap]:
        """The times without data."""
        return self._of(Gap)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``-f json`` writes, as plain values."""
        out = io.StringIO()
        self._write(make_sinks(["json"], None, "", stream=out))
        document: dict[str, Any] = json.loads(out.getvalue())
        return document

    def to_dataframe(self, table: str = "segments") -> Any:
        """Return a table as a pandas DataFrame, one row a record.

        ``table``: segments, predictions, objects (a row a box), compute, gaps or errors. The best
        label of a prediction is in the columns ``label`` and ``score``, the labels of the model
        have a column each if every score was asked for (``scores=True``). Raises UsageError for
        another table, or if pandas is not installed.
        """
        if not isinstance(table, str) or table not in _TABLES:
            raise UsageError(
                f"there is no table {table!r}", hint=f"choose from {listed(list(_TABLES))}"
            )
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            hint = "pip install 'costream[pandas]'"
            raise UsageError("pandas is not installed", hint=hint) from error
        rows = [row for record in self._of(_TABLES[table]) for row in _rows(record, self.header)]
        columns = None if rows else [field.name for field in fields(_TABLES[table])]
        return pandas.DataFrame(rows, columns=columns)

    def save(
        self,
        path: str | os.PathLike[str],
        formats: str | Sequence[str] | None = None,
        *,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write files, and return their paths.

        ``path``: a file, whose suffix names the format (``a.jsonl``, ``a.srt``, ``a.csv`` for the
        segments, ``a.html`` for the report), or with ``formats`` a folder, as for ``-o``. Raises
        UsageError if a file exists, unless ``overwrite``, or for a format that needs the frames;
        OutputError if a file cannot be written.
        """
        target = checked_path(path, "save")
        if formats is not None:
            several = isinstance(formats, Iterable) and not isinstance(formats, str)
            names = parse_formats(map(str, formats if several else [formats]))
            _check_drawing(names)
            name = Path(self.header.source).name or "results"
            check_outputs(names, target, name, overwrite=overwrite, hint=REPLACE)
            self._write(make_sinks(names, target, name, overwrite=overwrite))
            objects = finds_objects(self.header)
            return [path for f in names for path in paths_for(f, target, name, objects=objects)]
        if os.path.exists(target) and not overwrite:
            raise exists_error(target, REPLACE)
        file = AtomicFile(target, overwrite=True)
        if target.suffix.lower() == _REPORT:
            page = self.to_html()
            file.open()
            file.write(page)
            file.finish()
        else:
            self._write([OUTPUT_FILES.load(_suffix_of(target))(file)])
        return [target]

    def to_html(self) -> str:
        """Return the page of the report, as ``costream report`` writes it."""
        from costream.report.report_builder import ReportBuilder

        with tempfile.TemporaryDirectory() as folder:
            name = Path(self.header.source).name or "results"
            results = Path(folder, f"{name}.jsonl")
            page = Path(folder, "page.html")
            self._write([OUTPUT_FILES.load("jsonl")(AtomicFile(results, overwrite=True))])
            with ReportBuilder([results], thumbnails=False) as maker:
                for _ in maker.read():
                    pass
                maker.write(AtomicFile(page, overwrite=True))
            return page.read_text("utf-8")

    def _repr_html_(self) -> str:
        # In a frame, so that the styles of the page and of the notebook do not mix.
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:30em;border:0"></iframe>'

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __str__(self) -> str:
        out = io.StringIO()
        self._write(make_sinks(["table"], None, "", stream=out))
        return out.getvalue().rstrip()

    def __repr__(self) -> str:
        segments = len(self.segments)
        return (
            f"<Results of {self.header.model} on {self.header.source}: "
            f"{self.summary.steps} steps, {segments} segment{'s' * (segments != 1)}>"
        )

    def _of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def _write(self, sinks: Iterable[Sink]) -> None:
        for sink in sinks:
            sink.open(self.header)
            for record in self.records:
                sink.write(record)
            sink.close(self.summary)


def _rows(record: AnyRecord, header: Header) -> list[dict[str, Any]]:
    """Return the rows of a table for one record."""
    row = to_json(record)
    row.pop("type")
    if isinstance(record, Objects):
        boxes = [vars(box) for box in record.boxes]
        return [{"i": record.i, "time_s": record.time_s, "frame": record.frame, **b} for b in boxes]
    if isinstance(record, Prediction):
        top, scores = row.pop("top"), row.pop("scores", None)
        row.pop("anticipation", None)
        row |= {"label": top[0][0], "score": top[0][1]} if top else {}
        head = next((h for h in header.heads or () if h.model == record.model), header)
        row |= dict(zip(head.labels, scores or (), strict=False))
    if isinstance(record, Compute):
        row |= {f"{name}_ms": value for name, value in row.pop("ms").items()}
    return [row]


def _check_drawing(formats: Sequence[str]) -> None:
    drawn = [f for f in formats if any("draws" in info for info in FORMATS[f].files.values())]
    if drawn:
        hint = f"request it from the run: detect(source, output='folder', format='{drawn[0]}')"
        raise UsageError(f"{drawn[0]} needs the frames, which are gone", hint=hint)


def _suffix_of(path: Path) -> str:
    """Return the kind of output file that the name of ``path`` selects."""
    name = path.name.lower()
    suffixes = sorted(OUTPUT_FILES.entries(), key=len, reverse=True)
    fitting = [suffix for suffix in suffixes if name.endswith(f".{suffix}".lower())]
    if not fitting and name.endswith(".csv"):
        fitting = ["timeline.csv"]
    if not fitting:
        hint = f"end it in one of {listed([f'.{suffix}' for suffix in suffixes])}, .html"
        raise UsageError("the name says no format", where=path, hint=hint)
    _check_drawing([str(OUTPUT_FILES.entries()[fitting[0]].info.get("format", fitting[0]))])
    if OUTPUT_FILES.entries()[fitting[0]].info.get("binary"):
        name_of = OUTPUT_FILES.entries()[fitting[0]].info.get("format", fitting[0])
        raise UsageError("is a binary format", where=path, hint=f"save('folder', '{name_of}')")
    return fitting[0]
