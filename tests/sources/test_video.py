"""Intact video files: which frame, when, which way up, how large."""

from __future__ import annotations

import gc
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from costream.core.errors import SourceError
from costream.core.records import SourceInfo, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.video_source import VideoSource
from kit.media import busy, make_audio, make_video, read_number, red_corner, side_by_side
from kit.reading import contents


def read(path: Path, **options: object) -> tuple[SourceInfo, list[VideoFrame]]:
    """Return the frames of a file that has nothing wrong with it."""
    video = contents(VideoSource(str(path), SourceOptions(**options)))  # type: ignore[arg-type]
    assert video.errors == 0
    assert video.frames == video.items
    return video.info, video.frames


# --- time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "mov", "webm"])
@pytest.mark.parametrize("b_frames", [0, 2])
def test_every_frame_at_its_time(ending: str, b_frames: int, tmp_path: Path) -> None:
    codec = "libvpx" if ending == "webm" else "libx264"
    path = make_video(tmp_path / f"clip.{ending}", 60, b_frames=b_frames, codec=codec)
    info, frames = read(path)
    assert info.duration_s == pytest.approx(60 / 25)
    assert info.rate_hz == 25.0
    assert info.size == (96, 64)
    assert [f.i for f in frames] == list(range(60))
    assert [f.time_s for f in frames] == pytest.approx([k / 25 for k in range(60)])
    assert [read_number(f.rgb) for f in frames] == list(range(60))
    assert not any(f.estimated or f.corrupt for f in frames)


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_variable_rate(ending: str, tmp_path: Path) -> None:
    """30 frames a second, then 10: frame 200 is at 10.0 s, whatever the average rate says."""
    times = [k / 30 for k in range(150)] + [5 + k / 10 for k in range(100)]
    _, frames = read(make_video(tmp_path / f"vfr.{ending}", 250, times=times))
    assert frames[200].time_s == pytest.approx(10.0)
    assert read_number(frames[200].rgb) == 200
    assert [f.time_s for f in frames] == pytest.approx(times, abs=0.6e-3)


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_a_stream_that_starts_late_keeps_its_place(ending: str, tmp_path: Path) -> None:
    path = make_video(tmp_path / f"late.{ending}", 10, start_s=4.087)
    for start_s in (0.0, 2.0):
        info, frames = read(path, start_s=start_s)
        assert frames[0].time_s == pytest.approx(4.087)
        assert len(frames) == 10
        assert info.duration_s == pytest.approx(4.487)


def test_a_transport_stream_counts_from_its_start(tmp_path: Path) -> None:
    """Its clock starts anywhere: a recording from 95,441 s on is one from 0 s on."""
    path = make_video(tmp_path / "recorded.ts", 100, start_s=2**33 / 90000 - 2)
    info, frames = read(path)  # the 33-bit clock of MPEG wraps after 2 s
    assert [f.time_s for f in frames] == pytest.approx([k / 25 for k in range(100)])
    assert info.duration_s == pytest.approx(4.0)
    _, frames = read(path, start_s=1.0, end_s=1.2)
    assert [read_number(f.rgb) for f in frames] == [25, 26, 27, 28, 29]


def test_video_after_sound_in_a_transport_stream_stays_after_it(tmp_path: Path) -> None:
    _, frames = read(make_video(tmp_path / "both.ts", 10, start_s=4.0, audio_s=2.0))
    assert frames[0].time_s == pytest.approx(4.0, abs=0.1)


def test_missing_time_stamps_are_estimated(tmp_path: Path) -> None:
    """A bare H.264 stream has none."""
    _, frames = read(make_video(tmp_path / "bare.h264", 60, b_frames=2))
    assert all(f.estimated and f.pts is None for f in frames)
    assert [f.time_s for f in frames] == pytest.approx([k / 25 for k in range(60)])
    _, frames = read(tmp_path / "bare.h264", start_s=1.0)
    assert [read_number(f.rgb) for f in frames] == list(range(25, 60))


def test_joined_transport_streams_continue(tmp_path: Path) -> None:
    one = make_video(tmp_path / "one.ts", 50).read_bytes()
    (tmp_path / "two.ts").write_bytes(one + one)
    video = contents(VideoSource(str(tmp_path / "two.ts")))
    assert [f.time_s for f in video.frames] == pytest.approx([k / 25 for k in range(100)])
    (fault,) = video.faults
    assert "backward clock jump" in fault.message
    assert not fault.fatal


