"""Resolution of SOURCE arguments: addresses, files, pipes, and sources added from outside."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.core.records import AudioFormat, FeatureRow
from costream.models.oad.cooadtr import CoOadTR
from costream.models.streaming import StreamingModel
from costream.runtime.pipeline import run
from costream.sinks.registry import make_sinks
from costream.sources.base import SOURCES, SourceOptions
from costream.sources.features.feature_source import FeatureSource
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.video_source import VideoSource
from costream.sources.pipe import PipeSource
from costream.sources.skeletons.skeleton_source import SkeletonSource
from costream.sources.uris import expand, name_of, open_source, sniff
from costream.weights_io.card import Card, Timeline
from kit.media import make_sound, make_video, noise
from kit.program import python

LISTENING = SourceOptions(sound=AudioFormat(16000, 4000))
ROWS = np.ones((4, 2), np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with some of everything."""
    monkeypatch.chdir(tmp_path)
    make_video(tmp_path / "a.mp4", 3)
    make_video(tmp_path / "b.mp4", 3)
    make_video(tmp_path / "odd#name [1].mp4", 3)
    np.save("f.npy", ROWS)
    np.savez("f.npz", rgb=ROWS)
    many = {"v1": {"rgb": ROWS}, "v2#b": {"rgb": ROWS}}
    for protocol in (0, 2, 5):
        (tmp_path / f"many{protocol}.pickle").write_bytes(pickle.dumps(many, protocol))
    (tmp_path / "one.pkl").write_bytes(pickle.dumps({"v1": {"rgb": ROWS}}))
    (tmp_path / "sub").mkdir()
    make_video(tmp_path / "sub" / "c.mp4", 3)
    return tmp_path


# --- expand -----------------------------------------------------------------------------------


def test_files_stand_for_themselves(folder: Path) -> None:
    for name in ("a.mp4", "f.npy", "one.pkl", "odd#name [1].mp4", "-", "./sub/c.mp4"):
        assert expand(name) == [name]
    assert expand(str(folder / "a.mp4")) == [str(folder / "a.mp4")]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_stands_for_its_videos(folder: Path, protocol: int) -> None:
    name = f"many{protocol}.pickle"
    assert expand(name) == [f"{name}#v1", f"{name}#v2#b"]
    assert expand(f"{name}#v2#b") == [f"{name}#v2#b"]


def test_patterns_that_no_shell_has_expanded(folder: Path) -> None:
    assert expand("?.mp4") == ["a.mp4", "b.mp4"]
    assert expand("**/*.mp4")[-1] == os.path.join("sub", "c.mp4")
    assert expand("many2*") == ["many2.pickle#v1", "many2.pickle#v2#b"]
    # A file of that very name is not a pattern.
    assert expand("odd#name [1].mp4") == ["odd#name [1].mp4"]


def test_file_urls(folder: Path) -> None:
    assert expand((folder / "a.mp4").as_uri()) == [str(folder / "a.mp4")]
    named = (folder / "odd#name [1].mp4").as_uri()
    assert expand(named) == [str(folder / "odd#name [1].mp4")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "no such file") for name in ("gone.mp4", "gone.pickle#v1", "gone#v1", "")),
        ("*.avi", "no file matches this pattern"),
        ("sub", r"sub: this is a folder; name the files: sub/\*; all files: costream batch sub"),
        ("sub//", r"sub//: this is a folder; name the files: sub/\*; all"),
        ("empty.mp4", "the file is empty"),
    ],
)
def test_what_cannot_be_read(folder: Path, name: str, message: str) -> None:
    (folder / "empty.mp4").write_bytes(b"")
    with pytest.raises(SourceError, match=message):
        expand(name)
    if name in ("sub", "empty.mp4"):
        for function in (sniff, open_source):
            with pytest.raises(SourceError, match=message):
                function(name)


@pytest.mark.parametrize(
    "name",
    [
        "rtsp://user:secret@camera/1",
        "http://host/x.mpd",
        "https://host/x.m3u8?token=secret",
        "RTMP://host/live",
        "udp://@239.0.0.1:1234",
        "0",
        "camera:1",
        "/dev/video0",
    ],
)
def test_live_feeds(folder: Path, name: str) -> None:
    for function in (expand, sniff, open_source):
        with pytest.raises(UsageError) as caught:
            function(name)
        assert "watch it with: costream watch" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_microphones(folder: Path) -> None:
    for name in ("mic", "mic:USB Audio", "mic:2", "MIC"):
        assert expand(name) == [name]
        assert sniff(name) == "audio"
    assert [name_of(n) for n in ("mic", "mic:USB/hw:1")] == ["mic", "mic_USB_hw_1"]
    make_sound(folder / "mic", noise(0.5), fmt="wav")
    assert isinstance(open_source("mic", LISTENING), AudioSource)  # there is a file of that name


