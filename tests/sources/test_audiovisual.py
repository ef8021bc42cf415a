"""Pictures and sound of one file, in order of time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from costream.core.clock import Tick, resample
from costream.core.errors import SourceError
from costream.core.records import AudioBlock, AudioFormat, VideoFrame
from costream.sources.base import SourceOptions
from costream.sources.media.audio_source import AudioSource
from costream.sources.media.audiovisual_source import AudioVisualSource
from kit.media import make_audio, make_video
from kit.reading import Contents, contents

SOUND = AudioFormat(16000, 4000)


def read(path: Path, **options: float) -> Contents:
    return contents(AudioVisualSource(str(path), SourceOptions(extra_audio=SOUND, **options)))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_video(tmp_path_factory.mktemp("av") / "a.mp4", 50, audio_s=2.0)


def test_sound_stands_before_the_frame_at_which_it_is_known(clip: Path) -> None:
    both = read(clip)
    assert both.info.extra_audio
    assert (len(both.frames), len(both.frames) + len(both.blocks)) == (50, len(both.items))
    expected = contents(AudioSource(str(clip), SourceOptions(sound=SOUND))).blocks
    assert len(both.blocks) >= len(expected) - 1  # the last may end behind the last picture
    for block, other in zip(both.blocks, expected, strict=False):
        assert np.array_equal(block.samples, other.samples)
    for before, item in pairwise(both.items):
        if isinstance(before, AudioBlock) and isinstance(item, VideoFrame):
            assert item.time_s - 1 / 25 < before.time_s <= item.time_s


def test_ticks_have_the_sound_since_the_one_before(clip: Path) -> None:
    items = read(clip, start_s=0.3).items
    ticks = [t for t in resample(items, 8.0, 1.0) if isinstance(t, Tick)]
    pictures = [t.item for t in ticks if isinstance(t.item, VideoFrame)]
    assert len(pictures) == len(ticks) == 14
    heard = [b.time_s for picture in pictures for b in picture.sound]
    assert heard == sorted(set(heard))
    assert len(heard) == 6
    for tick, picture in zip(ticks, pictures, strict=True):
        assert all(tick.time_s - 1 / 8 < b.time_s <= tick.time_s + 0.002 for b in picture.sound)


def test_missing_sound_is_not_an_error(tmp_path: Path) -> None:
    mute = read(make_video(tmp_path / "mute.mp4", 10))
    assert not mute.info.extra_audio
    assert mute.info.silent == "there is no sound in it, only video"
    assert len(mute.items) == 10
    short = read(make_video(tmp_path / "short.mp4", 50, audio_s=0.6))
    assert short.info.extra_audio
    assert (len(short.frames), len(short.blocks)) == (50, 3)
    with pytest.raises(SourceError, match="only sound"):
        read(make_audio(tmp_path / "a.mp3"))
