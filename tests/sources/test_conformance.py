"""The contract of sources/base.py, run over every kind of source there is."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from costream.errors import SourceError
from costream.records import Fault, FeatureRow, Gap, VideoFrame
from costream.sources.base import Source, SourceOptions
from costream.sources.registry import expand, open_source

ITEMS = 60


@dataclass
class Case:
    """A source of ITEMS items at 25 a second, and the same options for all."""

    make: Callable[[SourceOptions], Source]
    kind: str


@pytest.fixture(
    params=["mp4", "mkv", "ts", "npy", "npz", "pickle", "fifo mkv", "fifo npy", "fifo ts"]
)
def case(request: pytest.FixtureRequest, media: Path, tmp_path: Path) -> Iterator[Case]:
    """Every source, made from the same 60 frames or rows."""
    what: str = request.param
    rows = np.load(media / "features.npy")
    writers: list[threading.Thread] = []

    def make(options: SourceOptions) -> Source:
        if what == "npy":
            return open_source(str(media / "features.npy"), options)
        if what == "npz":
            np.savez(tmp_path / "f.npz", rgb=rows[:, :5], flow=rows[:, 5:])
            return open_source(str(tmp_path / "f.npz"), options)
        if what == "pickle":
            path = tmp_path / "f.pickle"
            path.write_bytes(pickle.dumps({"a": {"rgb": rows, "flow": rows}, "b": {"rgb": rows}}))
            return open_source(expand(str(path))[0], options)
        if not what.startswith("fifo"):
            return open_source(str(media / f"plain.{what}"), options)
        name = {"mkv": "plain.mkv", "ts": "plain.ts", "npy": "features.npy"}[what[5:]]
        fifo = tmp_path / "pipe"
        if not fifo.exists():
            os.mkfifo(fifo)
        writers.append(threading.Thread(target=_write, args=(fifo, media / name), daemon=True))
        writers[-1].start()
        return open_source(str(fifo), options)

    yield Case(make, "features" if what.split()[-1] in ("npy", "npz", "pickle") else "video")
    for writer in writers:
        _let_go(writer, tmp_path / "pipe")


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
    return SourceOptions(rate_hz=25.0, box=(48, 48), **values)  # type: ignore[arg-type]


def test_open_then_items(case: Case) -> None:
    source = case.make(options())
    try:
        info = source.open()
        items = list(source.items())
    finally:
        source.close()
    assert info.kind == case.kind
    assert info.name
    assert info.rate_hz == 25.0
    assert info.duration_s is None or info.duration_s == pytest.approx(ITEMS / 25)
    assert (info.size is not None) == (case.kind == "video")
    assert (info.width is not None) == (case.kind == "features")
    wanted = VideoFrame if case.kind == "video" else FeatureRow
    assert [type(item) for item in items] == [wanted] * ITEMS
    data = [item for item in items if not isinstance(item, (Gap, Fault))]
    assert [item.i for item in data] == list(range(ITEMS))
    assert [item.time_s for item in data] == pytest.approx([k / 25 for k in range(ITEMS)])


def test_values_have_the_promised_shape(case: Case) -> None:
    source = case.make(options())
    try:
        info = source.open()
        for item in source.items():
            if isinstance(item, VideoFrame):
                assert item.rgb.shape == (32, 48, 3)
                assert item.rgb.dtype == np.uint8
                assert item.rgb.flags.c_contiguous
                assert item.rgb is item.rgb
            elif isinstance(item, FeatureRow):
                assert item.values.shape == (info.width,)
                assert item.values.dtype == np.float32
    finally:
        source.close()


def test_start_and_end(case: Case) -> None:
    source = case.make(options(start_s=0.8, end_s=1.6))
    try:
        source.open()
        times = [
            item.time_s for item in source.items() if isinstance(item, VideoFrame | FeatureRow)
        ]
    finally:
        source.close()
    assert times == pytest.approx([k / 25 for k in range(20, 40)])


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
    source.open()
    first = next(iter(source.items()))
    source.close()
    source.close()
    assert list(source.items()) == []
    # What was given out before stays usable.
    assert isinstance(first, VideoFrame | FeatureRow)
    assert (first.rgb if isinstance(first, VideoFrame) else first.values).size


def test_iteration_ends_when_the_source_is_closed(case: Case) -> None:
    source = case.make(options())
    source.open()
    items = source.items()
    next(items)
    source.close()
    assert list(items) == []


@pytest.mark.parametrize("name", ["gone.mp4", "gone.npy", "gone.pickle#x", "a\0b.mp4"])
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
    writer.join(10)