def test_files_on_web_servers_are_named_like_files(folder: Path) -> None:
    names = {
        "https://user:swordfish@host/films/My%20clip.MP4?token=1#t=3": "My clip.MP4",
        "http://host/a%2F..%2Fb%0A.mkv": "a_.._b_.mkv",
        "http://host:8000/live": "http_host_8000_live",
        "http://host/.mp4": "http_host_.mp4",
        f"http://host/{'a' * 300}.mp4": None,
        "rtsp://host/clip.mp4": "host_clip.mp4",
    }
    for uri, name in names.items():
        found = name_of(uri)
        assert found == name if name else len(found) < 150
        assert "swordfish" not in found


def test_media_are_sound_when_sound_is_asked_for(folder: Path) -> None:
    make_sound(folder / "a.wav", noise(0.5))
    for name in ("a.wav", "a.mp4"):
        assert sniff(name, LISTENING) == "audio"
        assert isinstance(open_source(name, LISTENING), AudioSource)
    assert sniff("-", LISTENING) == "audio"
    # Other inputs are what they are; the model says whether it takes them.
    (folder / "poses.csv").write_text("frame;hips_x;hips_y;neck_x;neck_y\n0;1;2;3;4\n")
    assert sniff("poses.csv", LISTENING) == "skeleton"
    assert sniff("f.npy", LISTENING) == "features"
    with pytest.raises(UsageError, match="this is a live feed"):
        open_source("rtsp://camera/1", LISTENING)


def test_a_file_named_like_a_camera_is_a_file(folder: Path) -> None:
    (folder / "a.mp4").rename(folder / "0")
    assert expand("0") == ["0"]
    assert sniff("0") == "video"


def test_skeletons_by_content(folder: Path) -> None:
    """A table of joints by any name; other text is what it was before."""
    rows = "frame;hips_x;hips_y;neck_x;neck_y\n0;1;2;3;4\n"
    (folder / "poses").write_text(rows)
    (folder / "poses.mp4").write_text("\ufeff# a comment\n\n" + rows)
    (folder / "unclear.csv").write_text("a\n1\n")
    (folder / "kinect").write_text("2\n0\n0\n")
    (folder / "kinetics").write_text('  {"data": []}')
    (folder / "letter.txt").write_text("Dear reader, this, and that.\nYours\n")
    (folder / "list.m3u8").write_text("#EXTM3U\n#EXTINF:9,\na.ts\n")
    (folder / "binary").write_bytes(b"\x00\x01,,,,\n")
    for name in ("poses", "poses.mp4", "unclear.csv", "kinect", "kinetics"):
        assert sniff(name) == "skeleton"
        assert isinstance(open_source(name), SkeletonSource)
    for name in ("letter.txt", "list.m3u8", "binary"):
        assert sniff(name) == "video"
    (folder / "keypoints").mkdir()
    (folder / "keypoints" / "v_000_keypoints.json").write_text('{"people": []}')
    assert expand("keypoints") == ["keypoints"]
    assert sniff("keypoints/") == "skeleton"
    assert name_of("keypoints/") == "keypoints"


# --- sniff and open ---------------------------------------------------------------------------


def test_kind_by_content_not_by_name(folder: Path) -> None:
    assert sniff("a.mp4") == "video"
    (folder / "a.mp4").rename("video.npy")
    (folder / "f.npy").rename("rows.mp4")
    (folder / "f.npz").rename("zipped")
    (folder / "many5.pickle").rename("pickled")
    assert sniff("video.npy") == "video"
    assert sniff("rows.mp4") == "features"
    assert sniff("zipped") == "features"
    assert sniff("pickled#v1") == "features"
    assert sniff("many0.pickle") == "features"
    assert sniff("-") == "video"


