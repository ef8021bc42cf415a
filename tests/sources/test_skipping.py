"""Frames that are not decoded: whatever a tick shows is as if all were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from costream.core.clock import Tick, resample
from costream.core.records import Fault, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.prefetch import Prefetcher
from costream.sources.media.skipping import FrameSkipper, SkippedFrame
from costream.sources.media.video_source import VideoSource
from kit.media import busy, make_video, rotten
from kit.reading import Contents, contents

FRAMES = 180
CODECS = ("libx264", "libx265", "mpeg4", "mpeg2video", "libvpx")


def read(path: Path, **options: object) -> Contents:
    """Read a video to its end."""
    return contents(VideoSource(str(path), SourceOptions(**options)))  # type: ignore[arg-type]


def shown(frames: list[VideoFrame], rate_hz: float) -> list[tuple[int, float, np.ndarray]]:
    """Return the frames of the ticks: number, time and pixels."""
    ticks = [t for t in resample(frames, rate_hz, 1.0) if isinstance(t, Tick)]
    pictures = [t.item for t in ticks if isinstance(t.item, VideoFrame)]
    return [(p.i, p.time_s, p.rgb) for p in pictures]


def same(
    one: list[tuple[int, float, np.ndarray]], two: list[tuple[int, float, np.ndarray]]
) -> None:
    """Check that two lists of ``shown`` are equal to the bit."""
    assert [(i, t) for i, t, _ in one] == [(i, t) for i, t, _ in two]
    for (_, _, a), (_, _, b) in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the frames that are skipped."""
    count = [0]
    decode = FrameSkipper.decode

    def counting(self: FrameSkipper, packet: object) -> list[object]:
        out = decode(self, packet)  # type: ignore[arg-type]
        count[0] += sum(isinstance(frame, SkippedFrame) for frame in out)
        return list(out)

    monkeypatch.setattr(FrameSkipper, "decode", counting)
    return count


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS)
def test_ticks_show_the_same(codec: str, tmp_path: Path, counted: list[int]) -> None:
    b_frames = 0 if codec == "libvpx" else 2
    path = make_video(tmp_path / "a.mkv", FRAMES, codec=codec, b_frames=b_frames, pattern=busy)
    for start_s in (0.0, 1.3):
        whole = read(path, start_s=start_s)
        assert counted == [0]
        for rate_hz in (1.0, 8.0, 12.5, 30.0):
            part = read(path, start_s=start_s, sampled_hz=rate_hz)
            assert part.times == whole.times
            assert [(f.i, f.pts) for f in part.frames] == [(f.i, f.pts) for f in whole.frames]
            same(shown(part.frames, rate_hz), shown(whole.frames, rate_hz))
            if rate_hz == 30.0 or codec == "libvpx":
                assert counted == [0]
            elif rate_hz < 10:
                assert counted[0] > 0.15 * len(whole.frames)
            counted[0] = 0


@pytest.mark.parametrize("seed", range(4))
def test_times_of_any_rate(seed: int, tmp_path: Path, counted: list[int]) -> None:
    """Pauses, frames within a millisecond and frames just before a tick."""
    random = np.random.default_rng(seed)
    apart_s = random.choice(
        [0.0007, 0.004, 1 / 30, 0.124, 0.4, 1.6], FRAMES, p=[0.1, 0.2, 0.5, 0.1, 0.06, 0.04]
    )
    times = np.cumsum(apart_s).tolist()
    path = make_video(tmp_path / "a.mp4", FRAMES, b_frames=3, pattern=busy, times=times)
    whole = read(path)
    for rate_hz in (4.0, 8.0, 10.0):
        part = read(path, sampled_hz=rate_hz)
        assert part.times == whole.times
        same(shown(part.frames, rate_hz), shown(whole.frames, rate_hz))
    assert counted[0] > 0


@pytest.mark.long
def test_damage(tmp_path: Path, counted: list[int]) -> None:
    """What is damaged is told, and every tick has a picture."""
    path = make_video(tmp_path / "a.mp4", FRAMES, b_frames=2, pattern=busy, size=(320, 240))
    for seed in range(5):
        bad = rotten(path, 12, seed=seed)
        whole, part = read(bad), read(bad, sampled_hz=8.0)
        assert bool(whole.of(Fault)) == bool(part.of(Fault))
        assert part.errors <= whole.errors
        assert abs(len(part.frames) - len(whole.frames)) <= whole.errors
        for _, _, rgb in shown(part.frames, 8.0):
            assert rgb.shape == (240, 320, 3)
    assert counted[0] > 0


# --- reading ahead ----------------------------------------------------------------------------


def test_the_same_ahead(tmp_path: Path) -> None:
    path = rotten(make_video(tmp_path / "a.mp4", 100, b_frames=2, pattern=busy), 3)
    one, two = read(path), read(path, prefetch=True)
    assert one.info == two.info
    assert one.times == two.times
    assert one.errors == two.errors
    assert [f.message for f in one.faults] == [f.message for f in two.faults]
    for a, b in zip(one.frames, two.frames, strict=True):
        np.testing.assert_array_equal(a.rgb, b.rgb)


def test_closed_in_the_middle(tmp_path: Path) -> None:
    """Its thread has ended; the frames that were read stay usable."""
    source = VideoSource(str(make_video(tmp_path / "a.mp4", 500)), SourceOptions(prefetch=True))
    source.open()
    items = source.items()
    frames = [next(items) for _ in range(3)]
    source.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
    assert all(isinstance(f, VideoFrame) and f.rgb.shape == (64, 96, 3) for f in frames)
    assert list(items) == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield from range(5)
        raise OSError("gone")

    items = Prefetcher(failing(), 2)
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="gone"):
        next(items)
    assert list(items) == []
