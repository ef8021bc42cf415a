"""Cameras and servers with faults of their own, and what a feed makes of them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from costream.core.records import VideoFrame
from costream.sources.live.clip_buffer import PacketRing
from costream.sources.live.servers import speaks
from kit.http_server import Quiet, http_server
from kit.media import make_video, numbered, read_number
from kit.reading import Reader, feed
from kit.rtsp_camera import camera

RATE = 25
GAP_S = 0.9  # a longer step is a gap for models
SEGMENT = 30  # frames


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 12 s of numbered pictures with a keyframe each second, as a byte stream in TS."""
    path = tmp_path_factory.mktemp("film") / "film.ts"
    return make_video(path, 12 * RATE, keyframe_every=RATE)


def frames_of(reader: Reader) -> list[VideoFrame]:
    return [item for item in reader.data if isinstance(item, VideoFrame)]


def check_pace(reader: Reader, off_s: float) -> None:
    """Check that there is no gap, and that the newest time is that of arrival."""
    times = [frame.time_s for frame in frames_of(reader)]
    assert reader.gaps == []
    assert max(b - a for a, b in pairwise(times)) < GAP_S
    assert times[-1] == pytest.approx(reader.now_s(), abs=off_s)


def test_stamps_of_another_rate(film: Path) -> None:
    with (
        camera(film, stamps=lambda media_s: 0.6 * media_s) as url,
        Reader(feed(url, timeout_s=5.0)) as reader,
    ):
        reader.until(lambda: reader.faults)
        reader.more(3 * RATE)
        check_pace(reader, 2.0)
    (fault,) = reader.faults
    assert "advance 0.6" in fault.message
    assert fault.time_s < 12.0


@pytest.mark.parametrize("rate", [0.0, 1 / 90])
def test_stamps_that_stand_still(film: Path, rate: float) -> None:
    with (
        camera(film, stamps=lambda media_s: rate * media_s) as url,
        Reader(feed(url, timeout_s=5.0)) as reader,
    ):
        reader.more(2 * RATE)
        check_pace(reader, 0.5)
    assert [fault.message.partition(":")[0] for fault in reader.faults] == [
        "its time stamps do not advance"
    ]


def test_parameter_sets_that_come_late_shift_no_times(film: Path) -> None:
    with camera(film, bare_s=1.5) as url, Reader(feed(url, timeout_s=5.0)) as reader:
        reader.more(RATE)
        first = frames_of(reader)[0]
        assert first.time_s == pytest.approx(reader.arrived[reader.items.index(first)], abs=0.5)
        assert first.time_s > 1.0


def test_lost_packets_count_until_the_next_keyframe(film: Path) -> None:
    with camera(film, lost_every=27) as url, Reader(feed(url, timeout_s=5.0)) as reader:
        reader.more(3 * RATE)
        errors = reader.source.errors
    told = " ".join(fault.message for fault in reader.faults)
    assert "lost frame" in told
    assert "predicted from damaged or lost ones" in told
    assert errors > RATE


