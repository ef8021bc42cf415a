"""``costream evaluate --labels`` as users run it: a model, its finished results, and timelines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from kit import data_skeleton
from kit.paths import SAMPLES
from kit.program import costream
from kit.runs import run

ACTS = ("step", "wave", "bend", "step")
ACT_S = 36 / data_skeleton.RATE_HZ  # length of one


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Two recordings of four acts each, and their timelines as CSV beside them."""
    folder = tmp_path_factory.mktemp("recordings")
    for k in range(2):
        motion = np.concatenate(
            [data_skeleton.act(label, 10 * k + i) for i, label in enumerate(ACTS)]
        )
        data_skeleton.write_motion(folder / "media" / f"{k}.csv", motion)
        lines = [
            f"{i * ACT_S},{(i + 1) * ACT_S},{label.upper()}"
            for i, label in enumerate(ACTS)
            if i != 3
        ]
        path = folder / "truth" / f"{k}.csv.timeline.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["start_s,end_s,label", *lines]) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def results(weights, recordings):
    run(
        *("detect", recordings / "media" / "0.csv", recordings / "media" / "1.csv", "-m", weights),
        *("--scores", "-f", "jsonl,audacity", "-o", recordings / "out", "-q"),
    )
    return recordings / "out"


def evaluated(*arguments):
    done = run("evaluate", *arguments, "--json")
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def result(weights, recordings):
    return evaluated(
        *("-m", weights, "--data", recordings / "media", "--labels", recordings / "truth"),
        *("--tolerance", "1s", "--png", recordings / "figure.png"),
    )[0]


