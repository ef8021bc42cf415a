"""``costream train`` on sound, as users run it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.models.catalogue import load_model
from costream.training.audio.audio_trainer import AudioTrainer
from costream.weights_io.card import Familiarity, Timeline
from costream.weights_io.file import read_card, read_weights
from kit import data_audio
from kit.data_training import train_settings
from kit.pages import Page
from kit.program import costream, python
from kit.runs import evaluate, run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return data_audio.write_tiny_weights(tmp_path_factory.mktemp("base") / "tiny.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_audio.write_folder(tmp_path_factory.mktemp("data"), 5)


@pytest.fixture(scope="module")
def trained(base, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "own.safetensors"
    cache = ("--cache", path.parent / "cache")
    done = run("train", base, "--data", data, "-o", path, "--scratch", "--steps", 60, *cache)
    return path, done


def test_five_examples_of_a_class_are_learnt(trained, tmp_path):
    told = trained[1].stdout.splitlines()
    assert told[2].startswith("verdict: too few clips for a significant result (3, ")
    assert told[2].endswith(" of 3 right): add clips, or hold out more with --validation")
    assert told[4] == f"next: costream listen FILE -m {trained[0]}"
    new = data_audio.write_folder(tmp_path, 4, first_seed=1000)
    result = evaluate("-m", trained[0], "--data", new)
    assert result["sequences"]["top1"] >= 11 / 12  # a third is what guessing gives
    assert result["sequences"]["top1_vote"] >= 11 / 12
    # Twelve clips of two seconds, one straight after another: a change is known within a second.
    assert result["streams"]["frames"] == 12 * 8
    assert result["streams"]["accuracy"] > 0.6


def test_the_card_says_what_it_is_and_the_frontend_stays(base, trained):
    before, after = read_weights(base).tensors, read_weights(trained[0])
    frontend = [name for name in before if name.startswith("frontend.")]
    assert frontend
    assert all(torch.equal(before[name], after.tensors[name]) for name in frontend)
    card = after.card
    assert card.labels == ("silence", *data_audio.KINDS)
    assert card.background == "silence"
    assert "12 user examples (click 4, hiss 4, tone 4), trained from scratch" in card.trained_on
    scores = card.metrics["validation"]
    baselines = ["nearest centroid of mean tokens", "linear on mean tokens", "majority"]
    assert list(scores) == ["own", *baselines]
    assert scores["own"]["top1"] > scores["majority"]["top1"] == pytest.approx(1 / 3)
    assert 0.3 <= card.timeline.threshold <= 0.7
    assert "linear on mean tokens" in trained[0].with_suffix(".md").read_text("utf-8")
    assert trained[1].stdout.startswith(f"{trained[0]}: silence, click, hiss, tone\nvalidation: ")


def test_there_is_a_page_about_it(trained):
    path, done = trained
    assert f"\nreport: {path.with_suffix('.html')}\n" in done.stdout
    said = Page(path.with_suffix(".html")).text
    for words in (
        *("silence", *data_audio.KINDS, "validation loss", "linear on mean tokens", "Confusion"),
        *("Calibration", "3 examples are too few for a temperature", "Temperature 1:"),
    ):
        assert words in said
    card = read_card(path)
    assert (card.temperature, card.timeline.thresholds) == (1.0, {})
    assert "The timeline was chosen on the validation streams: F1 of segments" in card.split


def test_steps_give_the_same_as_the_clip(trained, tmp_path):
    file = data_audio.write_sound(tmp_path / "tone.wav", "tone", 77, 3.0)
    done = run("detect", file, "-m", trained[0], "-f", "jsonl", "--scores", "-o", "-")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    stepped = [r["scores"] for r in records if r["type"] == "prediction"]
    model = load_model(str(trained[0]))
    samples = (data_audio.sound("tone", 77, 3.0) * 32767).astype("<i2") / np.float32(32768)
    with torch.inference_mode():
        tokens = model.frontend(torch.from_numpy(samples)[None])
        whole = model.network(tokens).logits[0].softmax(-1).numpy()
    assert len(stepped) == 12
    assert np.array(stepped) == pytest.approx(whole, abs=2e-4)
    labels = {r["label"] for r in records if r["type"] == "segment"}
    assert labels == {"tone"}


@pytest.mark.long
@pytest.mark.parametrize("kept", [True, False])
def test_the_same_seed_gives_the_same_bytes(kept, base, data, trained, tmp_path):
    path = tmp_path / "own.safetensors"
    cache = ("--cache", trained[0].parent / "cache") if kept else ("--no-cache",)
    call = ("train", base, "--data", data, "-o", path, "--scratch", "--steps", 60, *cache)
    done = python("-m", "costream", *call) if kept else costream(*call)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == trained[0].read_bytes()


def test_what_was_fitted_to_other_labels_is_not_kept(base, tmp_path):
    stored = read_weights(base)
    known = replace(stored.card, familiarity=Familiarity(0.0, 1.0, rest=stored.card.labels[1]))
    settings = train_settings(tmp_path / "own.safetensors")
    trainer, start = AudioTrainer(), replace(stored, card=known)
    assert trainer.setup(start, ("silence", "saw"), settings).card.familiarity is None
    assert trainer.setup(start, known.labels, settings).card.familiarity == known.familiarity


def test_labels_that_the_base_has_start_from_its_weights(base, tmp_path):
    start, settings = read_weights(base), train_settings(tmp_path / "own.safetensors")
    other, known = "zither", start.card.labels[1]
    network = AudioTrainer().setup(start, ("silence", known.upper(), other), settings).network
    weight, stored = network.head.weight, start.tensors["network.head.weight"].float()
    torch.testing.assert_close(weight[:2], stored[[0, 1]], rtol=0, atol=0)
    assert not any(torch.equal(weight[2], row) for row in stored)


def test_a_base_that_knows_none_of_the_labels_keeps_no_row(base, tmp_path):
    start, settings = read_weights(base), train_settings(tmp_path / "own.safetensors")
    network = AudioTrainer().setup(start, ("silence", "zither", "lute"), settings).network
    stored = start.tensors["network.head.weight"].float()
    assert not torch.equal(network.head.weight[0], stored[0])


def test_the_timeline_is_that_of_the_base_for_labels_that_it_has(base, tmp_path):
    start, settings = read_weights(base), train_settings(tmp_path / "own.safetensors")
    background, first, second, *_ = start.card.labels
    timeline = Timeline(threshold=0.4, thresholds={first: 0.7, second: 0.6}, smooth_s=0.3)
    start = replace(start, card=replace(start.card, timeline=timeline))

    def found(*labels: str) -> Timeline:
        return AudioTrainer().setup(start, (background, *labels), settings).card.timeline

    assert found(*start.card.labels[1:]) == timeline
    assert found(first.upper()) == replace(timeline, thresholds={first.upper(): 0.7})
    assert found(first, "zither") == Timeline()


def test_labels_of_the_base_have_its_order(base):
    stored = read_weights(base).card
    card = replace(stored, labels=(stored.labels[0], *sorted(stored.labels[1:], reverse=True)))
    assert AudioTrainer().labels(set(card.labels), card) == card.labels
    more = AudioTrainer().labels({*card.labels, "a"}, card)
    assert more == (card.labels[0], "a", *sorted(card.labels[1:]))


def test_nothing_need_be_held_out(base, data, tmp_path):
    path = tmp_path / "own.safetensors"
    given = ("--data", data, "-o", path, "--validation", 0, "--steps", 2, "--no-cache")
    run("train", base, *given)
    assert read_card(path).metrics == {}
