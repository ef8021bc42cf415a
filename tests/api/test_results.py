"""Results in memory: tables, files, pages, reading back."""

from __future__ import annotations

import csv
import dataclasses
import sys

import pytest

import costream
from costream.core.errors import OutputError, SourceError, UsageError
from kit.paths import SAMPLES


@pytest.fixture(scope="module")
def result() -> costream.Results:
    return costream.detect(SAMPLES / "room.mp4", end=16, scores=True, model="cooadtr").collect()


def test_files_by_their_suffix(result, tmp_path):
    for name in ("a.jsonl", "a.json", "a.srt", "a.csv", "a.html"):
        assert result.save(tmp_path / name) == [tmp_path / name]
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [segment.label for segment in result.segments]
    page = (tmp_path / "a.html").read_text()
    assert "walk" in page
    assert page.lower().startswith("<!doctype html>")


def test_a_folder_takes_formats(result, tmp_path):
    paths = result.save(tmp_path / "out", formats=["csv", "srt"])
    assert {path.name for path in paths} >= {"room.mp4.timeline.csv", "room.mp4.srt"}
    assert all(path.is_file() for path in paths)


def test_what_is_written_is_read_back(result, tmp_path):
    for name in ("a.jsonl", "a.json"):
        result.save(tmp_path / name)
        again = costream.Results.read(tmp_path / name)
        assert [s.label for s in again.segments] == [s.label for s in result.segments]
        assert [p.i for p in again.predictions] == [p.i for p in result.predictions]
        assert again.summary.steps == result.summary.steps


def test_instances_end_as_the_timeline(result, tmp_path):
    result.save(tmp_path / "a.jsonl")
    for results in (result, costream.Results.read(tmp_path / "a.jsonl")):
        reports = results.instances()
        final = [(i.label, i.start_s, i.end_s) for i in reports if i.final]
        wanted = [(s.label, s.start_s, s.end_s) for s in results.segments]
        assert [x[0] for x in final] == [x[0] for x in wanted]
        for found, segment in zip(final, wanted, strict=True):
            assert found[1:] == pytest.approx(segment[1:], abs=0.13)  # a step at the end
        earlier = results.instances(look_back_s=2.0)
        assert all(a.start_s <= b.start_s for a, b in zip(earlier, reports, strict=True))
    few = costream.Results(result.header, (), result.summary)
    assert few.instances() == []
    without = [dataclasses.replace(p, scores=None) for p in result.predictions]
    with pytest.raises(UsageError, match="scores of all labels; run with scores=True"):
        costream.Results(result.header, tuple(without), result.summary).instances()
    several = dataclasses.replace(result.header, background=None)
    with pytest.raises(UsageError, match="labels of cooadtr do not exclude one another"):
        costream.Results(several, (), result.summary).instances()


def test_tables(result):
    pandas = pytest.importorskip("pandas", reason="needs the extra 'pandas'")
    segments = result.to_dataframe()
    assert isinstance(segments, pandas.DataFrame)
    assert list(segments["label"]) == [segment.label for segment in result.segments]
    predictions = result.to_dataframe("predictions")
    assert predictions["walk"].between(0, 1).all()
    assert (predictions["label"] == [p.top[0][0] for p in result.predictions]).all()
    assert list(result.to_dataframe("gaps").columns) == ["start_s", "end_s", "reason"]


def test_without_pandas_it_says_so(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"costream\[pandas\]"):
        result.to_dataframe()


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(result):
    shown = result._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "walk" in shown
    assert "room.mp4: 128 steps" in repr(result)


@pytest.mark.parametrize(
    ("name", "formats", "words"),
    [
        ("a.xyz", None, "says no format"),
        ("a.mp4", None, "needs the frames"),
        ("out", "mp4", "needs the frames"),
        ("out", "nonsense", "nonsense"),
    ],
)
def test_formats_that_cannot_be_written(result, tmp_path, name, formats, words):
    with pytest.raises(UsageError, match=words):
        result.save(tmp_path / name, formats)


@pytest.mark.parametrize("name", ["a.html", "a.json"])
def test_files_that_cannot_be_written(result, tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / name).mkdir()
    for path in (tmp_path / name, tmp_path / "file" / name, tmp_path / f"{'a' * 300}{name}"):
        with pytest.raises(OutputError, match="cannot write"):
            result.save(path, overwrite=True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.save(None), "save: the name of a file, not NoneType"),
        (lambda r: r.save(""), "the name of a file"),
        (lambda r: r.save("out", 5), "no format '5'"),
        (lambda r: r.save("out", ["csv", 5]), "no format '5'"),
        (lambda r: costream.Results.read(None), "read: the name of a file, not NoneType"),
        (lambda r: r.to_dataframe(["segments"]), "there is no table"),
    ],
)
def test_arguments_of_another_type(result, call, words):
    with pytest.raises(UsageError, match=words):
        call(result)


def test_existing_files_are_kept(result, tmp_path):
    result.save(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"exists already; use overwrite=True$"):
        result.save(tmp_path / "a.json")
    result.save(tmp_path / "out", "srt")
    with pytest.raises(UsageError, match=r"exists already; use overwrite=True$"):
        result.save(tmp_path / "out", "srt")
    with pytest.raises(UsageError, match=r"exists already; use overwrite=True$"):
        costream.detect(
            SAMPLES / "room.mp4", output=tmp_path / "out", format="srt", model="cooadtr"
        )
    result.save(tmp_path / "a.json", overwrite=True)
    result.save(tmp_path / "a.html")
    with pytest.raises(UsageError, match="exists"):
        result.save(tmp_path / "a.html")
    (tmp_path / "cut.jsonl").write_text((tmp_path / "a.json").read_text()[:50])
    with pytest.raises(SourceError):
        costream.Results.read(tmp_path / "cut.jsonl")


def test_printed_it_is_the_timeline_and_it_iterates(result):
    name, columns, *found, _, _ = str(result).splitlines()
    assert (name, columns.split()) == ("room.mp4", ["start", "end", "length", "label", "score"])
    assert [line.split()[-1] for line in found] == [f"{s.score:.2f}" for s in result.segments]
    assert (tuple(result), len(result)) == (result.records, len(result.records))
    assert repr(result).startswith("<Results of cooadtr on ")


@pytest.mark.parametrize("name", ["segments", "to_dataframe", "save"])
def test_a_run_says_how_to_get_results(name):
    with costream.detect(SAMPLES / "room.mp4", end=1, model="cooadtr") as run:
        with pytest.raises(AttributeError, match=rf"collect\(\), then result.{name}$"):
            getattr(run, name)
        assert not hasattr(run, "gist")


def test_the_package_lists_its_names():
    assert sorted(costream.__all__) == dir(costream)
    assert {"detect", "listen", "watch", "load_model", "Results"} <= {*dir(costream)}