# --- start and end ----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "avi"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.4), (0.04, 0.08), (1.36, 3.0), (3.84, None)])
def test_range_is_exact(ending: str, start: float, end: float | None, tmp_path: Path) -> None:
    """Keyframes are a second apart; the frames given are those at start <= time < end."""
    path = make_video(tmp_path / f"long.{ending}", 100, keyframe_every=25)
    _, frames = read(path, start_s=start, end_s=end)
    first, last = round(start * 25), 100 if end is None else round(end * 25)
    assert [read_number(f.rgb) for f in frames] == list(range(first, last))
    assert [f.i for f in frames] == list(range(last - first))
    assert frames[0].time_s == pytest.approx(start)


def test_a_start_skips_what_lies_before(tmp_path: Path) -> None:
    """Damage before the start is never met: the file is not decoded from its beginning."""
    path = make_video(tmp_path / "long.mp4", 500, keyframe_every=25, pattern=busy)
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[2000:half] = bytes(half - 2000)
    path.write_bytes(bytes(data))
    _, frames = read(path, start_s=18.0, end_s=18.08)
    assert [read_number(f.rgb) for f in frames] == [450, 451]


def test_avi_with_b_frames(tmp_path: Path) -> None:
    """AVI knows only the decoding order: even steps, at most the decoder's delay late."""
    path = make_video(tmp_path / "clip.avi", 50, b_frames=2)
    _, frames = read(path)
    assert [read_number(f.rgb) for f in frames] == list(range(50))
    assert np.diff([f.time_s for f in frames]) == pytest.approx(1 / 25)
    assert frames[0].time_s <= 3 / 25


