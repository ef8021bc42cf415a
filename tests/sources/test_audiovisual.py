"""Pictures and sound of one file, in order of time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from costream.clock import Tick, resample
from costream.errors import SourceError
from costream.records import AudioBlock, AudioFormat, Item, SourceInfo, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.audio import AudioSource
from costream.sources.media.audiovisual import AudioVisualSource
from kit.media import make_audio, make_video

SOUND = AudioFormat(16000, 4000)


def read(path: Path, **options: float) -> tuple[SourceInfo, list[Item]]:
    source = AudioVisualSource(str(path), SourceOptions(beside=SOUND, **options))
    info = source.open()
    items = list(source.items())
    source.close()
    return info, items


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_video(tmp_path_factory.mktemp("av") / "a.mp4", 50, audio_s=2.0)


def test_sound_stands_before_the_frame_at_which_it_is_known(clip: Path) -> None:
    info, items = read(clip)
    assert info.beside
    frames = [item for item in items if isinstance(item, VideoFrame)]
    blocks = [item for item in items if isinstance(item, AudioBlock)]
    assert (len(frames), len(frames) + len(blocks)) == (50, len(items))
    alone = AudioSource(str(clip), SourceOptions(sound=SOUND))
    alone.open()
    expected = [b for b in alone.items() if isinstance(b, AudioBlock)]
    alone.close()
    assert len(blocks) >= len(expected) - 1  # the last may end behind the last picture
    for block, other in zip(blocks, expected, strict=False):
        assert np.array_equal(block.samples, other.samples)
    for before, item in pairwise(items):
        if isinstance(before, AudioBlock) and isinstance(item, VideoFrame):
            assert item.time_s - 1 / 25 < before.time_s <= item.time_s


def test_ticks_have_the_sound_since_the_one_before(clip: Path) -> None:
    _, items = read(clip, start_s=0.3)
    ticks = [t for t in resample(items, 8.0, 1.0) if isinstance(t, Tick)]
    pictures = [t.item for t in ticks if isinstance(t.item, VideoFrame)]
    assert len(pictures) == len(ticks) == 14
    heard = [b.time_s for picture in pictures for b in picture.sound]
    assert heard == sorted(set(heard))
    assert len(heard) == 6
    for tick, picture in zip(ticks, pictures, strict=True):
        assert all(tick.time_s - 1 / 8 < b.time_s <= tick.time_s + 0.002 for b in picture.sound)


def test_missing_sound_is_no_error(tmp_path: Path) -> None:
    info, items = read(make_video(tmp_path / "mute.mp4", 10))
    assert not info.beside
    assert info.silent is not None
    assert "no sound in it" in info.silent
    assert len(items) == 10
    info, items = read(make_video(tmp_path / "short.mp4", 50, audio_s=0.6))
    assert info.beside
    assert sum(isinstance(item, VideoFrame) for item in items) == 50
    assert sum(isinstance(item, AudioBlock) for item in items) == 3
    with pytest.raises(SourceError, match="only sound"):
        read(make_audio(tmp_path / "a.mp3"))
