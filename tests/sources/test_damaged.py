"""Files that are cut off, rotten or something else: what is intact comes through."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import tempfile
from pathlib import Path

import av
import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.records import AudioFormat, Fault
from costream.sources.base import SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.decode_errors import REPORT_EVERY_S, DecodeErrors
from costream.sources.media.unreadable import not_media
from costream.sources.media.video_source import VideoSource
from costream.sources.uris import expand
from kit.media import busy, chirps, make_sound, make_video, read_number, rotten, truncated
from kit.reading import Contents, contents

FRAMES = 250
SECONDS = 20
CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "mkv": "libopus", "ts": "aac"}


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same tones in every form."""
    folder = tmp_path_factory.mktemp("tones")
    for ending, codec in CODECS.items():
        rate = 48000 if codec == "libopus" else 16000
        make_sound(folder / f"a.{ending}", chirps(SECONDS, rate), rate, codec=codec)
    return folder


def read(path: Path, *, sound: bool = False, **options: float) -> Contents:
    """Read a file to its end; check what holds for any file."""
    if sound:
        format = AudioFormat(16000, 4000)
        made = contents(AudioSource(str(path), SourceOptions(sound=format, **options)))  # type: ignore[arg-type]
    else:
        made = contents(VideoSource(str(path), SourceOptions(**options)))  # type: ignore[arg-type]
    times = [item.time_s for item in (*made.frames, *made.blocks)]
    assert times == sorted(times)
    assert len(times) == len(set(times)) or not sound
    assert len(made.faults) <= 3 + FRAMES / 25 / REPORT_EVERY_S or sound
    assert sum(f.count for f in made.faults if not f.fatal) == made.errors
    assert not any(f.fatal for f in made.faults[:-1])
    assert all(b.samples.shape == (4000,) and np.isfinite(b.samples).all() for b in made.blocks)
    return made


# --- cut off ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["busy.mp4", "busy.mkv"])
def test_cut_off(name: str, media: Path) -> None:
    """Every whole frame, then one fatal fault that says how much is missing."""
    video = read(truncated(media / name, 0.5))
    assert 100 < len(video.frames) < 150
    numbers = [read_number(f.rgb) for f in video.frames[:-1]]
    assert numbers == list(range(len(numbers)))
    assert video.faults[-1].fatal
    assert "the file is cut off: its header states 10.000 s" in video.faults[-1].message


def test_a_complete_film_of_a_frame_a_second_is_not_cut_off(tmp_path: Path) -> None:
    """FFmpeg moves the start of its stream while it decodes; its length counts from 0."""
    assert read(make_video(tmp_path / "slow.mkv", 40, rate=1)).faults == []


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "mkv"])
def test_cut_off_sound(ending: str, tones: Path) -> None:
    sound = read(truncated(tones / f"a.{ending}", 0.5), sound=True)
    assert 35 < len(sound.blocks) < 45
    assert sound.items[-1] is sound.faults[-1]
    assert sound.faults[-1].fatal
    assert "the file is cut off: its header states 20.0" in sound.faults[-1].message


def test_cut_off_transport_stream(media: Path) -> None:
    """It does not know how long it should be: it just ends."""
    video = read(truncated(media / "busy.ts", 0.5))
    assert 100 < len(video.frames) < 150
    assert not any(f.fatal for f in video.faults)


def test_transport_stream_cut_off_between_pictures(media: Path, tmp_path: Path) -> None:
    """All pictures are whole; half a packet behind them tells that there were more."""
    data = (media / "busy.ts").read_bytes()
    starts = [at for at in range(0, len(data), 188) if data[at : at + 3] == b"\x47\x41\x00"]
    path = tmp_path / "between.ts"
    path.write_bytes(data[: starts[100] + 94])
    video = read(path)
    assert (len(video.frames), video.errors) == (100, 1)
    assert "cut off by the end of the file" in video.faults[0].message
    path.write_bytes(data[: starts[100]])
    assert read(path).faults == []


def test_cut_off_after_the_end_that_was_asked_for(media: Path, tones: Path) -> None:
    video = read(truncated(media / "busy.mp4", 0.5), end_s=2.0)
    assert len(video.items) == len(video.frames) == 50
    sound = read(truncated(tones / "a.wav", 0.5), sound=True, end_s=5.0)
    assert len(sound.items) == len(sound.blocks) == 20


def test_cut_off_picture(tmp_path: Path) -> None:
    kind = {"codec": "mjpeg", "pixel_format": "yuvj420p", "fmt": "image2", "rate": 1}
    whole = make_video(tmp_path / "whole.jpg", 1, pattern=busy, **kind).read_bytes()  # type: ignore[arg-type]
    thumbnail = b"\xff\xff\xe1" + (2 + len(whole)).to_bytes(2, "big") + whole
    two, half = whole[:2] + thumbnail + whole[2:], len(whole) // 2
    for name, content, fault in (
        ("whole", whole, False),
        ("with something after it", whole + b"more", False),
        ("with a thumbnail", two, False),
        ("without its end", whole[:-2], True),
        ("half of it", whole[:half], True),
        ("half of it with a thumbnail", two[:-half], True),
    ):
        path = tmp_path / f"{name}.jpg"
        path.write_bytes(content)
        made = read(path)
        assert len(made.frames) == 1, name
        told = [(f.message, f.fatal) for f in made.faults]
        assert told == [("the picture is cut off", True)] * fault, name
    path.write_bytes(whole[:100])
    with pytest.raises(SourceError, match=r"no frame can be decoded; the picture is cut off"):
        read(path)


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
    video = read(rotten(path, 10, seed=seed, skip=12_000))
    frames = video.frames
    # Encoder, damage and decoder give the same bytes each time: if this fails once, what was lost
    # and whether the file was another one say why.
    made = path.read_bytes()[1000:]  # behind the random numbers of Matroska
    about = hashlib.sha256(made).hexdigest(), len(made), [fault.message for fault in video.faults]
    assert len(frames) > 0.95 * FRAMES, about
    assert frames[-1].time_s == pytest.approx((FRAMES - 1) / 25, abs=0.5)
    assert video.errors >= sum(f.corrupt for f in frames) > 0
    assert video.faults
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
    assert read(path).errors > 0
    video = read(path, start_s=6.0)
    assert (len(video.frames), video.faults, video.errors) == (100, [], 0)


