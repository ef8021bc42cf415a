"""What the system refuses: names, folders, full disks, too little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.data_skeleton import write_act, write_tiny_weights
from kit.program import COSTREAM, environment
from kit.runs import refused, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full, limits of a shell")
LONG = "n" * 300


@pytest.mark.parametrize(
    ("code", "words", "args"),
    [
        (2, "name too long", ("models", "show", "cooadtr", "--weights", LONG)),
        (2, "name too long", ("report", LONG)),
        (2, "is out of range", ("detect", "-m", "cooadtr", "v.mp4", "--top-k", "9" * 400)),
        (
            2,
            "is not valid",
            ("listen", "-m", "cotrans,cosounds", "-", "--raw", "s16le:" + "9" * 5000),
        ),
        (2, "not a time", ("detect", "-m", "cooadtr", "v.mp4", "--start", "9" * 400)),
        (2, "not valid TOML", ("detect", "-m", "cooadtr", "v.mp4", "-c", "latin.toml")),
        (2, "more than 64 bits", ("detect", "-m", "cooadtr", "v.mp4", "-c", "large.toml")),
        (2, "more than 10 MB", ("detect", "-m", "cooadtr", "v.mp4", "-c", "/dev/zero")),
        (4, "x?]0;t?.mp4: no such file", ("detect", "-m", "cooadtr", "x\x1b]0;t\x07.mp4")),
    ],
)
def test_one_line(code: int, words: str, args: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("model = 'é'".encode("latin-1"))
    (tmp_path / "large.toml").write_text("threshold = 1" + 400 * "0", "utf-8")
    assert len(refused(code, words, *args, cwd=tmp_path)) < 1000


@pytest.mark.parametrize("args", [("models", "list"), ("--help",)])
def test_a_full_stdout(args: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COSTREAM, *args], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1), done.stderr
    assert b"stdout: No space left on device" in done.stderr


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *COSTREAM, "detect", "v.mp4"]
    done = subprocess.run(command, cwd=folder, capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert b"the working directory is gone" in done.stderr


def test_times_and_scores_that_cannot_be(tmp_path: Path) -> None:
    head = {"type": "header", "labels": ["none", "walk"], "rate_hz": 4.0, "source": "v.mp4"}
    rows = [{"i": i, "time_s": i / 4, "top": [["walk", 0.9]]} for i in range(4)]
    for row, scores in zip(rows, ([0.1, 0.9], [], [0.5], [0.2, 0.8]), strict=True):
        row |= {"type": "prediction", "scores": scores}
    rows.append({**rows[0], "time_s": -1e308})
    lines = [{**head, "schema": "costream/1", "kind": "video", "delay_s": 0.0}, *rows]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "v.jsonl").write_text(text, "utf-8")
    (tmp_path / "v.csv").write_text("start_s,end_s,label\n0,1,walk\n", "utf-8")
    for args in (
        ("report", "v.jsonl", "--no-thumbnails"),
        ("report", "--diff", "v.jsonl", "v.jsonl"),
        ("evaluate", "--results", "v.jsonl", "--labels", "v.csv"),
    ):
        run(*args, cwd=tmp_path)


def test_a_table_with_a_time_beyond_all_others(tmp_path: Path) -> None:
    table = write_act(tmp_path / "j.csv", "wave", 0)
    lines = table.read_text("utf-8").splitlines()
    lines[9] = f"1e308,{lines[9].partition(',')[2]}"
    table.write_text("\n".join(lines), "utf-8")
    write_tiny_weights(tmp_path / "m.safetensors")
    done = run("detect", table, "-m", tmp_path / "m.safetensors", "-f", "jsonl", cwd=tmp_path)
    assert "1 error" in done.stderr + done.stdout
