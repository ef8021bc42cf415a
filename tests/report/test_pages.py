"""Reports on many runs: a short overview, and a page for each run."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.__main__ import main
from costream.draw.palette import Palette
from costream.report.overview import ReportOverview
from costream.report.report_builder import MOST_ON_A_PAGE
from costream.report.run_summary import RunSummary
from costream.report.section import Run
from costream.report.timeline_strip import outline
from costream.sinks.result_reader import runs
from kit.pages import Page


def links(page: Page) -> list[str]:
    return [found["href"] for name, found in page.tags if name == "a" and "_files" in found["href"]]


def test_each_run_has_a_page_that_leads_back(many):
    overview = Page(many / "report.html")
    assert overview.count("article") == 0
    found = links(overview)
    assert len(found) == len(set(found)) == MOST_ON_A_PAGE + 1
    for link in found:
        path = many / unquote(link)
        page = Page(path)
        assert page.count("article") == 1
        back = [a["href"] for name, a in page.tags if name == "a" and ".." in a["href"]]
        assert (path.parent / unquote(back[0])).resolve() == (many / "report.html").resolve()
    assert "clip #0.mp4" in page.text or "clip #9.mp4" in page.text


def test_a_page_is_that_of_the_run_alone(many, tmp_path):
    alone = tmp_path / "alone.html"
    result = many / "day 1" / "clip #0.mp4.jsonl"
    assert main(["report", str(result), "-o", str(alone)]) == 0
    text = alone.read_text("utf-8")
    article = text[text.index("<h1>") : text.index("</article>")].replace(
        "clip #0", "day 1/clip #0"
    )
    paged = Page(many / "report_files" / "r1.html").source
    assert article.split("</h1>")[1] in paged


@pytest.mark.long
def test_an_earlier_report_is_replaced_only_when_asked(many, tmp_path, capsys):
    out = Path(shutil.copytree(many, tmp_path / "out"))
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 2
    assert "report_files: exists already; use --overwrite" in capsys.readouterr().err
    assert not (out / "report.html").exists()
    (out / "report_files" / "notes.html").write_text("mine")
    (out / "report_files" / "r9999.html").write_text("of a longer report")
    assert main(["report", str(out), "--overwrite", "--no-thumbnails"]) == 0
    assert not (out / "report_files" / "r9999.html").exists()
    (out / "day 1" / "clip #0.mp4.jsonl").unlink()
    assert main(["report", str(out), "--overwrite"]) == 0
    assert Page(out / "report.html").count("article") == MOST_ON_A_PAGE
    assert [path.name for path in (out / "report_files").iterdir()] == ["notes.html"]


def test_standard_output_takes_one_page(many, capsys):
    before = sorted(many.rglob("*"))
    assert main(["report", str(many), "-o", "-", "-q"]) == 0
    assert capsys.readouterr().out.count("<article") == MOST_ON_A_PAGE + 1
    assert sorted(many.rglob("*")) == before


@pytest.mark.long
def test_the_overview_of_a_thousand_runs_stays_short(result):
    labels = ("none", *(f"a label with a rather long name, number {k}" for k in range(30)))
    path = result(labels=labels, seconds=1200.0, segment_s=(0.5, 3.0), gap=(20.0, 31.5))
    (contents,) = (list(contents) for contents in runs(path))
    digest, palette = RunSummary.of(contents), Palette()
    assert digest.segment_count > 500
    palette.add(labels, labels, labels[:1])
    overview = ReportOverview(most_blocks=20)
    overview.add(Run("day 1/recording 1.mp4", digest, ""), palette, "report_files/r1000.html")
    overview.rows *= 1000
    assert len(overview.section("many", palette).encode()) < 2_000_000


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abc")), max_size=60), st.integers(1, 30)
)
def test_an_outline_is_short_and_in_order(ends, most):
    ends.sort()
    starts = [0.0, *(end for end, _ in ends)]
    found = [(a, b, label) for a, (b, label) in zip(starts, ends, strict=False)]
    pieces = outline(found, most)
    assert len(pieces) <= max(most, 0)
    edges = [edge for start, end, _ in pieces for edge in (start, end)]
    assert edges == sorted(edges)
    assert all(0 <= edge <= 1 for edge in edges)
    if len(found) <= most:
        assert pieces == found
    assert {label for *_, label in pieces} <= {label for *_, label in found}


def test_an_outline_keeps_the_largest_parts():
    found = [(k / 100, (k + 1) / 100, "ab"[k >= 50] if k % 10 else "c") for k in range(100)]
    assert outline(found, 10) == [(0.0, 0.5, "a"), (0.5, 1.0, "b")]
    assert outline([(0.0, 0.01, "a"), (0.99, 1.0, "b"), (1.0, 1.0, "c")], 2) == []
