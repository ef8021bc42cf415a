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
from kit.paths import RESEARCH, SAMPLES
from kit.program import COSTREAM, costream, environment, python
from kit.runs import lines_in, records, refused, run, wait_until

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


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="POSIX permissions")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_what_belongs_to_others_is_one_line_and_its_code(tmp_path: Path) -> None:
    shutil.copy(ROOM, tmp_path / "a.mp4")
    shutil.copy(RESEARCH / "cooadtr.safetensors", tmp_path / "w.safetensors")
    for name in ("x.toml", "password", "r.jsonl"):
        (tmp_path / name).write_text("")
    for path in tmp_path.iterdir():
        path.chmod(0)
    locked, shut = tmp_path / "locked", tmp_path / "shut"
    for folder, mode in ((locked, 0o555), (shut, 0)):
        folder.mkdir(mode=mode)
    room, camera = str(ROOM), "rtsp://u@127.0.0.1:1/x"
    cases: list[tuple[int, str, list[str]]] = [
        (4, "no permission", ["detect", "-m", "cooadtr", "a.mp4"]),
        (4, "", ["detect", "-m", "cooadtr", "shut/a.mp4"]),
        (4, "", ["listen", "-m", "cotrans,cosounds", "a.mp4"]),
        (2, "locked", ["detect", "-m", "cooadtr", room, "-o", "locked/out"]),
        (2, "locked", ["detect", "-m", "cooadtr", room, "-o", "locked/out.csv"]),
        (2, "locked", ["detect", "-m", "cooadtr", room, "-o", "locked"]),
        (2, "log", ["detect", "-m", "cooadtr", room, "--log-file", "locked/log"]),
        (2, "x.toml", ["detect", "-m", "cooadtr", room, "-c", "x.toml"]),
        (5, "w.safetensors", ["detect", "-m", "cooadtr", room, "--weights", "w.safetensors"]),
        (5, "w.safetensors", ["models", "show", "w.safetensors"]),
        (5, "no permission", ["models", "show", "shut/w.safetensors"]),
        (2, "locked", ["models", "export", "cooadtr", "-o", "locked/x.onnx"]),
        (2, "w.safetensors", ["models", "import", "w.safetensors", "--name", "mine"]),
        (2, "x.toml", ["watch", "-m", "cooadtr", "x.toml"]),
        (2, "password", ["watch", "-m", "cooadtr", camera, "--password-file", "password"]),
        (
            2,
            "locked",
            ["watch", "-m", "cooadtr", room, "--realtime", "--state-dir", "locked/state"],
        ),
        (2, "locked", ["watch", "-m", "cooadtr", room, "--realtime", "-o", "locked/log"]),
        (2, "locked", ["batch", "-m", "cooadtr", room, "-o", "locked/out"]),
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


@pytest.mark.slow
def test_a_full_disk_costs_a_watch_records_and_nothing_else(disk: Path, tmp_path: Path) -> None:
    """Its messages, log, status, state and alerts are on that disk as well."""
    excerpt(ROOM, tmp_path / "a.mp4", 0, 8)
    log, rest = disk / "log", disk / "rest"
    with (disk / "stderr").open("w") as stderr:
        child = subprocess.Popen(
            [
                *(
                    *COSTREAM,
                    "watch",
                    "-m",
                    "cooadtr",
                    tmp_path / "a.mp4",
                    "--realtime",
                    "-o",
                    log,
                    "-vv",
                    "--write",
                    "all",
                ),
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


def test_files_that_a_full_disk_cuts_keep_their_temporary_names(disk: Path) -> None:
    with suppress(OSError), (disk / "rest").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with (disk / "rest").open("r+b") as rest:
        rest.truncate((disk / "rest").stat().st_size - 20_000)
    done = run("detect", "-m", "cooadtr", ROOM, "-o", disk / "out", "-f", "csv,jsonl", code=3)
    assert "No space left on device" in done.stderr
    assert {path.suffix for path in (disk / "out").iterdir()} == {".part"}
    assert len(list((disk / "out").iterdir())) > 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("size", ["0", "-1", "1"])
def test_errors_are_reported_at_any_width(name: str, size: str, tmp_path: Path) -> None:
    for args in (
        ("detect", "-m", "cooadtr", "none"),
        ("watch", "-m", "cooadtr", "none", "--realtime"),
        ("batch", "-m", "cooadtr", "none"),
    ):
        done = costream(*args, "-o", "out", env={name: size}, cwd=tmp_path)
        assert "".join(done.stderr.split()), args


def test_variables_that_are_almost_settings_are_reported() -> None:
    call = ("detect", "-m", "cooadtr", ROOM, "--duration", "1", "-f", "jsonl")
    done = run(*call, env={"COSTREAM_THRESHOL": "0.8", "COSTREAM_MY_CAMERA": "x"})
    told = "COSTREAM_THRESHOL: no setting has this name; did you mean COSTREAM_THRESHOLD?"
    assert told in done.stderr
    assert "MY_CAMERA" not in done.stderr
    assert "COSTREAM" not in run(*call, env={"COSTREAM_VALIDATION": "1"}).stderr  # of train
    assert run(*call, "-q", env={"COSTREAM_THRESHOL": "0.8"}).stderr == ""


def test_the_list_of_booleans_has_no_empty_one() -> None:
    refused(
        2,
        "Recognized values: 0, 1, ",
        "detect",
        "-m",
        "cooadtr",
        ROOM,
        env={"COSTREAM_WAIT": "perhaps"},
    )


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_names_that_the_locale_cannot_hold(tmp_path: Path) -> None:
    excerpt(ROOM, tmp_path / "a.mp4", 0, 1)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for number, name in enumerate((b"caf\xe9.mp4", "Küche.mp4".encode())):
        (tmp_path / os.fsdecode(name)).write_bytes((tmp_path / "a.mp4").read_bytes())
        out = tmp_path / str(number)
        for command in ("detect", "batch"):
            call = (command, os.fsdecode(name), "-o", out / command, "--end", "1")
            done = python("-m", "costream", *call, env=ascii_only, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert len(list((out / command).glob("*.mp4.jsonl"))) == 1
    feeds = tmp_path / "feeds.toml"
    feeds.write_text("[[feed]]\nname = 'Küche'\nurl = 'a.mp4'\n", "utf-8")
    call = ("watch", "-m", "cooadtr", "feeds.toml", "--realtime", "-o", "log")
    done = python("-m", "costream", *call, env=ascii_only, cwd=tmp_path)
    assert (done.returncode, "set LC_ALL=C.UTF-8" in done.stderr) == (2, True), done.stderr


def test_a_link_to_nowhere_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    for folder in ("out", "out/deeper"):
        words = "out: is a link to what does not exist"
        refused(2, words, "detect", "-m", "cooadtr", ROOM, "-o", folder, cwd=tmp_path)


def test_a_frozen_program_can_start_workers() -> None:
    """A binary of the program starts itself for a worker, which must not run the command again."""
    script = (
        "import multiprocessing, sys; sys.frozen = True\n"
        "multiprocessing.freeze_support = lambda: sys.exit(77)\n"
        "from costream.__main__ import entry; entry()"
    )
    assert python("-c", script, "detect", "-m", "cooadtr", ROOM).returncode == 77
