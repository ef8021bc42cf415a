"""What a file is, where only its bytes say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.records import AudioFormat, RawAudioFormat, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.media.container import open_container
from costream.sources.uris import open_source
from kit.media import chirps, make_sound, make_video
from kit.reading import contents
from kit.runs import refused

SOUND = SourceOptions(sound=AudioFormat(16000, 4000))


def opened(path: Path, options: SourceOptions = SOUND) -> SourceInfo:
    return contents(open_source(str(path), options)).info


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Samples of two equal channels, which FFmpeg takes for the sound of a game."""
    path = tmp_path / "street.raw"
    path.write_bytes(np.repeat(chirps(2.0), 2, axis=1).astype("<i2").tobytes())
    return path


@pytest.mark.long
def test_bare_samples_are_not_taken_for_the_sound_of_a_game(bare: Path) -> None:
    line = refused(
        4, "it has no signature of that format", "listen", "-m", "cotrans,cosounds", bare
    )
    assert "ADP" in line
    assert "--raw s16le:48000:2" in line
    with bare.open("rb") as file, pytest.raises(SourceError, match=r"no signature .*--raw"):
        open_container("-", file, wanted="sound")


def test_with_their_format_they_are_read(bare: Path) -> None:
    raw = RawAudioFormat("s16le", 16000, 2)
    info = opened(bare, SourceOptions(sound=SOUND.sound, raw=raw))
    assert info.duration_s == pytest.approx(2.0)


def test_the_same_bytes_are_read_under_their_own_name(bare: Path) -> None:
    bare.rename(bare.with_suffix(".adp"))
    assert opened(bare.with_suffix(".adp")).assumed == ()


@pytest.mark.parametrize("name", ["a.ul", "a.al", "a.sw", "a.ub"])
def test_a_rate_that_only_ffmpeg_assumes_is_asked_for(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)) * 100)
    with pytest.raises(SourceError, match=r"their rate is unknown.*--raw"):
        opened(tmp_path / name)


FORMATS = {"tta": "tta", "voc": "pcm_u8", "wv": "wavpack", "avi": "mp2", "flac": "flac"}
FORMATS |= dict.fromkeys(("wav", "w64"), "pcm_s16le") | dict.fromkeys(("mp4", "mkv", "ts"), "aac")
FORMATS |= dict.fromkeys(("aiff", "au", "caf"), "pcm_s16be") | {"ogg": "flac"}


@pytest.mark.parametrize("name", ["sound", "sound.dat", "sound.mp3"])
@pytest.mark.parametrize("ending", FORMATS)
def test_real_formats_are_read_under_any_name(ending: str, name: str, tmp_path: Path) -> None:
    made = make_sound(tmp_path / f"made.{ending}", chirps(1.0), codec=FORMATS[ending])
    info = opened(made.rename(tmp_path / name))
    assert info.assumed == ()
    assert info.duration_s == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("ending", "codec"), [("mp3", "libmp3lame"), ("aac", "aac")])
def test_a_format_without_a_signature_is_reported(ending: str, codec: str, tmp_path: Path) -> None:
    made = make_sound(tmp_path / f"made.{ending}", chirps(1.0), codec=codec)
    assert opened(made).assumed == ()
    assert opened(made.rename(tmp_path / "sound")).assumed == (
        f"read as {ending} because of its content, despite its suffix",
    )


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "avi", "mjpeg", "h264", "flv"])
def test_videos_are_read_under_any_name(ending: str, tmp_path: Path) -> None:
    codec = {"mjpeg": "mjpeg", "avi": "mpeg4", "flv": "flv"}.get(ending, "libx264")
    wide = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    made = make_video(tmp_path / f"made.{ending}", 30, codec=codec, pixel_format=wide)
    assert opened(made.rename(tmp_path / "video"), SourceOptions()).size == (96, 64)
