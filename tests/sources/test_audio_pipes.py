"""Sound through real pipes: every form, as soon as it is there, and bare samples."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import SourceError, UsageError
from costream.core.records import AudioBlock, AudioFormat, RawAudioFormat
from costream.sources.base import Source, SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.uris import open_source
from kit.media import chirps, make_sound, make_video, noise, truncated
from kit.reading import Contents, contents

SOUND = AudioFormat(16000, 4000)

Piped = Callable[..., Source]


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Piped]:
    """Yield a function that opens a pipe through which some bytes come."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writers: list[threading.Thread] = []

    def start(data: bytes, bytes_a_second: float | None = None, **options: object) -> Source:
        def write() -> None:
            began = time.monotonic()
            with contextlib.suppress(BrokenPipeError), open(fifo, "wb", buffering=0) as out:
                size = max(1, len(data)) if bytes_a_second is None else int(bytes_a_second / 50)
                for at in range(0, len(data), size):
                    if bytes_a_second is not None:
                        time.sleep(max(0.0, began + at / bytes_a_second - time.monotonic()))
                    out.write(data[at : at + size])

        writers.append(threading.Thread(target=write, daemon=True))
        writers[-1].start()
        return open_source(str(fifo), SourceOptions(**{"sound": SOUND, **options}))  # type: ignore[arg-type]

    yield start
    for writer in writers:
        writer.join(90)
        assert not writer.is_alive()


def read(source: Source) -> Contents:
    sound = contents(source)
    assert sound.info.live
    assert all(block.arrived_s is not None for block in sound.blocks[:-1])
    return sound


@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF, 0x80000000, 0x7FFFF000])
def test_wav(size: int | None, piped: Piped, tmp_path: Path) -> None:
    """Also of writers that cannot know the length beforehand."""
    x = noise(3.0)
    data = bytearray(make_sound(tmp_path / "a.wav", x).read_bytes())
    if size is not None:
        at = data.index(b"data") + 4
        data[at : at + 4] = size.to_bytes(4, "little")
    sound = read(piped(bytes(data)))
    np.testing.assert_array_equal(sound.samples, x[:, 0] / np.float32(32768))
    assert sound.faults == []


BEHIND = b"LIST" + (4).to_bytes(4, "little") + b"INFO"


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("behind", [b"", BEHIND])
@pytest.mark.parametrize("redirected", [False, True])
def test_a_wav_whose_header_is_wrong(
    share: float, behind: bytes, redirected: bool, piped: Piped, tmp_path: Path
) -> None:
    """Sound behind the stated end is read, other chunks are not; too little is told."""
    x = noise(4.0)
    path = make_sound(tmp_path / "a.wav", x)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = int(share * 2 * len(x)).to_bytes(4, "little")
    data += behind if share == 1.0 else b""
    if redirected:
        path.write_bytes(data)
        with path.open("rb") as file:
            sound = contents(AudioSource("stdin", SourceOptions(sound=SOUND), file=file))
    else:
        sound = read(piped(bytes(data)))
    np.testing.assert_array_equal(sound.samples, x[:, 0] / np.float32(32768))
    told = [("continues" in fault.message, fault.fatal) for fault in sound.faults]
    assert told == [(True, False)] * (share < 1) + [(False, True)] * (share > 1)


@pytest.mark.parametrize(
    ("ending", "codec"),
    [("mp3", "libmp3lame"), ("opus", "libopus"), ("mkv", "flac"), ("flac", "flac"), ("ts", "aac")],
)
def test_other_forms(ending: str, codec: str, piped: Piped, tmp_path: Path) -> None:
    """The same as from the file."""
    rate = 48000 if codec == "libopus" else 16000
    path = make_sound(tmp_path / f"a.{ending}", chirps(3.0, rate), rate, codec=codec)
    want = contents(open_source(str(path), SourceOptions(sound=SOUND))).samples
    sound = read(piped(path.read_bytes()))
    np.testing.assert_array_equal(sound.samples, want)
    assert sound.faults == []