def test_start_within_half_a_millisecond_is_the_frame(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", 30, rate=30)
    _, frames = read(path, start_s=0.0667)  # the frame at 67 ms, as Matroska rounds it
    assert read_number(frames[0].rgb) == 2


def test_start_after_the_end(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="after the end"):
        read(make_video(tmp_path / "short.mp4", 10), start_s=5.0)


# --- pictures ---------------------------------------------------------------------------------

# How a player turns the picture, counter-clockwise, and where the red corner is then.
TURNS = [(0, "top left"), (90, "bottom left"), (-90, "top right"), (180, "bottom right")]


@pytest.mark.parametrize(("degrees", "corner"), [*TURNS, (270, "top right"), (-270, "bottom left")])
@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_rotation_is_applied(degrees: int, corner: str, ending: str, tmp_path: Path) -> None:
    info, frames = read(make_video(tmp_path / f"turned.{ending}", 3, rotation=degrees))
    size = (64, 96) if degrees % 180 else (96, 64)
    assert info.size == size
    assert frames[0].rgb.shape == (size[1], size[0], 3)
    assert red_corner(frames[0].rgb) == corner


def test_rotation_of_a_telephone(tmp_path: Path) -> None:
    """The matrix that telephones write for a picture to be turned clockwise by 90 degrees."""
    path = make_video(tmp_path / "phone.mp4", 3, rotation=180)
    data = path.read_bytes()

    def matrix(*values: int) -> bytes:
        fixed = [v * (1 << 16) for v in values]
        return b"".join(v.to_bytes(4, "big", signed=True) for v in fixed)

    # The first rows of the matrix in the track header (ISO/IEC 14496-12, 8.3.2): a b u, c d v.
    assert data.count(matrix(-1, 0, 0, 0, -1, 0)) == 1
    path.write_bytes(data.replace(matrix(-1, 0, 0, 0, -1, 0), matrix(0, 1, 0, -1, 0, 0)))
    info, frames = read(path)
    assert info.size == (64, 96)
    assert red_corner(frames[0].rgb) == "top right"


@pytest.mark.parametrize(("rotation", "corner"), [(None, "top right"), (90, "bottom right")])
def test_mirrored(rotation: int | None, corner: str, tmp_path: Path) -> None:
    """Turned counter-clockwise, then left and right exchanged."""
    _, frames = read(make_video(tmp_path / "both.mp4", 3, rotation=rotation, flip=True))
    assert red_corner(frames[0].rgb) == corner


@pytest.mark.parametrize("rotation", [None, 90])
def test_fitted_into_the_box_with_its_aspect_ratio(rotation: int | None, tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mp4", 2, size=(192, 96), rotation=rotation)
    shapes = {}
    for box in [(96, 96), (48, 96), (400, 400), (7, 5)]:
        _, frames = read(path, box=box)
        shapes[box] = frames[0].rgb.shape[1::-1]
    wide = {(96, 96): (96, 48), (48, 96): (48, 24), (400, 400): (400, 200), (7, 5): (7, 4)}
    tall = {(96, 96): (48, 96), (48, 96): (48, 96), (400, 400): (200, 400), (7, 5): (2, 5)}
    assert shapes == (tall if rotation else wide)


def test_sample_aspect_ratio(tmp_path: Path) -> None:
    path = make_video(tmp_path / "anamorphic.mp4", 2, size=(96, 96), pixel_aspect=Fraction(2))
    info, frames = read(path, box=(64, 64))
    assert info.size == (192, 96)
    assert frames[0].rgb.shape == (32, 64, 3)


@pytest.mark.parametrize("box", [None, (100, 100)])
def test_odd_sizes(box: tuple[int, int] | None, tmp_path: Path) -> None:
    path = make_video(tmp_path / "odd.mkv", 3, size=(227, 169), pixel_format="yuv444p")
    info, frames = read(path, box=box)
    assert info.size == (227, 169)
    assert frames[2].rgb.shape == ((169, 227, 3) if box is None else (74, 100, 3))
    assert read_number(frames[2].rgb) == 2


@pytest.mark.parametrize(
    "pixel_format", ["gray", "gray10le", "yuv420p10le", "yuv422p", "yuv444p", "yuvj420p"]
)
def test_pixel_formats(pixel_format: str, tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mkv", 4, pixel_format=pixel_format)
    _, frames = read(path)
    assert [read_number(f.rgb) for f in frames] == [0, 1, 2, 3]


def test_colours_come_as_red_green_blue(tmp_path: Path) -> None:
    def colours(_k: int, size: tuple[int, int]) -> np.ndarray:
        picture = np.zeros((size[1], size[0], 3), np.uint8)
        for channel in range(3):
            picture[:, channel * 32 : channel * 32 + 32, channel] = 230
        return picture

    _, frames = read(make_video(tmp_path / "rgb.mp4", 2, pattern=colours))
    middles = frames[0].rgb[32, 16::32].astype(int)
    assert np.abs(middles - 230 * np.eye(3)).max() < 30


def test_resize_is_that_of_swscale(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mp4", 3, size=(320, 240), pattern=busy)
    _, frames = read(path, box=(80, 80))
    with av.open(str(path)) as container:
        for frame, mine in zip(container.decode(video=0), frames, strict=True):
            theirs = frame.to_ndarray(width=80, height=60, format="rgb24")
            assert np.array_equal(mine.rgb, theirs)


def test_size_changes_on_the_way(tmp_path: Path) -> None:
    first = make_video(tmp_path / "a.ts", 10, size=(96, 64)).read_bytes()
    later = make_video(tmp_path / "b.ts", 10, size=(160, 64), start_s=1.0).read_bytes()
    path = tmp_path / "both.ts"
    path.write_bytes(first + later)
    frames = contents(VideoSource(str(path), SourceOptions(box=(48, 48)))).frames
    assert {f.rgb.shape for f in frames} == {(32, 48, 3), (19, 48, 3)}


def test_motion_vectors(tmp_path: Path) -> None:
    def moving(k: int, size: tuple[int, int]) -> np.ndarray:
        still = busy(0, (size[0] + 64, size[1]))
        return still[:, 2 * k : 2 * k + size[0]]

    path = make_video(tmp_path / "pan.mp4", 10, size=(160, 96), pattern=moving)
    _, without = read(path)
    assert all(f.motion is None for f in without)
    _, frames = read(path, motion_vectors=True)
    assert frames[0].motion is None  # a keyframe has none
    vectors = frames[5].motion
    assert vectors is not None
    assert vectors.flags.owndata
    # The scene moves 2 pixels to the left from frame to frame.
    per_frame = vectors["motion_x"] / vectors["motion_scale"] / vectors["source"]
    assert np.median(per_frame) == pytest.approx(-2.0)


# --- names, streams, resources ----------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["видео 映画 é.mp4", "-x.mp4", "a:b.mp4", "http:x.mp4", "100%d.mp4", "caf\udce9.mp4"]
)
@pytest.mark.parametrize("relative", [False, True])
def test_names(name: str, relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(name) if relative else tmp_path / name
    try:
        make_video(tmp_path / "plain.mp4", 5).rename(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    info, frames = read(path)
    assert info.name == name.replace("\udce9", "�")
    assert len(frames) == 5


@pytest.mark.parametrize(
    ("name", "cover", "message"),
    [
        ("song.mp3", True, "only sound and a cover picture"),
        ("song.m4a", True, "only sound and a cover picture"),
        ("speech.m4a", False, "no video stream, only sound"),
    ],
)
def test_sound_is_not_a_video(name: str, cover: bool, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        read(make_audio(tmp_path / name, cover=cover))


def test_decoding_and_resizing_start_no_threads(tmp_path: Path) -> None:
    path = make_video(tmp_path / "clip.mp4", 30, size=(640, 480))
    before = psutil.Process().num_threads()
    source = VideoSource(str(path), SourceOptions(box=(64, 64)))
    source.open()
    most = 0
    for item in source.items():
        assert isinstance(item, VideoFrame)
        _ = item.rgb
        most = max(most, psutil.Process().num_threads())
    source.close()
    assert most <= before


@pytest.mark.long
def test_memory_stays_flat(tmp_path: Path) -> None:
    """600 frames of 1.4 MB: neither skipped, nor converted frames keep the decoder's memory."""
    path = make_video(tmp_path / "long.mp4", 600, size=(640, 480), keyframe_every=100)
    source = VideoSource(str(path), SourceOptions(box=(32, 24), motion_vectors=True))
    source.open()
    process = psutil.Process()
    kept: list[VideoFrame] = []
    at_100 = 0
    for item in source.items():
        assert isinstance(item, VideoFrame)
        if item.i % 2:
            _ = item.rgb
            kept.append(item)  # with its small picture
        if item.i == 100:
            at_100 = process.memory_info().rss
    grown = process.memory_info().rss - at_100
    source.close()
    assert len(kept) == 300
    # Held, 250 frames of 0.46 MB (YUV) would be 115 MB.
    assert grown < 30e6


def test_nothing_waits_for_the_collector(tmp_path: Path) -> None:
    """A frame in a circle of references holds pixels until Python looks for circles."""
    path = make_video(tmp_path / "clip.mp4", 40, rotation=90)
    gc.collect()
    gc.disable()
    try:
        _, frames = read(path, motion_vectors=True, drawing=(48, 32))
        for frame in frames:
            _ = frame.rgb
            assert frame.drawing is not None
            frame.drawing()
        del frame, frames
        assert not any(type(item) is av.VideoFrame for item in gc.get_objects())
    finally:
        gc.enable()


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """Return a file of two videos, the second of which is the default."""
    videos = [make_video(tmp_path / f"{w}.mp4", 5, size=(w, 64)) for w in (160, 128)]
    return side_by_side(tmp_path / "both.mkv", *videos, default=1)


def test_of_several_videos_the_default_is_read_and_reported(both: Path) -> None:
    read = contents(VideoSource(str(both)))
    assert read.info.size == (128, 64)
    assert [frame.rgb.shape for frame in read.frames] == [(64, 128, 3)] * 5
    told = "of 2 video streams 2 (128x64) is read, not 1 (160x64); choose with --stream"
    assert read.info.assumed == (told,)


@pytest.mark.parametrize(("stream", "width"), [("1", 160), ("2", 128), ("160x64", 160)])
def test_of_several_videos_the_chosen_one_is_read(both: Path, stream: str, width: int) -> None:
    read = contents(VideoSource(str(both), SourceOptions(stream=stream)))
    assert {frame.rgb.shape for frame in read.frames} == {(64, width, 3)}
    assert read.info.assumed == ()


@pytest.mark.parametrize("stream", ["3", "64x64"])
def test_a_video_that_is_not_in_the_file(both: Path, stream: str) -> None:
    there = re.escape(f"there is no video stream {stream}, only 1 (160x64), 2 (128x64)")
    with pytest.raises(SourceError, match=there):
        contents(VideoSource(str(both), SourceOptions(stream=stream)))


def test_a_range_before_the_beginning_is_reported(tmp_path: Path) -> None:
    path = make_video(tmp_path / "late.mkv", 50, times=[1000 + k / 25 for k in range(50)])
    with pytest.raises(SourceError, match=r"before .* begins \(at 00:16:40\.000\)"):
        read(path, end_s=5.0)
    assert len(read(path, start_s=2.0)[1]) == 50


def test_a_picture_size_that_changes_is_reported(tmp_path: Path) -> None:
    """Of joined transport streams; each frame has its own size."""
    parts = [make_video(tmp_path / f"{w}.ts", 50, size=(w, 64)) for w in (96, 128)]
    path = tmp_path / "joined.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    video = contents(VideoSource(str(path)))
    assert [frame.size for frame in video.frames] == [(96, 64)] * 50 + [(128, 64)] * 50
    assert [frame.rgb.shape[1] for frame in video.frames] == [96] * 50 + [128] * 50
    assert video.frames[-1].time_s == pytest.approx(99 / 25, abs=0.09)
    told = [fault.message for fault in video.faults if not fault.count]
    assert told == ["the picture size changes to 128x64 pixels"]


@pytest.mark.parametrize(("suffix", "times"), [("mp4", [1.0, 1.5, 2.0, 2.5]), ("mkv", [1.0, 2.5])])
def test_a_picture_that_is_held_in_mp4_is_repeated(
    tmp_path: Path, suffix: str, times: list[float]
) -> None:
    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 64, 48
        for stamp in (*range(11), *range(25, 30)):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts = stamp
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    source = VideoSource(str(path))
    source.open()
    found = [item.time_s for item in source.items() if isinstance(item, VideoFrame)]
    source.close()
    assert [t for t in found if 0.95 < t < 2.55] == pytest.approx(times, abs=2e-3)
