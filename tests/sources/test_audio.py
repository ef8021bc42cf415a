"""The sound of files: the samples, the times, the channels, the start and the end."""

from __future__ import annotations

import math
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costream.errors import SourceError
from costream.records import AudioBlock, AudioFormat, Fault, Gap, Item, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.media.audio import AudioSource
from kit.media import chirps, make_audio, make_sound, make_video, noise

SOUND = AudioFormat(16000, 4000)
SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "packs" / "samples.tar"
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


def read(path: Path, **options: object) -> tuple[SourceInfo, list[Item]]:
    source = AudioSource(str(path), SourceOptions(**{"sound": SOUND, **options}))  # type: ignore[arg-type]
    try:
        return source.open(), list(source.items())
    finally:
        source.close()


def blocks_of(items: list[Item]) -> list[AudioBlock]:
    return [item for item in items if isinstance(item, AudioBlock)]


def samples_of(items: list[Item]) -> np.ndarray:
    return np.concatenate([block.samples for block in blocks_of(items)])


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
    info, items = read(make_sound(tmp_path / "a.wav", x))
    assert (info.kind, info.live, info.rate_hz, info.duration_s) == ("audio", False, 4.0, 2.0)
    assert info.name == "a.wav"
    np.testing.assert_array_equal(samples_of(items), x[:, 0] / np.float32(32768))
    assert [b.time_s for b in blocks_of(items)] == [0.25 * k for k in range(1, 9)]
    assert [b.pts for b in blocks_of(items)] == [4000 * k for k in range(8)]


@pytest.mark.parametrize(
    ("form", "codec"), [("u8", "pcm_u8"), ("s32", "pcm_s32le"), ("f32", "pcm_f32le")]
)
def test_forms_of_samples(form: str, codec: str, tmp_path: Path) -> None:
    x = noise(1.0)
    _, items = read(make_sound(tmp_path / "a.wav", x, codec=codec))
    off = np.abs(samples_of(items) - x[:, 0] / 32768).max()
    assert off <= (1 / 128 if form == "u8" else 0)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 96000])
def test_resampling_keeps_the_count_and_the_pitch(rate: int, tmp_path: Path) -> None:
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(4 * rate) / rate)).astype(np.int16)
    _, items = read(make_sound(tmp_path / "a.wav", tone[:, None], rate))
    y = samples_of(items)
    assert len(y) == 64000
    want = 8000 / 32768 * np.sin(2 * np.pi * 440 * np.arange(64000) / 16000)
    np.testing.assert_allclose(y[500:-500], want[500:-500], atol=1e-3)


def test_the_padding_of_encoders_is_no_sound(encoded: dict[str, Path]) -> None:
    """What was at 3 s before encoding is at 3 s after it, where the file says how it is padded."""
    want = samples_of(read(encoded["flac"])[1])[48000:64000]
    for ending in ("mp3", "m4a", "opus"):
        _, items = read(encoded[ending])
        assert blocks_of(items)[0].time_s == 0.25
        got = samples_of(items)[48000 - 500 : 64000 + 500]
        lag = np.argmax(np.correlate(got, want, "valid")) - 500
        assert lag == 0, ending


def test_the_last_block(tmp_path: Path) -> None:
    """Padded with silence when half of it is sound, or when it is the only one."""
    for seconds, blocks in ((0.1, 1), (0.374, 1), (0.376, 2), (1.0, 4)):
        x = noise(seconds)
        y = samples_of(read(make_sound(tmp_path / "a.wav", x))[1])
        assert len(y) == blocks * 4000
        kept = min(len(x), len(y))
        np.testing.assert_array_equal(y[:kept], x[:kept, 0] / np.float32(32768))
        assert not y[kept:].any()


def test_the_containers_start_is_kept(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "late.mkv", noise(1.0), stamp=lambda n: n + 65392)
    times = [b.time_s for b in blocks_of(read(path)[1])]
    assert times == pytest.approx([4.337, 4.587, 4.837, 5.087])


def test_transport_streams_count_from_their_start(encoded: dict[str, Path]) -> None:
    info, items = read(encoded["ts"])
    assert blocks_of(items)[0].time_s == 0.25
    assert info.duration_s == pytest.approx(8, abs=0.1)


