"""Comparison of two runs: as text and JSON, against plain counts over their steps."""

from __future__ import annotations

import json

import pytest

from costream.__main__ import main
from costream.core.records import Prediction, Segment
from costream.sinks.result_reader import read_results


@pytest.fixture
def diff(capsys, tmp_path):
    """Compare tmp_path/a with tmp_path/b, or two given files, as JSON and as text."""

    def call(a=None, b=None):
        paths = [str(a or tmp_path / "a"), str(b or tmp_path / "b")]
        assert main(["report", "--diff", "--json", *paths]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["report", "--diff", *paths]) == 0
        return found, capsys.readouterr().out

    return call


def test_the_same_results_are_the_same(result, diff):
    result(to="a", formats="jsonl")
    result(to="b", formats="json")
    found, text = diff()
    (file,) = found["files"]
    assert file["equal"] is True
    assert file["steps"]["agreement"] == file["timeline"]["agreement"] == 1
    assert file["steps"]["differences"] == file["timeline"]["differences"] == []
    assert file["scores"]["max_difference"] == 0
    assert file["settings"] == {}
    assert "clip.mp4  the same" in text
    assert "1 run compared, 1 the same; the steps agree for 100 % of 0:20.0" in text


def test_agreement_is_the_share_of_steps_with_the_same_label(result, diff):
    a = result(to="a", seed=1, seconds=60.0, scores=True)
    b = result(to="b", seed=2, seconds=60.0, scores=True)
    found, text = diff()
    (file,) = found["files"]
    steps_a = [r for r in read_results(a) if isinstance(r, Prediction)]
    steps_b = [r for r in read_results(b) if isinstance(r, Prediction)]
    pairs = list(zip(steps_a, steps_b, strict=True))
    same = [p.top[0][0] == q.top[0][0] for p, q in pairs]
    assert 0 < sum(same) < len(same)
    assert file["steps"]["agreement"] == pytest.approx(sum(same) / len(same), abs=1e-6)
    listed = file["steps"]["differences"]
    assert sum(d["end_s"] - d["start_s"] for d in listed) == pytest.approx(same.count(False) / 8)
    apart = [abs(x - y) for p, q in pairs for x, y in zip(p.scores, q.scores, strict=True)]
    assert file["scores"]["compared"] == len(apart)
    assert file["scores"]["mean_difference"] == pytest.approx(sum(apart) / len(apart), abs=1e-6)
    assert file["scores"]["max_difference"] == pytest.approx(max(apart), abs=1e-6)
    assert file["equal"] is False
    assert f"the 10 longest of {len(listed)} differences" in text


def test_timelines_are_compared_over_the_time_of_events(result, diff):
    a, b = (result(to=to, seed=k, seconds=60.0) for k, to in ((1, "a"), (2, "b")))
    (file,) = diff()[0]["files"]

    def label(path):
        found = [r for r in read_results(path) if isinstance(r, Segment)]
        return [
            next((s.label for s in found if s.start_s <= k / 8 < s.end_s), None) for k in range(480)
        ]

    pairs = [(x, y) for x, y in zip(label(a), label(b), strict=True) if x or y]
    agree = sum(x == y for x, y in pairs)
    assert file["timeline"]["compared_s"] == pytest.approx(len(pairs) / 8)
    assert file["timeline"]["agreement"] == pytest.approx(agree / len(pairs), abs=1e-6)


def test_runs_at_different_rates_are_compared_in_time(result, diff):
    result(to="a", seconds=40.0, rate_hz=8.0)
    result(to="b", seconds=40.0, rate_hz=2.0)
    (file,) = diff()[0]["files"]
    assert file["settings"]["rate_hz"] == {"a": 8.0, "b": 2.0}
    assert file["steps"]["compared_s"] == pytest.approx(40.0, abs=0.5)
    # The same script: they differ only around its changes, which the slower one sees later.
    assert 0.85 < file["steps"]["agreement"] < 1


def test_a_gap_on_one_side_is_not_compared(result, diff):
    result(to="a", seconds=40.0)
    result(to="b", seconds=40.0, gap=(10.0, 20.0))
    (file,) = diff()[0]["files"]
    assert file["steps"]["compared_s"] == pytest.approx(31.0)  # a value holds for a second
    assert file["cost"]["gaps"] == {"a": 0, "b": 1}
    assert (file["only_a_s"], file["only_b_s"]) == ([[10.0, 20.0]], [])
    differences = file["timeline"]["differences"]
    assert not [d for d in differences if d["start_s"] < 20 and d["end_s"] > 10]