def test_a_model_is_run_as_detect_runs_it(result, results, recordings):
    rows, labels = [], []
    for k in range(2):
        lines = (results / f"{k}.csv.jsonl").read_text("utf-8").splitlines()
        found = [r for r in map(json.loads, lines) if r["type"] == "prediction"]
        rows += [p["scores"] for p in found]
        # An output every other step covers two of them.
        middles = np.array([p["time_s"] for p in found]) + 1 / data_skeleton.RATE_HZ
        acts = [1 + data_skeleton.ACTS.index(label) for label in ACTS[:3]] + [0]
        labels += [acts[min(3, int(t // ACT_S))] for t in middles]
    rows, labels = np.array(rows), np.array(labels)
    frames = result["frames"]
    assert frames["frames"] == len(labels)
    assert frames["accuracy"] == pytest.approx((rows.argmax(1) == labels).mean(), abs=1e-6)
    each = [average_precision_score(labels == k, rows[:, k]) for k in range(1, 4)]
    assert frames["mAP"] == pytest.approx(np.mean(each), abs=1e-4)
    assert result["recordings"] == 2
    assert result["cost"]["macs_per_step"] > 0
    assert frames["accuracy_tolerant"] >= frames["accuracy"]


def test_results_give_the_same_without_a_model(result, results, recordings):
    found, _ = evaluated("--results", results, "--labels", recordings / "truth")
    for name in ("mAP", "calibrated_mAP", "accuracy", "calibration_error"):
        assert found["frames"][name] == pytest.approx(result["frames"][name], abs=1e-4)
    for part in ("segments", "latency"):
        assert found[part] == result[part]


def test_a_timeline_alone_gives_metrics_of_segments(result, results, recordings, tmp_path):
    for path in results.glob("*.csv.jsonl"):
        kept = [
            line
            for line in path.read_text("utf-8").splitlines()
            if json.loads(line)["type"] != "prediction"
        ]
        (tmp_path / path.name).write_text("\n".join(kept) + "\n", "utf-8")
    found, told = evaluated("--results", tmp_path, "--labels", recordings / "truth")
    assert found["frames"] is None
    assert "run with -f jsonl --scores" in told
    assert found["segments"] == result["segments"]
    assert found["starts"]["of"] == "timeline"


def test_damage_is_reported_once_a_file(results, recordings, tmp_path):
    for path in results.glob("*.csv.jsonl"):
        lines = path.read_text("utf-8").splitlines()
        lines[2:2] = ["{"] * 300
        lines[-1] = lines[-1].replace('"complete": true', '"complete": false')
        (tmp_path / path.name).write_text("\n".join(lines) + "\n", "utf-8")
    _, told = evaluated("--results", tmp_path, "--labels", recordings / "truth")
    damaged = [line for line in told.splitlines() if "damaged (" in line]
    assert len(damaged) == 2
    assert all("and 299 records more" in line for line in damaged)
    assert told.count(" s; segments after that count as missed") == 2


def test_the_truth_agrees_with_itself(recordings):
    truth = recordings / "truth"
    found, _ = evaluated("--results", truth, "--labels", truth)
    assert found["segments"]["segments"] == 6
    overlaps = ("0.1", "0.25", "0.3", "0.5", "0.7", "0.75")
    assert found["segments"]["f1"] == dict.fromkeys(overlaps, 1.0)
    assert found["segments"]["mAP"] == dict.fromkeys(overlaps)  # no scores
    assert found["instances"] is None
    assert (found["latency"]["found"], found["latency"]["median_s"]) == (1.0, 0.0)
    assert set(found["starts"]["mAP"].values()) == {1.0}


def test_a_figure_is_drawn(result, recordings):
    data = (recordings / "figure.png").read_bytes()
    assert data.startswith(b"\x89PNG")


def test_tables_for_people(results, recordings):
    done = run("evaluate", "--results", results, "--labels", recordings / "truth")
    for words in ("mAP", "expected calibration error", "tIoU", "Action starts", "Confusion"):
        assert words in done.stdout
    assert "no intervals: too few recordings" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--data", "x"), "give either a model or results"),
        (("-m", "cooadtr", "--results", "x"), "give either a model or results"),
        (("--results", "x"), "--labels: needed to evaluate results"),
        (("-m", "cooadtr"), "--data: needed to evaluate a model"),
        (
            ("-m", "cooadtr", "--data", "x", "--protocol", "thumos14"),
            "--protocol: applies to complete",
        ),
        (("-m", "cooadtr", "--data", "x", "--tolerance", "1s"), "--tolerance: applies to complete"),
        (
            ("-m", "cooadtr", "--data", "x", "--tokens", "3"),
            "--tokens: applies to object detectors",
        ),
        (("-m", "cooadtr", "--data", "x", "--tokens", "3,some"), "'some' does not say which"),
        (("--results", "nowhere", "--labels", "x"), "no such file or folder of results"),
        (
            ("-m", "cooadtr", "--data", ".", "--labels", "nowhere"),
            "no such label file or folder",
        ),
        (
            ("-m", "cooadtr", "--data", SAMPLES / "room.mp4"),
            "room.mp4: is a recording or other data, not a text with labels; name the labels"
            " of a recording with --labels FILE",
        ),
        (
            ("-m", "cooadtr", "--data", SAMPLES / "band.ogg"),
            "name the labels of a recording with --labels FILE",
        ),
    ],
)
def test_wrong_options_are_reported_before_anything_runs(arguments, told, tmp_path):
    done = costream("evaluate", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stdout == ""


def test_a_protocol_refuses_other_labels(weights, recordings):
    done = costream(
        *("evaluate", "-m", weights, "--data", recordings / "media"),
        *("--labels", recordings / "truth", "--protocol", "thumos14"),
    )
    assert done.returncode == 2
    expected = "the labels of tiny differ from those of THUMOS14: it lacks 'BaseballPitch'"
    assert expected in done.stderr


def test_a_recording_that_cannot_be_read_is_left_out(weights, recordings, tmp_path):
    for k in range(2):
        (tmp_path / f"{k}.csv").write_bytes((recordings / "media" / f"{k}.csv").read_bytes())
    (tmp_path / "1.csv").write_text("time,hips_x\n0,nonsense\n", "utf-8")
    done = costream(
        *("evaluate", "-m", weights, "--data", tmp_path, "--labels", recordings / "truth", "--json")
    )
    assert done.returncode == 3
    assert "1.csv" in done.stderr
    result = json.loads(done.stdout)
    assert (result["recordings"], result["failed"]) == (1, 1)
    alone = costream(
        *("evaluate", "-m", weights, "--data", tmp_path / "1.csv"),
        *("--labels", recordings / "truth"),
    )
    lines = alone.stderr.splitlines()
    assert (alone.returncode, len(set(lines))) == (4, len(lines))
