"""The program in surroundings that refuse: files of other users, a disk that is full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.media import excerpt
from kit.paths import ROOT, SAMPLES
from kit.program import COSTREAM, environment
from kit.runs import lines_in, records, wait_until

ROOM = SAMPLES / "room.mp4"
# What lets root read and write everything.
POWERS = "-dac_override,-dac_read_search"
EACH = """
import json, sys
from costream.__main__ import main
for args in json.loads(sys.argv[1]):
    print("--", file=sys.stderr, flush=True)
    print(main(args), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX permissions")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_what_belongs_to_others_is_one_line_and_its_code(tmp_path: Path) -> None:
    shutil.copy(ROOM, tmp_path / "a.mp4")
    shutil.copy(ROOT / "weights" / "cooadtr.safetensors", tmp_path / "w.safetensors")
    for name in ("x.toml", "password", "r.jsonl"):
        (tmp_path / name).write_text("")
    for path in tmp_path.iterdir():
        path.chmod(0)
    locked, shut = tmp_path / "locked", tmp_path / "shut"
    for folder, mode in ((locked, 0o555), (shut, 0)):
        folder.mkdir(mode=mode)
    room, camera = str(ROOM), "rtsp://u@127.0.0.1:1/x"
    cases: list[tuple[int, str, list[str]]] = [
        (4, "no permission", ["detect", "a.mp4"]),
        (4, "", ["detect", "shut/a.mp4"]),
        (4, "", ["listen", "a.mp4"]),
        (2, "locked", ["detect", room, "-o", "locked/out"]),
        (2, "locked", ["detect", room, "-o", "locked/out.csv"]),
        (2, "locked", ["detect", room, "-o", "locked"]),
        (2, "log", ["detect", room, "--log-file", "locked/log"]),
        (2, "x.toml", ["detect", room, "-c", "x.toml"]),
        (5, "w.safetensors", ["detect", room, "--weights", "w.safetensors"]),
        (5, "w.safetensors", ["models", "show", "w.safetensors"]),
        (5, "no permission", ["models", "show", "shut/w.safetensors"]),
        (2, "locked", ["models", "export", "cooadtr", "-o", "locked/x.onnx"]),
        (2, "w.safetensors", ["models", "import", "w.safetensors", "--name", "mine"]),
        (2, "x.toml", ["watch", "x.toml"]),
        (2, "password", ["watch", camera, "--password-file", "password"]),
        (2, "locked", ["watch", room, "--realtime", "--state-dir", "locked/state"]),
        (2, "locked", ["watch", room, "--realtime", "-o", "locked/log"]),
        (2, "locked", ["batch", room, "-o", "locked/out"]),
        (2, "r.jsonl", ["report", "r.jsonl", "-o", "page.html"]),
        (4, "Permission denied", ["report", "shut/r.jsonl", "-o", "page.html"]),
        (2, "locked", ["report", ".", "-o", "locked/page.html"]),
        (2, "locked", ["features", room, "-o", "locked/x.npz"]),
    ]
    command = [*("setpriv", "--bounding-set", POWERS) * (os.geteuid() == 0), sys.executable]
    try:
        done = subprocess.run(
            [*command, "-c", EACH, json.dumps([args for *_, args in cases])],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environment(), "XDG_CONFIG_HOME": str(shut), "XDG_CACHE_HOME": str(shut)},
            timeout=200,
            check=False,
        )
    finally:
        shut.chmod(0o755)
    said = done.stderr.split("--\n")[1:]
    wrong = [
        (args, found, lines)
        for (code, words, args), found, lines in zip(cases, done.stdout.split(), said, strict=True)
        if (int(found), lines.count("\n")) != (code, 1) or words not in lines
    ]
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_costs_a_watch_records_and_nothing_else(disk: Path, tmp_path: Path) -> None:
    """Its messages, log, status, state and alerts are on that disk as well."""
    excerpt(ROOM, tmp_path / "a.mp4", 0, 8)
    log, rest = disk / "log", disk / "rest"
    with (disk / "stderr").open("w") as stderr:
        child = subprocess.Popen(
            [
                *(*COSTREAM, "watch", tmp_path / "a.mp4", "--realtime", "-o", log, "-vv"),
                *("--log-file", disk / "log.txt", "--status-file", disk / "status.json"),
                *("--state-dir", disk / "state", "--rotate", "20KB", "--keep", "1MB"),
                *("--on", "*>=0.1 every 1s", "--append", disk / "alerts"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        file = log / "a.mp4.jsonl"
        wait_until(lambda: lines_in(file) > 4, child)
        with suppress(OSError), rest.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        time.sleep(2.5)
        assert child.poll() is None
        rest.unlink()
        assert child.wait(60) == 0
    lines = [line for path in sorted(log.glob("*.jsonl")) for line in records(path)]
    lost = [line for line in lines if line["type"] == "error"]
    assert any("records that could not be written" in line["message"] for line in lost)
    assert records(file)[-1]["type"] == "summary"
    assert records(file)[-1]["complete"] is True
