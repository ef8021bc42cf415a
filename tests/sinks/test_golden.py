"""The exact text of every format. A change here is a change of the contract with users.

UPDATE_GOLDEN=1 writes the files anew; look at the difference before keeping them.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from costream.core.places import Crossing, ZoneEvent
from costream.core.records import SCHEMA, Level, Objects, Picture, VideoFrame
from costream.report.run_summary import RunSummary
from costream.sinks.base import PictureSink
from costream.sinks.registry import FORMATS, make_sinks, paths_for
from costream.sinks.result_reader import read_results

GOLDEN = Path(__file__).with_name("golden")
TEXTS = [name for name, format in FORMATS.items() if not format.binary]
KINDS = ("run", "empty", "heads", "objects")
FILES = [
    (kind, format, path.name)
    for kind in KINDS
    for format in TEXTS
    for path in paths_for(format, Path(), "run", objects=kind == "objects")
]


def unread() -> Any:
    raise AssertionError("no text needs the pixels of a picture whose size is known")


@pytest.mark.parametrize(("kind", "format", "file"), FILES)
def test_text_is_as_it_was(
    kind: str,
    format: str,
    file: str,
    run: Any,
    run_of_heads: Any,
    run_of_objects: Any,
    tmp_path: Path,
) -> None:
    every = (run, run.empty().cut_short(), run_of_heads, run_of_objects)
    played = dict(zip(KINDS, every, strict=True))[kind]
    sinks = make_sinks([format], tmp_path, "run")
    for sink in sinks:
        sink.open(played.header)
    for record in played.records:
        for sink in sinks:
            sink.write(record)
            if isinstance(sink, PictureSink) and isinstance(record, Objects):
                frame = VideoFrame(record.frame, record.time_s, None, unread, size=(640, 480))
                sink.draw(Picture(record.time_s, frame, None))
    for sink in sinks:
        sink.close(played.summary)
    written = (tmp_path / file).read_bytes()
    golden = GOLDEN / file.replace("run.", f"{kind}.", 1)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_bytes(written)
    assert written == golden.read_bytes()


def test_json_lines_and_document_say_the_same() -> None:
    lines, document = _lines("run"), _document("run")

    def of(kind: str) -> list[dict[str, Any]]:
        rows = (dict(line) for line in lines if line["type"] == kind)
        return [row for row in rows if row.pop("type")]

    header = of("header")[0]
    assert header.pop("schema") == document["schema"] == SCHEMA
    assert header == document["header"]
    for kind, name in (("prediction", "predictions"), ("segment", "segments")):
        assert of(kind) == document[name]
    assert of("gap") == document["gaps"]
    assert of("error") == document["errors"]
    assert of("summary") == [document["summary"]]
    assert document["compute"]["macs"] == sum(row["macs"] for row in of("compute"))


def test_tables_say_the_same_as_json_lines() -> None:
    lines = _lines("run")
    labels = lines[0]["labels"]
    rows = _table("run.predictions.csv")
    predictions = [line for line in lines if line["type"] == "prediction"]
    for row, p in zip(rows, predictions, strict=True):
        assert (row["label"], float(row["score"])) == tuple(p["top"][0])
        assert (row["label_2"], float(row["score_2"])) == tuple(p["top"][1])
        assert (row["ahead_2_label"], float(row["ahead_2_score"])) == tuple(p["anticipation"][1][0])
        assert [float(row[f"p({label})"]) for label in labels] == p["scores"]
        assert json.loads(row["warmup"]) is p["warmup"]
        assert (int(row["pts"]), float(row["time_s"])) == (p["pts"], p["time_s"])
    segments = [line for line in lines if line["type"] == "segment"]
    for row, s in zip(_table("run.timeline.csv"), segments, strict=True):
        assert (float(row["start_s"]), float(row["end_s"])) == (s["start_s"], s["end_s"])
        assert (row["label"], float(row["score"])) == (s["label"], s["score"])
    costs = [line for line in lines if line["type"] == "compute"]
    for row, c in zip(_table("run.compute.csv"), costs, strict=True):
        assert (int(row["macs"]), float(row["frontend_ms"])) == (c["macs"], c["ms"]["frontend"])


def test_objects_say_the_same_in_lines_table_and_document() -> None:
    lines = _lines("objects")
    steps = [line for line in lines if line["type"] == "objects"]
    assert [{"type": "objects", **step} for step in _document("objects")["objects"]] == steps
    assert "predictions" not in _document("objects")
    boxes = [box for step in steps for box in step["boxes"]]
    for row, box in zip(_table("objects.objects.csv"), boxes, strict=True):
        assert [float(row[key]) for key in ("x1", "y1", "x2", "y2", "score")] == box[:5]
        assert [row["label"], *([int(row["id"])] if row["id"] else [])] == box[5:]
    counts = [line["count"] for line in lines if line["type"] == "segment"]
    assert [int(row["count"]) for row in _table("objects.timeline.csv")] == counts


def test_places_and_levels_say_the_same_in_lines_and_document(
    run_of_objects: Any, tmp_path: Path
) -> None:
    events = (
        ZoneEvent(0.5, "bed", "enter", "person", 1, 0.0, 1, 1, 0),
        Crossing(0.75, "door", "in", "person", 1, 1, 0),
        ZoneEvent(1.5, "bed", "leave", "person", 1, 1.0, 0, 1, 1),
        Level(1.0, -30.5, -33.25),
    )
    for sink in make_sinks(["jsonl", "json"], tmp_path, "run"):
        sink.open(run_of_objects.header)
        for record in (*run_of_objects.records, *events):
            sink.write(record)
        sink.close(run_of_objects.summary)
    lines, document = (list(read_results(tmp_path / f"run.{f}")) for f in ("jsonl", "json"))
    for event in events:
        assert event in lines
        assert event in document
    assert RunSummary.of(document).visits == RunSummary.of(lines).visits
    written = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert [len(written[name]) for name in ("zones", "crossings", "levels")] == [2, 1, 1]


def test_scores_of_several_heads_stand_below_their_labels() -> None:
    lines = _lines("heads")
    labels = {head["model"]: head["labels"] for head in lines[0]["heads"]}
    predictions = [line for line in lines if line["type"] == "prediction"]
    for row, p in zip(_table("heads.predictions.csv"), predictions, strict=True):
        scores = {k: float(v) for k, v in row.items() if k.startswith("p(") and v}
        own = [f"p({label})" for label in labels[p["model"]]]
        assert scores == dict(zip(own, p["scores"], strict=True))
        assert row["model"] == p["model"]


def _lines(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"{kind}.jsonl").read_text("utf-8").splitlines()]


def _document(kind: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / f"{kind}.json").read_text("utf-8"))
    return document


def _table(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