def test_only_what_both_runs_cover_is_compared(result, diff):
    """B ends before A: the later events of A are no differences."""
    result(to="a", seconds=60.0)
    result(to="b", seconds=40.0)
    found, text = diff()
    (file,) = found["files"]
    assert file["timeline"]["compared_s"] > 20
    # The script ends the segment at 40 s in A alone.
    assert all(d["end_s"] == 40.0 for d in file["timeline"]["differences"])
    assert (file["only_a_s"], file["only_b_s"]) == ([[40.0, 60.0]], [])
    assert "  only A covers 0:40.00 to 1:00.00\n" in text


def test_models_weights_options_and_costs_are_reported(result, diff):
    result(to="a")
    result(to="b", model="oadtr", weights="cd" * 32, top_k=2)
    found, text = diff()
    (file,) = found["files"]
    assert file["settings"]["model"] == {"a": "cooadtr", "b": "oadtr"}
    assert file["settings"]["weights_sha256"] == {"a": "ab" * 32, "b": "cd" * 32}
    assert file["settings"]["options.top_k"] == {"a": 3, "b": 2}
    assert file["cost"]["macs_per_step"]["a"] == 43_464_000
    assert "abababababab | cdcdcdcdcdcd" in text


def test_files_of_one_side_only_are_named(result, diff):
    result("x/one.mp4", to="a")
    result("x/both.mp4", to="a")
    result("x/both.mp4", to="b")
    result("two <b>\x1b[0m.mp4", to="b")
    found, text = diff()
    assert [f["name"] for f in found["files"]] == ["x/both.mp4"]
    assert (found["only_a"], found["only_b"]) == (["x/one.mp4"], ["two <b>\x1b[0m.mp4"])
    assert "only in A: x/one.mp4" in text
    assert "\x1b" not in text


def test_a_run_that_was_killed_is_compared_as_far_as_it_goes(result, diff, tmp_path):
    a = result(to="a")
    data = a.read_bytes()
    b = tmp_path / "b.jsonl"
    b.write_bytes(data[: len(data) // 2])
    (file,) = diff(a, b)[0]["files"]
    assert file["equal"] is False
    assert file["steps"]["agreement"] == 1
    assert 5 < file["steps"]["compared_s"] < 15
    assert file["cost"]["complete"] == {"a": True, "b": False}


def test_one_unreadable_file_does_not_stop_the_others(result, tmp_path, capsys):
    for to in ("a", "b"):
        result("good.mp4", to=to)
        result("bad.mp4", to=to)
    (tmp_path / "b" / "bad.mp4.jsonl").write_bytes(b"")
    assert main(["report", "--diff", "--json", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    done = capsys.readouterr()
    assert [f["name"] for f in json.loads(done.out)["files"]] == ["good.mp4"]
    assert "bad.mp4.jsonl: the file is empty" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--diff", "a"], 2, "two files or two folders"),
        (["--diff", "a", "b", "a"], 2, "two files or two folders"),
        (["--diff", "a", "a/clip.mp4.jsonl"], 2, "not one of each"),
        (["--diff", "a", "b", "-o", "x.html"], 2, "neither -o nor -f"),
        (["--diff", "a", "nowhere"], 4, "no such file or folder"),
        (["--json", "a"], 2, "--json needs --diff"),
    ],
)
def test_what_cannot_be_compared(result, tmp_path, capsys, monkeypatch, arguments, code, said):
    result(to="a")
    result(to="b")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == code
    done = capsys.readouterr()
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_what_is_not_a_result_is_not_compared(result, tmp_path, capsys):
    result(to="a")
    for name in ("other.json", "b/clip.mp4.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"type": "something"}\n')
    pairs = (("a/clip.mp4.jsonl", "other.json"), ("other.json", "other.json"), ("a", "b"))
    for first, second in pairs:
        assert main(["report", "--diff", str(tmp_path / first), str(tmp_path / second)]) == 4
        assert capsys.readouterr().err.startswith("costream: skipped: ")
