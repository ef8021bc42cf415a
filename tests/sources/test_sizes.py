"""Sound files whose header is smaller or larger than the file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.records import AudioFormat
from costream.labels.media import length_s
from costream.sources.base import SourceOptions
from costream.sources.media.audio_source import AudioSource
from kit.fileserver import serving
from kit.media import make_sound
from kit.reading import Contents, contents
from kit.runs import run

HZ, SECONDS, BURST_S = 8000, 12, 9.0
GUID = bytes.fromhex("f3acd3118cd100c04f8edb8a")
# Where the size of the samples is: after these bytes, behind so many more, written so; what it
# counts beside them.
SIZES = {
    "wav": (b"data", 0, "<I", 0),
    "rf64": (b"ds64", 12, "<Q", 0),
    "w64": (b"data" + GUID, 0, "<Q", 24),
    "aiff": (b"SSND", 0, ">I", 8),
    "au": (b".snd", 4, ">I", 0),
    "caf": (b"data", 0, ">Q", 4),
}


def burst() -> np.ndarray:
    sound = np.zeros((HZ * SECONDS, 1), np.int16)
    first = int(BURST_S * HZ)
    sound[first : first + HZ // 2, 0] = 16000 * np.sin(np.arange(HZ // 2))
    return sound


def made(folder: Path, kind: str, share: float | None) -> Path:
    """Return a file whose header says this share of the samples; None: that it is not known."""
    path = folder / f"a.{'wav' if kind == 'rf64' else kind}"
    codec = "pcm_s16be" if kind in ("aiff", "au", "caf") else "pcm_s16le"
    extra = {"rf64": "always"} if kind == "rf64" else {}
    make_sound(path, burst(), HZ, codec=codec, container_options=extra)
    data, (after, more, form, beside) = bytearray(path.read_bytes()), SIZES[kind]
    at = data.index(after) + len(after) + more
    whole = 2 * HZ * SECONDS
    size = (1 << 8 * struct.calcsize(form)) - 1 if share is None else int(share * whole) + beside
    data[at : at + struct.calcsize(form)] = struct.pack(form, size)
    path.write_bytes(data)
    return path


def heard(path: Path, **options: object) -> Contents:
    own = SourceOptions(sound=AudioFormat(HZ, HZ // 4), **options)  # type: ignore[arg-type]
    return contents(AudioSource(str(path), own))


def burst_s(sound: Contents) -> float:
    """Return when the first block that is loud begins."""
    return next(b.time_s for b in sound.blocks if np.abs(b.samples).max() > 0.1) - 0.25


@pytest.mark.parametrize("kind", SIZES)
def test_sound_continues_behind_the_stated_end(kind: str, tmp_path: Path) -> None:
    path = made(tmp_path, kind, 1 / 3)
    sound = heard(path)
    assert sound.info.duration_s == pytest.approx(SECONDS, abs=0.1)
    assert sound.info.assumed == (
        "its header states 4.000 s, but the sound continues: read to the end",
    )
    assert sound.blocks[-1].time_s == pytest.approx(SECONDS)
    assert burst_s(sound) == BURST_S
    assert not sound.faults
    assert length_s(str(path)) == pytest.approx(SECONDS, abs=0.1)
    late = heard(path, start_s=8.5)
    assert burst_s(late) == BURST_S
    assert len(late.blocks) == 14
    np.testing.assert_allclose(late.blocks[3].samples, sound.blocks[37].samples, atol=1e-6)


@pytest.mark.parametrize("share", [1 / 3, 1.0])
def test_a_file_on_a_web_server_that_continues_is_reported(share: float, tmp_path: Path) -> None:
    path = made(tmp_path, "wav", share)
    with serving(tmp_path) as address:
        own = SourceOptions(sound=AudioFormat(HZ, HZ // 4))
        told = contents(AudioSource(f"{address}ranges/{path.name}", own)).info.assumed
    assert [line.startswith("its header states 4.000 s") for line in told] == [True] * (share < 1)


@pytest.mark.parametrize("kind", [kind for kind in SIZES if kind != "aiff"])
def test_a_header_that_says_more_is_reported(kind: str, tmp_path: Path) -> None:
    """AIFF has the length a second time, which is right here."""
    sound = heard(made(tmp_path, kind, 2.0))
    (fault,) = sound.faults
    assert fault.fatal
    assert "its header states 24.000 s" in fault.message
    assert burst_s(sound) == BURST_S


@pytest.mark.parametrize("kind", SIZES)
def test_a_length_that_is_not_stated(kind: str, tmp_path: Path) -> None:
    path = made(tmp_path, kind, None)
    if kind in ("rf64", "w64"):  # FFmpeg does not open these
        with pytest.raises(SourceError, match=r"does not say how long .*--raw"):
            heard(path)
        return
    sound = heard(path)
    assert burst_s(sound) == BURST_S
    assert (sound.faults, sound.info.assumed) == ([], ())


@pytest.mark.parametrize("share", [1 / 3, 1.0, 2.0])
def test_flac(share: float, tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.flac", burst(), HZ, codec="flac")
    data = bytearray(path.read_bytes())
    stated = int.from_bytes(data[18:26], "big") >> 36 << 36
    data[18:26] = (stated | int(share * HZ * SECONDS)).to_bytes(8, "big")
    path.write_bytes(data)
    sound = heard(path)
    assert burst_s(sound) == BURST_S
    assert len(sound.info.assumed) == (share < 1)
    assert [fault.fatal for fault in sound.faults] == [True] * (share > 1)
    assert burst_s(heard(path, start_s=8.5)) == BURST_S


@pytest.mark.parametrize(
    "behind", [b"LIST" + struct.pack("<I", 40000) + bytes(40000), b"TAG" * 9999]
)
def test_what_may_follow_the_samples_is_not_heard(behind: bytes, tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.wav", burst(), HZ, codec="pcm_s16le")
    path.write_bytes(path.read_bytes() + behind)
    sound = heard(path)
    assert sound.info.assumed == ()
    assert sound.blocks[-1].time_s == SECONDS


def test_a_day_of_sound_whose_size_wraps_at_4_gb(tmp_path: Path) -> None:
    """13 h of 48 kHz as recorders write them: 4.49 GB, of which the header says 198 MB."""
    rate, hours, begins_s = 48000, 13, 46500
    size, path = hours * 3600 * rate * 2, tmp_path / "a.wav"
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    stated = size % (1 << 32)
    head = b"RIFF" + struct.pack("<I", stated + 36) + b"WAVEfmt " + form + b"data"
    loud = (16000 * np.sin(np.arange(rate) / 8)).astype("<i2").tobytes()
    with path.open("wb") as file:
        file.write(head + struct.pack("<I", stated))
        file.seek(44 + begins_s * rate * 2)
        file.write(loud)
        file.truncate(44 + size)
    if os.stat(path).st_blocks > 1 << 16:
        pytest.skip("no sparse files here")
    sound = heard(path, start_s=begins_s - 0.5, end_s=begins_s + 1.0)
    assert sound.info.duration_s == pytest.approx(hours * 3600, abs=0.1)
    assert burst_s(sound) == begins_s
    assert len(sound.info.assumed) == 1


def test_it_is_reported_once(tmp_path: Path) -> None:
    done = run("listen", "-m", "cotrans,cosounds", made(tmp_path, "wav", 1 / 3), "-f", "jsonl")
    assert done.stderr.count("its header states 4.000 s") == 1
    assert '"assumed": ["its header states 4.000 s' in done.stdout
