"""Audio models: single blocks, chunks and combined models are equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError
from costream.core.records import AudioBlock, AudioFormat, FeatureRow, SourceInfo
from costream.models.build import save_model
from costream.models.catalogue import load_model
from kit.sound_nets import write


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "genres", ("jazz", "rock", "none"))
    write(tmp_path, "sounds", ("dog", "rain", "wind", "silence"), seed=1, window=9)
    write(tmp_path, "other", ("a", "b"), frontend_seed=5)
    return tmp_path


def blocks(count, first=0):
    waves = 0.1 * np.random.default_rng(0).standard_normal((first + count, 4000), np.float32)
    return [AudioBlock(i, (i + 1) / 4, waves[i]) for i in range(first, first + count)]


def probabilities(results):
    return np.concatenate([r.probabilities for r in results])


def test_says_what_sound_it_takes(folder):
    model = load_model("genres", folder)
    assert (model.info.sound, model.info.box) == (AudioFormat(16_000, 4000), None)
    assert model.info.chunk > 1
    model.check(SourceInfo("a.wav", "a.wav", "audio", 1.0, 4.0))
    with pytest.raises(Exception, match=r"genres takes sound, not video.*--mic"):
        model.check(SourceInfo("a.mp4", "a.mp4", "video", 1.0, 25.0))


@pytest.mark.parametrize("sizes", [[1] * 20, [20], [3, 16, 1], [7, 13]])
@pytest.mark.parametrize("name", ["genres", "genres,sounds"])
def test_chunks_are_steps(folder, name, sizes):
    model, items = load_model(name, folder, dtype="float64"), blocks(20)
    state = model.init_state()
    steps = [model.step([item], state) for item in items]
    state, results = model.init_state(), []
    for size in sizes:
        results += model.steps(items[len(results) : len(results) + size], state)
    np.testing.assert_allclose(probabilities(results), probabilities(steps), atol=1e-6)
    assert [r.warmup for r in results] == [r.warmup for r in steps]
    assert [r.macs for r in results] == [r.macs for r in steps]
    for chunk, step in zip(results, steps, strict=True):
        np.testing.assert_allclose(chunk.spectra[0], step.spectra[0], atol=1e-9)


def test_heads_side_by_side_say_what_they_say_alone(folder):
    both, items = load_model("genres,sounds", folder), blocks(20)
    results = probabilities(both.steps(items, both.init_state()))
    for head in both.info.heads:
        alone = load_model(head.card.name, folder)
        expected = probabilities(alone.steps(items, alone.init_state()))
        np.testing.assert_allclose(results[:, head.columns], expected, atol=1e-6)
        assert head.weights_sha256 == alone.info.weights_sha256
    assert both.info.card.labels == ("jazz", "rock", "none", "dog", "rain", "wind", "silence")
    single = load_model("genres", folder)
    other = load_model("sounds", folder)
    shared = single.frontend.count_macs()
    assert both.macs == single.macs + other.macs - shared


def test_its_tokens_may_come_as_features(folder):
    model, items = load_model("genres", folder), blocks(6)
    waves = torch.from_numpy(np.stack([b.samples for b in items]))
    with torch.inference_mode():
        rows = model.frontend(waves[None])[0].numpy()
    state = model.init_state()
    given = [model.step([FeatureRow(i, float(i), row)], state) for i, row in enumerate(rows)]
    np.testing.assert_allclose(
        probabilities(given), probabilities(model.steps(items, model.init_state())), atol=1e-6
    )
    assert given[0].macs == model.macs - model.frontend.count_macs()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("genres,other", "does not share the frontend of genres"),
        ("genres,genres", "named twice"),
        ("genres,nonsense", "unknown model|no nonsense"),
    ],
)
def test_heads_that_do_not_go_together(folder, name, message):
    with pytest.raises(ModelError, match=message):
        load_model(name, folder)


def test_half_precision_weights_are_loaded_as_asked(folder, tmp_path):
    model = load_model("genres", folder)
    card = replace(model.info.card, name="half")
    save_model(tmp_path / "half.safetensors", card, model.network.half(), model.frontend.half())
    loaded = load_model("half", tmp_path)
    assert {p.dtype for p in loaded.network.parameters()} == {torch.float32}
    assert loaded.steps(blocks(3), loaded.init_state())[0].probabilities.shape == (1, 3)
