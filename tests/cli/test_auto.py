"""No model named: each source gets the free models for its kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import costream
from costream.core.errors import UsageError
from costream.models.auto import DETECTOR, RATE_HZ, SOUND, expanded, model_for
from costream.models.catalogue import find_weights
from costream.weights_io.file import read_card
from costream.weights_io.licences import licence_class
from kit.media import excerpt, make_video
from kit.paths import ROOT, SAMPLES
from kit.program import python
from kit.runs import records, refused, rows, run

BOTH = f"{DETECTOR},{SOUND}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video with and one without sound, a sound, joints, features, and a text."""
    folder = tmp_path_factory.mktemp("mixed")
    make_video(folder / "film.mp4", 75, audio_s=3.0)
    excerpt(SAMPLES / "room.mp4", folder / "silent.mp4", 0.0, 3.0)
    shutil.copy(SAMPLES / "street.ogg", folder / "street.ogg")
    shutil.copy(SAMPLES / "moves.csv", folder / "moves.csv")
    np.save(folder / "rows.npy", np.zeros((9, 12), np.float32))
    (folder / "notes.txt").write_text("nothing to see\n")
    return folder


def test_all_of_it_is_free_and_in_the_package() -> None:
    for name in expanded("auto").split(","):
        assert licence_class(read_card(find_weights(name))) == "free"


def test_the_kind_of_a_source_decides(folder: Path, tmp_path: Path) -> None:
    inputs = [folder / name for name in ("film.mp4", "street.ogg", "silent.mp4")]
    run("detect", *inputs, "--end", "4", "-o", tmp_path, "-q")
    film, street, silent = (records(tmp_path / f"{path.name}.jsonl") for path in inputs)
    assert [part[0]["model"] for part in (film, street, silent)] == [BOTH, SOUND, BOTH]
    assert [head["model"] for head in film[0]["heads"]] == [DETECTOR, SOUND]
    assert (film[0]["rate_hz"], silent[0]["rate_hz"]) == (RATE_HZ, RATE_HZ)
    costs = [record["ran"] for record in film if record["type"] == "compute"]
    assert costs[0][DETECTOR] == "first"
    assert {cost.get(DETECTOR) for cost in costs[1:]} <= {"motion", "age", None}
    assert any(cost.get(SOUND) == "sound" for cost in costs)
    assert {record["model"] for record in film if record["type"] == "prediction"} == {SOUND}
    assert "sound" in silent[0]["options"]
    assert {record["label"] for record in silent if record["type"] == "segment"} >= {"chair"}


