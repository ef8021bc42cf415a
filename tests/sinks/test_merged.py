"""Tables over all inputs, and records without clock times."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from costream.core.errors import OutputError
from costream.runtime.batch.tables import MergedInput, MergedTables
from costream.sinks.filters import DeterministicSink
from costream.sinks.registry import make_sinks

ENDED = {"complete": True, "exit": 0}


def play(folder: Path, name: str, run: Any, *formats: str, timed: bool = False) -> Path:
    sinks = make_sinks([*formats, "jsonl"], folder, name)
    sinks = sinks if timed else [DeterministicSink(sink) for sink in sinks]
    for sink in sinks:
        sink.open(run.header)
        for record in run.records:
            sink.write(record)
        sink.close(run.summary)
    return folder / f"{name}.jsonl"


def merged_input(path: Path, name: str, **more: Any) -> MergedInput:
    summary = json.loads(path.read_text("utf-8").splitlines()[-1])
    return MergedInput(name, "done", kind="video", summary=summary, records=path, **more)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_those_of_each_input_with_its_name_first(run: Any, tmp_path: Path) -> None:
    tables = MergedTables(tmp_path)
    tables.open()
    for name in ("a/one.mp4", "two, with a comma.mp4"):
        tables.add(merged_input(play(tmp_path, name, run, "csv"), name))
    tables.add(MergedInput("bad.mp4", "failed", "no such file", 4))
    tables.add(MergedInput("text.txt", "skipped", "not media"))
    tables.close({"first": 1, **ENDED})
    for table in ("predictions", "timeline"):
        found = rows(tmp_path / f"{table}.csv")
        names = [row.pop("name") for row in found]
        alone = rows(tmp_path / f"a/one.mp4.{table}.csv")
        assert found == alone + alone
        assert names == ["a/one.mp4"] * len(alone) + ["two, with a comma.mp4"] * len(alone)
    document = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert next(iter(document)) == "first"
    assert document["inputs"] == {"total": 4, "done": 2, "failed": 1, "skipped": 1}
    assert document["macs"] == 2 * run.summary.macs
    assert rows(tmp_path / "failures.csv") == [
        {"name": "bad.mp4", "status": "failed", "exit": "4", "reason": "no such file"}
    ]
    assert [row["name"] for row in rows(tmp_path / "compute.csv")] == names[:1] + names[-1:]


def test_several_heads_have_a_column(run_of_heads: Any, tmp_path: Path) -> None:
    tables = MergedTables(tmp_path)
    tables.open()
    tables.add(merged_input(play(tmp_path, "a.mp3", run_of_heads, "csv"), "a.mp3"))
    tables.close(ENDED)
    for table in ("predictions", "timeline"):
        found = rows(tmp_path / f"{table}.csv")
        alone = rows(tmp_path / f"a.mp3.{table}.csv")
        assert found == [{"name": "a.mp3", **row} for row in alone]
        assert {row["model"] for row in found} == {"cotrans", "cosounds"}
        assert list(found[0])[:2] == ["name", "model"]


def test_damage_in_what_is_done_is_reported(run: Any, tmp_path: Path) -> None:
    tables = MergedTables(tmp_path, "none")
    tables.open()
    path = play(tmp_path, "a.ts", run)
    tables.add(merged_input(path, "a.ts", reason="2 bad packets"))
    tables.close(ENDED)
    (row,) = rows(tmp_path / "failures.csv")
    assert (row["status"], row["exit"], row["reason"]) == ("damaged", "0", "2 bad packets")
    assert not (tmp_path / "predictions.csv").exists()


def test_no_cell_is_a_formula(run: Any, tmp_path: Path) -> None:
    names = ["=cmd|calc.mp4", "@sum.mp4", "-1+1.mp4", "a=b.mp4"]
    tables = MergedTables(tmp_path)
    tables.open()
    path = play(tmp_path, "x.mp4", run)
    for name in names:
        tables.add(merged_input(path, name))
    tables.close(ENDED)
    found = [row["name"] for row in rows(tmp_path / "compute.csv")]
    assert found == [*(f"'{name}" for name in names[:3]), names[3]]


def test_empty_tables_have_their_columns(tmp_path: Path) -> None:
    tables = MergedTables(tmp_path)
    tables.open()
    tables.close(ENDED)
    for table in ("predictions", "timeline", "compute", "failures"):
        text = (tmp_path / f"{table}.csv").read_text("utf-8")
        assert text.startswith("name,")
        assert text.count("\n") == 1


def test_records_that_are_gone_are_reported(run: Any, tmp_path: Path) -> None:
    tables = MergedTables(tmp_path)
    tables.open()
    path = play(tmp_path, "a.ts", run)
    item = merged_input(path, "a.ts")
    path.unlink()
    with pytest.raises(OutputError, match=r"a\.ts\.jsonl: cannot be read"):
        tables.add(item)


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows(run: Any, tmp_path: Path) -> None:
    path = play(tmp_path, "a.ts", run)
    header, *body, last = path.read_text("utf-8").splitlines(keepends=True)
    long = tmp_path / "long.jsonl"
    long.write_text(header + "".join(body) * (20_000 // len(body)) + last, "utf-8")
    tables = MergedTables(tmp_path)
    tables.open()
    tables.add(merged_input(path, "a.ts"))
    tracemalloc.start()
    item = merged_input(path, "long")
    tables.add(MergedInput("long", "done", kind="video", summary=item.summary, records=long))
    tables.close(ENDED)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert long.stat().st_size > 2_000_000
    assert peak < 300_000


def test_untimed_records_differ_in_nothing_but_the_clock(run: Any, tmp_path: Path) -> None:
    plain = play(tmp_path, "timed", run, "json", "csv", timed=True)
    without = play(tmp_path, "untimed", run, "json", "csv")
    pairs = zip(plain.open(encoding="utf-8"), without.open(encoding="utf-8"), strict=True)
    seen = 0
    for timed, bare in pairs:
        a, b = json.loads(timed), json.loads(bare)
        for key in ("ms", "wall_s", "x_realtime"):
            if key in a:
                seen += 1
                assert a.pop(key) is not None
                told = b.pop(key)
                assert told is None or set(told.values()) == {None}
        assert a == b
    assert seen > 2
    cost = json.loads((tmp_path / "untimed.json").read_text("utf-8"))["compute"]
    assert cost["macs"] == run.summary.macs
    assert {v for stage in cost["ms"].values() for v in stage.values()} == {None}
    assert {row["network_ms"] for row in rows(tmp_path / "untimed.compute.csv")} == {""}
