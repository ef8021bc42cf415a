"""Pipes: real ones, with real processes at the other end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from costream.sources.file import read_all
from costream.sources.pipe import PipeReader
from kit.media import busy, make_video, truncated

ROOT = str(Path(__file__).parents[2])

READ = """
    import signal, sys
    from costream.errors import CostreamError
    from costream.records import Fault, FeatureRow, VideoFrame
    from costream.sources.base import SourceOptions
    from costream.sources.registry import open_source
    start = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    source = open_source("-", SourceOptions(rate_hz=4.0, start_s=start))
    signal.signal(signal.SIGINT, lambda *_: source.stop())
    print("ready", flush=True)
    try:
        info = source.open()
        items = list(source.items())
        data = [i for i in items if isinstance(i, (VideoFrame, FeatureRow))]
        faults = [i.message for i in items if isinstance(i, Fault)]
        print(info.name, info.kind, len(data), data[0].time_s if data else None, faults)
    except CostreamError as error:
        print("error", error)
    source.close()
"""


def reader(*arguments: str, **pipes: object) -> subprocess.Popen[str]:
    """Start a process that reads a source from its standard input and says what it got."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READ), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        **pipes,  # type: ignore[call-overload]
    )


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.removeprefix("ready\n").strip()


def piped(path: Path, *arguments: str) -> str:
    """Return what a reader says of ``cat path | reader``."""
    cat = subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE)
    process = reader(*arguments, stdin=cat.stdout)
    assert cat.stdout is not None
    cat.stdout.close()
    out = said(process)
    cat.wait(10)
    return out


@pytest.mark.parametrize("name", ["busy.mkv", "busy.ts", "busy.mp4"])
def test_video(name: str, media: Path) -> None:
    assert piped(media / name) == "stdin video 250 0.0 []"
    assert piped(media / name, "6") == "stdin video 100 6.0 []"


def test_features(media: Path, tmp_path: Path) -> None:
    assert piped(media / "features.npy") == "stdin features 60 0.0 []"
    np.savez(tmp_path / "f.npz", features=np.load(media / "features.npy"))
    assert piped(tmp_path / "f.npz", "1") == "stdin features 56 1.0 []"


def test_mp4_with_its_index_at_the_end(tmp_path: Path) -> None:
    path = make_video(tmp_path / "plain.mp4", 100, pattern=busy)
    out = piped(path)
    assert out.startswith("error stdin: this MP4 cannot be read from a pipe")
    assert "faststart" in out
    # The same file through "<" is a file, and can be sought in.
    with open(path, "rb") as file:
        assert said(reader(stdin=file)) == "stdin video 100 0.0 []"


def test_features_through_a_redirection(media: Path) -> None:
    with open(media / "features.npy", "rb") as file:
        assert said(reader(stdin=file)) == "stdin features 60 0.0 []"


def test_cut_off(media: Path) -> None:
    assert "the file is cut off" in piped(truncated(media / "busy.mkv", 0.5))


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "no data received"), (b"only text\n" * 500, "not a video")]
)
def test_nothing_to_read(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert message in piped(path)


def test_closed_standard_input() -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", textwrap.dedent(READ)]
    out = subprocess.run(
        shell,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    ).stdout
    assert "error stdin: " in out


def test_interrupted_while_waiting_for_the_first_byte() -> None:
    process = reader(stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out = process.stdout.read()  # while its standard input is still open
    assert process.wait(20) == 0
    assert "stopped before any data came" in out


def test_interrupted_while_waiting_for_more(media: Path) -> None:
    data = (media / "busy.ts").read_bytes()
    process = reader(stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.buffer.write(data[: len(data) // 2])  # type: ignore[attr-defined]
    process.stdin.flush()
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    words = process.stdout.read().split()
    assert process.wait(20) == 0
    assert words[:2] == ["stdin", "video"]
    assert int(words[2]) > 50


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
