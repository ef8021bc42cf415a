"""The audio packs, and the audio recipe from the packs to weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from costream.models.registry import load_model
from costream.records import AudioBlock
from kit.data_packs import packs as needed
from weights.recipes.audio.backbone import CLASSES, HOP, WIDTH, WINDOW, Said
from weights.recipes.audio.data import PACKS, PARTS, SOUNDS, read_clips
from weights.recipes.audio.train import SoundRecipeSize, make


@pytest.fixture(scope="module")
def packs():
    return needed(*(f"{name}.tar" for name in PACKS))


@pytest.fixture(scope="module")
def clips(packs):
    return read_clips(packs, every=29)


def teacher(wave):
    """A teacher that knows nothing but which bands of a window are loud."""
    windows = [wave[k : k + WINDOW] for k in range(0, len(wave) - WINDOW + 1, HOP)]
    spectra = np.abs(np.fft.rfft(np.stack(windows), 4096))[:, 1 : CLASSES + 1]
    features = np.sqrt(spectra).astype(np.float32)
    return Said(features[:, :WIDTH], np.log(features + 0.1))


def test_no_source_or_song_is_on_two_sides(clips):
    sides = {}
    for clip in clips:
        if clip.part != "left out":  # a label of its own, of speakers who are known
            sides.setdefault(clip.group, set()).add(clip.part)
    assert max(map(len, sides.values())) == 1
    assert {c.part for c in clips} == {*PARTS}


def test_the_packs_are_read_whole(clips):
    sets = Counter(c.set for c in clips)
    assert {"ESC-10", "ESC-50", "UrbanSound8K", "GTZAN", "LibriSpeech", "DeeplyNV"} <= sets.keys()
    assert all(0.1 < len(c.samples) / 16_000 < 31 for c in clips)
    assert all(0 < np.abs(c.wave).max() <= 1 for c in clips)


def test_the_recipe_from_packs_to_weights(packs, tmp_path):
    size = SoundRecipeSize(
        pieces=24,
        steps=3,
        more=2,
        batch=8,
        streams=17,
        head_steps=3,
        genre_steps=3,
        every=29,
        trees=2,
        noises=4,
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        paths = make(packs, teacher, size, 0, tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert [p.name for p in paths] == ["cotrans.safetensors", "cosounds.safetensors"]
    model = load_model("cotrans,cosounds", tmp_path)
    assert model.info.heads[1].card.labels == tuple(SOUNDS)
    assert model.info.heads[1].card.familiarity is not None
    wave = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    (result,) = model.steps([AudioBlock(0, 0.25, wave)], model.init_state())
    for head in model.info.heads:
        assert result.probabilities[0, head.columns].sum() == pytest.approx(1, abs=1e-5)
        card = (tmp_path / f"{head.card.name}.md").read_text("utf-8")
        assert "linear classifier" in card
        assert "tree ensemble" in card
        assert "majority" in card
