"""A file that plays at its own pace."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from costream.core.records import AudioFormat, Gap, VideoFrame
from costream.sources.base import ConnectionOptions, LiveSource, SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.video_source import VideoSource
from costream.sources.realtime import RealtimeSource
from costream.sources.uris import open_source
from costream.sources.waiting import StopEvent
from kit.media import make_sound, noise
from kit.reading import contents


def test_the_same_items_in_their_time(media: Path) -> None:
    path, speed = str(media / "plain.mp4"), 4.0
    plain, played = VideoSource(path), RealtimeSource(VideoSource(path), speed)
    assert isinstance(played, LiveSource)
    plain.open()
    assert played.connection.state == "connecting"
    before_s = time.time()
    info = played.open()
    assert info.live
    assert before_s <= info.began_s <= time.time()
    began_s = time.monotonic()
    for wanted, item in zip(plain.items(), played.items(), strict=True):
        now_s = time.monotonic()
        assert isinstance(wanted, VideoFrame)
        assert isinstance(item, VideoFrame)
        assert (item.i, item.time_s, item.pts) == (wanted.i, wanted.time_s, wanted.pts)
        assert np.array_equal(item.rgb, wanted.rgb)
        assert item.arrived_s == pytest.approx(began_s + item.time_s / speed, abs=0.5)
        assert item.arrived_s <= now_s
        assert played.connection.state == "live"
    assert played.connection.state == "ended"
    assert played.dropped == played.errors == 0
    assert played.drift_ppm is None
    played.close()
    plain.close()


def test_sound_from_a_time(tmp_path: Path) -> None:
    path = str(make_sound(tmp_path / "a.wav", noise(2.0)))
    options = SourceOptions(sound=AudioFormat(16000, 1600), start_s=1.0)
    wanted = contents(AudioSource(path, options))
    began_s = time.monotonic()
    played = contents(RealtimeSource(AudioSource(path, options), 4.0))
    # The first is due at once.
    assert time.monotonic() - began_s >= 0.9 / 4.0
    assert played.times == wanted.times
    assert [block.pts for block in played.blocks] == [block.pts for block in wanted.blocks]
    assert len(played.blocks) == 10
    assert np.array_equal(played.samples, wanted.samples)


def test_stop_while_it_waits(media: Path) -> None:
    source = RealtimeSource(VideoSource(str(media / "plain.mp4")), 1e-4)
    source.open()
    items = source.items()
    next(items)
    threading.Timer(0.2, source.stop).start()
    before_s = time.monotonic()
    assert list(items) == []
    assert time.monotonic() - before_s < 5.0
    assert source.connection.state == "ended"
    source.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals between threads")
def test_a_signal_that_another_thread_gets_ends_a_wait():
    """As one does that comes just before a wait begins."""
    event = StopEvent()
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
    began_s = time.monotonic()
    try:
        assert event.wait(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("kind", ["file", "pipe", "lines", "feed"])
def test_a_source_of_a_watch_that_continues_begins_later(
    kind: str, media: Path, tmp_path: Path
) -> None:
    """Its times are those of an earlier one, which began 1000 s ago."""
    age_s, path = 1000.0, media / "plain.mp4"
    where = {"file": str(path), "feed": "rtsp://127.0.0.1:1/x"}.get(kind, str(tmp_path / "pipe"))
    if kind in ("pipe", "lines"):
        os.mkfifo(where)
        data = path.read_bytes() if kind == "pipe" else b"one\ntwo\n"
        threading.Thread(target=Path(where).write_bytes, args=(data,), daemon=True).start()
    connecting = ConnectionOptions(
        zero_s=time.monotonic() - age_s, speed=50.0 if kind == "file" else None, retries=0
    )
    text = {"text": "line", "arrival": True} if kind == "lines" else {}
    source = open_source(where, SourceOptions(connecting=connecting, **text))  # type: ignore[arg-type]
    read = contents(source)
    if kind == "feed":
        ((gap,), (fault,)) = read.of(Gap), read.faults
        assert age_s <= gap.start_s <= gap.end_s <= age_s + 10
        assert age_s <= float(fault.time_s) <= age_s + 10  # type: ignore[arg-type]
    else:
        assert age_s <= read.times[0] <= age_s + 10
        assert len(read.times) >= 2
    if read.info.began_s is not None:
        assert time.time() - read.info.began_s == pytest.approx(age_s, abs=10)
