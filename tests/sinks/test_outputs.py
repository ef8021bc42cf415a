"""Outputs and sums that several formats share: what the conformance suite does not reach."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.costs import CostTotals
from costream.core.errors import OutputError, UsageError
from costream.core.records import Compute, Prediction, Segment, StageTimes
from costream.sinks.atomic import AtomicFile, part_path
from costream.sinks.registry import FORMATS, check_outputs, make_sinks
from kit.paths import SAMPLES
from kit.program import costream, environment, start

ROOM = SAMPLES / "room.mp4"

WRITER = """
import sys, time
from pathlib import Path
from costream.core.records import Gap, Header
from costream.sinks.registry import make_sinks
(sink,) = make_sinks(["jsonl"], Path(sys.argv[1]), "clip.mp4")
sink.open(Header("0", "m", "0", ("a",), None, 10.0, 0.0, "clip.mp4", "video", None, {}))
for i in range(50):
    sink.write(Gap(i, i + 1.0, "test"))
print("written", flush=True)
time.sleep(60)
"""


def test_killed_before_close_leaves_a_readable_part(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    part = tmp_path / "clip.mp4.jsonl.part"
    assert list(tmp_path.iterdir()) == [part]
    records = [json.loads(line) for line in part.read_text("utf-8").splitlines()]
    assert [record["type"] for record in records] == ["header"] + 50 * ["gap"]


def test_a_second_run_with_the_same_output_is_one_line(tmp_path: Path) -> None:
    clip, out = tmp_path / "clip.mp4", tmp_path / "out"
    shutil.copy(ROOM, clip)
    command = (
        "detect",
        "-m",
        "cooadtr",
        clip,
        "-o",
        out,
        "--format",
        "jsonl",
        "--overwrite",
        "-q",
        "--end",
        "4",
    )
    first = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(first, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        before = (out / "clip.mp4.jsonl.part").read_text("utf-8")
        second = costream(*command)
        assert second.returncode == 2
        assert second.stderr.splitlines() == [
            f"costream: {out}/clip.mp4.jsonl: another run writes to it; name another output with -o"
        ]
        assert (out / "clip.mp4.jsonl.part").read_text("utf-8") == before
        process.kill()
    assert costream(*command).returncode == 0  # a crash leaves the part, without its lock
    assert [path.name for path in out.iterdir()] == ["clip.mp4.jsonl"]


@pytest.mark.long
def test_two_runs_at_once_do_not_mix_their_lines(tmp_path: Path) -> None:
    command = (
        "detect",
        "-m",
        "cooadtr",
        ROOM,
        "-o",
        tmp_path,
        "--format",
        "jsonl",
        "-q",
        "--end",
        "6",
    )
    runs = [start(*command) for _ in range(2)]
    messages = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], messages
    (path,) = tmp_path.iterdir()
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    kinds = [record["type"] for record in records]
    assert (kinds.count("header"), kinds.count("summary")) == (1, 1)
    assert records[-1]["complete"] is True


@pytest.mark.parametrize("format", sorted(f for f in FORMATS if not FORMATS[f].binary))
def test_events_are_in_the_file_at_once(format: str, run: Any, tmp_path: Path) -> None:
    sinks = make_sinks([format], tmp_path, "x")
    for sink in sinks:
        sink.open(run.header)
        sink.write(Segment(0.0, 1.0, "sudden", 0.5))
    texts = [path.read_text("utf-8") for path in tmp_path.glob("*.part")]
    for sink in sinks:
        sink.close(run.summary)
    at_the_end = ("json", "eaf", "textgrid", "boris", "chapters", "ffmetadata", "edl", "otio")
    if format not in (*at_the_end, "coco", "lines", "joints"):  # the last three have no segments
        assert any("sudden" in text for text in texts)


def test_steps_are_in_the_file_soon(run: Any, tmp_path: Path) -> None:
    (sink,) = make_sinks(["jsonl"], tmp_path, "x")
    sink.open(run.header)
    part = part_path(tmp_path / "x.jsonl")
    end_s = time.monotonic() + 30
    i = 0
    while '"type": "prediction"' not in part.read_text("utf-8"):
        assert time.monotonic() < end_s, "nothing was flushed"
        sink.write(Prediction(i, i / 10, i, i, (("walk", 0.5),)))
        time.sleep(0.01)
        i += 1
    sink.close(run.summary)


def test_an_old_part_is_replaced_and_a_late_comer_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    part_path(path).write_text("left by a killed run")
    file = AtomicFile(path)
    file.open()
    file.write("new")
    path.write_text("appeared meanwhile")
    with pytest.raises(OutputError, match=r"appeared during the run; the results are in .*x\.part"):
        file.finish()
    assert path.read_text() == "appeared meanwhile"
    assert part_path(path).read_text() == "new"


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .File name too long"):
        AtomicFile(tmp_path / ("x" * 300)).open()
    with pytest.raises(UsageError, match=r"cannot be written .File name too long"):
        check_outputs(["jsonl"], tmp_path, "x" * 300, overwrite=False)


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        check_outputs(["jsonl"], tmp_path, "x", overwrite=True)


def test_totals_against_numpy() -> None:
    rng = np.random.default_rng(3)
    ms = rng.lognormal(0.0, 1.5, (5000, 4))
    totals = CostTotals()
    for i, row in enumerate(ms):
        totals.add(Compute(i, i / 10, 10 + i, 100, StageTimes(*row), lag_s=0.1, dropped=i // 9))
    out = totals.to_json()
    assert out["steps"] == 5000
    assert out["macs"] == 10 * 5000 + 4999 * 2500
    assert out["dense_macs_per_step"] == 100
    assert (out["dropped"], out["max_lag_s"]) == (555, 0.1)
    for k, name in enumerate(("decode", "frontend", "network", "sink")):
        assert out["total_s"][name] == pytest.approx(ms[:, k].sum() / 1000)
        _check_times(out["ms"][name], ms[:, k])
    _check_times(out["ms"]["step"], ms.sum(axis=1))


def _check_times(out: dict[str, float], ms: np.ndarray) -> None:
    assert out["mean"] == pytest.approx(ms.mean())
    assert out["max"] == ms.max()
    for percent in (50, 90, 99):
        exact = np.percentile(ms, percent, method="inverted_cdf")
        assert out[f"p{percent}"] == pytest.approx(exact, rel=0.011)


def test_totals_of_nothing_and_of_no_time() -> None:
    out = CostTotals().to_json()
    assert out["steps"] == out["macs"] == out["ms"]["step"]["p99"] == 0
    assert out["macs_per_step"] is None
    totals = CostTotals()
    totals.add(Compute(0, 0.0, 1, 1, StageTimes(0.0, 0.0, 0.0, 1e9)))
    ms = totals.to_json()["ms"]
    assert ms["decode"] == dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    assert ms["sink"]["max"] == 1e9
