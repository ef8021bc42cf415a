"""Video without time stamps: the rate is what is stated, what is given, or told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from costream.core.records import SourceInfo, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.video_source import VideoSource
from costream.sources.pipe import PipeSource
from kit.media import make_video, read_number
from kit.reading import contents
from kit.runs import records, run

STATED = {"a.h264": "libx264", "a.hevc": "libx265", "a.m2v": "mpeg2video", "a.m4v": "mpeg4"}
SILENT = {"a.mjpeg": "mjpeg", "a.obu": "libsvtav1"}
MUXERS = {"a.m4v": "m4v", "a.mjpeg": "mjpeg", "a.m2v": "mpeg2video"}


def written(folder: Path, name: str, *, rate: int = 30, frames: int = 20) -> Path:
    codec = {**STATED, **SILENT}[name]
    wide = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    made = {"codec": codec, "pixel_format": wide, "fmt": MUXERS.get(name), "rate": rate}
    return make_video(folder / name, frames, **made)  # type: ignore[arg-type]


def read(path: Path, **options: object) -> tuple[SourceInfo, list[VideoFrame]]:
    video = contents(VideoSource(str(path), SourceOptions(**options)))  # type: ignore[arg-type]
    return video.info, video.frames


def times(frames: list[VideoFrame]) -> list[float]:
    return [frame.time_s - frames[0].time_s for frame in frames]


@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("rate", [15, 30, 50])
def test_the_rate_that_a_stream_states(name: str, rate: int, tmp_path: Path) -> None:
    info, frames = read(written(tmp_path, name, rate=rate))
    assert info.assumed == ()
    assert info.rate_hz == rate
    assert times(frames) == pytest.approx([k / rate for k in range(20)])


@pytest.mark.parametrize("name", SILENT)
def test_a_rate_that_is_assumed_is_reported(name: str, tmp_path: Path) -> None:
    info, frames = read(written(tmp_path, name))
    assert info.rate_hz == 25
    assert info.assumed == ("no time stamps: 25 frames a second assumed; set it with --input-fps",)
    assert times(frames) == pytest.approx([k / 25 for k in range(20)])


@pytest.mark.parametrize("rate", [b"", b" F0:0", b" F30:1"])
@pytest.mark.parametrize("redirected", [False, True])
def test_yuv4mpeg_whose_first_line_has_no_rate(
    rate: bytes, redirected: bool, tmp_path: Path
) -> None:
    """Also through <, and with the rate given."""
    path = tmp_path / "a.y4m"
    frame = b"FRAME\n" + bytes(32 * 32 * 3 // 2)
    path.write_bytes(b"YUV4MPEG2 W32 H32" + rate + b" Ip A1:1 C420jpeg\n" + 20 * frame)
    for given in (None, 10.0):
        options = SourceOptions(input_hz=given)
        with path.open("rb") as file:
            video = contents(VideoSource(str(path), options, file=file if redirected else None))
        step_s = 1 / 30 if b"30" in rate else 1 / (given or 25)
        assert times(video.frames) == pytest.approx([k * step_s for k in range(20)])
        assert len(video.info.assumed) == ((given is None) != (b"30" in rate))


@pytest.mark.parametrize("name", [*STATED, *SILENT])
def test_a_rate_that_is_given(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    info, frames = read(path, input_hz=12.5)
    assert info.assumed == ()
    assert info.rate_hz == 12.5
    assert times(frames) == pytest.approx([k / 12.5 for k in range(20)])
    _, frames = read(path, input_hz=12.5, start_s=0.8)
    assert [read_number(frame.rgb) for frame in frames] == list(range(10, 20))


@pytest.mark.parametrize("name", [*STATED, *SILENT])
def test_the_same_from_a_pipe(name: str, tmp_path: Path) -> None:
    path, pipe = written(tmp_path, name), tmp_path / "pipe"
    info, frames = read(path)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()), daemon=True)
    writer.start()
    piped = contents(PipeSource(str(pipe)))
    writer.join()
    assert (piped.info.rate_hz, piped.info.assumed) == (info.rate_hz, info.assumed)
    assert [f.time_s for f in piped.frames] == pytest.approx([f.time_s for f in frames])


def test_a_single_picture_has_no_rate(tmp_path: Path) -> None:
    info, frames = read(written(tmp_path, "a.mjpeg", frames=1))
    assert len(frames) == 1
    assert info.assumed == ()


def test_a_rate_is_not_given_to_what_has_time_stamps(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", 20)
    info, frames = read(path, input_hz=50)
    assert info.assumed == ("it has time stamps: --input-fps is ignored",)
    assert times(frames) == pytest.approx([k / 25 for k in range(20)])


def test_what_is_assumed_is_a_line_and_in_the_header(tmp_path: Path) -> None:
    path, out = written(tmp_path, "a.mjpeg", frames=60), tmp_path / "out"
    line = "no time stamps: 25 frames a second assumed; set it with --input-fps"
    done = run("detect", "-m", "cooadtr", path, "-o", out)
    assert done.stderr.count(line) == 1
    (header,) = records(out / "a.mjpeg.jsonl", "header")
    assert header["options"]["assumed"] == [line]
    done = run("detect", "-m", "cooadtr", path, "-o", out, "--input-fps", 30, "--overwrite")
    assert "time stamps" not in done.stderr
    (header,) = records(out / "a.mjpeg.jsonl", "header")
    assert "assumed" not in header["options"]
    assert header["options"]["input_fps"] == 30
