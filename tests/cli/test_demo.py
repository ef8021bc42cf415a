"""``costream demo``: the samples, what is shown and written, and files that are not its own."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from kit.program import COSTREAM, LIMIT_S, costream, environment, on_terminal, start

RESULTS = {"room.mp4.jsonl", "street.ogg.jsonl", "moves.csv.jsonl"}
WRITTEN = {*RESULTS, "report.html", ".demo.json"}


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="needs signals and pseudo-terminals")
def test_an_interrupted_demo_and_one_on_a_terminal(tmp_path: Path) -> None:
    demo = start("demo", cwd=tmp_path)
    end_s = time.monotonic() + LIMIT_S
    folder = tmp_path / "costream-demo"
    while not list(folder.glob("room.mp4.jsonl*")) and time.monotonic() < end_s:
        time.sleep(0.02)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, err) == (130, b"")
    assert {path.name for path in folder.iterdir()} == {"room.mp4.jsonl", ".demo.json"}

    env = {k: v for k, v in environment().items() if k not in ("CI", "NO_COLOR")}
    shown, code = on_terminal(
        [*COSTREAM, "demo"], cwd=tmp_path, env={**env, "TERM": "xterm-256color"}
    )
    assert code == 0, shown
    assert shown.count("\x1b[?25l") == 3  # live views
    assert shown.splitlines()[-1] == os.path.join("costream-demo", "report.html")
    assert {path.name for path in folder.iterdir()} == WRITTEN


@pytest.mark.long
def test_what_is_shown_and_what_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    done = costream("demo", "-o", folder, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    for text in ("knows not", "person", "Siren", "wave both hands", "real time"):
        assert text in done.stdout
    models = [json.loads((folder / name).open().readline())["model"] for name in sorted(RESULTS)]
    assert models == ["costgcn", "nanodet,mn04", "mn04"]
    page = (folder / "report.html").read_text("utf-8")
    assert all(text in page for text in (*RESULTS, "wave both hands", "data:image/jpeg"))

    (folder / "mine.txt").write_text("kept")
    again = costream("demo", "-q", "-o", folder, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"{folder / 'report.html'}\n"
    assert {path.name for path in folder.iterdir()} == {*WRITTEN, "mine.txt"}

    (folder / "report.html").write_text("my notes")
    refused = costream("demo", "-o", folder, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "report.html: exists already and is not the demo's; name another" in refused.stderr
    assert (folder / "report.html").read_text() == "my notes"


def test_a_reader_that_goes_ends_it_well(tmp_path: Path) -> None:
    demo = start("demo", cwd=tmp_path)
    assert demo.stdout is not None
    assert demo.stderr is not None
    assert b"room.mp4 -m auto" in demo.stdout.readline()
    demo.stdout.close()
    assert (demo.stderr.read(), demo.wait(LIMIT_S)) == (b"", 0)


@pytest.mark.parametrize("output", ["-", "file", "file/x"])
def test_where_nothing_can_be_written(tmp_path: Path, output: str) -> None:
    (tmp_path / "file").touch()
    done = costream("demo", "-o", output, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