def test_one_table_of_all(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "all.csv"
    run("detect", folder / "silent.mp4", folder / "street.ogg", "-o", table, "--end", "12", "-q")
    found = rows(table)
    models = {(Path(row["source"]).name, row["model"]) for row in found}
    assert models == {("silent.mp4", DETECTOR), ("street.ogg", SOUND)}
    assert {row["label"] for row in found if row["model"] == SOUND} >= {"Siren"}


@pytest.mark.parametrize(
    ("name", "kind", "cure"),
    [("moves.csv", "skeletons", "-m costgcn"), ("rows.npy", "features", "-m")],
)
def test_what_no_free_model_takes_is_refused(folder: Path, name: str, kind: str, cure: str) -> None:
    line = refused(2, f"no model under a free licence takes {kind}", "detect", folder / name)
    assert cure in line


def test_a_table_that_is_not_of_joints_is_not_called_skeletons(tmp_path: Path) -> None:
    (tmp_path / "lines.csv").write_text("camera,time\n1,08:00\n2,08:30\n")
    line = refused(
        4, "there are no joints in its columns (camera, time)", "detect", tmp_path / "lines.csv"
    )
    assert "headings like" in line
    assert "skeletons" not in line


@pytest.mark.parametrize(
    "call",
    [
        ("samples/moves.csv",),
        ("samples/room.mp4", "-m", "nobody"),
        ("samples/room.mp4", "-m", "cooadtr", "--licence", "free"),
    ],
)
def test_a_model_is_refused_before_torch_is_imported(call: tuple[str, ...]) -> None:
    """Which takes seconds on a busy machine."""
    script = (
        "import sys\n"
        "from costream.__main__ import main\n"
        f"code = main({['detect', *call]!r})\n"
        "sys.exit(9 if 'torch' in sys.modules else code)\n"
    )
    done = python("-c", script, cwd=ROOT)
    assert (done.returncode, done.stdout) == (5 if "nobody" in call else 2, "")


@pytest.mark.long
def test_with_any_licence_joints_have_a_model(folder: Path) -> None:
    done = run(
        "detect", folder / "moves.csv", "--licence", "any", "--end", "4", "-f", "jsonl", "-q"
    )
    assert json.loads(done.stdout.splitlines()[0])["model"] == "costgcn"


@pytest.mark.slow
def test_a_batch_takes_each_file_by_its_kind(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("batch", folder, "-o", out, "--end", "3", "--jobs", "1", "-q")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["inputs"] == {"total": 6, "done": 3, "skipped": 3}
    models = {path.name: records(path)[0]["model"] for path in out.glob("*.jsonl")}
    assert models == {"film.mp4.jsonl": BOTH, "silent.mp4.jsonl": BOTH, "street.ogg.jsonl": SOUND}
    tables = {name: rows(out / f"{name}.csv") for name in ("timeline", "objects", "predictions")}
    models = {name: {(row["name"], row.get("model")) for row in tables[name]} for name in tables}
    assert models["timeline"] >= {("silent.mp4", DETECTOR), ("street.ogg", SOUND)}
    assert {name for name, _ in models["objects"]} == {"silent.mp4"}
    assert models["predictions"] == {("film.mp4", SOUND), ("street.ogg", SOUND)}
    again = run("batch", folder, "-o", out, "--end", "3", "--jobs", "1")
    assert "6 kept" in again.stderr


def test_a_budget_lets_the_detector_look_less_often(folder: Path) -> None:
    done = run(
        *("detect", folder / "film.mp4", "--budget", "150MMAC", "-f", "jsonl", "-q"),
    )
    costs = [record for record in records(done.stdout) if record["type"] == "compute"]
    looks = [cost for cost in costs if DETECTOR in cost["ran"]]
    assert 1 < len(looks) < len(costs) / 2
    assert {cost["budget_macs"] for cost in costs} == {150e6}


@pytest.mark.long
def test_feeds_of_a_watch(folder: Path, tmp_path: Path) -> None:
    run(
        "watch",
        "--write",
        "all",
        folder / "film.mp4",
        "--realtime",
        "--speed",
        "3",
        "-o",
        tmp_path,
        "-q",
    )
    run(
        "watch",
        "--write",
        "all",
        folder / "street.ogg",
        "--realtime",
        "--speed",
        "40",
        "-o",
        tmp_path,
        "-q",
    )
    heads = {path.name: records(path)[0]["model"] for path in tmp_path.glob("*.jsonl")}
    assert sorted(heads.values()) == sorted([BOTH, SOUND])


def test_listen_hears_with_the_same_model(folder: Path) -> None:
    for model in ([], ["-m", "auto"]):
        done = run("listen", folder / "film.mp4", *model, "-f", "jsonl", "-q", "--end", "1")
        assert json.loads(done.stdout.splitlines()[0])["model"] == SOUND


def test_values_in_memory(folder: Path) -> None:
    frames = np.zeros((6, 48, 64, 3), np.uint8)
    assert costream.detect(frames, rate_hz=5).header.model == BOTH
    taken = costream.detect((frame for frame in frames), rate_hz=5).collect()
    assert (taken.header.model, taken.summary.steps) == (BOTH, 6)
    assert costream.listen(np.zeros(32_000, np.float32), rate_hz=32_000).header.model == SOUND
    with pytest.raises(UsageError, match="no model under a free licence takes skeletons"):
        costream.detect(np.zeros((9, 25, 3), np.float32), rate_hz=9)


def test_only_auto_is_expanded() -> None:
    assert (expanded("auto"), expanded("cooadtr")) == (BOTH, "cooadtr")
    assert model_for("cooadtr", "audio") == "cooadtr"
    assert model_for("auto", None) == model_for("auto", "video") == "auto"