def test_the_right_source(folder: Path) -> None:
    options = SourceOptions(rate_hz=4.0)
    assert isinstance(open_source("a.mp4", options), VideoSource)
    assert isinstance(open_source("odd#name [1].mp4"), VideoSource)
    for name in ("f.npy", "f.npz", "one.pkl", "many5.pickle#v2#b"):
        source = open_source(name, options)
        assert isinstance(source, FeatureSource)
        assert source.open().width == 2
        source.close()
    assert isinstance(open_source("-"), PipeSource)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_named_pipes(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert expand("pipe") == ["pipe"]
    assert sniff("pipe") == "video"
    assert isinstance(open_source("pipe"), PipeSource)


def test_an_archive_that_is_damaged(folder: Path) -> None:
    (folder / "zip.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(SourceError, match="cannot be read"):
        open_source("zip.npz", SourceOptions(rate_hz=4.0)).open()


def test_names_with_credentials_are_hidden(folder: Path) -> None:
    """A name that looks like a URL is shown without the password, here too."""
    os.makedirs("rtsp:/user:secret@host")
    make_video(folder / "rtsp:" / "user:secret@host" / "x.mp4", 2)
    source = open_source("rtsp://user:secret@host/x.mp4")
    info = source.open()
    source.close()
    assert info.uri == "rtsp://***@host/x.mp4"


ADDED = """
import numpy as np

from costream.core.records import FeatureRow, SourceInfo
from costream.sources.base import source
from costream.sources.file import FileSource, file_name, read_all, require_rate

@source("numbers", kind="features")
class NumbersSource(FileSource):
    @staticmethod
    def sniff(head, path, options):
        return head.startswith(b"%NUMBERS")

    @staticmethod
    def names(head, path):
        return head.splitlines()[0].decode().split()[1:]

    def open(self):
        self._rate_hz = require_rate(self._options.rate_hz, self._where)
        data = read_all(self._file) if self._file else open(self._uri.split("#")[0], "rb").read()
        self._rows = [line.split() for line in data.splitlines()[1:]]
        count = len(self._rows)
        return SourceInfo(
            file_name(self._uri), self._where, "features", count / self._rate_hz, self._rate_hz,
            width=len(self._rows[0]),
        )

    def items(self):
        for i, row in enumerate(self._rows):
            if not self._stopped:
                yield FeatureRow(i, i / self._rate_hz, np.array(row, np.float32))

    def close(self):
        self._rows = []
"""


@SOURCES.temporarily()
def test_a_source_from_outside_is_one_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SourceOptions(rate_hz=4.0)
    (folder / "a.numbers").write_text("%NUMBERS\n1 2\n3 4\n5 6\n")
    (folder / "two.csv").write_text("%NUMBERS left right\n1 2\n")
    assert sniff("a.numbers") == "video"
    assert sniff("two.csv") == "skeleton"
    (folder / "numbers_source.py").write_text(ADDED)
    monkeypatch.syspath_prepend(folder)
    added = importlib.import_module("numbers_source")
    assert sniff("a.numbers") == sniff("two.csv") == "features"
    assert sniff("a.mp4") == "video"
    assert expand("a.numbers") == ["a.numbers"]
    assert expand("two.csv") == ["two.csv#left", "two.csv#right"]
    assert name_of("two.csv#left") == "two.csv#left"
    source = open_source("a.numbers", options)
    assert type(source) is added.NumbersSource
    model = feature_model(width=2)
    lines = io.StringIO()
    summary = run(source, model, make_sinks(["jsonl"], None, "a", stream=lines))
    assert (summary.steps, summary.exit) == (3, 0)
    assert json.loads(lines.getvalue().splitlines()[0])["source"] == "a.numbers"
    # The same through a pipe.
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(
        target=lambda: (folder / "pipe").write_bytes((folder / "a.numbers").read_bytes())
    )
    writer.start()
    piped = open_source("pipe", options)
    assert piped.open().width == 2
    rows = [item.values.tolist() for item in piped.items() if isinstance(item, FeatureRow)]
    assert rows == [[1, 2], [3, 4], [5, 6]]
    piped.close()
    writer.join()


def feature_model(width: int) -> StreamingModel:
    arguments = {"input_width": width, "num_classes": 2, "embed_dim": 8, "window": 4}
    arguments |= {"num_heads": 2, "feedforward": 8}
    card = Card(
        name="tiny",
        task="online action detection",
        architecture="cooadtr",
        arguments=arguments,
        labels=("none", "walk"),
        background="none",
        rate_hz=4.0,
        timeline=Timeline(threshold=0.5),
    )
    return StreamingModel(card, CoOadTR(**arguments), weights_sha256="0" * 64)


def test_the_registry_imports_neither_torch_nor_live_sources() -> None:
    code = """
import sys
from costream.sources.uris import SOURCES, name_of, sniff
assert sniff("mic") == "audio" and list(SOURCES)
try:
    sniff("rtsp://camera/1")
except Exception:
    print(*sys.modules)
"""
    modules = set(python("-c", code).stdout.split())
    assert "costream.sources.uris" in modules
    live = {f"costream.sources.live.{name}" for name in ("feed", "microphone", "tracks")}
    assert not modules & {"torch", "sounddevice", *live}
