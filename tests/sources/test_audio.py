"""The sound of files: the samples, the times, the channels, the start and the end."""

from __future__ import annotations

import math
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.core.records import AudioBlock, AudioFormat, Gap
from costream.sources.base import SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.sound_file import CHAINED
from kit.media import chirps, make_audio, make_sound, make_video, noise
from kit.paths import PACKS, ROOT
from kit.reading import Contents, contents

SOUND = AudioFormat(16000, 4000)
SAMPLES = PACKS / "samples.tar"
# ending and codec: each has its own padding, frame length and way of seeking
CODECS = {
    "wav": "pcm_s16le",
    "flac": "flac",
    "mp3": "libmp3lame",
    "m4a": "aac",
    "opus": "libopus",
    "ts": "aac",
    "aac": "aac",
}


def read(path: Path, **options: object) -> Contents:
    return contents(AudioSource(str(path), SourceOptions(**{"sound": SOUND, **options})))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Eight seconds of the same stereo tones at 48 or 44.1 kHz in many forms."""
    folder = tmp_path_factory.mktemp("encoded")
    paths = {}
    for ending, codec in CODECS.items():
        rate = 48000 if ending in ("opus", "wav") else 44100
        paths[ending] = make_sound(
            folder / f"a.{ending}", chirps(8, rate, 2), rate, codec=codec, size=1152
        )
    return paths


# --- samples and times ------------------------------------------------------------------------


def test_exact_samples(tmp_path: Path) -> None:
    x = noise(2.0)
    sound = read(make_sound(tmp_path / "a.wav", x))
    info = sound.info
    assert (info.kind, info.live, info.rate_hz, info.duration_s) == ("audio", False, 4.0, 2.0)
    assert info.name == "a.wav"
    np.testing.assert_array_equal(sound.samples, x[:, 0] / np.float32(32768))
    assert sound.times == [0.25 * k for k in range(1, 9)]
    assert [b.pts for b in sound.blocks] == [4000 * k for k in range(8)]


@pytest.mark.parametrize(
    ("form", "codec"), [("u8", "pcm_u8"), ("s32", "pcm_s32le"), ("f32", "pcm_f32le")]
)
def test_forms_of_samples(form: str, codec: str, tmp_path: Path) -> None:
    x = noise(1.0)
    sound = read(make_sound(tmp_path / "a.wav", x, codec=codec))
    off = np.abs(sound.samples - x[:, 0] / 32768).max()
    assert off <= (1 / 128 if form == "u8" else 0)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 96000])
def test_resampling_keeps_the_count_and_the_pitch(rate: int, tmp_path: Path) -> None:
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(4 * rate) / rate)).astype(np.int16)
    sound = read(make_sound(tmp_path / "a.wav", tone[:, None], rate))
    y = sound.samples
    assert len(y) == 64000
    want = 8000 / 32768 * np.sin(2 * np.pi * 440 * np.arange(64000) / 16000)
    np.testing.assert_allclose(y[500:-500], want[500:-500], atol=1e-3)


@pytest.mark.long
def test_the_padding_of_encoders_is_not_a_sound(encoded: dict[str, Path]) -> None:
    """What was at 3 s before encoding is at 3 s after it, where the file says how it is padded."""
    want = read(encoded["flac"]).samples[48000:64000]
    for ending in ("mp3", "m4a", "opus"):
        sound = read(encoded[ending])
        assert sound.blocks[0].time_s == 0.25
        got = sound.samples[48000 - 500 : 64000 + 500]
        lag = np.argmax(np.correlate(got, want, "valid")) - 500
        assert lag == 0, ending


def test_the_last_block(tmp_path: Path) -> None:
    """Padded with silence when half of it is sound, or when it is the only one."""
    for seconds, blocks in ((0.1, 1), (0.374, 1), (0.376, 2), (1.0, 4)):
        x = noise(seconds)
        y = read(make_sound(tmp_path / "a.wav", x)).samples
        assert len(y) == blocks * 4000
        kept = min(len(x), len(y))
        np.testing.assert_array_equal(y[:kept], x[:kept, 0] / np.float32(32768))
        assert not y[kept:].any()


def test_the_containers_start_is_kept(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "late.mkv", noise(1.0), stamp=lambda n: n + 65392)
    times = read(path).times
    assert times == pytest.approx([4.337, 4.587, 4.837, 5.087])


def test_transport_streams_count_from_their_start(encoded: dict[str, Path]) -> None:
    sound = read(encoded["ts"])
    assert sound.blocks[0].time_s == 0.25
    assert sound.info.duration_s == pytest.approx(8, abs=0.1)


def test_the_sound_of_a_video(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", 50, audio_s=2.0)
    sound = read(path)
    assert sound.info.kind == "audio"
    y = sound.samples
    power = np.abs(np.fft.rfft(y[4000:20000]))
    assert np.argmax(power) == 440
    assert len(sound.blocks) == 8


# --- channels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["stereo", "5.1", "7.1", "8 channels", "16 channels"])
def test_mono_is_the_mean_of_all_channels(layout: str, tmp_path: Path) -> None:
    """Of every layout, the low-frequency channel too, and never louder than the loudest."""
    count = {"stereo": 2, "5.1": 6, "7.1": 8, "8 channels": 8, "16 channels": 16}[layout]
    x = noise(1.0, channels=count)
    path = make_sound(tmp_path / "a.wav", x, layout=layout)
    sound = read(path)
    np.testing.assert_allclose(sound.samples, x.mean(1) / 32768, atol=2e-7)
    loud = np.full((4000, count), 32767, np.int16)
    sound = read(make_sound(tmp_path / "b.wav", loud, layout=layout))
    assert sound.samples.max() <= 1.0


def test_one_channel(tmp_path: Path) -> None:
    x = noise(1.0, channels=8)
    path = make_sound(tmp_path / "a.wav", x, layout="7.1")
    for channel in (1, 4, 8):
        sound = read(path, channel=channel)
        np.testing.assert_array_equal(sound.samples, x[:, channel - 1] / np.float32(32768))
    for channel in (0, 9):
        with pytest.raises(
            SourceError, match=rf"a\.wav: there is no channel {channel} in it, only 8$"
        ):
            read(path, channel=channel)


# --- start and end ----------------------------------------------------------------------------


@pytest.mark.parametrize("start_s", [0.1, 1.3, 3.7123, 7.0])
@pytest.mark.parametrize("ending", CODECS)
def test_a_start_in_the_middle(ending: str, start_s: float, encoded: dict[str, Path]) -> None:
    """The samples of a full decode, cut there: exact, but for AAC's synthetic noise."""
    full = read(encoded[ending]).samples
    first = math.ceil(start_s * 16000 - 1e-6)
    sound = read(encoded[ending], start_s=start_s)
    y = sound.samples
    count = min(len(y), len(full) - first) // 4000 * 4000
    assert count >= 12000
    exact = CODECS[ending] != "aac"
    np.testing.assert_allclose(y[:count], full[first : first + count], atol=0 if exact else 2e-3)
    assert sound.blocks[0].time_s == pytest.approx(first / 16000 + 0.25, abs=2e-5)


