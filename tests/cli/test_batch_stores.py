"""``costream batch`` over a server and an archive: the same results, resumed, no credentials."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import pytest

from kit.fileserver import LOGIN, serving
from kit.media import busy, make_video
from kit.program import start
from kit.runs import refused, rows, run, snapshot, wait_until

pytest.importorskip("aiohttp", reason="needs the extra 'stores'")


def results(folder: Path) -> dict[str, bytes]:
    """What there is but for the lines that say where it comes from."""
    own = {k: v for k, v in snapshot(folder).items() if not k.startswith(".costream/")}
    del own["summary.json"]
    return {name: data[data.index(b"\n") :] for name, data in own.items()}


@pytest.fixture
def clips(tmp_path) -> Path:
    folder = tmp_path / "clips"
    (folder / "deeper").mkdir(parents=True)
    for k in range(3):
        make_video(folder / ("deeper" if k % 2 else "") / f"{k} #.mp4", 12 + k)
    whole = make_video(folder / "cut.ts", 50, pattern=busy)
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "notes.txt").write_text("not media")
    return folder


def test_a_server_gives_what_the_folder_gives(clips, tmp_path):
    local, out = tmp_path / "local", tmp_path / "out"
    run("batch", "-m", "cooadtr", clips, "-o", local, "--jobs", 1, code=3)
    with serving(clips) as url:
        call = ("batch", "-m", "cooadtr", url, "-o", out, "--jobs", 2)
        done = run(*call, code=3)
        assert results(out) == results(local)
        before = snapshot(out)
        assert not [name for name in before if "fetched" in name]
        told = b"".join(before.values()).decode() + done.stdout + done.stderr
        assert not {word for word in LOGIN.split(":") if word in told}
        assert '"source": "http://***@127.0.0.1' in told
        # Again: only what failed is tried once more, and what has changed.
        again = run(*call, code=3)
        assert "1/1 file " in again.stderr
        assert "5 kept" in again.stderr
        assert snapshot(out) == before
        make_video(clips / "0 #.mp4", 40)
        assert "2/2 files" in run(*call, code=3).stderr
    assert json.loads((out / "summary.json").read_text("utf-8"))["inputs"]["done"] == 4


def test_an_archive_of_this_machine(clips, tmp_path):
    with zipfile.ZipFile(tmp_path / "clips.zip", "w") as archive:
        for path in clips.rglob("*.mp4"):
            archive.write(path, path.relative_to(clips))
    run(
        "batch",
        "-m",
        "cooadtr",
        "zip://::clips.zip",
        "-o",
        "out",
        "--jobs",
        1,
        cwd=tmp_path,
        code=3,
    )
    for path in clips.rglob("*#.mp4"):
        name = path.relative_to(clips).as_posix()
        assert (tmp_path / "out" / f"{name}.jsonl").exists()


def test_a_list_with_urls_that_lead_nowhere(clips, tmp_path):
    with serving(clips) as url:
        listed = "\n".join(f"{url}{name}" for name in ("0%20%23.mp4", "none.mp4", "0%20%23.mp4?a"))
        run(
            "batch", "-m", "cooadtr", "-", "-o", tmp_path / "out", "--jobs", 1, input=listed, code=3
        )
    (row,) = rows(tmp_path / "out" / "failures.csv")
    assert (row["name"], row["reason"]) == ("none.mp4", "no such file")
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
        "0 #.mp4.jsonl",
        "0 #.mp4~2.jsonl",
    }


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_stop_leaves_no_copies(clips, tmp_path):
    out = tmp_path / "out"
    with (clips / "large.npy").open("wb") as file:
        file.truncate(1 << 31)
    with serving(clips) as url:
        child = start("batch", "-m", "cooadtr", url, "-o", out, "--jobs", 1, "--include", "large*")
        wait_until(lambda: list(out.glob(".costream/fetched/*/large.npy")), child)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert not (out / ".costream" / "fetched").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["s3://bucket/clips", "-o", "s3://bucket/out"], "mount the store"),
        (["rtsp://viewer:swordfish@host/1", "-o", "out"], "live feed"),
        (["nope://viewer:swordfish@host/1", "-o", "out"], "nope"),
    ],
)
def test_impossible_requests_are_reported_in_one_line(tmp_path, args, says):
    assert "swordfish" not in refused(2, says, "batch", "-m", "cooadtr", *args, "-q", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
