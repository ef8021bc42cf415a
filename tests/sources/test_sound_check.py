"""Sound that is recorded wrongly is told, with what to do: channels, an offset, the scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costream
from costream.core.records import AudioFormat, Fault, Level, Prediction
from costream.sources.base import SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.memory_source import MemorySource
from kit.media import chirps, make_sound
from kit.reading import contents
from kit.runs import records, run

HZ = 16000


def told(samples: np.ndarray, channel: int | None = None) -> list[str]:
    """Return what is said of samples [N, channels] from Python."""
    options = SourceOptions(sound=AudioFormat(HZ, HZ // 4), channel=channel)
    source = MemorySource(samples, options, rate_hz=HZ)
    source.open()
    faults = [item for item in source.items() if isinstance(item, Fault)]
    return [fault.message for fault in faults if not fault.count]  # remarks: nothing is lost


def voice(seconds: float = 3.0) -> np.ndarray:
    return (chirps(seconds, HZ) / 32768).astype(np.float32)


CANCEL = "--channel 1"


@pytest.mark.parametrize("codec", ["pcm_s16le", "pcm_s24le", "pcm_f32le", "flac", "aac"])
def test_an_inverted_channel_of_a_file_is_reported_once(codec: str, tmp_path: Path) -> None:
    ending = "mkv" if codec == "aac" else "flac" if codec == "flac" else "wav"
    both = np.concatenate([chirps(12.0, HZ), -chirps(12.0, HZ)], axis=1)
    path = make_sound(tmp_path / f"a.{ending}", both, HZ, codec=codec)
    for channel, count in ((None, 1), (1, 0), (2, 0)):
        options = SourceOptions(sound=AudioFormat(HZ, HZ // 4), channel=channel)
        sound = contents(AudioSource(str(path), options))
        assert [fault.message.count(CANCEL) for fault in sound.faults] == [1] * count
        assert sound.errors == 0


def test_it_is_reported_arrays_and_by_the_program(tmp_path: Path) -> None:
    both = np.concatenate([voice(), -voice()], axis=1)
    assert CANCEL in told(both)[0]
    stream = costream.listen(both, "cotrans", rate_hz=HZ)
    assert [CANCEL in each.message for each in stream if isinstance(each, Fault)] == [True]
    make_sound(tmp_path / "a.wav", (both * 32767).astype(np.int16), HZ)
    done = run("listen", "-m", "cotrans,cosounds", tmp_path / "a.wav", "-f", "jsonl")
    assert done.stderr.count(CANCEL) == 1
    assert records(done.stdout, "summary")[0]["errors"] == 0


@settings(deadline=None, max_examples=12)
@given(
    st.integers(1, 6),
    st.floats(0.0, 1.0),
    st.sampled_from(["same", "alone", "unrelated", "late"]),
    st.floats(-0.015, 0.015),
)
def test_usual_recordings_are_not_blamed(
    channels: int, level: float, how: str, offset: float
) -> None:
    chance = np.random.default_rng(channels)
    sound = np.repeat(voice(1.0), channels, axis=1)
    if how == "alone":
        sound[:, 1:] = 0
    elif how == "unrelated":
        sound = chance.normal(size=sound.shape).astype(np.float32) * 0.1
    elif how == "late":  # an echo
        sound = np.stack([np.roll(sound[:, k], 37 * k) for k in range(channels)], axis=1)
    assert told(level * sound + np.float32(offset)) == []


@settings(deadline=None, max_examples=12)
@given(st.floats(0.1, 2.0), st.floats(0.05, 0.5), st.floats(-0.3, 0.3))
def test_two_channels_of_opposite_sign_are(ratio: float, level: float, offset: float) -> None:
    """Until one is much louder than the other: what it has then remains."""
    both = np.concatenate([voice(1.0), -ratio * voice(1.0)], axis=1) * level / 0.3
    lines = told((both + offset).astype(np.float32))
    remains = (1 - ratio) ** 2 / 4 / ((1 + ratio**2) / 2)
    if not 0.03 < remains < 0.07:
        assert any(CANCEL in line for line in lines) == (remains < 0.05)


@pytest.mark.parametrize("offset", [-0.6, 0.1, 0.3])
def test_an_offset_is_reported_and_neither_measured_nor_heard(offset: float) -> None:
    sound = voice(3.0)[:, 0]
    plain = [*costream.listen(sound, "cotrans", rate_hz=HZ, levels="dBA")]
    moved = [*costream.listen(sound + offset, "cotrans", rate_hz=HZ, levels="dBA")]
    (fault,) = (each for each in moved if isinstance(each, Fault))
    assert f"{offset:+.2f} of full scale" in fault.message
    pair = ([each for each in records if isinstance(each, Level)] for records in (plain, moved))
    for one, other in zip(*pair, strict=True):
        assert one.dba is not None
        assert other.db == pytest.approx(one.db, abs=0.3)
        assert other.dba == pytest.approx(one.dba, abs=0.3)
    seen = ([r.top for r in records if isinstance(r, Prediction)] for records in (plain, moved))
    for top, same in zip(*seen, strict=True):
        assert same[0][0] == top[0][0]
        assert same[0][1] == pytest.approx(top[0][1], abs=0.01)


@pytest.mark.parametrize("scale", [128, 32768, 2**31])
def test_floats_in_the_scale_of_integers(scale: float) -> None:
    lines = told(voice() * scale)
    assert any("volume=1/32768" in line for line in lines)
    assert told(voice() * 8) == []
