"""Files that are cut off, rotten or something else: what is intact comes through."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from costream.errors import SourceError
from costream.records import Fault, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.packets import REPORT_EVERY_S, DecodeErrors
from costream.sources.media.video import VideoSource
from kit.media import busy, make_video, read_number, rotten, truncated

FRAMES = 250


def read(path: Path, **options: float) -> tuple[list[VideoFrame], list[Fault], int]:
    """Return frames, faults and the count of errors; check what holds for any file."""
    source = VideoSource(str(path), SourceOptions(**options))  # type: ignore[arg-type]
    try:
        source.open()
        items = list(source.items())
    finally:
        source.close()
    frames = [item for item in items if isinstance(item, VideoFrame)]
    faults = [item for item in items if isinstance(item, Fault)]
    times = [f.time_s for f in frames]
    assert times == sorted(times)
    assert len(faults) <= 3 + FRAMES / 25 / REPORT_EVERY_S
    assert sum(f.count for f in faults if not f.fatal) == source.errors
    assert all(not f.fatal for f in faults[:-1])
    return frames, faults, source.errors


# --- cut off ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["busy.mp4", "busy.mkv"])
def test_cut_off(name: str, media: Path) -> None:
    """Every whole frame, then one fatal fault that says how much is missing."""
    frames, faults, _ = read(truncated(media / name, 0.5))
    assert 100 < len(frames) < 150
    assert [read_number(f.rgb) for f in frames[:-1]] == list(range(len(frames) - 1))
    assert faults[-1].fatal
    assert "cut off" in faults[-1].message
    assert "10.000 s" in faults[-1].message


def test_cut_off_transport_stream(media: Path) -> None:
    """It does not know how long it should be: it just ends."""
    frames, faults, _ = read(truncated(media / "busy.ts", 0.5))
    assert 100 < len(frames) < 150
    assert not any(f.fatal for f in faults)


def test_transport_stream_cut_off_between_pictures(media: Path, tmp_path: Path) -> None:
    """All pictures are whole; half a packet behind them tells that there were more."""
    data = (media / "busy.ts").read_bytes()
    starts = [at for at in range(0, len(data), 188) if data[at : at + 3] == b"\x47\x41\x00"]
    path = tmp_path / "between.ts"
    path.write_bytes(data[: starts[100] + 94])
    frames, faults, errors = read(path)
    assert (len(frames), errors) == (100, 1)
    assert "cut off by the end of the file" in faults[0].message
    path.write_bytes(data[: starts[100]])
    assert read(path)[1:] == ([], 0)


def test_cut_off_after_the_end_that_was_asked_for(media: Path) -> None:
    frames, faults, _ = read(truncated(media / "busy.mp4", 0.5), end_s=2.0)
    assert len(frames) == 50
    assert faults == []


def test_cut_off_before_its_index(tmp_path: Path) -> None:
    path = truncated(make_video(tmp_path / "phone.mp4", 100, pattern=busy), 0.9)
    with pytest.raises(SourceError, match=r"index \(moov\) of this MP4 is missing.*repair"):
        VideoSource(str(path)).open()


# --- bit rot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["busy.mp4", "busy.mkv", "busy.ts"])
def test_bit_rot(name: str, seed: int, media: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((media / name).read_bytes())
    # Past the index of the MP4, which stands in front.
    frames, faults, errors = read(rotten(path, 10, seed=seed, skip=12_000))
    assert len(frames) > 0.95 * FRAMES
    assert frames[-1].time_s == pytest.approx((FRAMES - 1) / 25, abs=0.5)
    assert errors >= sum(f.corrupt for f in frames) > 0
    assert faults
    # 10 bad bytes spoil at most 10 of the 21 groups of 12 pictures, from somewhere inside.
    right = sum(read_number(f.rgb) == round(f.time_s * 25) for f in frames)
    assert right > 0.75 * FRAMES


def test_damage_before_the_start_is_not_counted(media: Path, tmp_path: Path) -> None:
    data = bytearray((media / "busy.mkv").read_bytes())
    third = len(data) // 3
    for at in range(5000, third, 400):
        data[at] ^= 0xFF
    path = tmp_path / "front.mkv"
    path.write_bytes(bytes(data))
    assert read(path)[2] > 0
    frames, faults, errors = read(path, start_s=6.0)
    assert (len(frames), faults, errors) == (100, [], 0)


def test_wrong_time_stamp_in_a_transport_stream(media: Path, tmp_path: Path) -> None:
    """One bit of one PTS: that picture gets an estimate, all others their time."""
    data = bytearray((media / "busy.ts").read_bytes())
    starts = [at for at in range(0, len(data), 188) if data[at : at + 3] == b"\x47\x41\x00"]
    at = data.index(b"\x00\x00\x01\xe0", starts[100])
    data[at + 9] ^= 0x08  # the highest bit of the PTS: 13 hours
    path = tmp_path / "bit.ts"
    path.write_bytes(bytes(data))
    frames, faults, errors = read(path)
    assert [f.time_s for f in frames] == pytest.approx([k / 25 for k in range(FRAMES)])
    assert sum(f.estimated for f in frames) == 1
    assert errors == 1
    assert "impossible time stamp" in faults[0].message


# --- no media at all --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (os.urandom(5000), "not a video"),
        (b"just text\n" * 500, "not a video"),
        (b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2", "moov"),
        (b"{}", "not a video"),
    ],
)
@pytest.mark.parametrize("name", ["x.mp4", "x.txt", "x"])
def test_no_media(content: bytes, message: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        VideoSource(str(path)).open()
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="this is a folder; name the files"):
        VideoSource(str(tmp_path)).open()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        VideoSource(str(tmp_path / "gone.mp4")).open()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
def test_no_permission() -> None:
    """Root may read everything, so root becomes somebody else for a moment."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = make_video(Path(folder) / "secret.mp4", 2)
        path.chmod(0)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            with pytest.raises(SourceError, match=r"secret\.mp4: no permission to read it$"):
                VideoSource(str(path)).open()
        finally:
            os.seteuid(user)


# --- how damage is told -----------------------------------------------------------------------


def test_a_burst_is_one_fault() -> None:
    damage = DecodeErrors()
    for k in range(5):
        damage.add("bad packet(s)", 1.0 + k / 25)
    assert damage.report(1.24, intact=False) is None
    fault = damage.report(1.28, intact=True)
    assert fault == Fault(1.0, "damage from 1.000 to 1.160 s: 5 bad packet(s)", count=5)
    assert damage.report(1.32, intact=True) is None
    assert damage.flush() is None
    assert damage.total == 5


def test_an_hour_of_damage_is_told_now_and_then() -> None:
    damage = DecodeErrors()
    faults = []
    for k in range(3600 * 25):
        if k % 2:
            damage.add("bad picture(s)", k / 25)
        faults.append(damage.report(k / 25, intact=not k % 2))
    told = [f for f in [*faults, damage.flush()] if f]
    assert 300 < len(told) <= 3600 / REPORT_EVERY_S + 2
    assert sum(f.count for f in told) == damage.total == 3600 * 25 // 2


def test_damage_without_anything_intact_is_told_too() -> None:
    damage = DecodeErrors()
    told = 0
    for k in range(60 * 25):
        damage.add("bad picture(s)", k / 25)
        told += damage.report(k / 25, intact=False) is not None
    assert 5 <= told <= 6