def test_the_largest_of_several_pictures(
    film: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = make_video(tmp_path / "large.ts", 4 * RATE, size=(192, 128), keyframe_every=RATE)
    with camera(film, large) as url, Reader(feed(url, timeout_s=5.0, name="gate")) as reader:
        reader.more(10)
        assert {frame.rgb.shape for frame in frames_of(reader)} == {(128, 192, 3)}
    assert caplog.messages == [
        "gate: of 2 video streams 2 (192x128) is read, not 1 (96x64); choose with --stream"
    ]


def test_a_picture_size_that_changes_is_told_once(tmp_path: Path) -> None:
    """A camera that sends a second of each, again and again."""
    parts = [
        make_video(tmp_path / f"{width}.ts", RATE, size=(width, 64), keyframe_every=RATE)
        for width in (96, 128)
    ]
    both = tmp_path / "both.ts"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    with camera(both) as url, Reader(feed(url, timeout_s=5.0)) as reader:
        reader.more(5 * RATE)
        widths = [frame.rgb.shape[1] for frame in frames_of(reader)]
        told = [fault for fault in reader.faults if fault.count == 0]
    assert sum(a != b for a, b in pairwise(widths)) >= 3
    assert [fault.message for fault in told] == ["the picture size changes to 128x64 pixels"]
    first = frames_of(reader)[widths.index(128)]
    assert told[0].time_s == pytest.approx(first.time_s)


@pytest.mark.parametrize("stream", ["1", "96x64"])
def test_the_chosen_one_of_several_pictures_and_its_clip(
    film: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: str
) -> None:
    large = make_video(tmp_path / "large.ts", 4 * RATE, size=(192, 128), keyframe_every=RATE)
    ring, saved = PacketRing(hold_s=10.0), []
    with (
        contextlib.closing(ring),
        camera(film, large) as url,
        Reader(feed(url, timeout_s=5.0, stream=stream, keeper=ring)) as reader,
    ):
        reader.more(2 * RATE)
        assert {frame.rgb.shape for frame in frames_of(reader)} == {(64, 96, 3)}
        newest_s = frames_of(reader)[-1].time_s
        assert ring.save(tmp_path / "clip.mkv", newest_s, 1.0, 0.1, saved.append)
        reader.until(lambda: saved)
    assert saved == [tmp_path / "clip.mkv"]
    with av.open(str(saved[0])) as clip:
        assert [(s.width, s.height) for s in clip.streams.video] == [(96, 64)]
    assert caplog.messages == []


def test_a_picture_that_a_feed_does_not_have(film: Path) -> None:
    with camera(film) as url, Reader(feed(url, timeout_s=5.0, stream="2")) as reader:
        reader.join()
    (fault,) = reader.faults
    assert fault.fatal
    assert fault.message == "there is no video stream 2, only 1 (96x64)"


def test_a_digest_that_ffmpeg_does_not_know(film: Path) -> None:
    with (
        camera(film, sha=True) as url,
        Reader(feed(url.replace("//", "//viewer:sesame@"), timeout_s=5.0)) as reader,
    ):
        reader.join()
    (fault,) = reader.faults
    assert fault.fatal
    assert fault.message.startswith("the server requires a digest login with SHA-256")
    assert "sesame" not in f"{reader.items}"


def test_a_protocol_that_ffmpeg_has_not() -> None:
    if speaks("srt"):
        pytest.skip("this FFmpeg has it")
    with Reader(feed("srt://127.0.0.1:9")) as reader:
        reader.join()
    assert reader.faults[-1].fatal
    assert "ffmpeg -i srt://... -c copy -f mpegts - | costream watch -" in (
        reader.faults[-1].message
    )
    assert speaks("rtsp")
    assert speaks("udp")


def _numbered_from(first: int, k: int, size: tuple[int, int]) -> np.ndarray:
    return numbered(first + k, size)


class HlsHandler(Quiet, http.server.BaseHTTPRequestHandler):
    """A live playlist of two variants whose stamps begin anew in each segment."""

    protocol_version = "HTTP/1.1"
    segments: tuple[dict[int, bytes], ...] = ()  # of each variant
    began_s = 0.0
    asked: list[str]

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.asked.append(name)
        if name == "live.m3u8":
            body = self._master()
        elif name.endswith(".m3u8"):
            body = self._playlist(name[0])
        else:
            variant, number = name.partition(".")[0].split("_")
            body = self.segments[int(variant)][int(number)]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _master(self) -> bytes:
        sizes = ("48x32", "96x64")
        lines = [
            f"#EXT-X-STREAM-INF:BANDWIDTH={k + 1}00000,RESOLUTION={size}\n{k}.m3u8"
            for k, size in enumerate(sizes)
        ]
        return "\n".join(["#EXTM3U", *lines, ""]).encode()

    def _playlist(self, variant: str) -> bytes:
        elapsed = (time.monotonic() - self.began_s) * RATE / SEGMENT
        newest = min(int(elapsed) + 2, len(self.segments[0]))
        first = max(0, newest - 4)
        lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:2"]
        lines.append(f"#EXT-X-MEDIA-SEQUENCE:{first}")
        for k in range(first, newest):
            lines += ["#EXT-X-DISCONTINUITY", f"#EXTINF:{SEGMENT / RATE},", f"{variant}_{k}.jpg"]
        return "\n".join([*lines, ""]).encode()


@contextmanager
def hls(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve it; return its address, and what is asked for."""
    variants = []
    for variant, size in enumerate(((48, 32), (96, 64))):
        made = {}
        for k in range(12):
            path = folder / f"{variant}_{k}.ts"
            numbers = functools.partial(_numbered_from, k * SEGMENT)
            make_video(path, SEGMENT, size=size, keyframe_every=SEGMENT, pattern=numbers)
            made[k] = path.read_bytes()
        variants.append(made)
    asked: list[str] = []
    values = {"segments": tuple(variants), "began_s": time.monotonic(), "asked": asked}
    kind = type("Handler", (HlsHandler,), values)
    with http_server(kind) as server:
        yield f"http://127.0.0.1:{server.server_port}/live.m3u8", asked


def test_hls_whose_stamps_start_again_loses_no_picture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hls(tmp_path) as (url, asked), Reader(feed(url, timeout_s=5.0)) as reader:
        reader.more(5 * SEGMENT)
    frames = frames_of(reader)
    assert {frame.rgb.shape for frame in frames} == {(64, 96, 3)}
    assert reader.gaps == []
    numbers = [read_number(frame.rgb) for frame in frames][2 * SEGMENT :]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    times = [frame.time_s for frame in frames][2 * SEGMENT :]
    steps = [b - a for a, b in pairwise(times)]
    assert steps == pytest.approx([1 / RATE] * len(steps), abs=0.005)
    assert any("of 2 video streams 2 (96x64) is read" in line for line in caplog.messages)
    assert sum(name.startswith("0_") for name in asked) <= 2
