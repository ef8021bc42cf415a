"""The contract of sources/base.py, run over every kind of source there is."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.records import (
    AudioBlock,
    AudioFormat,
    FeatureRow,
    Item,
    RawAudioFormat,
    SkeletonFrame,
    SourceInfo,
    VideoFrame,
)
from costream.sources.base import Source, SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.video_source import VideoSource
from costream.sources.pipe import PipeSource
from costream.sources.realtime import RealtimeSource
from costream.sources.uris import expand, open_source
from kit.media import make_sound, noise
from kit.reading import contents
from kit.skeleton_files import SKELETONS

ITEMS = 60
DATA = {"video": VideoFrame, "audio": AudioBlock, "features": FeatureRow, "skeleton": SkeletonFrame}
FAST = 50.0  # times the pace of what is live
BLOCK = 640  # samples: 25 blocks a second at 16 kHz


@dataclass
class Case:
    """A source of ITEMS items at 25 a second, and the same options for all."""

    make: Callable[[SourceOptions], Source]
    kind: str


SOUNDS: dict[str, Callable[[Path], Path]] = {
    "wav": lambda folder: make_sound(folder / "a.wav", noise(ITEMS / 25)),
    "flac": lambda folder: make_sound(folder / "a.flac", noise(ITEMS / 25), codec="flac"),
    "stereo mkv": lambda folder: make_sound(
        folder / "a.mkv", noise(ITEMS / 25, 48000, 2), 48000, codec="libopus"
    ),
    "raw": lambda folder: make_sound(folder / "a.raw", noise(ITEMS / 25), fmt="s16le"),
}


@pytest.fixture(
    params=[
        *("mp4", "mkv", "ts", "npy", "npz", "pickle", "fifo mkv", "fifo npy", "fifo ts"),
        *SKELETONS,
        *("fifo wide csv", "fifo long csv", "fifo ntu", "fifo kinetics", "fifo array"),
        *("wav", "flac", "stereo mkv", "fifo wav", "fifo stereo mkv", "fifo raw"),
        *("realtime mp4", "realtime wav", "silent mp4"),
    ]
)
def case(request: pytest.FixtureRequest, media: Path, tmp_path: Path) -> Iterator[Case]:
    """Every source, made from the same 60 frames or rows."""
    what: str = request.param
    writers: list[threading.Thread] = []
    recording = what.removeprefix("fifo ") in SKELETONS
    sounding = what.removeprefix("fifo ").removeprefix("realtime ") in SOUNDS

    def make(options: SourceOptions) -> Source:
        options = replace(options, layout="ntu-25" if what.endswith("array") else None)
        if sounding:
            raw = RawAudioFormat("s16le", 16000) if what == "fifo raw" else None
            options = replace(options, sound=AudioFormat(16000, BLOCK), raw=raw)
        if what.startswith("fifo "):
            fifo = tmp_path / "pipe"
            if not fifo.exists():
                os.mkfifo(fifo)
            content = content_of(what.removeprefix("fifo "), media, tmp_path)
            writers.append(threading.Thread(target=_write, args=(fifo, content), daemon=True))
            writers[-1].start()
            return open_source(str(fifo), options)
        if what == "realtime mp4":
            return RealtimeSource(VideoSource(str(media / "plain.mp4"), options), FAST)
        if what == "silent mp4":
            with_sound = replace(options, extra_audio=AudioFormat(16000, BLOCK))
            return open_source(str(media / "plain.mp4"), with_sound)
        if what == "realtime wav":
            return RealtimeSource(AudioSource(str(SOUNDS["wav"](tmp_path)), options), FAST)
        return open_source(_uri(what, media, tmp_path), options)

    arrays = what.split()[-1] in ("npy", "npz", "pickle")
    kind = "skeleton" if recording else "audio" if sounding else "features" if arrays else "video"
    yield Case(make, kind)
    for writer in writers:
        _let_go(writer, tmp_path / "pipe")


def content_of(what: str, media: Path, folder: Path) -> Path:
    """Return a file with the content of a source that a pipe can have."""
    if what in SKELETONS:
        (folder / "recorded").mkdir(exist_ok=True)
        return SKELETONS[what](folder / "recorded", ITEMS)
    if what in SOUNDS:
        return SOUNDS[what](folder)
    return media / ("features.npy" if what == "npy" else f"plain.{what}")


def _uri(what: str, media: Path, folder: Path) -> str:
    if what not in ("npz", "pickle"):
        return str(content_of(what, media, folder))
    rows = np.load(media / "features.npy")
    path = folder / f"f.{what}"
    if what == "npz":
        np.savez(path, rgb=rows[:, :5], flow=rows[:, 5:])
        return str(path)
    path.write_bytes(pickle.dumps({"a": {"rgb": rows, "flow": rows}, "b": {"rgb": rows}}))
    return expand(str(path))[0]


def _write(fifo: Path, content: Path) -> None:
    with contextlib.suppress(BrokenPipeError):  # the source may be closed early
        fifo.write_bytes(content.read_bytes())


def _let_go(writer: threading.Thread, fifo: Path) -> None:
    """Read for a writer whose source left before it came."""
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    until = time.monotonic() + 10
    while writer.is_alive() and time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 1 << 16)
        writer.join(0.01)
    os.close(reader)
    assert not writer.is_alive()


def options(**values: float) -> SourceOptions:
    return SourceOptions(rate_hz=25.0, frame_rate_hz=25.0, box=(48, 48), **values)  # type: ignore[arg-type]


def test_open_then_items(case: Case) -> None:
    source = case.make(options())
    given = contents(source)
    info, items = given.info, given.items
    assert info.kind == case.kind
    assert info.name
    assert info.rate_hz == 25.0
    assert info.duration_s is None or info.duration_s == pytest.approx(ITEMS / 25, abs=0.01)
    assert (info.size is not None) == (case.kind == "video")
    assert (info.width is not None) == (case.kind == "features")
    assert (info.layout is not None) == (case.kind == "skeleton")
    assert info.axes in ((2, 3) if case.kind == "skeleton" else (None,))
    assert [type(item) for item in items] == [DATA[case.kind]] * ITEMS
    assert [item.i for item in items] == list(range(ITEMS))
    # What is known of a block is known at its end.
    first = 1 if case.kind == "audio" else 0
    assert given.times == pytest.approx([k / 25 for k in range(first, first + ITEMS)])
    if not isinstance(source, PipeSource):  # opened anew, a file gives the same
        assert contents(source).times == given.times
    for item in items:
        check(item, info)


def check(item: Item, info: SourceInfo) -> None:
    if isinstance(item, VideoFrame):
        assert item.rgb.shape == (32, 48, 3)
        assert item.rgb.dtype == np.uint8
        assert item.rgb.flags.c_contiguous
        assert item.rgb is item.rgb
    elif isinstance(item, FeatureRow):
        assert item.values.shape == (info.width,)
        assert item.values.dtype == np.float32
    elif isinstance(item, AudioBlock):
        assert item.samples.shape == (BLOCK,)
        assert item.samples.dtype == np.float32
        assert 0 < np.abs(item.samples).max() <= 1
        assert item.pts is not None
        assert (item.arrived_s is not None) == info.live
    elif isinstance(item, SkeletonFrame):
        count = len(item.layout.joints)
        assert item.layout.name == info.layout
        assert item.joints.shape == (2, count, info.axes)
        assert item.scores.shape == (2, count)
        assert item.joints.dtype == item.scores.dtype == np.float32
        assert np.isfinite(item.joints).all()
        assert item.scores[0].any()
        assert item.scores.min() >= 0
        assert item.scores.max() <= 1
        assert not item.joints[item.scores == 0].any()


def test_start_and_end(case: Case) -> None:
    times = contents(case.make(options(start_s=0.8, end_s=1.6))).times
    first = 21 if case.kind == "audio" else 20
    assert times == pytest.approx([k / 25 for k in range(first, first + 20)])


def test_stop_midway(case: Case) -> None:
    source = case.make(options())
    seen = 0
    try:
        source.open()
        for _ in source.items():
            seen += 1
            if seen == 5:
                source.stop()
    finally:
        source.close()
    assert 5 <= seen <= 6


def test_stop_before_items(case: Case) -> None:
    source = case.make(options())
    try:
        source.open()
        source.stop()
        assert list(source.items()) == []
    finally:
        source.close()


def test_stop_before_open_never_hangs(case: Case) -> None:
    source = case.make(options())
    source.stop()
    try:
        source.open()
        assert list(source.items()) == []
    except SourceError as error:
        assert "stopped" in str(error)  # noqa: PT017  (either end is right)
    finally:
        source.close()


def test_close_any_number_of_times(case: Case) -> None:
    source = case.make(options())
    source.close()
    info = source.open()
    items = source.items()
    first = next(items)
    source.close()
    source.close()
    assert list(items) == list(source.items()) == []
    check(first, info)  # what was given out before stays usable


@pytest.mark.parametrize("name", ["gone.mp4", "gone.npy", "gone.pickle#x", "gone.csv", "a\0b.mp4"])
def test_missing_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        open_source(str(tmp_path / name), options()).open()


def test_stop_from_another_thread_while_waiting(tmp_path: Path, media: Path) -> None:
    """A pipe whose writer falls silent: stop ends items, and soon."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    release = threading.Event()

    def write() -> None:
        data = (media / "busy.ts").read_bytes()
        with open(fifo, "wb", buffering=0) as out:
            out.write(data[: len(data) // 2])
            release.wait(20)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    source = open_source(str(fifo), options())
    source.open()
    seen = []

    def stop_when_it_waits() -> None:
        count = -1
        while count != len(seen) or not seen:
            count = len(seen)
            time.sleep(0.3)
        source.stop()

    stopper = threading.Thread(target=stop_when_it_waits, daemon=True)
    stopper.start()
    for item in source.items():
        seen.append(item)  # noqa: PERF402  (the other thread watches it grow)
    source.close()
    # It ended while the writer still held the pipe open.
    assert writer.is_alive()
    assert 50 < len(seen) < 250
    release.set()
    writer.join(90)