def test_an_end(tmp_path: Path) -> None:
    x = noise(3.0)[:, 0] / np.float32(32768)
    path = make_sound(tmp_path / "a.wav", noise(3.0))
    sound = read(path, start_s=0.5, end_s=1.5)
    np.testing.assert_array_equal(sound.samples, x[8000:24000])
    sound = read(path, end_s=0.4)  # the second block is more than half full
    assert len(sound.blocks) == 2
    np.testing.assert_array_equal(sound.samples[:6400], x[:6400])
    assert not sound.samples[6400:].any()
    assert read(path, start_s=1.0, end_s=1.0).blocks == []


def test_a_start_after_the_end(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the start .* is after the end"):
        read(make_sound(tmp_path / "a.wav", noise(1.0)), start_s=5.0)


# --- time stamps ------------------------------------------------------------------------------


def holed(after: float, missing: float, rate: int = 16000) -> Callable[[int], int]:
    """Return stamps as if from ``after`` seconds on ``missing`` seconds had been lost."""

    return lambda n: n + (round(missing * rate) if n >= after * rate else 0)


def test_a_gap(tmp_path: Path) -> None:
    """Blocks begin anew after it; what was begun before it belongs to it."""
    x = noise(3.0, seed=1)
    path = make_sound(tmp_path / "a.mkv", x, stamp=holed(1.4, 10.0), size=800)
    sound = read(path)
    kinds = [type(item) for item in sound.items]
    assert kinds == [AudioBlock] * 5 + [Gap] + [AudioBlock] * 6
    gap = sound.items[5]
    assert isinstance(gap, Gap)
    assert (gap.start_s, gap.end_s) == pytest.approx((1.25, 11.4))
    assert gap.reason == "no sound for 10.000 s"
    assert [b.time_s for b in sound.blocks[5:7]] == pytest.approx([11.65, 11.9])
    assert [b.i for b in sound.blocks] == list(range(11))
    after = np.concatenate([b.samples for b in sound.blocks[5:]])
    np.testing.assert_array_equal(after, x[22400:46400, 0] / np.float32(32768))


def test_a_gap_before_the_start_is_none(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.mkv", noise(3.0), stamp=holed(1.4, 10.0), size=800)
    sound = read(path, start_s=11.5)
    assert not any(isinstance(item, Gap) for item in sound.items)
    assert sound.blocks[0].time_s == pytest.approx(11.75)
    sound = read(path, start_s=5.0)
    assert sound.items[0] == Gap(5.0, sound.items[0].end_s, "no sound for 6.400 s")  # type: ignore[union-attr]


def test_a_short_hole_is_silence(tmp_path: Path) -> None:
    """It is counted, the clock stays right and nothing is reset."""
    x = noise(3.0)
    path = make_sound(tmp_path / "a.mkv", x, stamp=holed(1.5, 0.2), size=800)
    sound = read(path)
    y = sound.samples
    wave = x[:, 0] / np.float32(32768)
    np.testing.assert_array_equal(y[:24000], wave[:24000])
    assert not y[24000:27200].any()
    np.testing.assert_array_equal(y[27200:50000], wave[24000:46800])
    assert sound.errors == 1
    assert [f.message for f in sound.faults] == ["damage at 1.700 s: 1 gap filled with silence"]
    assert not any(isinstance(item, Gap) for item in sound.items)


def test_recordings_joined(tmp_path: Path) -> None:
    """The clock falls back to 0: the second one goes on where the first ended."""
    x = noise(4.0)
    path = make_sound(tmp_path / "a.mp4", x, codec="aac", fmt="mpegts")
    data = path.read_bytes()
    path.write_bytes(data + data)
    sound = read(path)
    times = [block.time_s for block in sound.blocks]
    assert times == pytest.approx([0.25 * k for k in range(1, len(times) + 1)], abs=0.1)
    assert len(times) == pytest.approx(32, abs=2)


def test_jitter_means_nothing(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    x = noise(3.0)
    path = make_sound(
        tmp_path / "a.mkv", x, stamp=lambda n: n + int(chance.integers(0, 300)), size=800
    )
    sound = read(path)
    np.testing.assert_array_equal(sound.samples, x[:, 0] / np.float32(32768))


def test_a_drifting_clock_is_followed(tmp_path: Path) -> None:
    """Stamps that run 2 % fast: no gap, no silence put in, and times by the stamps."""
    x = noise(10.0)
    path = make_sound(tmp_path / "a.mkv", x, stamp=lambda n: n + n // 50, size=800)
    sound = read(path)
    np.testing.assert_array_equal(sound.samples, x[:, 0] / np.float32(32768))
    assert [type(item) for item in sound.items] == [AudioBlock] * 40
    assert sound.items[-1].time_s == pytest.approx(10.2, abs=0.06)  # type: ignore[union-attr]


def test_the_format_may_change(tmp_path: Path) -> None:
    """Transport streams joined by programs that do not ask: rate and channels are others."""
    for name, rate, channels in (("a", 48000, 2), ("b", 32000, 1)):
        make_sound(
            tmp_path / f"{name}.ts", chirps(2.0, rate, channels), rate, codec="mp2", fmt="mpegts"
        )
    path = tmp_path / "joined.ts"
    path.write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    sound = read(path)
    assert len(sound.blocks) == pytest.approx(16, abs=1)
    level = [float(np.abs(b.samples).max()) for b in sound.blocks]
    assert min(level[:15]) > 0.1
    sound = read(path, channel=2)
    assert 6 <= len(sound.blocks) <= 9
    assert sound.items[-1] is sound.faults[-1]
    assert sound.faults[-1].fatal
    assert "there is no channel 2 in it, only 1" in sound.faults[-1].message


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ogg of three recordings of 3 s, each with noise from 1 to 2 s in it."""
    folder, parts = tmp_path_factory.mktemp("chained"), []
    for rate, channels, codec in (
        (44100, 1, "flac"),
        (22050, 2, "flac"),
        (48000, 1, "libopus"),
    ):
        x = noise(3.0, rate, channels)
        x[:rate] = x[2 * rate :] = 0
        parts.append(make_sound(folder / f"{rate}.ogg", x, rate, codec=codec).read_bytes())
    path = folder / "chained.ogg"
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("start_s", [0.0, 4.5])
def test_chained_ogg_continues_with_other_rates_channels_and_codecs(
    chained: Path, start_s: float
) -> None:
    sound = contents(
        AudioSource(str(chained), SourceOptions(sound=AudioFormat(16000, 1600), start_s=start_s))
    )
    loud = [b.time_s for b in sound.blocks if np.abs(b.samples).max() > 0.05]
    wanted = [k + 0.1 * n for k in (1, 4, 7) for n in range(1, 11) if k + 0.1 * n > start_s + 0.01]
    assert all(min(abs(t - w) for t in loud) < 0.06 for w in wanted)
    assert len(loud) <= len(wanted) + 6  # codecs spread the edges
    assert sound.info.duration_s is None
    assert sound.blocks[-1].time_s == pytest.approx(9.0, abs=0.11)
    assert sound.info.assumed == (CHAINED.format(3),)
    assert not sound.faults


def test_damaged_chained_ogg(chained: Path, tmp_path: Path) -> None:
    """What can be read is read; nothing hangs and nothing is raised."""
    data, chance = chained.read_bytes(), random.Random(0)
    path = tmp_path / "a.ogg"
    for _ in range(12):
        torn = bytearray(data[: chance.randrange(len(data) // 2, len(data))])
        for _ in range(20):
            torn[chance.randrange(5000, len(torn))] = chance.randrange(256)
        path.write_bytes(torn)
        sound = read(path)
        times = [block.time_s for block in sound.blocks]
        assert times == sorted(set(times))
        assert times[-1] >= 1.0


# --- what holds no sound ----------------------------------------------------------------------


def test_no_sound(tmp_path: Path) -> None:
    header = make_sound(tmp_path / "header.wav", noise(0.0))
    silent = make_video(tmp_path / "silent.mp4", 5)
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("Dear reader,\nthis is text.\n" * 20)
    strange = bytearray(make_audio(tmp_path / "strange.m4a").read_bytes())
    at = strange.index(b"mp4a\0\0\0\0")
    strange[at : at + 4] = b"ac-4"  # a codec that FFmpeg knows and cannot decode
    at = strange.index(b"esds")
    strange[at : at + 4] = b"free"
    (tmp_path / "strange.m4a").write_bytes(bytes(strange))
    (tmp_path / "junk.mp3").write_bytes(np.random.default_rng(0).bytes(5000))
    for path, message in (
        (header, "it contains no samples"),
        (silent, "there is no sound in it, only video"),
        (ROOT / "samples" / "report.png", "there is no sound in it, only a picture"),
        (tmp_path / "empty.wav", "the file is empty"),
        (tmp_path / "text.wav", "this is text, not sound (it begins with 'Dear reader,')"),
        (tmp_path / "junk.mp3", "this is not sound that can be read"),
        (tmp_path / "strange.m4a", "there is no decoder for its sound"),
        (tmp_path / "gone.wav", "no such file"),
        (tmp_path, "this is a folder"),
    ):
        with pytest.raises(SourceError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: {message}")
        assert "\n" not in str(caught.value)


def test_a_song_with_a_cover(tmp_path: Path) -> None:
    sound = read(make_audio(tmp_path / "song.mp3", cover=True))
    assert len(sound.blocks) == 4


def test_blocks_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"options\.sound"):
        AudioSource(str(tmp_path / "a.wav"), SourceOptions())


# --- real clips -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(not SAMPLES.exists(), reason="needs ../shared/packs/samples.tar")
def test_real_clips(tmp_path: Path) -> None:
    with tarfile.open(SAMPLES) as pack:
        for member in pack:
            if member.name.endswith((".ogg", "car-detection.mp4")):
                member.name = Path(member.name).name
                pack.extract(member, tmp_path, filter="data")
    clips = sorted(tmp_path.iterdir())
    assert len(clips) > 10
    for clip in clips:
        sound = read(clip)
        if not clip.name.startswith("esc10"):  # Vorbis, whose stamps may be 10 ms off
            # An offset is known after a second, and is that of what was read.
            cut, whole = read(clip, start_s=2.5).samples[24000:40000], sound.samples[64000:80000]
            np.testing.assert_allclose(cut - cut.mean(), whole - whole.mean(), atol=1e-3)
        blocks = [item for item in sound.items if isinstance(item, AudioBlock)]
        others = [item for item in sound.items if not isinstance(item, AudioBlock)]
        assert all("constant offset" in item.message for item in others)
        assert sound.info.duration_s == pytest.approx(len(blocks) / 4, abs=0.25)


def two_rates(folder: Path, name: str, codec: str, fmt: str | None = None) -> Path:
    """Return 2 s of silence at 44.1 kHz, then 2 s at 48 kHz of which the second is loud."""
    quiet, loud = np.zeros((88200, 1), np.int16), np.zeros((96000, 2), np.int16)
    loud[48000:] = (12000 * np.sin(np.arange(48000) / 10))[:, None]
    one = make_sound(folder / f"one.{name}", quiet, 44100, codec=codec, fmt=fmt)
    two = make_sound(folder / f"two.{name}", loud, 48000, codec=codec, fmt=fmt)
    path = folder / f"both.{name}"
    path.write_bytes(one.read_bytes() + two.read_bytes())
    return path


JOINED = {"aac": "aac", "ac3": "ac3", "mp2": "mp2", "mp3": "libmp3lame", "ts": "aac", "oga": "flac"}


@pytest.mark.parametrize("name", JOINED)
def test_sound_whose_rate_changes_is_not_stretched(name: str, tmp_path: Path) -> None:
    path = two_rates(tmp_path, name, JOINED[name], "ogg" if name == "oga" else None)
    sound = contents(AudioSource(str(path), SourceOptions(sound=AudioFormat(16000, 1600))))
    loud = [b.time_s for b in sound.blocks if np.abs(b.samples).max() > 0.2]
    assert loud[0] == pytest.approx(3.1, abs=0.15)  # encoders add some silence
    assert sound.blocks[-1].time_s == pytest.approx(4.0, abs=0.25)


def test_flac_of_another_rate_joined_on_is_reported(tmp_path: Path) -> None:
    path = two_rates(tmp_path, "flac", "flac")
    sound = contents(AudioSource(str(path), SourceOptions(sound=AudioFormat(16000, 1600))))
    assert sound.blocks[-1].time_s == pytest.approx(2.0, abs=0.1)
    assert sound.faults[-1].fatal
    assert "appended with another sample rate" in sound.faults[-1].message


def test_an_mp3_with_one_of_a_higher_bit_rate_joined_on_is_complete(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, (4 * 22050, 1), dtype=np.int16)
    low = make_sound(tmp_path / "low.mp3", noise // 99, 8000, codec="libmp3lame")
    high = make_sound(tmp_path / "high.mp3", noise, 44100, codec="libmp3lame")
    path = tmp_path / "both.mp3"
    path.write_bytes(low.read_bytes() + high.read_bytes())
    sound = contents(AudioSource(str(path), SourceOptions(sound=AudioFormat(16000, 1600))))
    assert not [fault.message for fault in sound.faults if fault.fatal]
    assert sound.blocks[-1].time_s == pytest.approx(13.0, abs=0.25)
