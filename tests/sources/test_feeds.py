"""Live feeds from a real RTSP server, and everything that may become of them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.records import AudioBlock, AudioFormat, VideoFrame
from costream.sources.base import ConnectionOptions, SourceOptions
from costream.sources.live.feed_source import FeedSource
from costream.sources.uris import open_source
from kit.media import read_number
from kit.reading import TIMEOUT_S, Reader, feed
from kit.rtsp_server import RtspServer, endless, needs_rtsp, recording, tone
from kit.tcp_proxy import TcpProxy

pytestmark = needs_rtsp

SOUND = AudioFormat(16000, 1600)
# Gaps are to be right within this, on a machine that may be busy.
EXACT_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[RtspServer]:
    """One that goes on serving."""
    with RtspServer({"both": endless(sound=True), "cam": endless(), "tone": tone()}) as server:
        yield server


def away(reader: Reader) -> bool:
    return reader.source.connection.state != "live"


def check(reader: Reader) -> None:
    """What holds whatever became of a feed."""
    times = [item.time_s for item in reader.data]
    assert all(a < b for a, b in pairwise(times))
    assert [item.i for item in reader.data] == list(range(len(times)))
    for arrived_s, item in zip(reader.arrived, reader.items, strict=True):
        if isinstance(item, VideoFrame | AudioBlock):
            # What is given out has happened.
            assert item.time_s <= arrived_s + EXACT_S
            assert item.arrived_s is not None
            assert item.arrived_s == pytest.approx(reader.began_s + item.time_s, abs=EXACT_S)
    for gap in reader.gaps:
        assert gap.end_s > gap.start_s


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_pictures(server: RtspServer, transport: str) -> None:
    with Reader(feed(server.url("both"), transport=transport)) as reader:
        assert reader.source.connection.state == "connecting"
        reader.more(30)
        assert reader.source.connection.state == "live"
        reader.source.stop()
        reader.join()
        assert reader.source.connection.state == "ended"
    info, frames = reader.info, reader.data
    assert (info.kind, info.live, info.duration_s, info.size) == ("video", True, None, None)
    assert info.began_s == pytest.approx(time.time() - reader.now_s(), abs=EXACT_S)
    check(reader)
    assert reader.gaps == reader.faults == []
    assert np.diff([frame.time_s for frame in frames]) == pytest.approx(0.04, abs=0.005)
    for frame in frames:
        assert isinstance(frame, VideoFrame)
        assert frame.rgb.shape == (120, 160, 3)
        assert frame.rgb.max() == 255  # the ball
        assert not frame.corrupt


def test_sound(server: RtspServer) -> None:
    with Reader(feed(server.url("both"), sound=SOUND)) as reader:
        reader.more(10)
    check(reader)
    assert reader.info.kind == "audio"
    assert reader.gaps == []
    assert np.diff([block.time_s for block in reader.data]) == pytest.approx(0.1, abs=0.001)
    samples = np.concatenate([b.samples for b in reader.data if isinstance(b, AudioBlock)])
    assert samples.shape == (1600 * len(reader.data),)
    spectrum = np.abs(np.fft.rfft(samples[3200:]))
    assert np.argmax(spectrum) * 16000 / len(samples[3200:]) == pytest.approx(440, abs=3)


@pytest.mark.parametrize("sound", [None, SOUND])
def test_stalls_cuts_and_hangs(sound: AudioFormat | None) -> None:
    """A cable, a switch in between, and a server: each fails, and the feed goes on."""
    with (
        RtspServer({"both": endless(sound=True)}) as server,
        TcpProxy(server.port) as proxy,
        Reader(feed(f"rtsp://127.0.0.1:{proxy.port}/both", sound=sound)) as reader,
    ):
        reader.more(10)
        faults = [
            (proxy.stall, proxy.resume, "stalled: no data for 1.5 s"),
            (lambda: proxy.cut_after(3000), None, "the stream has ended"),
            (server.hang, server.wake, "stalled: no data for 1.5 s"),
        ]
        for number, (begin, end, reason) in enumerate(faults, 1):
            before_s = reader.data[-1].time_s
            fault_s = time.monotonic()
            begin()
            reader.until(lambda: away(reader), 2 * TIMEOUT_S + 5)
            assert reader.source.connection.message.startswith(reason)
            last_s = reader.data[-1].time_s
            if end is not None:
                # What the decoder gives when the reading times out has come before.
                received_s = reader.source.connection.received_s
                assert received_s is not None
                assert received_s < fault_s + TIMEOUT_S / 3
                end()
            reader.more(10)
            gap = reader.lost[-1]
            assert len(reader.lost) == number
            assert gap.reason.startswith(reason)
            assert before_s - 0.2 <= gap.start_s == pytest.approx(last_s, abs=0.2)
            index = reader.items.index(gap)
            # It ends where what comes next begins, and that came just then.
            assert gap.end_s == pytest.approx(reader.arrived[index], abs=EXACT_S)
            assert reader.source.connection.state == "live"
            assert reader.source.connection.reconnects == number
    check(reader)


def test_another_resolution_and_rate() -> None:
    with RtspServer({"cam": endless()}) as server, Reader(feed(server.url("cam"))) as reader:
        reader.more(10)
        server.kill()
        killed_s = reader.now_s()
        reader.until(lambda: away(reader))
        time.sleep(1.0)
        server.mounts = {"cam": endless((320, 240), 10)}
        server.start()
        reader.more(15)
        back_s = reader.arrived[reader.items.index(reader.gaps[0])]
    check(reader)
    (gap,) = reader.gaps
    assert gap.start_s == pytest.approx(killed_s, abs=EXACT_S)
    assert gap.end_s == pytest.approx(back_s, abs=EXACT_S)
    assert gap.reason.startswith("the stream has ended: the server closed it")
    after = [item for item in reader.data if item.time_s >= gap.end_s]
    assert np.diff([frame.time_s for frame in after]) == pytest.approx(0.1, abs=0.01)
    shapes = {frame.rgb.shape for frame in after if isinstance(frame, VideoFrame)}
    assert shapes == {(240, 320, 3)}
    told = [fault.message for fault in reader.faults if fault.count == 0]
    assert told == ["the picture size changes to 320x240 pixels"]


@pytest.mark.parametrize("digest", [False, True])
def test_login(digest: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    user, password = "operator", "sec@ret/1"
    with RtspServer({"cam": endless()}, login=(user, password), digest=digest) as server:
        with Reader(feed(server.url("cam", f"{user}:sec%40ret%2F1@"))) as reader:
            reader.more(3)
        for login in ("", "operator:wr@ng-one@"):
            with Reader(feed(server.url("cam", login))) as wrong:
                wrong.join()
            fault = wrong.items[-1]
            assert fault == wrong.faults[0]
            assert fault.fatal
            assert "login" in fault.message
            assert wrong.source.connection.state == "lost"
            said = f"{wrong.items} {wrong.info} {wrong.source.connection}"
            assert "wr@ng" not in said
            assert "ng-one" not in said
    assert "ng-one" not in caplog.text
    assert "sec" not in caplog.text.replace("second", "")
    assert "sec@" not in f"{reader.info} {reader.items}"
    assert "sec%" not in f"{reader.info} {reader.items}"


def test_not_there(server: RtspServer) -> None:
    with Reader(feed(server.url("nothing"))) as reader:
        reader.join()
    assert reader.faults[-1].fatal
    assert "404" in reader.faults[-1].message
    with Reader(feed(server.url("cam"), sound=SOUND, retries=2)) as reader:
        reader.join()
    assert reader.faults[-1].message == (
        "there is no sound in it, only video; gave up after 2 attempts"
    )
    assert reader.data == []
    assert [gap.start_s for gap in reader.gaps] == [0.0]


def test_a_feed_that_appears() -> None:
    with RtspServer({"cam": endless()}) as server:
        server.kill()
        with Reader(feed(server.url("cam"))) as reader:
            reader.until(lambda: reader.source.connection.state == "waiting")
            assert "the connection was refused; next attempt in" in reader.source.connection.message
            time.sleep(0.5)
            server.start()
            reader.more(5)
            connection = reader.source.connection
    check(reader)
    assert (connection.state, connection.message, connection.reconnects) == ("live", "", 0)
    (gap,) = reader.gaps
    assert [fault.message for fault in reader.faults] == ["the connection was refused"]
    assert reader.items[1] is gap
    assert gap.start_s == 0.0
    assert gap.end_s == reader.data[0].time_s == pytest.approx(reader.arrived[2], abs=EXACT_S)
    assert gap.reason.startswith("the connection was refused; ")


def test_stop_during_an_outage_records_the_gap() -> None:
    with RtspServer({"cam": endless()}) as server, Reader(feed(server.url("cam"))) as reader:
        reader.more(5)
        server.kill()
        reader.until(lambda: reader.source.connection.state == "waiting")
        time.sleep(0.5)
        before_s = time.monotonic()
        reader.source.stop()
        assert time.monotonic() - before_s < 5.0
        reader.join()
        stopped_s = reader.now_s()
    assert reader.items[-1] == reader.gaps[0]
    assert reader.gaps[0].start_s == pytest.approx(reader.data[-1].time_s)
    assert reader.gaps[0].end_s == pytest.approx(stopped_s, abs=EXACT_S)


def test_a_feed_that_fails_too_often_is_given_up() -> None:
    with (
        RtspServer({"cam": endless()}) as server,
        Reader(feed(server.url("cam"), retries=2)) as reader,
    ):
        reader.more(5)
        server.kill()
        reader.join()
    assert [type(item).__name__ for item in reader.items[-2:]] == ["Gap", "Fault"]
    assert reader.faults[-1].message == "the connection was refused; gave up after 2 attempts"
    assert reader.gaps[-1].reason == (
        "the stream has ended: the server closed it, then the connection was refused; "
        "2 attempts failed"
    )
    connection = reader.source.connection
    assert (connection.state, connection.message) == ("lost", reader.faults[-1].message)


def test_a_recording_that_is_sent_faster_than_it_happened(media: Path) -> None:
    with (
        RtspServer({"file": recording(media / "plain.mp4")}) as server,
        Reader(feed(server.url("file"))) as reader,
    ):
        reader.until(lambda: reader.source.connection.reconnects)
    check(reader)
    until_s = reader.gaps[0].start_s
    first = [f for f in reader.data if f.time_s <= until_s and isinstance(f, VideoFrame)]
    numbers = [read_number(frame.rgb) for frame in first]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0


@pytest.mark.slow
def test_nothing_leaks_over_many_reconnects() -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with (
        RtspServer({"cam": endless(rate=50)}) as server,
        TcpProxy(server.port) as proxy,
        Reader(feed(f"rtsp://127.0.0.1:{proxy.port}/cam")) as reader,
    ):
        reader.source._backoff.next_s = lambda **_: 0.01  # type: ignore[method-assign]
        reader.more(2)
        threads, before = threading.active_count(), descriptors()
        for number in range(20):
            proxy.cut()
            reader.until(lambda n=number: reader.source.connection.reconnects > n)
        reader.more(2)
        # The proxy's own threads and sockets end a little after their connections.
        reader.until(lambda: threading.active_count() <= threads + 2)
        reader.until(lambda: descriptors() <= before + 4)
    check(reader)
    assert len(reader.gaps) >= 20


@pytest.mark.long
def test_ten_at_once() -> None:
    with RtspServer({"cam": endless(rate=10)}) as server, contextlib.ExitStack() as stack:
        # Ten connections at once may take a busy machine seconds.
        feeds = [feed(server.url("cam"), timeout_s=10.0) for _ in range(10)]
        readers = [stack.enter_context(Reader(each)) for each in feeds]
        for reader in readers:
            reader.more(3)
        server.kill()
        for reader in readers:
            reader.until(lambda reader=reader: away(reader))
        server.start()
        for reader in readers:
            reader.more(3)
    for reader in readers:
        check(reader)
        assert reader.gaps


def test_a_server_that_sends_over_tcp_only() -> None:
    with (
        RtspServer({"cam": endless()}, transport="tcp") as server,
        Reader(feed(server.url("cam"), transport="udp", retries=1)) as reader,
    ):
        reader.join()
    assert reader.faults[-1].message.startswith("the server does not send over this transport")


class Keeper:
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.streams: list[list[str]] = []
        self.packets: list[tuple[str, float, int]] = []
        self.threads: set[int] = set()
        self.placed: list[float] = []

    def begin(self, container: Any) -> None:
        self.streams.append([stream.type for stream in container.streams])
        self.threads.add(threading.get_ident())

    def add(self, packet: Any, time_s: float) -> None:
        self.packets.append((packet.stream.type, time_s, packet.size))
        self.threads.add(threading.get_ident())

    def place(self, stamp_s: float, time_s: float) -> None:
        self.placed.append(time_s)
        self.threads.add(threading.get_ident())


def test_the_keeper_sees_every_packet_of_every_stream() -> None:
    keeper = Keeper()
    with (
        RtspServer({"both": endless(sound=True)}) as server,
        TcpProxy(server.port) as proxy,
        Reader(feed(f"rtsp://127.0.0.1:{proxy.port}/both", keeper=keeper)) as reader,
    ):
        reader.more(20)
        proxy.cut()
        reader.until(lambda: reader.source.connection.reconnects)
        reader.more(20)
    assert [sorted(types) for types in keeper.streams] == [["audio", "video"]] * 2
    kinds = [kind for kind, _, _ in keeper.packets]
    assert len(reader.data) <= kinds.count("video") <= len(reader.data) + 3
    assert kinds.count("audio") > 40
    assert all(size > 0 for _, _, size in keeper.packets)
    times = [time_s for _, time_s, _ in keeper.packets]
    assert times == sorted(times)
    shown = [item.time_s for item in reader.data]
    assert len(set(shown) - set(keeper.placed)) <= 2  # the first of RTSP have no stamp
    assert len(keeper.threads) == 1


def test_from_and_to_a_time(server: RtspServer) -> None:
    for sound in (None, SOUND):
        how = ConnectionOptions(timeout_s=TIMEOUT_S)
        options = SourceOptions(connecting=how, sound=sound, start_s=0.5, end_s=1.0)
        source = open_source(server.url("both"), options)
        assert isinstance(source, FeedSource)
        with Reader(source) as reader:
            reader.join()
        check(reader)
        assert 0.5 <= reader.data[0].time_s < 0.7
        assert 0.8 <= reader.data[-1].time_s <= 1.1
        assert reader.source.connection.state == "ended"
