"""Media files behind http URLs, from a real server: with and without ranges, missing, cut off."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

import costream
from kit.fileserver import serving
from kit.paths import SAMPLES
from kit.runs import records, refused, run

ROOM = SAMPLES / "room.mp4"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder behind a server: its address, with the login."""
    folder = tmp_path_factory.mktemp("served")
    for path in (ROOM, SAMPLES / "street.ogg"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "watch").write_bytes(ROOM.read_bytes())
    (folder / "page").write_text("<p>no media")
    _copy(ROOM, folder / "end.mp4", {"movflags": "0"})  # its index is at the end
    _copy(ROOM, folder / "front.mp4", {"movflags": "faststart"})
    with serving(folder) as address:
        yield address


def _copy(source: Path, target: Path, options: dict[str, str]) -> None:
    with av.open(str(source)) as given, av.open(str(target), "w", options=options) as out:
        stream = out.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(given.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)


@pytest.fixture(scope="module")
def local():
    return _predictions("detect", "-m", "cooadtr", ROOM, "--duration", "4")


def _predictions(*call):
    return records(run(*call, "-f", "jsonl").stdout, "prediction")


@pytest.mark.long
def test_a_file_is_read_as_one(served, local, tmp_path):
    for name in ("front.mp4", "ranges/end.mp4", "as/video/mp4/watch"):
        done = run(
            "detect", "-m", "cooadtr", served + name, "--duration", "4", "-o", tmp_path / name[:3]
        )
        assert "fish" not in done.stderr
        (file,) = (tmp_path / name[:3]).glob("*.jsonl")
        header, *rest = records(file)
        assert "***@" in header["source"]
        assert [r["top"] for r in rest if r["type"] == "prediction"] == [r["top"] for r in local]
    heard = run(
        "listen", "-m", "cotrans,cosounds", served + "street.ogg", "--duration", "7", "-f", "table"
    ).stdout
    assert "dog bark" in heard
    result = costream.detect(served + "front.mp4", duration=1, model="cooadtr").collect()
    assert (result.header.duration_s, result.summary.steps) == (1.0, 8)


def test_no_secret_is_in_any_output(served, tmp_path):
    url = f"{served}ranges/front.mp4?jwt=TO'K\"<en>#access_token=TOKen"
    for code, call in (
        (0, (url, "-f", "jsonl,json,csv,srt,eaf")),
        (2, (url, "-f", "jsonl")),  # exists
        (4, (url.replace("front", "none"),)),
    ):
        end = ("--duration", "1", "-vv", "--log-file", "log.txt")
        done = run("detect", "-m", "cooadtr", *call, "-o", "out", *end, code=code, cwd=tmp_path)
        told = done.stdout + done.stderr
        assert "***@127.0.0.1" in told
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            told += f"{path} {path.read_text('utf-8')}"
        assert not [word for word in ("fish", "TO'K", "TOK", "en>") if word in told]


def test_no_secret_is_in_any_output_of_a_watch(tmp_path):
    key = "rtmp://me:sec'retPW@127.0.0.1:1/app/stream'KEYx?sid=quoted'VALx&code=1234code"
    options = (
        "--reconnect",
        "1",
        "--timeout",
        "1",
        "--status-file",
        "status.json",
        "-vv",
        "--on",
        "lost",
    )
    more = (
        "--log-file",
        "log.txt",
        "--state-dir",
        "state",
        "--post",
        "http://127.0.0.1:1/hookKEYx",
    )
    done = run("watch", "-m", "cooadtr", key, "-o", "out", *options, *more, code=4, cwd=tmp_path)
    told = done.stdout + done.stderr
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        told += f"{path} {path.read_bytes()!r}"
    assert "rtmp://***@127.0.0.1:1/app/***?sid=***&code=***" in told
    assert not [word for word in ("retPW", "KEYx", "VALx", "1234code") if word in told]


def test_a_range_starts_in_the_middle(served):
    part = ("--start", "20", "--duration", "2")
    got = _predictions("detect", "-m", "cooadtr", served + "ranges/front.mp4", *part)
    assert [r["top"] for r in got] == [
        r["top"] for r in _predictions("detect", "-m", "cooadtr", ROOM, *part)
    ]


@pytest.mark.slow
def test_a_connection_that_breaks_off_keeps_what_came(served, tmp_path):
    done = run("detect", "-m", "cooadtr", served + "cut/front.mp4", "-o", tmp_path, code=3)
    assert "the rest is lost" in done.stderr
    (file,) = tmp_path.glob("*.jsonl")
    *rest, last = records(file)
    assert 100 < sum(r["type"] == "prediction" for r in rest) < 393
    assert not last["complete"]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("gone.mp4", 4, "the server has no such file (404)"),
        ("gone", 4, "the server has no such file (404)"),
        ("end.mp4", 4, "download it first"),
        ("as/text/html/page", 4, "the server sends text/html"),
        ("page", 4, "this is not media"),
        ("list.m3u8", 2, "costream watch URL"),
    ],
)
def test_what_is_not_a_file_is_refused_in_one_line(served, name, code, words):
    assert "fish" not in refused(code, words, "detect", "-m", "cooadtr", served + name)


def test_a_wrong_password_and_no_server(served):
    wrong = served.replace("fish", "tuna")
    for name in ("front.mp4", "watch", "-m", "cooadtr"):
        refused(4, "the server refuses the login", "detect", "-m", "cooadtr", wrong + name)
    for name in ("a.mp4", "a"):
        refused(4, "server cannot be", "detect", "-m", "cooadtr", f"http://127.0.0.1:9/{name}")
