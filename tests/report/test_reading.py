"""Reader of results: round trip with the sinks, damaged and foreign files."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import SourceError
from costream.core.records import Alert, Compute, Header, Prediction, Segment, Summary, to_json
from costream.sinks.result_reader import (
    NotAResultError,
    Totals,
    UnreadableRecord,
    read_results,
    runs,
)
from kit.paths import ROOT

GOLDEN = ROOT / "tests" / "sinks" / "golden"


def kinds(contents):
    return [type(content).__name__ for content in contents]


@pytest.mark.parametrize("name", ["run.jsonl", "empty.jsonl"])
def test_jsonl_comes_back_as_the_records_that_were_written(name):
    lines = [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]
    assert [to_json(record) for record in read_results(GOLDEN / name)] == lines


@pytest.mark.parametrize("name", ["run.json", "empty.json"])
def test_a_document_comes_back_as_the_records_that_were_written(name):
    document = json.loads((GOLDEN / name).read_text("utf-8"))
    found = list(read_results(GOLDEN / name))
    for member, kind in (("predictions", "prediction"), ("segments", "segment"), ("gaps", "gap")):
        expected = [{"type": kind, **row} for row in document[member]]
        assert [to_json(r) for r in found if getattr(r, "type", "") == kind] == expected
    assert found[0].schema == document["schema"]
    assert [f.values for f in found if isinstance(f, Totals)] == [document["compute"]]
    assert isinstance(found[-1], Summary)


def test_both_formats_of_a_run_say_the_same(result):
    path = result(formats="jsonl,json", scores=True, gap=(5.0, 8.0), fault_s=2.0)
    lines, document = list(read_results(path)), list(read_results(path.with_suffix(".json")))
    for kind in (Header, Prediction, Segment, Summary):
        assert [r for r in lines if isinstance(r, kind)] == [
            r for r in document if isinstance(r, kind)
        ]
    assert any(isinstance(r, Compute) for r in lines)


@pytest.mark.parametrize("dump", ["indented", "compact", "sorted"])
def test_a_document_that_another_program_rewrote_is_read(result, tmp_path, dump):
    path = result(formats="json")
    document = json.loads(path.read_text("utf-8"))
    how = {"indented": {"indent": 2}, "compact": {}, "sorted": {"sort_keys": True}}[dump]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document, **how), "utf-8")

    def content(file):
        rows = [r.values if isinstance(r, Totals) else to_json(r) for r in read_results(file)]
        return sorted(json.dumps({**row, "schema": ""}, sort_keys=True) for row in rows)

    assert content(other) == content(path)


@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_a_file_cut_anywhere_gives_what_was_whole(result, tmp_path, format):
    whole = result(formats=format, seconds=1.5)
    data = whole.read_bytes()
    records = [r for r in read_results(whole) if isinstance(r, Prediction)]
    cut = tmp_path / f"cut.{format}"
    seen, sizes = set(), []
    for size in range(0, len(data), 37):
        cut.write_bytes(data[:size])
        try:
            found = list(read_results(cut))
        except SourceError:
            sizes.append(size)
            continue
        predictions = [r for r in found if isinstance(r, Prediction)]
        assert predictions == records[: len(predictions)]
        seen.add(len(predictions))
        for damage in (f for f in found if isinstance(f, UnreadableRecord)):
            assert damage.last, "only the end is damaged"
    assert seen >= set(range(len(records)))
    assert max(sizes) < 700, "only within the header there is nothing to show"


def test_a_damaged_line_costs_only_itself(result):
    path = result()
    lines = path.read_bytes().split(b"\n")
    before = list(read_results(path))
    lines[5] = lines[5][:20]
    lines[9] = b'{"type": "prediction", "i": "x", "time_s": null, "top": 3}'
    lines[11] = b"\xff\xfe\x00" * 10
    path.write_bytes(b"\n".join(lines))
    found = list(read_results(path))
    damages = [(f.line, f.last) for f in found if isinstance(f, UnreadableRecord)]
    assert damages == [(6, False), (10, False), (12, False)]
    assert len(found) == len(before)


def test_unknown_types_and_fields_are_passed_over(result):
    path = result()
    before = list(read_results(path))
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    extended = [{**line, "novelty": {"deep": [1]}} for line in lines]
    extended.insert(3, {"type": "weather", "i": 0, "clouds": []})
    path.write_text("".join(json.dumps(line) + "\n" for line in extended), "utf-8")
    assert list(read_results(path)) == before


def test_runs_of_one_pipe_are_distinguished(result, tmp_path):
    first, second = result("a.mp4", source="a.mp4"), result("b.mp4", source="b.mp4", seconds=3.0)
    both = tmp_path / "both.jsonl"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    found = [list(run) for run in runs(both)]
    assert [run[0].source for run in found] == ["a.mp4", "b.mp4"]
    assert found == [list(read_results(first)), list(read_results(second))]


def test_a_watch_comes_back_as_it_was_written(watched):
    path = watched(runs=2, killed=True)
    first, second = (list(run) for run in runs(path))
    assert [run[0].began for run in (first, second)] == [
        "2026-11-22T04:00:00.000Z",
        "2026-11-22T05:00:00.000Z",
    ]
    assert Alert(3.5, "walk>=0.8 for 2s", "walk", 0.9, 1.5, "cam-3.mp4") in first
    assert Alert(4.5, "walk>=0.8 for 2s", "walk", 0.9, 2.5) in first
    assert isinstance(first[-1], Summary)
    assert second[-1] == UnreadableRecord(second[-1].line, "not a JSON object", last=True)
    assert [to_json(r) for r in first] == [
        json.loads(line) for line in path.read_text("utf-8").splitlines()[: len(first)]
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<html></html>",
        "[1, 2, 3]",
        "null",
        "{}",
        '{"name": "package", "version": "1.0"}',
        '{"name":\n "package"}\n',
        '{"schema": "https://json-schema.org", "header": {"schema": "other/1"}}',
        '{"type": "FeatureCollection", "features": []}',
        '{"type": "module"}\n{"type": "module"}\n',
        '{"video": "a.mp4", "segments": [{"start_s": 0.0, "end_s": 3.5, "label": "walk"}]}',
        '{"segments": [{"start_s": 0.0, "end_s": 3.5, "label": "walk"}, {"start',
        "[" * 100_000,
        '{"header": ' + "[" * 100_000,
        "\x00\x01\x02" * 1000,
    ],
)
@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_other_files_are_not_results(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(NotAResultError, match=name):
        list(read_results(path))


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_an_empty_file_says_so(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(SourceError, match="empty"):
        list(read_results(path))


def test_another_schema_says_so(result):
    path = result()
    path.write_text(path.read_text("utf-8").replace("costream/1", "costream/2", 1), "utf-8")
    with pytest.raises(SourceError, match=r"costream/2.*costream/1"):
        list(read_results(path))


@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_large_files_need_little_memory(tmp_path, format):
    path = tmp_path / f"long.{format}"
    row = '{"i": %d, "time_s": %d.0, "frame": 1, "pts": null, "top": [["walk", 0.5]]}'
    with path.open("w", encoding="utf-8") as file:
        if format == "json":
            file.write('{"schema": "costream/1", "header": {}, "predictions": [')
            file.writelines(row % (i, i) + ",\n" for i in range(20_000))
            file.write(row % (1, 1) + "]}")
        else:
            rows = (row % (i, i) for i in range(20_001))
            file.writelines('{"type": "prediction", ' + r[1:] + "\n" for r in rows)
    assert path.stat().st_size > 1_400_000
    tracemalloc.start()
    count = sum(isinstance(content, Prediction) for content in read_results(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_001
    assert peak < 700_000


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_changed_bytes_raise_the_documented_errors_only(tmp_path_factory, data):
    name = data.draw(st.sampled_from(["run.jsonl", "run.json"]))
    content = bytearray((GOLDEN / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("rot") / name
    path.write_bytes(content)
    with suppress(SourceError):
        for run in runs(path):
            list(run)
