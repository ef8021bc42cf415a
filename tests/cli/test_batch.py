"""``costream batch`` as a process: whole trees, kills, crashes, resumption, exit codes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from kit.media import busy, make_audio, make_video, numbered
from kit.paths import SAMPLES
from kit.program import costream, holders, start
from kit.runs import lines_in, records, refused, rows, run, snapshot, wait_until

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
FORMATS = "jsonl,json,csv,srt"
# input of the tree -> what failures.csv must say of it
DAMAGED = {
    "d1/empty.mp4": ("failed", "empty"),
    "d2/moov.mp4": ("failed", "moov"),
    "d0/garbage.mkv": ("failed", "not a video"),
    "d1/cut.mp4": ("partial", "cut off"),
    "d2/rotten.ts": ("damaged", "damage"),
}
OTHERS = {"d0/song.m4a": "only sound", "d1/notes.txt": "not a media file", "d2/cover.jpg": "image"}


def summary(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text("utf-8"))


def journal_lines(out: Path) -> int:
    return lines_in(out / ".costream" / "journal.jsonl")


def make_clips(folder: Path) -> Path:
    """Three good files."""
    folder.mkdir()
    for k in range(3):
        make_video(folder / f"{k}.mp4", 12)
    return folder


@pytest.fixture
def clips(tmp_path) -> Path:
    return make_clips(tmp_path / "clips")


@pytest.fixture
def long_clips(clips) -> Path:
    """The same, and one that takes minutes: rows of zeros, a file with a hole."""
    shape = (500_000, 288)
    np.lib.format.open_memmap(clips / "long.npy", "w+", dtype=np.float32, shape=shape)
    return clips


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """60 short files in folders, some damaged, and some that are none of the model's business."""
    root = tmp_path_factory.mktemp("recordings")
    kinds = [
        make_video(root / f"{k}.{ending}", 12 + 6 * k, pattern=busy if k % 2 else numbered)
        for k, ending in enumerate(("mp4", "mkv", "ts"))
    ]
    fast = make_video(
        root / "fast.mp4", 50, pattern=busy, container_options={"movflags": "+faststart"}
    )
    slow = make_video(root / "slow.mp4", 50, pattern=busy)
    stream = make_video(root / "stream.ts", 50, pattern=busy)
    for k in range(52):
        folder = root / f"d{k % 3}" / ("" if k % 2 else "deeper")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(kinds[k % 3], folder / f"{k:02d}{kinds[k % 3].suffix}")
    shutil.copy(SAMPLES / "room.mp4", root / "d0" / "51.mp4")  # in which things happen
    chance = random.Random(3)
    rotten = bytearray(stream.read_bytes())
    for _ in range(200):
        rotten[chance.randrange(2000, len(rotten))] = chance.randrange(256)
    (root / "d1" / "empty.mp4").write_bytes(b"")
    (root / "d2" / "moov.mp4").write_bytes(slow.read_bytes()[: slow.stat().st_size // 2])
    (root / "d0" / "garbage.mkv").write_bytes(chance.randbytes(5000))
    (root / "d1" / "cut.mp4").write_bytes(fast.read_bytes()[: fast.stat().st_size // 2])
    (root / "d2" / "rotten.ts").write_bytes(bytes(rotten))
    make_audio(root / "d0" / "song.m4a")
    (root / "d1" / "notes.txt").write_text("not, media, at all, of course")
    (root / "d2" / "cover.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    for path in (*kinds, fast, slow, stream):
        path.unlink()
    return root


@pytest.fixture(scope="module")
def reference(tree, tmp_path_factory) -> Path:
    """The output of an uninterrupted run."""
    out = tmp_path_factory.mktemp("reference") / "out"
    done = run("batch", "-m", "cooadtr", tree, "-o", out, "-f", FORMATS, "--jobs", 2, code=3)
    assert done.stdout == ""
    assert "60/60 files" in done.stderr.splitlines()[-1]
    return out


# --- what it gives ----------------------------------------------------------------------------


@pytest.mark.long
def test_every_input_is_accounted_for(tree, reference):
    told = {row["name"]: (row["status"], row["reason"]) for row in rows(reference / "failures.csv")}
    assert set(told) == set(DAMAGED)
    for name, (status, word) in DAMAGED.items():
        assert told[name][0] == status
        assert word in told[name][1]
    document = summary(reference)
    assert document["inputs"] == {"total": 60, "done": 53, "failed": 3, "partial": 1, "skipped": 3}
    assert document["complete"] is True
    assert document["exit"] == 3
    for name, reason in OTHERS.items():
        assert any(reason in r for r in document["skipped"])
        assert not list((reference / name).parent.glob(f"{Path(name).name}.*"))


def test_results_mirror_the_tree(tree, reference):
    found = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    with_results = found - set(OTHERS) - {k for k, v in DAMAGED.items() if v[0] == "failed"}
    files = set(snapshot(reference))
    for ending in ("jsonl", "json", "predictions.csv", "timeline.csv", "compute.csv", "srt"):
        assert {f"{name}.{ending}" for name in with_results} <= files
    assert len(files) == 6 * len(with_results) + 5 + 3  # tables, own files
    assert not [name for name in files if name.endswith(".part")]


def test_tables_hold_the_rows_of_all_inputs(reference):
    for table, key in (("predictions", "i"), ("timeline", "start_s")):
        merged: dict[str, list] = {}
        for row in rows(reference / f"{table}.csv"):
            merged.setdefault(row.pop("name"), []).append(row)
        assert merged
        for name, some in merged.items():
            assert [r[key] for r in some] == [
                r[key] for r in rows(reference / f"{name}.{table}.csv")
            ]
            if table == "predictions":
                assert some == rows(reference / f"{name}.{table}.csv")
    costs = rows(reference / "compute.csv")
    document = summary(reference)
    assert sum(int(row["macs"]) for row in costs) == document["macs"] > 0
    assert sum(float(row["media_s"]) for row in costs) == pytest.approx(document["media_s"])
    assert [row["name"] for row in costs] == list(dict.fromkeys(row["name"] for row in costs))
    assert len(costs) == document["inputs"]["done"] + document["inputs"]["partial"]


def test_results_are_those_of_detect(tree, reference):
    name = "d0/03.mp4"
    alone = records(costream("detect", "-m", "cooadtr", tree / name, "-f", "jsonl").stdout)
    batched = records(reference / f"{name}.jsonl")
    timed = ("ms", "wall_s", "x_realtime")
    strip = [{k: v for k, v in r.items() if k not in timed} for r in alone]
    assert [{k: v for k, v in r.items() if k not in timed} for r in batched] == strip
    assert {v for r in batched if "ms" in r for v in r["ms"].values()} == {None}


@pytest.mark.long
def test_one_worker_gives_the_same_bytes(tree, reference, tmp_path):
    run(
        "batch",
        "-m",
        "cooadtr",
        tree,
        "-o",
        tmp_path / "out",
        "-f",
        FORMATS,
        "--jobs",
        1,
        "-q",
        code=3,
    )
    assert snapshot(tmp_path / "out") == snapshot(reference)


# --- interrupted and repeated -----------------------------------------------------------------


@pytest.mark.long
@posix
def test_killed_again_and_again_the_tree_is_the_same(tree, reference, tmp_path):
    out, chance, kills = tmp_path / "out", random.Random(11), 0
    for jobs in (2, 1, 2):
        child = start(
            "batch", "-m", "cooadtr", tree, "-o", out, "-f", FORMATS, "--jobs", jobs, "-q"
        )
        enough = journal_lines(out) + chance.randrange(2, 16)
        wait_until(lambda at=enough, c=child: journal_lines(out) >= at or c.poll() is not None)
        time.sleep(chance.random() * 0.2)
        workers = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        child.kill()
        child.communicate(timeout=120)
        kills += child.returncode == -signal.SIGKILL
        _, alive = psutil.wait_procs(workers, timeout=90)
        assert not alive  # else they would write beside the next run
    assert kills >= 2
    done = run("batch", "-m", "cooadtr", tree, "-o", out, "-f", FORMATS, "--jobs", 2, code=3)
    assert "kept" in done.stderr
    assert snapshot(out) == snapshot(reference)


def start_long(clips: Path, out: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a batch; return it in the midst of the long file, and what that is written to."""
    child = start("batch", "-m", "cooadtr", clips, "-o", out, "--jobs", 1)
    part = out / "long.npy.jsonl.part"
    wait_until(lambda: part.exists() and part.stat().st_size > 10_000, child)
    return child, part


@pytest.mark.slow
@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finalise_files(long_clips, tmp_path, number, code):
    out = tmp_path / "out"
    child, _ = start_long(long_clips, out)
    # As a terminal does it: to the workers as well.
    for process in [*psutil.Process(child.pid).children(recursive=True), child]:
        process.send_signal(number)
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == code, stderr
    assert b"Traceback" not in stderr
    last = records(out / "long.npy.jsonl")[-1]
    assert (last["type"], last["complete"]) == ("summary", False)
    assert not list(out.rglob("*.part"))
    document = summary(out)
    assert document["complete"] is False
    assert document["exit"] == code
    assert document["inputs"]["not reached"] == 4
    again = run("batch", "-m", "cooadtr", long_clips, "-o", out, "--dry-run")
    assert [line.split("\t")[0] for line in again.stdout.splitlines()] == ["run"] * 4


@pytest.mark.long
@posix
def test_ctrl_c_reaches_workers_that_still_import_and_prints_nothing(clips, tmp_path):
    for after_s in (0.0, 0.3):
        child = start(
            "batch", "-m", "cooadtr", clips, "-o", tmp_path / "out", "-q", start_new_session=True
        )
        begun = psutil.Process(child.pid)
        wait_until(lambda p=begun: any("spawn_main" in " ".join(w.cmdline()) for w in p.children()))
        time.sleep(after_s)
        os.killpg(child.pid, signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (130, b"")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Path]:
    """Three good files and their results; not to be changed."""
    folder = make_clips(tmp_path_factory.mktemp("finished") / "in")
    out = folder.with_name("out")
    run("batch", "-m", "cooadtr", folder, "-o", out, "-f", "jsonl,srt", "--jobs", 1)
    return folder, out


@pytest.mark.slow
def test_a_repetition_does_only_what_is_missing(finished, tmp_path):
    folder, before = finished
    out = Path(shutil.copytree(before, tmp_path / "out"))
    call = ("batch", "-m", "cooadtr", folder, "-o", out, "-f", "jsonl,srt", "--jobs", 1)
    again = run(*call)
    assert "0/0 files" in again.stderr
    assert "3 kept" in again.stderr
    assert snapshot(out) == snapshot(before)
    (out / "1.mp4.jsonl").write_bytes((before / "1.mp4.jsonl").read_bytes()[:-20])  # cut off
    (out / "2.mp4.srt").unlink()
    redone = costream(*call)
    assert "2/2 files" in redone.stderr
    assert snapshot(out) == snapshot(before)


@pytest.mark.long
def test_with_hash_a_touched_file_is_the_same(clips, tmp_path):
    out = tmp_path / "out"
    call = ("batch", "-m", "cooadtr", clips, "-o", out, "--hash", "--jobs", 1)
    run(*call)
    before = snapshot(out)
    os.utime(clips / "0.mp4", (1, 1))
    data = bytearray((clips / "1.mp4").read_bytes())
    times = (clips / "1.mp4").stat()
    data[-1] ^= 1  # the same size and time, another content
    (clips / "1.mp4").write_bytes(bytes(data))
    os.utime(clips / "1.mp4", ns=(times.st_atime_ns, times.st_mtime_ns))
    done = costream(*call)
    assert "1/1 file " in done.stderr
    assert "2 kept" in done.stderr
    assert snapshot(out).keys() == before.keys()


@pytest.mark.long
def test_another_command_is_refused_and_overwrite_starts_again(finished, tmp_path):
    folder, before = finished
    out = Path(shutil.copytree(before, tmp_path / "out"))
    other = run(
        "batch", "-m", "cooadtr", folder, "-o", out, "-f", "jsonl,srt", "--top-k", 1, code=2
    )
    assert "top_k 3, now 1" in other.stderr
    assert "--overwrite" in other.stderr
    assert other.stderr.count("\n") == 1
    elsewhere = run("batch", "-m", "cooadtr", tmp_path, "-o", out, "-f", "jsonl,srt", code=2)
    assert "root" in elsewhere.stderr
    run("batch", "-m", "cooadtr", folder, "-o", out, "--no-skip-existing", code=2)
    assert snapshot(out) == snapshot(before)
    run("batch", "-m", "cooadtr", folder, "-o", out, "--top-k", 1, "--jobs", 1, "--overwrite")
    assert not list(out.rglob("*.srt"))
    labels = rows(out / "predictions.csv")[0]
    assert "label" in labels
    assert "label_2" not in labels


def test_files_of_others_are_not_overwritten(clips, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "1.mp4.jsonl").write_text("mine")
    refused(2, "was not made by a batch", "batch", "-m", "cooadtr", clips, "-o", out)
    assert snapshot(out) == {"1.mp4.jsonl": b"mine"}


# --- workers ----------------------------------------------------------------------------------


@pytest.mark.slow
@posix
def test_a_worker_that_crashes_costs_one_file(long_clips, tmp_path):
    out = tmp_path / "out"
    child, part = start_long(long_clips, out)
    for process in holders(part, child.pid):
        process.send_signal(signal.SIGSEGV)
    _, stderr = child.communicate(timeout=90)
    assert child.returncode == 3, stderr
    (row,) = rows(out / "failures.csv")
    assert (row["name"], row["status"]) == ("long.npy", "failed")
    assert "SIGSEGV" in row["reason"]
    assert summary(out)["inputs"] == {"total": 4, "done": 3, "failed": 1}
    assert not [name for name in snapshot(out) if "long" in name]


@pytest.mark.long
def test_a_file_that_takes_too_long_is_given_up(long_clips, tmp_path):
    out = tmp_path / "out"
    run(
        "batch",
        "-m",
        "cooadtr",
        long_clips,
        "-o",
        out,
        "--jobs",
        1,
        "--timeout-per-file",
        2,
        code=3,
    )
    (row,) = rows(out / "failures.csv")
    assert row["reason"] == "took longer than 2 s"
    assert summary(out)["inputs"]["done"] == 3
    assert not [name for name in snapshot(out) if "long" in name]


@pytest.mark.long
def test_two_batches_do_not_share_a_folder(long_clips, tmp_path):
    out = tmp_path / "out"
    child = start("batch", "-m", "cooadtr", long_clips, "-o", out, "--jobs", 1, "-q")
    try:
        wait_until(lambda: journal_lines(out) or list(out.rglob("*.part")), child)
        done = costream("batch", "-m", "cooadtr", long_clips, "-o", out)
    finally:
        child.kill()
        child.communicate(timeout=120)
    assert done.returncode == 2
    assert "another batch" in done.stderr


@pytest.mark.long
def test_fail_fast_stops_and_the_repetition_continues(clips, tmp_path):
    out = tmp_path / "out"
    (clips / "bad.mp4").write_bytes(bytes(100_000))  # the largest comes first
    run("batch", "-m", "cooadtr", clips, "-o", out, "--fail-fast", "--jobs", 1, code=4)
    assert summary(out)["complete"] is False
    assert summary(out)["inputs"] == {"total": 4, "failed": 1, "not reached": 3}
    (clips / "bad.mp4").unlink()
    run("batch", "-m", "cooadtr", clips, "-o", out, "--jobs", 1)
    assert summary(out)["inputs"] == {"total": 3, "done": 3}
    assert rows(out / "failures.csv") == []


# --- inputs and exit codes --------------------------------------------------------------------


@pytest.mark.long
def test_list_on_standard_input_with_limit(clips, tmp_path):
    listed = "\n".join(str(clips / f"{k}.mp4") for k in (2, 0, 1))
    run(
        "batch",
        "-m",
        "cooadtr",
        "-",
        "-o",
        tmp_path / "out",
        "--limit",
        2,
        "--jobs",
        1,
        input=listed,
    )
    assert [row["name"] for row in rows(tmp_path / "out" / "compute.csv")] == ["2.mp4", "0.mp4"]


def test_a_dry_run_changes_nothing(clips, tmp_path):
    (clips / "b\nad.mp4").symlink_to("nowhere")
    (clips / "d.txt").write_text("no film")
    make_audio(clips / "e.m4a")
    (clips / "f.mp4").touch()
    done = run("batch", "-m", "cooadtr", clips, "-o", tmp_path / "out", "--dry-run")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["run\t0.mp4", "run\t1.mp4", "run\t2.mp4"]
    assert lines[3:5] == ["failed\tb ad.mp4\tno such file", "skipped\td.txt\tnot a media file"]
    assert lines[5].startswith("skipped\te.m4a\tonly sound")
    assert lines[6].startswith("failed\tf.mp4\t")
    assert not (tmp_path / "out").exists()
    refused(
        5,
        "cuda:99",
        "batch",
        "-m",
        "cooadtr",
        clips,
        "-o",
        "out",
        "--dry-run",
        "--device",
        "cuda:99",
    )


@pytest.mark.long
@posix
def test_a_reader_that_leaves_ends_the_list_quietly(tmp_path):
    for k in range(4000):
        (tmp_path / f"a-file-with-a-rather-long-name-{k}.mp4").touch()
    child = start("batch", "-m", "cooadtr", tmp_path, "-o", tmp_path / "out", "--dry-run")
    assert child.stdout.readline().startswith(b"failed\t")
    child.stdout.close()
    stderr = child.stderr.read()
    assert child.wait(timeout=120) == 0, stderr
    assert stderr == b""


@pytest.mark.long
def test_records_are_kept_for_the_tables_when_not_asked_for(clips, tmp_path):
    out = tmp_path / "out"
    run(
        "batch",
        "-m",
        "cooadtr",
        clips,
        "-o",
        out,
        "-f",
        "srt",
        "--predictions",
        "none",
        "--jobs",
        1,
    )
    assert (out / "0.mp4.srt").exists()
    assert not (out / "0.mp4.jsonl").exists()
    assert (out / ".costream" / "records" / "0.mp4.jsonl").exists()
    assert not (out / "predictions.csv").exists()
    run("batch", "-m", "cooadtr", clips, "-o", out, "-f", "srt")
    assert len(rows(out / "predictions.csv")) == 12


@pytest.mark.slow
def test_predictions_as_parquet(finished, tmp_path):
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="needs the extra 'parquet'", exc_type=ImportError
    )
    folder, before = finished
    out = Path(shutil.copytree(before, tmp_path / "out"))
    told = rows(out / "predictions.csv")
    run("batch", "-m", "cooadtr", folder, "-o", out, "-f", "jsonl,srt", "--predictions", "parquet")
    assert not (out / "predictions.csv").exists()
    table = parquet.read_table(out / "predictions.parquet").to_pylist()
    assert [row["label"] for row in table] == [row["label"] for row in told]
    assert [row["score"] for row in table] == [float(row["score"]) for row in told]
    assert list(table[0]) == list(told[0])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["."], 2, "--output"),
        ([".", "-o", "-"], 2, "folder"),
        ([".", "-o", "out", "--jobs", "0"], 2, "--jobs"),
        ([".", "-o", "out", "--timeout-per-file", "0"], 2, "--timeout-per-file"),
        ([".", "-o", "out", "--ray-address", "x:1"], 2, "--engine ray"),
        (["@none.txt", "-o", "out"], 2, "none.txt"),
        ([".", "-o", "file/out"], 2, "not a folder"),
        ([".", "-o", "out", "--top-k", "0"], 2, "--top-k"),
        ([".", "-o", "out", "-m", "coadtr"], 5, "cooadtr"),
        ([".", "-o", "out", "--weights", "none.safetensors"], 5, "none.safetensors"),
        (["none.mp4", "-o", "out"], 4, "no such file"),
        ([".", "-o", "."], 2, "the output folder cannot be an input folder"),
    ],
)
def test_bad_calls_get_one_line_and_their_code(tmp_path, args, code, says):
    (tmp_path / "file").write_text("a file")
    refused(code, says, "batch", "-m", "cooadtr", *args, "--quiet", cwd=tmp_path)


@pytest.mark.long
def test_a_model_that_cannot_be_loaded_ends_the_batch_and_marks_nothing(clips, tmp_path):
    out = tmp_path / "out"
    refused(5, "cuda:99", "batch", "-m", "cooadtr", clips, "-o", out, "--device", "cuda:99", "-q")
    run("batch", "-m", "cooadtr", clips, "-o", out, "--device", "cpu", "--dry-run")


@pytest.mark.long
def test_when_nothing_is_for_the_model_it_says_so(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("text")
    np.save(tmp_path / "in" / "b.npy", np.zeros((5, 3), np.float32))
    done = run("batch", "-m", "cooadtr", tmp_path / "in", "-o", tmp_path / "out", code=4)
    assert "no input fits this model" in done.stderr
    reasons = " ".join(summary(tmp_path / "out")["skipped"])
    assert "not a media file" in reasons
    assert "rows of 3 values" in reasons
    (tmp_path / "empty").mkdir()
    done = run("batch", "-m", "cooadtr", tmp_path / "empty", "-o", tmp_path / "none", code=4)
    assert "no files found" in done.stderr


@pytest.mark.long
def test_settings_come_from_the_environment_and_from_files(clips, tmp_path):
    (tmp_path / "costream.toml").write_text("[batch]\ntop-k = 2\nlimit = 1\njobs = '1'\n")
    env = {"COSTREAM_PREDICTIONS": "none", "COSTREAM_TIMINGS": "1"}
    done = run("batch", "-m", "cooadtr", clips, "-o", "out", "-v", cwd=tmp_path, env=env)
    assert "predictions = none (environment)" in done.stderr
    assert summary(tmp_path / "out")["options"]["top_k"] == 2
    assert summary(tmp_path / "out")["inputs"] == {"total": 1, "done": 1}
    assert not (tmp_path / "out" / "predictions.csv").exists()
    lines = records(tmp_path / "out" / "0.mp4.jsonl")
    assert lines[-1]["wall_s"] > 0
    assert all(r["ms"]["network"] > 0 for r in lines if r["type"] == "compute")


def test_inputs_that_do_not_exist_leave_no_folder_in_the_way(tmp_path):
    for names in (["none"], ["none.mp4", "neither/b.mp4"], ["none.npy#1"]):
        refused(
            4, "no such file or folder", "batch", "-m", "cooadtr", *names, "-o", "out", cwd=tmp_path
        )
        assert not list(tmp_path.iterdir())