def test_a_video_through_a_pipe(piped: Piped, tmp_path: Path) -> None:
    path = make_video(
        tmp_path / "a.mp4", 50, audio_s=2.0, container_options={"movflags": "+faststart"}
    )
    sound = read(piped(path.read_bytes()))
    assert np.argmax(np.abs(np.fft.rfft(sound.samples[4000:20000]))) == 440


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("s16le", "<i2"), ("s16be", ">i2"), ("s32le", "<i4"), ("f32le", "<f4"), ("u8", "u1")],
)
def test_bare_samples(form: str, dtype: str, piped: Piped) -> None:
    wave = noise(2.0, channels=2) / 32768
    kind = np.dtype(dtype)
    scaled = wave if kind.kind == "f" else wave * 2.0 ** (8 * kind.itemsize - 1)
    data = (scaled + 128 if form == "u8" else scaled).astype(kind).tobytes()
    raw = RawAudioFormat(form, 16000, 2)
    sound = read(piped(data, raw=raw, channel=2))
    np.testing.assert_allclose(sound.samples, wave[:, 1], atol=1 / 64 if form == "u8" else 1e-4)


def test_bare_samples_that_look_like_text(piped: Piped) -> None:
    sound = read(piped(b"12, 34\n" * 8000, raw=RawAudioFormat("u8", 16000)))
    assert len(sound.samples) == 56000


def test_a_form_that_is_none(piped: Piped) -> None:
    for form in ("mp3", "s17le"):
        source = piped(bytes(100), raw=RawAudioFormat(form, 16000))
        with pytest.raises(UsageError, match=f"unknown raw audio format '{form}'"):
            source.open()
        source.close()


@pytest.mark.parametrize(("form", "wait_s"), [("raw", 0.3), ("wav", 0.8), ("mkv", 0.5)])
def test_blocks_come_when_they_are_there(
    form: str, wait_s: float, piped: Piped, tmp_path: Path
) -> None:
    """Bytes come as fast as the sound: no block may wait for sound after its own.

    FFmpeg reads 64 kB of a WAV, here 0.34 s, before it gives any of it.
    """
    x = noise(2.0, 48000, 2)
    codec = "libopus" if form == "mkv" else "pcm_s16le"
    fmt = "s16le" if form == "raw" else None
    path = make_sound(tmp_path / f"a.{form}", x, 48000, codec=codec, fmt=fmt, size=480)
    data = path.read_bytes()
    raw = RawAudioFormat("s16le", 48000, 2) if form == "raw" else None
    began = time.monotonic()
    source = piped(data, len(data) / 2.0, raw=raw)
    source.open()
    late = [
        time.monotonic() - began - item.time_s
        for item in source.items()
        if isinstance(item, AudioBlock)
    ]
    source.close()
    assert len(late) == 8
    # The best of them, for the machine may be busy; the last ones, for the first are read ahead.
    assert min(late[3:]) < wait_s
    assert min(late[3:]) > -0.5 or form == "mkv"  # bytes of Opus do not come evenly


def test_start_and_end_in_a_pipe(piped: Piped, tmp_path: Path) -> None:
    x = noise(3.0)
    data = make_sound(tmp_path / "a.wav", x).read_bytes()
    sound = read(piped(data, start_s=0.7, end_s=1.7))
    np.testing.assert_array_equal(sound.samples, x[11200:27200, 0] / np.float32(32768))


def test_cut_off(piped: Piped, tmp_path: Path) -> None:
    path = truncated(make_sound(tmp_path / "a.flac", noise(6.0), codec="flac"), 0.5)
    sound = read(piped(path.read_bytes()))
    assert 32000 < len(sound.samples) < 64000
    assert sound.faults[-1].fatal
    assert "cut off" in sound.faults[-1].message


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no data received"), (b"only text\n" * 500, "this is text, not sound")],
)
def test_nothing_to_hear(content: bytes, message: str, piped: Piped) -> None:
    source = piped(content)
    with pytest.raises(SourceError, match=message):
        source.open()
    source.close()


def test_stop_while_it_waits(piped: Piped, tmp_path: Path) -> None:
    """The writer has fallen silent; stop ends items all the same, with what was there."""
    data = make_sound(tmp_path / "a.raw", noise(2.0), fmt="s16le").read_bytes()
    source = piped(data * 10, 32000, raw=RawAudioFormat("s16le", 16000))
    source.open()
    threading.Timer(0.8, source.stop).start()
    began = time.monotonic()
    items = list(source.items())
    assert time.monotonic() - began < 5
    assert 1 <= len(items) < 10
    source.close()
