"""Sound that is cut off or rotten: what is intact comes through, the rest is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costream.errors import SourceError
from costream.records import AudioBlock, AudioFormat, Fault, Gap
from costream.sources.base import SourceOptions
from costream.sources.media.audio import AudioSource
from kit.media import chirps, make_sound, rotten, truncated

SECONDS = 20
CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "mkv": "libopus", "ts": "aac"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tones in every form."""
    folder = tmp_path_factory.mktemp("tones")
    for ending, codec in CODECS.items():
        rate = 48000 if codec == "libopus" else 16000
        make_sound(folder / f"a.{ending}", chirps(SECONDS, rate), rate, codec=codec)
    return folder


def read(path: Path, **options: float) -> tuple[list[AudioBlock], list[Fault | Gap], int]:
    """Return blocks, what else there was and the count of errors; check what holds for any file."""
    source = AudioSource(str(path), SourceOptions(sound=AudioFormat(16000, 4000), **options))  # type: ignore[arg-type]
    try:
        source.open()
        items = list(source.items())
    finally:
        source.close()
    blocks = [item for item in items if isinstance(item, AudioBlock)]
    others = [item for item in items if isinstance(item, (Fault, Gap))]
    times = [b.time_s for b in blocks]
    assert times == sorted(set(times))
    assert all(b.samples.shape == (4000,) and np.isfinite(b.samples).all() for b in blocks)
    faults = [item for item in others if isinstance(item, Fault)]
    assert sum(f.count for f in faults if not f.fatal) == source.errors
    assert not any(f.fatal for f in faults[:-1])
    return blocks, others, source.errors


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "mkv"])
def test_cut_off(ending: str, folder: Path) -> None:
    """Everything up to there, then one fatal fault that says how much is missing."""
    blocks, others, _ = read(truncated(folder / f"a.{ending}", 0.5))
    assert 35 < len(blocks) < 45
    last = others[-1]
    assert isinstance(last, Fault)
    assert last.fatal
    assert "the file is cut off: its header says 20.0" in last.message


def test_cut_off_after_the_end_that_was_asked_for(folder: Path) -> None:
    blocks, others, _ = read(truncated(folder / "a.wav", 0.5), end_s=5.0)
    assert (len(blocks), others) == (20, [])


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFDB])
def test_headers_of_live_writers(size: int, folder: Path, tmp_path: Path) -> None:
    """A WAV whose writer did not know the length, or did not live to write it, is whole."""
    data = bytearray((folder / "a.wav").read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = size.to_bytes(4, "little")
    path = tmp_path / "live.wav"
    path.write_bytes(bytes(data))
    blocks, others, errors = read(path)
    assert (len(blocks), others, errors) == (80, [], 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ending", ["flac", "mp3", "mkv", "ts"])
def test_bit_rot(ending: str, seed: int, folder: Path, tmp_path: Path) -> None:
    """Most blocks are what they would be; their times are right."""
    path = tmp_path / f"a.{ending}"
    path.write_bytes((folder / path.name).read_bytes())
    want = np.concatenate([b.samples for b in read(path)[0]])
    blocks, _, errors = read(rotten(path, 12, seed=seed, skip=9000))
    assert len(blocks) > 72
    assert errors > 0 or ending in ("mp3", "mkv")  # damage that a decoder does not notice
    right = 0
    for block in blocks:
        first = round((block.time_s - 0.25) * 16000)
        part = want[first : first + 4000]
        right += len(part) == 4000 and np.abs(block.samples - part).max() < 0.05
    # The stamps of Matroska are whole milliseconds, so after a hole all samples may be moved.
    assert right > (10 if ending == "mkv" else 40)


def test_nothing_but_damage(folder: Path, tmp_path: Path) -> None:
    data = (folder / "a.flac").read_bytes()
    path = tmp_path / "a.flac"
    path.write_bytes(data[:8300] + bytes(len(data) - 8300))
    with pytest.raises(SourceError, match=r"a\.flac: (the sound cannot be decoded|there are no)"):
        read(path)
