"""Augmented pieces of audio and labels of the audio recipe."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.labels.recording import SILENCE
from weights.recipes.audio.data import SoundClip, genre_label, sound_label
from weights.recipes.audio.pieces import BLOCK, PieceSampler, louder, made_up, mask, stretched

SOUNDS, GENRES = ("dog bark", "music", "other", "rain", SILENCE), ("jazz", "rock", "no music")


def noise(label, kind, seconds=2.5):
    wave = np.random.default_rng(len(label)).normal(0, 3000, int(16_000 * seconds))
    return SoundClip(wave.astype(np.int16), label, kind, label, "train", False)


@pytest.fixture
def supply():
    some = [noise("dog bark", "ESC-10"), noise("rain", "UrbanSound8K"), noise("jazz", "GTZAN")]
    return PieceSampler([*some, noise("street music", "UrbanSound8K")], SOUNDS, GENRES, sound_label)


def test_batches(supply):
    batch = supply.batch(64, np.random.default_rng(0), 6)
    assert batch.waves.shape == (64, 6 * BLOCK)
    assert bool(torch.isfinite(batch.waves).all())
    torch.testing.assert_close(batch.sounds.sum(1), torch.ones(64))
    known = batch.genres.sum(1)
    assert set(known.round(decimals=5).tolist()) == {0.0, 1.0}  # of street music nobody knows
    again = supply.batch(64, np.random.default_rng(0), 6)
    assert torch.equal(batch.waves, again.waves)


def test_what_the_models_call_a_clip():
    assert sound_label(noise("street music", "UrbanSound8K")) == "music"
    assert sound_label(noise("jazz", "GTZAN")) == "music"
    assert genre_label(noise("rain", "ESC-10")) == "no music"
    assert genre_label(noise("street music", "UrbanSound8K")) is None
    assert sound_label(noise("plucked strings", "Philharmonia")) == "musical instrument"
    assert genre_label(noise("plucked strings", "Philharmonia")) is None
    assert sound_label(noise("wolf howl", "noice")) == "other"
    assert sound_label(noise("drawer", "Kitchen20")) is None  # it may sound as a door


def test_the_same_song_at_other_speeds():
    wave = 9000 * np.sin(2 * np.pi * 440 * np.arange(32_000) / 16_000)
    song = SoundClip(wave.astype(np.int16), "jazz", "GTZAN", "jazz.00001", "train", True)
    slow, fast = stretched([song])
    assert [len(c.samples) for c in (slow, fast)] == [40_000, 25_600]
    for clip, pitch_hz in ((slow, 352), (fast, 550)):
        assert clip.group == song.group
        loudest = np.abs(np.fft.rfft(clip.wave)).argmax() * 16_000 / len(clip.samples)
        assert loudest == pytest.approx(pitch_hz, abs=1)
        assert np.abs(clip.wave).max() == pytest.approx(np.abs(song.wave).max(), rel=0.05)


def test_made_up_sounds_have_a_level_and_are_not_alike():
    rng = np.random.default_rng(0)
    waves = [made_up(rng, 8000) for _ in range(40)]
    np.testing.assert_allclose([np.sqrt(np.mean(w**2)) for w in waves], 1, rtol=0.05)
    flat = [np.abs(np.fft.rfft(w)).max() ** 2 / np.sum(np.abs(np.fft.rfft(w)) ** 2) for w in waves]
    assert min(flat) < 0.01  # noise
    assert max(flat) > 0.3  # a tone


def test_spectrograms_are_masked_and_louder():
    rows, rng = torch.randn(8, 48, 64).sub(8), np.random.default_rng(0)
    assert 0 < (mask(rows, rng) != rows).float().mean() < 0.5
    change = louder(rows, rng) - rows
    assert change.std((1, 2)).max() < 0.05  # one level for all of a piece
    assert change.mean((1, 2)).std() > 0.3
    silence = louder(torch.full((1, 4, 64), -16.125), rng)  # in half precision
    torch.testing.assert_close(silence, torch.full_like(silence, np.log(1e-7)))