def test_wrong_time_stamp_in_a_transport_stream(media: Path, tmp_path: Path) -> None:
    """One bit of one PTS: that picture gets an estimate, all others their time."""
    data = bytearray((media / "busy.ts").read_bytes())
    starts = [at for at in range(0, len(data), 188) if data[at : at + 3] == b"\x47\x41\x00"]
    at = data.index(b"\x00\x00\x01\xe0", starts[100])
    data[at + 9] ^= 0x08  # the highest bit of the PTS: 13 hours
    path = tmp_path / "bit.ts"
    path.write_bytes(bytes(data))
    video = read(path)
    assert [f.time_s for f in video.frames] == pytest.approx([k / 25 for k in range(FRAMES)])
    assert sum(f.estimated for f in video.frames) == 1
    assert video.errors == 1
    assert "impossible time stamp" in video.faults[0].message


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFDB])
def test_headers_of_live_writers(size: int, tones: Path, tmp_path: Path) -> None:
    """A WAV whose writer did not know the length, or did not live to write it, is whole."""
    data = bytearray((tones / "a.wav").read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = size.to_bytes(4, "little")
    path = tmp_path / "live.wav"
    path.write_bytes(bytes(data))
    sound = read(path, sound=True)
    assert len(sound.items) == len(sound.blocks) == 80


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ending", ["flac", "mp3", "mkv", "ts"])
def test_bit_rot_in_sound(ending: str, seed: int, tones: Path, tmp_path: Path) -> None:
    """Most blocks are what they would be; their times are right."""
    path = tmp_path / f"a.{ending}"
    path.write_bytes((tones / path.name).read_bytes())
    want = read(path, sound=True).samples
    sound = read(rotten(path, 12, seed=seed, skip=9000), sound=True)
    assert len(sound.blocks) > 72
    assert sound.errors > 0 or ending in ("mp3", "mkv")  # damage that a decoder does not notice
    right = 0
    for block in sound.blocks:
        first = round((block.time_s - 0.25) * 16000)
        part = want[first : first + 4000]
        right += len(part) == 4000 and np.abs(block.samples - part).max() < 0.05
    # The stamps of Matroska are whole milliseconds, so after a hole all samples may be moved.
    assert right > (10 if ending == "mkv" else 40)


def test_nothing_but_damaged_sound(tones: Path, tmp_path: Path) -> None:
    data = (tones / "a.flac").read_bytes()
    path = tmp_path / "a.flac"
    path.write_bytes(data[:8300] + bytes(len(data) - 8300))
    with pytest.raises(SourceError, match=r"a\.flac: (the sound cannot be decoded|it contains no)"):
        read(path, sound=True)


# --- no media at all --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (random.Random(0).randbytes(5000), "not a video"),
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


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "a folder; name the files"), (tmp_path / "x", "no such file")):
        with pytest.raises(SourceError, match=message):
            VideoSource(str(path)).open()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets in folders")
def test_what_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket, as /dev/tty without a terminal, is there but cannot be opened."""
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a.mp4")
        with pytest.raises(SourceError, match=r"^a\.mp4: cannot be read \("):
            expand("a.mp4")
        with pytest.raises(SourceError, match=r"^a\.mp4: cannot be read \("):
            VideoSource("a.mp4").open()


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


def test_the_reason_of_ffmpeg_is_reported_in_words() -> None:
    error = av.EOFError(541478725, "End of file", "file:a.mp4")
    assert "can be read (End of file); " in str(not_media("a.mp4", True, b"", error))


# --- how damage is told -----------------------------------------------------------------------


def test_a_burst_is_one_fault() -> None:
    damage = DecodeErrors()
    for k in range(5):
        damage.add("bad packet(s)", 1.0 + k / 25)
    assert damage.report(1.24, intact=False) == []
    (fault,) = damage.report(1.28, intact=True)
    assert fault == Fault(1.0, "damage from 1.000 to 1.160 s: 5 bad packets", count=5)
    assert damage.report(1.32, intact=True) == damage.flush() == []
    assert damage.total == 5


def test_an_hour_of_damage_is_reported_now_and_then() -> None:
    damage = DecodeErrors()
    faults = []
    for k in range(3600 * 25):
        if k % 2:
            damage.add("bad picture(s)", k / 25)
        faults += damage.report(k / 25, intact=not k % 2)
    faults += damage.flush()
    assert 300 < len(faults) <= 3600 / REPORT_EVERY_S + 2
    assert sum(f.count for f in faults) == damage.total == 3600 * 25 // 2


def test_damage_without_anything_intact_is_reported_too() -> None:
    damage = DecodeErrors()
    faults = []
    for k in range(60 * 25):
        damage.add("bad picture(s)", k / 25)
        faults += damage.report(k / 25, intact=False)
    assert 5 <= len(faults) <= 6
