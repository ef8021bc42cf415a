"""Pipes: real ones, with real processes at the other end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.layouts import BODY_15, NTU_25, OPENPOSE_18
from costream.sources.file import read_all
from costream.sources.pipe import PipeReader
from kit.media import busy, make_video, truncated
from kit.program import environment
from kit.skeleton_files import clip, kinetics, ntu, underscored, wide

READ = """
    import json, signal, sys
    from costream.core.errors import CostreamError
    from costream.sources.base import SourceOptions
    from costream.sources.uris import open_source
    source = open_source("-", SourceOptions(**json.loads(sys.argv[1])))
    signal.signal(signal.SIGINT, lambda *_: source.stop())
    print("ready", flush=True)
    try:
        info = source.open()
        print(info.name, info.kind, info.layout, flush=True)
        for item in source.items():
            words = type(item).__name__, round(item.time_s, 3), getattr(item, "message", "")
            print(*words, flush=True)
    except CostreamError as error:
        print("error", error)
    source.close()
"""


def reader(
    shell: tuple[str, ...] = (), *, stdin: object = subprocess.PIPE, **options: object
) -> subprocess.Popen[str]:
    """Start a process that reads a source from its standard input and says what it got."""
    options = {"rate_hz": 4.0, "frame_rate_hz": 10.0, **options}
    process = subprocess.Popen(
        [*shell, sys.executable, "-c", textwrap.dedent(READ), json.dumps(options)],
        stdin=stdin,  # type: ignore[call-overload]
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout.readline() == "ready\n"
    return process


def lines(process: subprocess.Popen[str]) -> list[str]:
    """Return what a reader says until its end."""
    # Not communicate: what came together with the first line is in the buffer of this stream.
    out = process.stdout.read()
    assert process.wait(60) == 0
    return [line.strip() for line in out.splitlines()]


def redirected(path: Path, **options: object) -> list[str]:
    """Return what a reader says of ``reader < path``."""
    with open(path, "rb") as file:
        return lines(reader(stdin=file, **options))


def piped(path: Path, **options: object) -> list[str]:
    """Return what a reader says of ``cat path | reader``."""
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
        process = reader(stdin=cat.stdout, **options)
        assert cat.stdout is not None
        cat.stdout.close()
        return lines(process)


@pytest.mark.parametrize("name", ["busy.mkv", "busy.ts", "busy.mp4"])
def test_video(name: str, media: Path) -> None:
    for start_s, count in ((0.0, 250), (6.0, 100)):
        head, *items = piped(media / name, start_s=start_s)
        assert head == "stdin video None"
        assert items[0] == f"VideoFrame {start_s}"
        assert (len(items), {item.split()[0] for item in items}) == (count, {"VideoFrame"})


@pytest.mark.long
def test_features(media: Path, tmp_path: Path) -> None:
    rows = [f"FeatureRow {k / 4}" for k in range(60)]
    for read in (piped, redirected):
        assert read(media / "features.npy") == ["stdin features None", *rows]
    np.savez(tmp_path / "f.npz", features=np.load(media / "features.npy"))
    assert piped(tmp_path / "f.npz", start_s=1.0) == ["stdin features None", *rows[4:]]


@pytest.mark.long
def test_mp4_with_its_index_at_the_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "plain.mp4", 100, pattern=busy)
    (out,) = piped(path)
    assert out.startswith("error stdin: this MP4 cannot be read from a pipe")
    assert "faststart" in out
    # The same file through "<" is a file, and can be sought in.
    assert len(redirected(path)) == 101


@pytest.mark.parametrize(
    ("name", "read", "layout", "count"),
    [
        ("ntu", piped, "ntu-25", 3),
        ("json", piped, "openpose-18", 3),
        ("x.npy", piped, "ntu-25", 3),
        ("csv", redirected, "body-15", 6),
        ("json", redirected, "openpose-18", 3),
    ],
)
def test_skeletons(tmp_path: Path, name: str, read: Any, layout: str, count: int) -> None:
    ntu(tmp_path / "ntu", clip(NTU_25, 3))
    kinetics(tmp_path / "json", clip(OPENPOSE_18, 3, axes=2) / 20)
    np.save(tmp_path / "x.npy", clip(NTU_25, 3)[:, 0])
    wide(tmp_path / "csv", clip(BODY_15, 6)[:, 0], BODY_15, underscored)
    head, *items = read(tmp_path / name, layout=layout if name == "x.npy" else None)
    assert head == f"stdin skeleton {layout}"
    assert [item.split()[0] for item in items] == ["SkeletonFrame"] * count


def test_skeletons_row_by_row_until_they_are_interrupted(tmp_path: Path) -> None:
    path = wide(tmp_path / "csv", clip(BODY_15, 6)[:, 0], BODY_15, underscored)
    head, *rows = path.read_text().splitlines(keepends=True)
    process = reader()
    process.stdin.write(head)
    for row, said in zip(rows, ["stdin skeleton body-15", "SkeletonFrame 0.1"], strict=False):
        process.stdin.write(row)
        process.stdin.flush()
        assert process.stdout.readline().strip() == said
        if row is rows[0]:
            assert process.stdout.readline().strip() == "SkeletonFrame 0.0"
    process.send_signal(signal.SIGINT)  # its standard input is still open
    assert process.stdout.read() == ""
    assert process.wait(90) == 0


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "no data received"), (b"only text\n" * 500, "not a video")]
)
def test_nothing_to_read(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert message in piped(path)[0]


def test_cut_off(media: Path) -> None:
    assert "the file is cut off" in piped(truncated(media / "busy.mkv", 0.5))[-1]


def test_closed_standard_input() -> None:
    (said,) = lines(reader(("sh", "-c", 'exec "$@" <&-', "sh"), stdin=None))
    assert said.startswith("error stdin: ")


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_interrupted_while_it_waits(share: float, media: Path) -> None:
    """For the first byte, or for more, while its standard input is still open."""
    data = (media / "busy.ts").read_bytes()
    process = reader()
    process.stdin.buffer.write(data[: int(share * len(data))])  # type: ignore[union-attr]
    process.stdin.flush()
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    said = process.stdout.read().splitlines()
    assert process.wait(90) == 0
    if share:
        assert said[0] == "stdin video None"
        assert len(said) > 50
    else:
        assert "stopped before any data came" in said[0]


# --- the reader itself ------------------------------------------------------------------------


def test_peek_consumes_nothing() -> None:
    end, start = os.pipe()
    os.write(start, b"0123456789")
    pipe = PipeReader(end)
    assert pipe.peek(4) == b"0123"
    assert pipe.peek(6) == b"012345"
    assert pipe.read(3) == b"012"
    assert pipe.peek(4) == b"3456"
    assert pipe.peek(1) == b"3"
    os.close(start)
    assert read_all(pipe) == b"3456789"
    assert pipe.read(5) == b""
    os.close(end)


def test_peek_waits_for_slow_writers() -> None:
    end, start = os.pipe()

    def drip() -> None:
        for byte in b"slow":
            time.sleep(0.02)
            os.write(start, bytes([byte]))
        os.close(start)

    thread = threading.Thread(target=drip)
    thread.start()
    assert PipeReader(end).peek(16) == b"slow"
    thread.join()
    os.close(end)
