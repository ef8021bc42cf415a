"""``costream train --adapter --density``: narrower results, adapter files, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, UsageError
from costream.core.records import OBJECT_DETECTION
from costream.models.build import build
from costream.models.catalogue import find_weights, load_model, read_model
from costream.models.verify import random_items
from costream.nn.adapters.adapting import adapt, adapters
from costream.nn.eventful.counts import Operations
from costream.training.adaptation import check_adapter, with_facts
from costream.training.card_text import compression_lines
from costream.training.checkpoint import TrainingCheckpoint
from costream.training.command import train
from costream.training.optim import freeze_batchnorm, remove_dropout
from costream.training.tokens.teacher import LABELS, Teacher
from costream.weights_io.file import read_card, read_weights, write_weights
from kit import data_audio, data_objects, data_skeleton, data_video
from kit.data_training import train_settings
from kit.runs import run


@pytest.fixture(scope="module")
def skeletons(tmp_path_factory):
    """Return base weights, a folder of motions, and where results go."""
    folder = tmp_path_factory.mktemp("skeletons")
    base = data_skeleton.write_tiny_weights(folder / "tiny.safetensors")
    return base, data_skeleton.write_folder(folder / "moves", 3), folder


def _train(skeletons, path, **options):
    base, data, _ = skeletons
    settings = train_settings(path, model=str(base), data=data, verbosity=0, **options)
    with torch.enable_grad():
        train(settings)
    return path


SPLORA = {"adapter": "splora", "rank": 2, "density": 0.5, "steps": 12}


@pytest.fixture(scope="module")
def small(skeletons):
    return _train(skeletons, skeletons[2] / "small.safetensors", **SPLORA)


def _rows(model, steps=6):
    state, rows = model.init_state(), []
    for item in random_items(model, steps):
        probabilities = model.step([item], state).probabilities
        if probabilities is not None:
            rows.append(probabilities[0])
    return np.stack(rows)


@pytest.mark.long
def test_what_is_pruned_is_an_ordinary_file(skeletons, small):
    facts = read_card(small).compression
    assert (facts["adapter"], facts["rank"], facts["pruned"]) == ("splora", 2, ["network"])
    assert facts["density"] <= 0.5
    assert facts["macs"] < facts["macs_before"]
    assert facts["learnt"] < facts["learnt_whole"]
    assert "- adapted: splora of rank 2, density 0." in small.with_suffix(".md").read_text("utf-8")
    before, after = read_weights(skeletons[0]).tensors, read_weights(small).tensors
    assert sum(t.numel() for t in after.values()) < sum(t.numel() for t in before.values())
    assert load_model(str(small)).network.count_macs() == facts["macs"]


@pytest.mark.long
def test_adapter_files_are_the_result_next_to_their_base(skeletons, small, tmp_path):
    base, adapter = skeletons[0], small.with_name("small-adapter.safetensors")
    model = load_model(f"{base}+{adapter}")
    assert model.info.card.labels == read_card(small).labels
    np.testing.assert_allclose(_rows(model), _rows(load_model(str(small))), atol=1e-5)
    with pytest.raises(ModelError, match="is an adapter, which needs its base"):
        load_model(str(adapter))
    with pytest.raises(ModelError, match="is not an adapter"):
        load_model(f"{base}+{small}")
    stored = read_weights(base)
    other = tmp_path / "other.safetensors"
    changed = {k: v + 1 if v.is_floating_point() else v for k, v in stored.tensors.items()}
    write_weights(other, stored.card, changed)
    with pytest.raises(ModelError, match="the base of this adapter is not"):
        load_model(f"{other}+{adapter}")
    with pytest.raises(ModelError, match="no such adapter file"):
        find_weights(f"{base}+none.safetensors")


@pytest.mark.long
def test_a_base_with_an_adapter_is_shown_verified_and_compressed(skeletons, small, tmp_path):
    adapter = small.with_name("small-adapter.safetensors")
    name, made = f"{skeletons[0]}+{adapter}", tmp_path / "int8.safetensors"
    assert run("models", "verify", name).stdout == f"ok    {name}\n"
    shown = json.loads(run("models", "show", name, "--json").stdout)
    assert shown["parameters"] == sum(t.numel() for t in read_weights(small).tensors.values())
    assert (shown["path"], shown["compression"]["pruned"]) == (name, ["network"])
    done = run("models", "compress", name, "--int8", "-o", made)
    before = sum(path.stat().st_size for path in (skeletons[0], adapter))
    assert f"{made.stat().st_size / 1e6:.2f} MB of {before / 1e6:.2f};" in done.stderr
    alone = run("models", "verify", adapter, code=5).stdout
    assert (
        alone
        == f"FAIL  {adapter}: is an adapter, which needs its base; give both: BASE+{adapter}\n"
    )


@pytest.mark.long
def test_a_density_out_of_reach_is_reported(skeletons, tmp_path, capsys):
    path = _train(skeletons, tmp_path / "o.safetensors", density=0.001, steps=2)
    card = read_card(path)
    left = card.compression["density"]
    assert left > 0.001
    told = f"--density 0.001 is out of reach: the least that layers can keep is {left:g}"
    assert told in capsys.readouterr().err
    assert f"density {left:.2f} (0.001 is out of reach): " in compression_lines(card)[0]


@pytest.mark.long
def test_an_interrupted_pruning_continues(skeletons, small, tmp_path, monkeypatch):
    """Masks are in the checkpoint: the result is that of an uninterrupted training."""
    path, note = tmp_path / "small.safetensors", TrainingCheckpoint.note

    def stopped(self, steps, parts):
        if steps == 8:  # in the middle of pruning
            self.write(steps, parts)
            raise RuntimeError("stopped")

    monkeypatch.setattr(TrainingCheckpoint, "note", stopped)
    with pytest.raises(RuntimeError, match="stopped"):
        _train(skeletons, path, **SPLORA)
    monkeypatch.setattr(TrainingCheckpoint, "note", note)
    _train(skeletons, path, **SPLORA)
    assert read_weights(path).sha256 == read_weights(small).sha256


@pytest.mark.parametrize(
    ("measure", "named", "task"),
    [("top1", "top-1", "sequence classification"), ("AP50", "AP50", OBJECT_DETECTION)],
)
def test_accuracy_is_compared_with_the_same_training_unpruned(
    small, measure, named, task, tmp_path
):
    card, path = read_card(small), tmp_path / "whole.safetensors"
    measured = {"small": {measure: 0.5}}
    card = replace(card, task=task, metrics={"validation": measured})
    scores = {"whole": {measure: 0.75}}
    whole = replace(card, name="whole", compression={}, metrics={"validation": scores})
    write_weights(path, whole, {})
    compared = with_facts(card, card.compression, path).compression
    assert compared["validation_loss"] == 0.25
    line = compression_lines(replace(card, compression=compared))[0]
    assert line.endswith(f"; +0.250 of validation {named} lost by pruning")
    for other in (replace(whole, trained_on="other"), replace(whole, compression={"learnt": 1})):
        write_weights(path, other, {})
        with pytest.raises(UsageError, match="not the same training"):
            with_facts(card, card.compression, path)


@pytest.mark.long
def test_sound_is_adapted_on_its_frontend(tmp_path):
    base = data_audio.write_tiny_weights(tmp_path / "tiny.safetensors")
    sounds = base, data_audio.write_folder(tmp_path / "sounds", 3), tmp_path
    path = _train(sounds, tmp_path / "own.safetensors", adapter="lora", rank=2, steps=20)
    adapter = tmp_path / "own-adapter.safetensors"
    assert not any(k.startswith("frontend.") for k in read_weights(adapter).tensors)
    joined = load_model(f"{base}+{adapter}")
    np.testing.assert_allclose(_rows(joined), _rows(load_model(str(path))), atol=1e-5)
    stored, frontends = read_model(f"{base}+{adapter}").tensors, read_weights(base).tensors
    shared = [k for k in stored if k.startswith("frontend.")]
    assert shared
    assert all(torch.equal(stored[k], frontends[k]) for k in shared)
    # Two adapters of one base, run together: what neither changes is the same memory.
    other = tmp_path / "other.safetensors"
    shift = {
        k: v + 0.1 if k == "head.bias" else v for k, v in read_weights(adapter).tensors.items()
    }
    write_weights(other, replace(read_card(adapter), name="other"), shift)
    both = load_model(f"{base}+{adapter},{base}+{other}")
    first, second = (dict(n.state_dict()) for n in both.network.networks)
    one = {k for k in first if first[k].data_ptr() == second[k].data_ptr()}
    assert set(first) - one == {"head.bias"}
    np.testing.assert_allclose(
        _rows(both)[:, : len(joined.info.card.labels)], _rows(joined), atol=1e-6
    )


def test_a_teacher_stays_what_the_network_was(tmp_path):
    stored = read_weights(data_audio.write_tiny_weights(tmp_path / "tiny.safetensors"))
    network, frontend = build(stored.card, stored.tensors)
    both = adapt(torch.nn.ModuleList([network, frontend]).train(), "splora", 2)
    teacher, clips = Teacher(network, frontend), torch.randn(2, 20, frontend.block) / 10
    offset = torch.zeros(2, dtype=torch.int64)

    def loss():
        tokens = frontend(clips)
        own = tokens, network(tokens, offset, None).logits
        given = offset, None
        return teacher.loss(network, own, teacher.tokens(clips), given, own[1].new_tensor(10.0))

    freeze_batchnorm(both)
    assert float(loss().detach()) > LABELS * 10 + 1e-3  # in training, with dropout
    remove_dropout(both)
    assert float(loss().detach()) == pytest.approx(LABELS * 10, abs=1e-4)
    before = teacher.tokens(clips)
    for _, _, _, adapter in adapters(both):
        torch.nn.init.normal_(adapter.down, std=0.1)
    changed = loss()
    assert float(changed.detach()) > LABELS * 10 + 0.01
    changed.backward()
    assert all(a.down.grad is not None for _, _, _, a in adapters(both))
    assert torch.equal(teacher.tokens(clips), before)


@pytest.mark.long
@pytest.mark.parametrize("kit", [data_audio, data_video])
def test_frontends_are_adapted_with_their_networks(tmp_path, kit, monkeypatch):
    base = kit.write_tiny_weights(tmp_path / "tiny.safetensors")
    examples = kit.write_folder(tmp_path / "examples", 3)
    options = {**SPLORA, "density": 0.6, "fine_tune": True, "steps": 6, "validation": 0}
    path = tmp_path / "own.safetensors"

    def stopped(self, steps, parts):
        assert self.path.name == "own.safetensors.frontend.partial"  # nothing is learnt before
        if steps == 4:
            self.write(steps, parts)
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingCheckpoint, "note", stopped)
        with pytest.raises(RuntimeError, match="stopped"):
            _train((base, examples, tmp_path), path, **options)
    _train((base, examples, tmp_path), path, **options)
    facts, tensors = read_card(path).compression, read_weights(path).tensors
    assert facts["pruned"] == ["network", "frontend"]
    assert facts["density"] <= 0.6
    assert facts["learnt"] < facts["learnt_whole"] / 2
    assert facts["macs"] < facts["macs_before"]
    whole = read_weights(base).tensors
    narrower = [k for k in tensors if tensors[k].shape != whole[k].shape]
    assert {k.partition(".")[0] for k in narrower} >= {"network", "frontend"}
    joined = load_model(f"{base}+{tmp_path / 'own-adapter.safetensors'}")
    np.testing.assert_allclose(_rows(joined), _rows(load_model(str(path))), atol=1e-5)
    (tmp_path / "again").mkdir()
    again = _train((base, examples, tmp_path), tmp_path / "again" / path.name, **options)
    assert read_weights(again).sha256 == read_weights(path).sha256  # though never interrupted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": "lora", "density": 0.5}, "LoRA has no masks"),
        ({"adapter": "splora", "scratch": True}, "needs trained weights"),
        ({"compare": "file"}, "applies to trainings with --density"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        check_adapter(train_settings(tmp_path / "x.safetensors", **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"density": 0.5}, "all of the network"), ({"adapter": "lora"}, "all of the network")],
)
def test_what_detectors_cannot(tmp_path, options, message):
    settings = train_settings(tmp_path / "x.safetensors", **{"fine_tune": False, **options})
    with pytest.raises(UsageError, match=message):
        check_adapter(settings, objects=True)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"adapter": "lora"}, {"adapter": "splora", "density": 0.5}])
def test_adapters_of_detectors(tmp_path, options):
    base = data_objects.write_tiny_weights(tmp_path / "base.safetensors")
    labels = data_objects.write_pictures(tmp_path / "pictures", 5)
    path = tmp_path / "own.safetensors"
    options = {"data": tmp_path / "pictures", "labels": labels, "rank": 2, **options}
    with torch.enable_grad():
        train(train_settings(path, model=str(base), steps=4, verbosity=0, **options))
    facts = read_card(path).compression
    assert 0 < facts["learnt"] < facts["learnt_whole"]
    pruned = "density" in options
    assert 0 < facts["macs"] <= (0.8 if pruned else 1) * facts["macs_before"]
    _is_its_step(load_model(path).network)
    own = read_weights(path).tensors
    adapter = path.with_name("own-adapter.safetensors")
    assert adapter.stat().st_size < path.stat().st_size
    joined = read_model(f"{base}+{adapter}").tensors
    assert joined.keys() == own.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(joined[name], tensor, rtol=1e-5, atol=1e-6)
    before = read_weights(base).tensors["network.backbone.blocks.0.mlp_1.weight"].float()
    after = own["network.backbone.blocks.0.mlp_1.weight"]
    assert len(after) < len(before) if pruned else not torch.equal(after, before)


@torch.no_grad()
def _is_its_step(network):
    """Assert that a frame with gates gives what the picture gives."""
    picture, operations = torch.randn(1, 3, 64, 96), Operations()
    tokens = network.embed(picture)
    first = network.view_step(tokens, network.init_state(1, 64, 96), None, operations)
    whole = network.view(network.backbone(tokens))
    torch.testing.assert_close(first.predicted, whole.predicted, rtol=1e-4, atol=1e-4)


def test_pruned_networks_are_not_begun_with(skeletons, small, tmp_path):
    with pytest.raises(ModelError, match="is pruned"):
        _train((small, *skeletons[1:]), tmp_path / "x.safetensors", steps=2)


def test_damaged_widths_are_model_errors(small, tmp_path):
    """A pruned file whose layers do not fit one another is refused when it is loaded."""
    stored, path = read_weights(small), tmp_path / "damaged.safetensors"
    name = "network.layers.layer1.gcn.g_conv.0.weight"
    wide = torch.ones(500, *stored.tensors[name].shape[1:])
    for tensor, message in ((stored.tensors[name][:1], "invalid arguments"), (wide, "not fit")):
        write_weights(path, stored.card, {**stored.tensors, name: tensor})
        with pytest.raises(ModelError, match=message):
            load_model(str(path))
