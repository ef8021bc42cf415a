"""Reports on runs with several models."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from costream.core.errors import ExitCode
from costream.core.records import Compute, Head, Header, Prediction, Segment, StageTimes, Summary
from costream.report.command import ReportOptions, make_report
from costream.report.diff import compare
from costream.report.run_summary import RunSummary
from costream.report.timeline_strip import describe, stretches
from costream.sinks.registry import make_sinks
from costream.sinks.result_reader import read_results

HEADS = (
    Head("cotrans", "ab" * 32, ("rock", "jazz", "silence"), None, 0.0, 0.5),
    Head("cosounds", "cd" * 32, ("silence", "dog", "siren"), "silence", 0.25, 0.4),
)
STEPS = 40


def write(folder: Path, heads: tuple[Head, ...] = HEADS, *, scores: bool = True) -> Path:
    """Write ten seconds: the first head says rock, then jazz; the second dog all the time."""
    one = heads[0] if len(heads) == 1 else None
    labels = tuple(label for head in heads for label in head.labels)
    header = Header(
        *("0.1.0", ",".join(head.model for head in heads), "ef" * 32, labels, None, 4.0, 0.0),
        *("album/song.flac", "audio", 10.0, {"timeline": {"threshold": 0.5}}),
        heads=None if one else heads,
    )
    sinks = make_sinks(["jsonl", "json"], folder, "song.flac")
    for sink in sinks:
        sink.open(header)
        for i in range(STEPS):
            for head in heads:
                best = 1 if head.model == "cosounds" or i >= STEPS // 2 else 0
                p = tuple(0.8 if k == best else 0.1 for k in range(3))
                top = ((head.labels[best], 0.8),)
                model = None if one else head.model
                given = p if scores else None
                time_s = (i + 1) / 4
                sink.write(Prediction(i, time_s, i, i, top, given, None, i < 2, True, model))
            sink.write(Compute(i, time_s, 10, 30, StageTimes(1.0, 1.0, 1.0, 1.0)))
        for head, label, start_s, end_s in (
            (HEADS[1], "dog", 0.0, 10.0),
            (HEADS[0], "rock", 0.0, 5.0),
            (HEADS[0], "jazz", 5.0, 10.0),
        ):
            if head in heads:
                model = None if one else head.model
                sink.write(Segment(start_s, end_s, label, 0.8, model))
        totals = (STEPS, 3, 0, 0, 10.0, 0.5, 20.0, 400, 1200)
        sink.close(Summary(*totals, complete=True, exit=0, drift_ppm=3.5))
    return folder / "song.flac.jsonl"


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_records_come_back(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path).with_suffix(f".{ending}")
    contents = list(read_results(path))
    header = next(c for c in contents if isinstance(c, Header))
    assert header.heads == HEADS
    assert {c.model for c in contents if isinstance(c, (Prediction, Segment))} == {
        head.model for head in HEADS
    }
    assert next(c for c in contents if isinstance(c, Summary)).drift_ppm == 3.5


@pytest.mark.parametrize("scores", [True, False])
def test_each_head_is_gathered_by_itself(scores: bool, tmp_path: Path) -> None:
    digest = RunSummary.of(read_results(write(tmp_path, scores=scores)), 8)
    assert (digest.steps, digest.warmup_steps, digest.segment_count) == (STEPS, 2, 3)
    assert digest.curves is not None
    means = {label: digest.curves.means(k).mean() for label, k in digest.labels.items()}
    shared = 0.1 if scores else 0.0
    assert means["dog"] == pytest.approx(0.8)
    assert means["rock"] == pytest.approx(0.45 if scores else 0.4)
    assert means["silence (cotrans)"] == means["silence (cosounds)"] == pytest.approx(shared)
    assert digest.heads.backgrounds() == {"silence (cosounds)"}
    assert [digest.heads.threshold(label) for label in ("rock", "dog")] == [0.5, 0.4]
    timelines = [[label for *_, label in stretches(digest, head)] for head in digest.heads.names]
    assert timelines == [["rock", "jazz"], ["dog"]]
    assert describe(digest, "cosounds") == "Timeline of cosounds: 1 segment: dog 0:00.0 to 0:10.0"


def test_more_segments_than_are_kept_stay_with_their_head(tmp_path: Path) -> None:
    digest = RunSummary(8, most_segments=0)
    for content in read_results(write(tmp_path)):
        digest.add(content)
    for _ in range(100):  # so many that shares are drawn
        digest.segment_count += 2
    timelines = [{label for *_, label in stretches(digest, head)} for head in digest.heads.names]
    assert timelines == [{"rock", "jazz"}, {"dog"}]


@pytest.mark.long
def test_the_page_has_a_strip_a_head(tmp_path: Path) -> None:
    write(tmp_path / "out")
    page = tmp_path / "page.html"
    result = tmp_path / "out" / "song.flac.jsonl"
    formats = ("html", "png") if find_spec("matplotlib") else ("html",)
    options = ReportOptions((result,), str(page), formats, True, False, True)
    assert make_report(options) is ExitCode.OK
    text = page.read_text("utf-8")
    for head in HEADS:
        assert f'aria-label="Timeline of {head.model}: ' in text
        assert f"<bdi>{head.model}</bdi>" in text
    assert "Not drawn: 3 other labels" in text
    if "png" in formats:
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_what_both_runs_have_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = write(tmp_path / "both")
    other = write(tmp_path / "other", HEADS[::-1])
    assert compare(both, other, as_json=True) is ExitCode.OK
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert found["timeline"]["agreement"] == 1.0
    assert found["timeline"]["compared_s"] == 20.0  # ten seconds of each head
    assert found["scores"]["max_difference"] == 0.0


def test_one_of_several_heads_is_compared_with_its_model_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, alone = write(tmp_path / "both"), write(tmp_path / "alone", HEADS[:1])
    assert compare(both, alone, as_json=True) is ExitCode.OK
    (found,) = json.loads(capsys.readouterr().out)["files"]
    assert found["timeline"] == {**found["timeline"], "agreement": 1.0, "compared_s": 10.0}
    other = write(tmp_path / "other", HEADS[1:])
    assert compare(alone, other, as_json=True) is ExitCode.OK
    (found,) = json.loads(capsys.readouterr().out)["files"]
    differences = [(d["a"], d["b"]) for d in found["steps"]["differences"]]
    assert differences == [("rock", "dog"), ("jazz", "dog")]
