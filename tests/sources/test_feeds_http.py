"""Live feeds over HTTP, MPEG-TS and HLS, servers that do not answer, and cameras: no RTSP."""

from __future__ import annotations

import contextlib
import functools
import http.server
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import pytest

from costream.core.clock import resample
from costream.core.errors import UsageError
from costream.core.records import AudioBlock, AudioFormat, Fault, Gap, VideoFrame
from costream.runtime.watch.buffer import Buffer, ReadyStep
from costream.runtime.watch.feed import Feed
from costream.sources.base import ConnectionOptions, SourceOptions
from costream.sources.live import failures
from costream.sources.live.backoff import REFUSED_FIRST_S, REFUSED_LONGEST_S
from costream.sources.live.feed_source import FeedSource
from costream.sources.live.paired_audio import PairedAudio
from costream.sources.uris import open_source
from kit.http_server import Quiet, QuietFiles, http_server
from kit.media import busy, make_video, numbered, read_number
from kit.reading import PATIENCE_S, TIMEOUT_S, Reader, feed

PIECES = 50  # a second
RATE = 25
SOUND = AudioFormat(16000, 1600)


class TsHandler(Quiet, http.server.BaseHTTPRequestHandler):
    """Sends a transport stream, at the pace at which it was recorded."""

    content = b""
    seconds = 1.0
    status = 200
    skip = 0.0  # begin after this part of it

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        if self.status != 200:
            return
        step = len(self.content) // round(self.seconds * PIECES)
        begin = round(len(self.content) * self.skip) // 188 * 188
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            for k, at in enumerate(range(begin, len(self.content), step)):
                time.sleep(max(0.0, began_s + k / PIECES - time.monotonic()))
                self.wfile.write(self.content[at : at + step])