def test_the_sound_of_a_video(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", 50, audio_s=2.0)
    info, items = read(path)
    assert info.kind == "audio"
    y = samples_of(items)
    power = np.abs(np.fft.rfft(y[4000:20000]))
    assert np.argmax(power) == 440
    assert len(blocks_of(items)) == 8


# --- channels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["stereo", "5.1", "7.1", "8 channels", "16 channels"])
def test_mono_is_the_mean_of_all_channels(layout: str, tmp_path: Path) -> None:
    """Of every layout, the low-frequency channel too, and never louder than the loudest."""
    count = {"stereo": 2, "5.1": 6, "7.1": 8, "8 channels": 8, "16 channels": 16}[layout]
    x = noise(1.0, channels=count)
    path = make_sound(tmp_path / "a.wav", x, layout=layout)
    _, items = read(path)
    np.testing.assert_allclose(samples_of(items), x.mean(1) / 32768, atol=2e-7)
    loud = np.full((4000, count), 32767, np.int16)
    _, items = read(make_sound(tmp_path / "b.wav", loud, layout=layout))
    assert samples_of(items).max() <= 1.0


def test_one_channel(tmp_path: Path) -> None:
    x = noise(1.0, channels=8)
    path = make_sound(tmp_path / "a.wav", x, layout="7.1")
    for channel in (1, 4, 8):
        _, items = read(path, channel=channel)
        np.testing.assert_array_equal(samples_of(items), x[:, channel - 1] / np.float32(32768))
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
    full = samples_of(read(encoded[ending])[1])
    first = math.ceil(start_s * 16000 - 1e-6)
    _, items = read(encoded[ending], start_s=start_s)
    y = samples_of(items)
    count = min(len(y), len(full) - first) // 4000 * 4000
    assert count >= 12000
    exact = CODECS[ending] != "aac"
    np.testing.assert_allclose(y[:count], full[first : first + count], atol=0 if exact else 1e-3)
    assert blocks_of(items)[0].time_s == pytest.approx(first / 16000 + 0.25, abs=2e-5)


def test_an_end(tmp_path: Path) -> None:
    x = noise(3.0)[:, 0] / np.float32(32768)
    path = make_sound(tmp_path / "a.wav", noise(3.0))
    _, items = read(path, start_s=0.5, end_s=1.5)
    np.testing.assert_array_equal(samples_of(items), x[8000:24000])
    _, items = read(path, end_s=0.4)  # the second block is more than half full
    assert len(blocks_of(items)) == 2
    np.testing.assert_array_equal(samples_of(items)[:6400], x[:6400])
    assert not samples_of(items)[6400:].any()
    assert blocks_of(read(path, start_s=1.0, end_s=1.0)[1]) == []


def test_a_start_after_the_end(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.wav", noise(1.0))
    with pytest.raises(SourceError, match=r"the start .* is after the end"):
        read(path, start_s=5.0)


# --- time stamps ------------------------------------------------------------------------------


def holed(after: float, missing: float, rate: int = 16000) -> Callable[[int], int]:
    """Return stamps as if from ``after`` seconds on ``missing`` seconds had been lost."""

    return lambda n: n + (round(missing * rate) if n >= after * rate else 0)


def test_a_gap(tmp_path: Path) -> None:
    """Blocks begin anew after it; what was begun before it belongs to it."""
    x = noise(3.0, seed=1)
    path = make_sound(tmp_path / "a.mkv", x, stamp=holed(1.4, 10.0), size=800)
    _, items = read(path)
    kinds = [type(item) for item in items]
    assert kinds == [AudioBlock] * 5 + [Gap] + [AudioBlock] * 6
    gap = items[5]
    assert isinstance(gap, Gap)
    assert (gap.start_s, gap.end_s) == pytest.approx((1.25, 11.4))
    assert gap.reason == "no sound for 10.000 s"
    assert [b.time_s for b in blocks_of(items)[5:7]] == pytest.approx([11.65, 11.9])
    assert [b.i for b in blocks_of(items)] == list(range(11))
    after = np.concatenate([b.samples for b in blocks_of(items)[5:]])
    np.testing.assert_array_equal(after, x[22400:46400, 0] / np.float32(32768))


def test_a_gap_before_the_start_is_none(tmp_path: Path) -> None:
    path = make_sound(tmp_path / "a.mkv", noise(3.0), stamp=holed(1.4, 10.0), size=800)
    _, items = read(path, start_s=11.5)
    assert not any(isinstance(item, Gap) for item in items)
    assert blocks_of(items)[0].time_s == pytest.approx(11.75)
    _, items = read(path, start_s=5.0)
    assert items[0] == Gap(5.0, items[0].end_s, "no sound for 6.400 s")  # type: ignore[union-attr]


def test_a_short_hole_is_silence(tmp_path: Path) -> None:
    """It is counted, the clock stays right and nothing is reset."""
    x = noise(3.0)
    path = make_sound(tmp_path / "a.mkv", x, stamp=holed(1.5, 0.2), size=800)
    source = AudioSource(str(path), SourceOptions(sound=SOUND))
    source.open()
    items = list(source.items())
    source.close()
    y = samples_of(items)
    wave = x[:, 0] / np.float32(32768)
    np.testing.assert_array_equal(y[:24000], wave[:24000])
    assert not y[24000:27200].any()
    np.testing.assert_array_equal(y[27200:50000], wave[24000:46800])
    assert source.errors == 1
    faults = [item for item in items if isinstance(item, Fault)]
    assert [f.message for f in faults] == ["damage at 1.700 s: 1 gap(s) filled with silence"]
    assert not any(isinstance(item, Gap) for item in items)


def test_recordings_joined(tmp_path: Path) -> None:
    """The clock falls back to 0: the second one goes on where the first ended."""
    x = noise(4.0)
    path = make_sound(tmp_path / "a.mp4", x, codec="aac", fmt="mpegts")
    data = path.read_bytes()
    path.write_bytes(data + data)
    _, items = read(path)
    times = [b.time_s for b in blocks_of(items)]
    assert times == pytest.approx([0.25 * k for k in range(1, len(times) + 1)], abs=0.1)
    assert len(times) == pytest.approx(32, abs=2)


def test_jitter_means_nothing(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    x = noise(3.0)
    path = make_sound(
        tmp_path / "a.mkv", x, stamp=lambda n: n + int(chance.integers(0, 300)), size=800
    )
    _, items = read(path)
    np.testing.assert_array_equal(samples_of(items), x[:, 0] / np.float32(32768))


def test_a_drifting_clock_is_followed(tmp_path: Path) -> None:
    """Stamps that run 2 % fast: no gap, no silence put in, and times by the stamps."""
    x = noise(10.0)
    path = make_sound(tmp_path / "a.mkv", x, stamp=lambda n: n + n // 50, size=800)
    _, items = read(path)
    np.testing.assert_array_equal(samples_of(items), x[:, 0] / np.float32(32768))
    assert [type(item) for item in items] == [AudioBlock] * 40
    assert items[-1].time_s == pytest.approx(10.2, abs=0.06)  # type: ignore[union-attr]


def test_the_format_may_change(tmp_path: Path) -> None:
    """Transport streams joined by programs that do not ask: rate and channels are others."""
    for name, rate, channels in (("a", 48000, 2), ("b", 32000, 1)):
        make_sound(
            tmp_path / f"{name}.ts", chirps(2.0, rate, channels), rate, codec="mp2", fmt="mpegts"
        )
    path = tmp_path / "joined.ts"
    path.write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    _, items = read(path)
    assert len(blocks_of(items)) == pytest.approx(16, abs=1)
    level = [float(np.abs(b.samples).max()) for b in blocks_of(items)]
    assert min(level[:15]) > 0.1
    _, items = read(path, channel=2)
    assert 6 <= len(blocks_of(items)) <= 9
    last = items[-1]
    assert isinstance(last, Fault)
    assert last.fatal
    assert "there is no channel 2 in it, only 1" in last.message


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
        (header, "there are no samples in it"),
        (silent, "there is no sound in it, only video"),
        (tmp_path / "empty.wav", "the file is empty"),
        (tmp_path / "text.wav", "this is not sound that can be read"),
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
    _, items = read(make_audio(tmp_path / "song.mp3", cover=True))
    assert len(blocks_of(items)) == 4


def test_blocks_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"options\.sound"):
        AudioSource(str(tmp_path / "a.wav"), SourceOptions())


# --- real clips -------------------------------------------------------------------------------


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
        info, items = read(clip)
        if not clip.name.startswith("esc10"):  # Vorbis, whose stamps may be 10 ms off
            cut = samples_of(read(clip, start_s=2.5)[1])
            np.testing.assert_allclose(cut[:16000], samples_of(items)[40000:56000], atol=1e-3)
        assert [type(item) for item in items] == [AudioBlock] * len(items)
        assert info.duration_s == pytest.approx(len(items) / 4, abs=0.25)
