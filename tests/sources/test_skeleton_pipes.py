"""Live tables: rows are handed on as they arrive, and waiting can be stopped."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.layouts import BODY_15, MEDIAPIPE_33
from costream.core.records import Item, SkeletonFrame, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source, sniff
from kit.skeleton_files import clip, faults, frames, long, read, underscored, wide

X = clip(BODY_15, 6)

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")


class Live:
    """A source that reads a named pipe in a thread, and the writer's end of it."""

    def __init__(self, folder: Path, options: SourceOptions) -> None:
        fifo = folder / "pipe"
        os.mkfifo(fifo)
        self.source = open_source(str(fifo), options)
        self.items: queue.Queue[Item | None] = queue.Queue()
        self.opened: queue.Queue[SourceInfo | SourceError] = queue.Queue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.out = os.open(fifo, os.O_WRONLY)

    def _run(self) -> None:
        try:
            self.opened.put(self.source.open())
            for item in self.source.items():
                self.items.put(item)
        except SourceError as error:
            self.opened.put(error)
        self.items.put(None)
        self.source.close()

    def send(self, text: str) -> None:
        os.write(self.out, text.encode())

    def next(self) -> SkeletonFrame:
        item = self.items.get(timeout=90)
        assert isinstance(item, SkeletonFrame)
        return item

    def close(self) -> None:
        os.close(self.out)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path, SourceOptions(frame_rate_hz=10.0))
    yield made
    made.source.stop()
    made.thread.join(90)
    assert not made.thread.is_alive()


def lines(folder: Path) -> list[str]:
    path = wide(folder / "a.csv", X[:, 0], BODY_15, underscored)
    return path.read_text().splitlines(keepends=True)


def test_each_row_is_handed_on_when_it_arrives(live: Live, tmp_path: Path) -> None:
    head, *rows = lines(tmp_path)
    live.send(head)
    for t, row in enumerate(rows):
        live.send(row)  # the next row is written only after this one was seen
        frame = live.next()
        assert frame.time_s == pytest.approx(t / 10)
        assert np.array_equal(frame.joints, [X[t, 0], 0 * X[t, 0]])
    info = live.opened.get()
    assert isinstance(info, SourceInfo)
    assert (info.kind, info.layout, info.duration_s) == ("skeleton", "body-15", None)
    live.close()
    assert live.items.get(timeout=90) is None


def test_rows_may_arrive_in_pieces(live: Live, tmp_path: Path) -> None:
    text = "# live\n" + "".join(lines(tmp_path))
    for k in range(0, len(text), 97):
        live.send(text[k : k + 97])
        time.sleep(0.001)
    live.close()
    found = [live.next() for _ in range(6)]
    assert np.array_equal(np.stack([f.joints[0] for f in found]), X[:, 0])
    assert live.items.get(timeout=90) is None


def test_long_rows_make_a_frame_when_the_last_joint_arrives(live: Live, tmp_path: Path) -> None:
    x = clip(MEDIAPIPE_33, 3)
    names = [str(k) for k in range(33)]
    path = long(tmp_path / "a.csv", x, names, "frame,landmark,x,y,z", person=False)
    head, *rows = path.read_text().splitlines(keepends=True)
    live.send(head + "".join(rows[:34]))  # the first frame shows which joints there are
    assert live.next().time_s == 0.0
    live.send("".join(rows[34:66]))
    assert live.next().time_s == pytest.approx(0.1)
    live.close()
    assert live.items.get(timeout=90) is None


def test_stop_while_it_waits_for_a_row(live: Live, tmp_path: Path) -> None:
    head, *rows = lines(tmp_path)
    live.send(head + rows[0] + rows[1][:20])  # half a row: not a cut-off table
    live.next()
    live.source.stop()
    assert live.items.get(timeout=90) is None


@pytest.mark.parametrize("sent", ["", "frame,hips_x,", "head\n"])
def test_stop_while_it_waits_for_the_beginning(live: Live, tmp_path: Path, sent: str) -> None:
    text = lines(tmp_path)[0] if sent == "head\n" else sent
    live.send(text or "f")
    time.sleep(0.2)
    live.source.stop()
    assert "stopped before any data came" in str(live.opened.get(timeout=90))


def test_a_writer_that_dies_in_a_row(live: Live, tmp_path: Path) -> None:
    head, *rows = lines(tmp_path)
    live.send(head + rows[0] + rows[1][:20])
    live.close()
    live.next()
    fault = live.items.get(timeout=90)
    assert faults([fault] if fault else [])[0].fatal
    assert live.items.get(timeout=90) is None


def test_an_unknown_unit_ends_the_stream_with_a_message(tmp_path: Path) -> None:
    live = Live(tmp_path, SourceOptions())
    stamps = ["0", "40", "80"]
    path = tmp_path / "a.csv"
    wide(path, X[:3, 0], BODY_15, underscored, stamp="timestamp", stamps=stamps)
    live.send(path.read_text())
    live.close()
    live.next()
    fault = live.items.get(timeout=90)
    assert fault is not None
    assert "--columns time_ms=timestamp" in faults([fault])[0].message
    live.thread.join(90)


def test_an_array_without_a_layout_is_features(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 75), np.float32))
    assert sniff(str(tmp_path / "x.npy")) == "features"
    assert sniff(str(tmp_path / "x.npy"), SourceOptions(layout="ntu-25")) == "skeleton"
    info, items = read(tmp_path / "x.npy", layout="ntu-25", frame_rate_hz=4.0)
    assert (info.kind, len(frames(items))) == ("skeleton", 4)