@contextlib.contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[int]:
    """Serve HTTP on a free port of this machine."""
    with http_server(handler) as server:
        yield server.server_port


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two seconds of pictures, a keyframe each second, and a tone."""
    path = tmp_path_factory.mktemp("ts") / "a.ts"
    return make_video(path, 2 * RATE, keyframe_every=RATE, audio_s=2.0).read_bytes()


def handler(**values: Any) -> type[TsHandler]:
    return type("Handler", (TsHandler,), values)


@pytest.mark.parametrize("sound", [None, SOUND])
def test_a_transport_stream_that_ends_and_begins_again(
    stream: bytes, sound: AudioFormat | None
) -> None:
    with (
        serving(handler(content=stream, seconds=2.0)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/live.ts?token=secret", sound=sound)) as reader,
    ):
        reader.until(lambda: reader.source.connection.reconnects)
        reader.more(5)
    times = [item.time_s for item in reader.data]
    assert all(a < b for a, b in pairwise(times))
    gap = reader.gaps[0]
    assert gap.reason == "the stream has ended: the server closed it"
    assert "secret" not in f"{reader.info} {reader.items}"
    first = [item for item in reader.data if item.time_s <= gap.start_s]
    # About a second is looked at before it begins; then it goes on as fast as it comes.
    assert gap.start_s == pytest.approx(2.0, abs=1.5)
    assert len(first) >= 20
    for arrived_s, item in zip(reader.arrived, reader.items, strict=True):
        if isinstance(item, VideoFrame | AudioBlock):
            assert item.time_s < arrived_s + 1.1


def test_nothing_is_shown_before_a_keyframe(stream: bytes) -> None:
    with (
        serving(handler(content=stream, seconds=2.0, skip=0.3)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/live.ts")) as reader,
    ):
        reader.more(20)
    frames = [frame for frame in reader.data if isinstance(frame, VideoFrame)]
    numbers = [read_number(frame.rgb) for frame in frames[:20]]
    assert numbers[0] == RATE
    assert numbers == sorted(set(numbers))


class Hls:
    """Writes an HLS stream into a folder, as it happens."""

    def __init__(self, folder: Path, segment_s: float = 0.5) -> None:
        self._folder, self._segment_s = folder, segment_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Hls:
        self._thread.start()
        while not (self._folder / "live.m3u8").exists():
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(90)

    def _write(self) -> None:
        options = {"hls_time": str(self._segment_s), "hls_list_size": "4"}
        with av.open(str(self._folder / "live.m3u8"), "w", format="hls", options=options) as out:
            stream = out.add_stream("libx264", rate=RATE)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
            stream.gop_size = 10
            stream.options = {"preset": "ultrafast", "tune": "zerolatency", "threads": "1"}
            began_s, k = time.monotonic(), 0
            while not self._ends.wait(max(0.0, began_s + k / RATE - time.monotonic())):
                frame = av.VideoFrame.from_ndarray(numbered(k, (96, 64)), "rgb24")
                frame.pts, frame.time_base = k, Fraction(1, RATE)
                out.mux(stream.encode(frame))
                k += 1


def test_hls(tmp_path: Path) -> None:
    with (
        Hls(tmp_path),
        serving(functools.partial(QuietFiles, directory=str(tmp_path))) as port,
        Reader(feed(f"http://127.0.0.1:{port}/live.m3u8", timeout_s=5.0)) as reader,
    ):
        reader.more(60)
    frames = [frame for frame in reader.data if isinstance(frame, VideoFrame)]
    assert reader.gaps == reader.faults == []
    numbers = [read_number(frame.rgb) for frame in frames]
    assert numbers == sorted(set(numbers))
    # Segments come at once; their pictures keep the times at which they were taken.
    last = frames[-20:]
    assert all(b.time_s - a.time_s == pytest.approx(0.04, abs=0.01) for a, b in pairwise(last))
    assert last[-1].time_s < reader.arrived[-1] + 1.1


@pytest.mark.parametrize("sound", [None, SOUND])
def test_a_playlist_that_stands_still_is_not_back(
    tmp_path: Path, sound: AudioFormat | None
) -> None:
    """Every new connection is sent its last segment again, until it goes on."""
    whole = {"hls_time": "2", "hls_list_size": "0"}
    path = tmp_path / "part.m3u8"
    make_video(path, 150, keyframe_every=25, fmt="hls", audio_s=6.0, container_options=whole)

    def show(*numbers: int) -> None:
        head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n"
        head += f"#EXT-X-MEDIA-SEQUENCE:{numbers[0]}\n"
        new = tmp_path / "new"
        new.write_text(head + "".join(f"#EXTINF:2.0,\npart{k}.ts\n" for k in numbers))
        new.replace(tmp_path / "live.m3u8")

    show(0)
    with (
        serving(functools.partial(QuietFiles, directory=str(tmp_path))) as port,
        Reader(feed(f"http://127.0.0.1:{port}/live.m3u8", timeout_s=2.0, sound=sound)) as reader,
    ):
        reader.source._backoff.next_s = lambda **_: 0.05
        reader.more(2)
        show(0, 1)
        reader.until(
            lambda: any("repeats earlier data" in fault.message for fault in reader.faults)
        )
        before, gaps = len(reader.data), len(reader.gaps)
        attempts = reader.source.connection.message
        reader.until(lambda: reader.source.connection.message not in (attempts, ""))
        assert reader.source.connection.state != "live"
        assert (len(reader.data), len(reader.gaps)) == (before, gaps)
        show(1, 2)
        reader.more(2)
        assert reader.source.connection.state == "live"
    assert "repeats earlier data" in reader.gaps[-1].reason
    times = [item.time_s for item in reader.data]
    assert times == sorted(set(times))
    assert sum("repeats earlier data" in fault.message for fault in reader.faults) == 1
    if sound is None:
        numbers = [read_number(item.rgb) for item in reader.data if isinstance(item, VideoFrame)]
        assert numbers == sorted(set(numbers))


def test_hls_of_two_seconds_loses_no_step_of_a_watch(tmp_path: Path) -> None:
    with (
        Hls(tmp_path, 2.0),
        serving(functools.partial(QuietFiles, directory=str(tmp_path))) as port,
    ):
        buffer = Buffer(112, 2.0, block=False, arrived=threading.Condition())
        clock = functools.partial(resample, rate_hz=8.0, gap_tolerance_s=1.0)
        source = feed(f"http://127.0.0.1:{port}/live.m3u8", timeout_s=10.0)
        watched = Feed("x", source, clock, buffer)
        watched.start()
        events: list[Any] = []
        until_s = time.monotonic() + PATIENCE_S
        while sum(isinstance(event, ReadyStep) for event in events) < 33:
            events += buffer.take()
            assert time.monotonic() < until_s
            time.sleep(0.02)
        watched.stop()
        watched.join(90)
    numbers = [event.tick.i for event in events if isinstance(event, ReadyStep)]
    assert numbers == list(range(len(numbers)))
    assert buffer.dropped == 0
    assert watched.delays.most_s > 1.0  # they came in bursts


@pytest.mark.parametrize(
    ("status", "fatal", "message"),
    [
        (401, True, "login"),
        (403, True, "login"),
        (404, True, "404"),
        (503, False, "internal error (5xx)"),
    ],
)
def test_what_a_server_refuses(status: int, fatal: bool, message: str) -> None:
    with serving(handler(status=status)) as port:
        source = feed(f"http://u:sesame@127.0.0.1:{port}/live.ts", retries=2)
        with Reader(source) as reader:
            reader.join()
    fault = reader.faults[-1]
    assert fault.fatal
    assert message in fault.message
    assert ("2 attempts" in fault.message) == (not fatal)
    assert "sesame" not in f"{reader.items}"


def test_what_was_live_is_never_given_up_for_a_refusal(stream: bytes) -> None:
    """Cameras that start, and relays without a publisher, answer so for a while."""
    server = handler(content=stream, seconds=2.0)
    with (
        serving(server) as port,
        Reader(feed(f"http://127.0.0.1:{port}/live.ts")) as reader,
    ):
        next_s, waits = reader.source._backoff.next_s, []
        reader.source._backoff.next_s = lambda **how: waits.append(next_s(**how)) or 0.05
        reader.more(2)
        for count, (status, word) in enumerate([(404, "404"), (401, "login")], 1):
            server.status = status
            reader.until(lambda n=5 * count: len(waits) >= n)
            assert word in reader.source.connection.message
            assert reader.source.connection.state in ("waiting", "connecting")
        server.status = 200
        reader.more(10)
    assert not any(fault.fatal for fault in reader.faults)
    assert "attempts failed" in reader.gaps[0].reason
    refused = waits[1:10]
    assert refused[0] >= REFUSED_FIRST_S / 2
    assert REFUSED_LONGEST_S / 2 <= refused[-1] <= REFUSED_LONGEST_S


@contextlib.contextmanager
def mute() -> Iterator[int]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["rtsp", "http", "rtmp"])
def test_a_mute_server(scheme: str) -> None:
    with mute() as port, Reader(feed(f"{scheme}://127.0.0.1:{port}/x")) as reader:
        reader.until(lambda: reader.source.connection.state == "waiting")
        waited_s = reader.now_s()
        assert "no answer within 1.5 s" in reader.source.connection.message
    assert waited_s < 2 * TIMEOUT_S + 3
    assert [type(item) for item in reader.items] == [Fault, Gap]
    assert reader.gaps[0].start_s == 0.0


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
def test_stop_while_it_connects(scheme: str) -> None:
    with mute() as port, Reader(feed(f"{scheme}://127.0.0.1:{port}/x", timeout_s=2.0)) as reader:
        time.sleep(0.5)
        before_s = time.monotonic()
        reader.source.stop()
        assert time.monotonic() - before_s < 1.0
        reader.join()
        assert time.monotonic() - before_s < 2.0 + 3.0
    assert reader.items == []
    assert reader.source.connection.state == "ended"


def test_stop_while_it_waits_and_while_it_is_live(stream: bytes) -> None:
    with Reader(feed("rtsp://127.0.0.1:1/x")) as reader:
        reader.source._backoff.next_s = lambda **_: 600.0  # type: ignore[method-assign]
        reader.until(lambda: reader.source.connection.state == "waiting")
        before_s = time.monotonic()
    assert time.monotonic() - before_s < 10.0
    with serving(handler(content=stream, seconds=2.0)) as port:
        with Reader(feed(f"http://127.0.0.1:{port}/live.ts")) as reader:
            reader.more(2)
            before_s = time.monotonic()
        assert time.monotonic() - before_s < 10.0


def test_stop_before_it_begins_and_close_at_any_time(stream: bytes) -> None:
    source = feed("rtsp://127.0.0.1:1/x")
    source.close()
    source.stop()
    assert source.open().live
    assert list(source.items()) == []
    source.close()
    with serving(handler(content=stream, seconds=2.0)) as port:
        source = feed(f"http://127.0.0.1:{port}/live.ts")
        source.open()
        items = source.items()
        frame = next(items)
        assert isinstance(frame, VideoFrame)
        source.close()
        source.close()
        assert list(items) == []
        assert frame.rgb.shape == (64, 96, 3)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("rtsp://no.such.host.invalid/x", "the host no.such.host.invalid cannot be found"),
        ("http://127.0.0.1:1/x", "the connection was refused"),
        ("rtsp://127.0.0.1:1/x", "the connection was refused"),
    ],
)
def test_what_is_tried_again(url: str, message: str) -> None:
    with Reader(feed(url, retries=2)) as reader:
        reader.join()
    faults = [fault.message for fault in reader.faults]  # not at each attempt
    assert faults == [message, f"{message}; gave up after 2 attempts"]
    assert reader.gaps[0].reason == f"{message}; 2 attempts failed"


@pytest.mark.parametrize("others", [[], ["/dev/video9 (Front door)"]])
@pytest.mark.parametrize("name", ["camera:77", "/dev/video77"])
def test_a_camera_that_was_never_there_ends(
    name: str, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "list_cameras", lambda: others)
    with Reader(feed(name)) as reader:
        reader.join()
    (fault,) = reader.faults
    found = "only /dev/video9 (Front door)" if others else "and no other"
    assert (fault.message, fault.fatal) == (f"there is no such camera, {found}", True)
    lost = feed(name)
    lost._been_live = True
    with Reader(lost) as reader:
        reader.until(lambda: reader.source.connection.state == "waiting")


@pytest.mark.parametrize("content", [b"<html>hello</html>" * 100, b"."])
def test_addresses_without_a_stream_are_reported(content: bytes) -> None:
    with Reader(feed("gopher2://127.0.0.1/x")) as reader:
        reader.join()
    assert reader.faults[-1].message == "unknown protocol: gopher2"
    with (
        serving(handler(content=content, seconds=0.02)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/x", retries=1)) as reader,
    ):
        reader.join()
    assert reader.faults[-1].message == (
        "the server sent no readable stream; gave up after 1 attempt"
    )
    assert reader.data == []


def test_packets_without_pictures_are_a_stall(stream: bytes, tmp_path: Path) -> None:
    """The sound goes on and the pictures stop: nothing is left to read from, but data come."""
    path = make_video(tmp_path / "b.ts", RATE, keyframe_every=RATE, audio_s=12.0)
    with (
        serving(handler(content=path.read_bytes(), seconds=12.0)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/x")) as reader,
    ):
        reader.more(10)
        reader.until(lambda: reader.source.connection.state == "waiting")
        assert "data arrive, but no frame for" in reader.source.connection.message


@pytest.mark.long
def test_udp_that_loses_packets(tmp_path: Path) -> None:
    """One datagram in twenty does not come: damage is told, and the pictures go on."""
    path = make_video(
        tmp_path / "a.ts", 3 * RATE, size=(320, 240), keyframe_every=RATE, pattern=busy
    )
    content, size, chance = path.read_bytes(), 7 * 188, random.Random(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        port = sender.getsockname()[1] ^ 1  # another one that is likely to be free
        with Reader(feed(f"udp://127.0.0.1:{port}", timeout_s=2.0)) as reader:
            time.sleep(0.5)
            for k, at in enumerate(range(0, len(content), size)):
                if k < 20 or chance.random() > 0.05:
                    sender.sendto(content[at : at + size], ("127.0.0.1", port))
                time.sleep(3.0 * size / len(content))
            reader.until(lambda: reader.source.connection.state == "waiting")
    assert len(reader.data) > RATE
    assert all(a.time_s < b.time_s for a, b in pairwise(reader.data))
    assert reader.faults
    assert not any(fault.fatal for fault in reader.faults)
    assert "damage" in reader.faults[0].message
    assert reader.faults[0].time_s == pytest.approx(reader.data[0].time_s, abs=4.0)
    assert reader.gaps[0].reason == "stalled: no data for 2 s"


def test_a_camera_gives_no_sound() -> None:
    with pytest.raises(UsageError, match="a camera has no sound"):
        open_source("camera:0", SourceOptions(connecting=ConnectionOptions(), sound=SOUND))


# JPEGs over HTTP, as many cameras send them: without time stamps.


class JpegHandler(Quiet, http.server.BaseHTTPRequestHandler):
    """Sends pictures, one after the other; every ``broken``-th is none."""

    pictures: tuple[bytes, ...] = ()
    rate_hz = 5.0
    broken: int | None = None

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            for k in range(1000):
                time.sleep(max(0.0, began_s + k / self.rate_hz - time.monotonic()))
                picture = self.pictures[k % len(self.pictures)]
                if self.broken is not None and k % self.broken == self.broken - 1:
                    picture = b"<html>busy</html>"
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n"
                self.wfile.write(head.encode() + b"\r\n" + picture + b"\r\n")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ...]:
    path = tmp_path_factory.mktemp("jpeg") / "a.avi"
    make_video(path, 8, codec="mjpeg", pixel_format="yuvj420p")
    with av.open(str(path)) as container:
        return tuple(bytes(packet) for packet in container.demux(video=0) if packet.size)


@pytest.mark.parametrize("rate_hz", [4.0, 50.0])
def test_jpegs_have_the_time_at_which_they_come(
    pictures: tuple[bytes, ...], rate_hz: float
) -> None:
    shown = type("Handler", (JpegHandler,), {"pictures": pictures, "rate_hz": rate_hz})
    with serving(shown) as port, Reader(feed(f"http://127.0.0.1:{port}/video")) as reader:
        reader.until(lambda: len(reader.data) > 5 * rate_hz)
    times = [item.time_s for item in reader.data]
    assert all(a < b for a, b in pairwise(times))
    first = len(times) // 2  # pictures that come while the feed is opened are read at once
    span_s, came_s = times[-1] - times[first], reader.arrived[-1] - reader.arrived[first]
    assert span_s == pytest.approx((len(times) - 1 - first) / rate_hz, rel=0.2)
    assert span_s == pytest.approx(came_s, abs=1.0)
    assert reader.gaps == []


def test_damage_is_reported_when_a_feed_is_stopped(pictures: tuple[bytes, ...]) -> None:
    values = {"pictures": pictures, "rate_hz": 20.0, "broken": 3}
    with (
        serving(type("Handler", (JpegHandler,), values)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/video")) as reader,
    ):
        reader.until(lambda: len(reader.data) > 20)
        least = reader.source.errors
    assert least > 5
    assert sum(fault.count for fault in reader.faults) >= least


def test_sound_that_ends_before_the_pictures_is_reported(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.ts", 6 * RATE, keyframe_every=RATE, audio_s=2.0)
    how = ConnectionOptions(timeout_s=TIMEOUT_S)
    with serving(handler(content=path.read_bytes(), seconds=6.0)) as port:
        url = f"http://127.0.0.1:{port}/live.ts"
        source = open_source(url, SourceOptions(connecting=how, extra_audio=SOUND))
        assert isinstance(source, FeedSource)
        with Reader(source) as reader:
            reader.until(lambda: reader.source.connection.reconnects)
    told = [fault for fault in reader.faults if fault.message.startswith("no sound for")]
    assert told
    assert told[0].time_s == pytest.approx(2.0, abs=1.5)
    assert len(told) == 1


def test_silence_is_counted_within_a_connection(tmp_path: Path) -> None:
    path, told = make_video(tmp_path / "a.ts", RATE, audio_s=1.0), []
    beside = PairedAudio(SourceOptions(), "feed", 0.0, SOUND)
    for begin_s in (0.0, 40.0):
        with av.open(str(path)) as container:
            beside.begin(container, container.streams.audio[0], "")
            assert sum(beside.takes(packet, 0.0) for packet in container.demux()) > 10
            for time_s in (begin_s, begin_s + 1.9, begin_s + 2.1, begin_s + 9.0):
                told += [item for item in beside.take(time_s) if isinstance(item, Fault)]
            beside.end()
    messages = [(fault.time_s, fault.message) for fault in told]
    assert messages == [(0.0, "no sound for 2 s"), (40.0, "no sound for 2 s")]


def test_sound_that_is_missing_again_is_reported_again(tmp_path: Path) -> None:
    """A camera loses it, has it back, and loses it again; reconnections tell nothing new."""
    heard = make_video(tmp_path / "a.ts", RATE, audio_s=1.0)
    silent = make_video(tmp_path / "b.ts", RATE)
    beside, told = PairedAudio(SourceOptions(), "feed", 0.0, SOUND), []
    for path in (heard, silent, silent, heard, heard, silent, silent):
        with av.open(str(path)) as container:
            sound = next(iter(container.streams.audio), None)
            beside.begin(container, sound, "" if sound else "there is no sound")
            told.append([i.message for i in beside.take(0.0) if isinstance(i, Fault)])
            beside.end()
    none = ["no sound: there is no sound"]
    assert told == [[], none, [], [], [], none, []]


@functools.cache
def jpegs() -> tuple[bytes, ...]:
    """Some pictures of a camera, each another one."""
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = 96, 64, "yuvj420p"  # type: ignore[attr-defined]
    encoder.time_base = Fraction(1, RATE)
    pictures = (av.VideoFrame.from_ndarray(numbered(k, (96, 64)), "rgb24") for k in range(40))
    made = []
    for k, picture in enumerate(pictures):
        picture = picture.reformat(format="yuvj420p")
        picture.pts = k
        made += [bytes(packet) for packet in encoder.encode(picture)]  # type: ignore[attr-defined]
    return tuple(made)


class Jpegs(Quiet, http.server.BaseHTTPRequestHandler):
    """Sends JPEGs in parts, as browsers show them; ``before`` and ``after``: of each."""

    before, after = "--frame\r\nContent-Type: image/jpeg\r\n\r\n", "\r\n"
    kind = "multipart/x-mixed-replace; boundary=frame"
    count = 40

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", self.kind)
        self.end_headers()
        with contextlib.suppress(OSError):
            for picture in jpegs()[: self.count]:
                self.wfile.write(self.before.encode() + picture + self.after.encode())
                time.sleep(0.05)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Jpegs.before, Jpegs.after),
        ("Content-Type: image/jpeg\r\n\r\n", "\r\n--frame\r\n"),  # ESP32, old firmware
        ("frame\r\nContent-Type: image/jpeg\r\n\r\n", "\r\n"),  # Tasmota
    ],
    ids=["as it should be", "no first boundary", "no dashes"],
)
def test_jpegs_over_http(before: str, after: str) -> None:
    server = type("Handler", (Jpegs,), {"before": before, "after": after})
    with (
        serving(server) as port,
        Reader(feed(f"http://127.0.0.1:{port}/stream", timeout_s=5.0)) as reader,
    ):
        reader.more(8)
    numbers = [read_number(f.rgb) for f in reader.data if isinstance(f, VideoFrame)]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("path", ["snap.jpg", "cgi-bin/snapshot?id=1"])
def test_a_single_picture_is_not_asked_for_again_and_again(path: str) -> None:
    single = {"before": "", "after": "", "kind": "image/jpeg", "count": 1}
    with (
        serving(type("Handler", (Jpegs,), single)) as port,
        Reader(feed(f"http://127.0.0.1:{port}/{path}", timeout_s=5.0)) as reader,
    ):
        reader.join()
    (fault,) = reader.faults
    assert fault.fatal
    assert fault.message.startswith(
        "this is a single picture, not a stream: use the address of a stream"
    )
    assert reader.data == []
