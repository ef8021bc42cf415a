"""The packs and the recipe of the shipped models for sound, on a little of everything."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from costream.errors import UsageError
from costream.models.registry import load_model
from costream.records import AudioBlock
from weights.recipes.audio.backbone import CLASSES, WIDTH, WINDOW, Said
from weights.recipes.audio.data import (
    BLOCK,
    SILENCE,
    PieceSampler,
    SoundClip,
    genre_label,
    read_clips,
    sound_label,
)
from weights.recipes.audio.train import SoundRecipeSize, main, make

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "packs"
SOUNDS, GENRES = ("dog bark", "music", "rain", SILENCE), ("jazz", "rock", "no music")


@pytest.fixture(scope="module")
def packs():
    if not all((FOLDER / f"{name}.tar").is_file() for name in ("env_sound", "music_genre")):
        pytest.skip("needs the packs of sound in ../shared/packs beside the repository")
    return FOLDER


@pytest.fixture(scope="module")
def clips(packs):
    return read_clips(packs, every=29)


def teacher(wave):
    """A teacher that knows nothing but which bands of a window are loud."""
    windows = [wave[k : k + WINDOW] for k in range(0, len(wave) - WINDOW + 1, 8000)]
    spectra = np.abs(np.fft.rfft(np.stack(windows), 4096))[:, 1 : WIDTH + 1]
    features = np.sqrt(spectra).astype(np.float32)
    return Said(features, np.log(features[:, :CLASSES] + 0.1))


def test_no_source_or_song_is_on_two_sides(clips):
    sides = {}
    for clip in clips:
        sides.setdefault(clip.group, set()).add(clip.part)
    assert max(map(len, sides.values())) == 1
    assert {c.part for c in clips} == {"train", "validation", "test"}


def test_the_packs_are_read_whole(clips):
    assert Counter(c.set for c in clips).keys() == {"ESC-10", "UrbanSound8K", "GTZAN"}
    assert all(1.5 < len(c.samples) / 16_000 < 31 for c in clips)
    assert all(0.001 < np.abs(c.wave).max() <= 1 for c in clips)


def test_packs_that_are_not_there(tmp_path, capsys):
    with pytest.raises(UsageError, match="--packs"):
        read_clips(tmp_path)
    assert main(["--packs", str(tmp_path), "--output", str(tmp_path)]) == 2
    assert "teacher" in capsys.readouterr().err


def noise(label, kind, seconds=2.5):
    wave = np.random.default_rng(len(label)).normal(0, 3000, int(16_000 * seconds))
    return SoundClip(wave.astype(np.int16), label, kind, label, "train", False)


@pytest.fixture
def supply():
    some = [noise("dog bark", "ESC-10"), noise("rain", "UrbanSound8K"), noise("jazz", "GTZAN")]
    return PieceSampler([*some, noise("street music", "UrbanSound8K")], SOUNDS, GENRES)


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


def test_the_recipe_from_packs_to_weights(packs, tmp_path):
    size = SoundRecipeSize(
        pieces=24, steps=3, more=2, batch=8, streams=17, head_steps=3, every=29, trees=2
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        paths = make(packs, teacher, size, 0, tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert [p.name for p in paths] == ["cotrans.safetensors", "cosounds.safetensors"]
    model = load_model("cotrans,cosounds", tmp_path)
    wave = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    (result,) = model.steps([AudioBlock(0, 0.25, wave)], model.init_state())
    for head in model.heads:
        assert result.probabilities[0, head.columns].sum() == pytest.approx(1, abs=1e-5)
        card = (tmp_path / f"{head.card.name}.md").read_text("utf-8")
        assert "linear classifier" in card
        assert "tree ensemble" in card
        assert "majority" in card
