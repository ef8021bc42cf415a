"""The audio packs, and the audio recipe from the packs to weights."""

from __future__ import annotations

import csv
import io
import tarfile
from contextlib import closing

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from costream.core.records import AudioBlock
from costream.models.catalogue import load_model
from kit.data_packs import packs as needed
from weights.recipes.audio import joined
from weights.recipes.audio.adviser import ALIKE
from weights.recipes.audio.data import PACKS, PARTS, SOUNDS, read_clips
from weights.recipes.audio.lessons import LessonBank, LessonPlan, LessonWorkers
from weights.recipes.audio.teacher import CLASSES, HOP, WIDTH, WINDOW, Said
from weights.recipes.audio.train import SoundRecipeSize, learn, make
from weights.recipes.common import read_member


@pytest.fixture(scope="module")
def packs():
    return needed(*(f"{name}.tar" for name in PACKS))


@pytest.fixture(scope="module")
def clips(packs):
    return read_clips(packs, every=29)


class LoudBands:  # a teacher that knows nothing but which bands of a window are loud
    classes = sorted({name for names in ALIKE.values() for name in names})
    classes += [f"band {k}" for k in range(len(classes), CLASSES)]

    def __call__(self, wave):
        windows = [wave[k : k + WINDOW] for k in range(0, len(wave) - WINDOW + 1, HOP)]
        spectra = np.abs(np.fft.rfft(np.stack(windows), 4096))[:, 1 : CLASSES + 1]
        features = np.sqrt(spectra).astype(np.float32)
        return Said(features[:, :WIDTH], np.log(features + 0.1))


@pytest.mark.long
def test_no_source_or_song_is_on_two_sides(clips):
    sides = {}
    for clip in clips:
        if clip.part != "left out":  # a label of its own, of speakers who are known
            sides.setdefault(clip.group, set()).add(clip.part)
    assert max(map(len, sides.values())) == 1
    assert {c.part for c in clips} == {*PARTS}


@pytest.mark.long
def test_another_fold_can_be_held_out(packs):
    for fold in ("2", "1"):
        clips = [c for c in read_clips(packs, 29, fold=fold) if c.set == "UrbanSound8K"]
        with tarfile.open(packs / "env_sound.tar") as archive:
            text = read_member(archive, "env_sound/labels.csv").decode()
        known = {
            f"freesound {r['freesound_id']}": r["fold"] for r in csv.DictReader(io.StringIO(text))
        }
        assert {known[c.group] for c in clips if c.part == "test"} == {fold}
        assert fold not in {known[c.group] for c in clips if c.part != "test"}
    # What was learnt with another fold held out is kept apart.
    plans = [LessonPlan(packs, LoudBands, 24, 0, cache=packs, fold=fold) for fold in ("2", "1")]
    assert (
        len({plan.path(1) for plan in plans}) == len({plan.name("backbone") for plan in plans}) == 2
    )
    assert plans[1].name("backbone") == "backbone-0.safetensors"


@pytest.mark.long
def test_the_packs_are_read_completely(clips):
    sets = {"ESC-10", "ESC-50", "UrbanSound8K", "GTZAN", "LibriSpeech", "DeeplyNV"}
    assert sets <= {c.set for c in clips}
    assert all(0.1 < len(c.samples) / 16_000 < 31 for c in clips)
    assert all(0 < np.abs(c.wave).max() <= 1 for c in clips)


@pytest.mark.long
def test_the_recipe_from_packs_to_weights(packs, tmp_path):
    steps = {"steps": 5, "head_steps": 3, "genre_steps": 3}
    size = SoundRecipeSize(**steps, batch=8, workers=1, streams=17, trees=2, noises=4)
    plan = LessonPlan(packs, LoudBands, 24, 0, 29, tmp_path, tmp_path / "waves.npz")
    paths = make(plan, size, tmp_path)
    assert [p.name for p in paths] == ["cotrans.safetensors", "cosounds.safetensors"]
    model = load_model("cotrans,cosounds", tmp_path)
    assert model.info.heads[1].card.labels == tuple(SOUNDS)
    assert model.info.heads[1].card.familiarity is not None
    wave = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    (result,) = model.steps([AudioBlock(0, 0.25, wave)], model.init_state())
    for head in model.info.heads:
        assert result.probabilities[0, head.columns].sum() == pytest.approx(1, abs=1e-5)
        card = (tmp_path / f"{head.card.name}.md").read_text("utf-8")
        assert all(text in card for text in ("linear classifier", "tree ensemble", "majority"))
    again = learn(plan, size, torch.device("cpu")).state_dict()  # it is in the cache
    assert all(torch.equal(v, again[k]) for k, v in model.frontend.state_dict().items())
    joined.make(plan.clips(), tmp_path, joined.JoinedSize(5, 3, 2, 4), tmp_path)
    both = load_model("cotrans,cosounds", tmp_path)
    assert both.info.card.frontend == "joined-audio"
    (same,) = both.steps([AudioBlock(0, 0.25, wave)], both.init_state())
    columns = model.info.heads[0].columns
    np.testing.assert_allclose(same.probabilities[0, columns], result.probabilities[0, columns])
    with pytest.raises(UsageError, match="not that of the first recipe"):
        joined.make(plan.clips(), tmp_path, joined.JoinedSize(5, 3, 2, 4), tmp_path)
    (tmp_path / "backbone-0.safetensors").unlink()
    with pytest.raises(UsageError, match="no time is left"):
        learn(plan, SoundRecipeSize(seconds=0.1, workers=1), torch.device("cpu"))


@pytest.mark.long
def test_a_process_that_fails_is_reported(tmp_path):
    plan = LessonPlan(tmp_path, LoudBands, 24, 0, 29, tmp_path)
    with closing(LessonWorkers(plan, 1)) as workers, pytest.raises(UsageError, match="failed"):
        workers.wait(LessonBank(24, torch.device("cpu")), 24)
