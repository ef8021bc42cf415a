"""``costream train`` as users run it."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from costream.training.base import CHECKPOINT_SUFFIXES, Workspace, training_checkpoint
from costream.training.early_stopping import LOSS
from costream.training.feature_cache import FeatureCache
from costream.training.skeleton.skeleton_trainer import SkeletonTrainer
from costream.weights_io.card import Card
from costream.weights_io.file import Weights, read_card, read_weights
from kit import data_skeleton
from kit.data_training import train_settings
from kit.program import costream, python, start
from kit.runs import evaluate, refused, run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return data_skeleton.write_tiny_weights(tmp_path_factory.mktemp("base") / "tiny.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_skeleton.write_folder(tmp_path_factory.mktemp("data"), 5)


@pytest.fixture(scope="module")
def trained(base, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "moves.safetensors"
    done = run("train", base, "--data", data, "-o", path, "--scratch", "--steps", 60)
    return path, done


def test_five_examples_of_a_class_are_learnt(trained, tmp_path):
    new = data_skeleton.write_folder(tmp_path, 3, first_seed=1000)
    assert evaluate("-m", trained[0], "--data", new, "--joined", 0)["sequences"]["top1"] >= 8 / 9


def test_the_card_says_what_it_is(trained):
    card = read_card(trained[0])
    assert card.name == "moves"
    assert card.labels == ("background", *data_skeleton.ACTS)
    assert card.background == "background"
    assert "12 user examples (bend 4, step 4, wave 4)" in card.trained_on
    assert "trained from scratch" in card.trained_on
    assert card.metrics["validation"]["moves"]["sequences"] == 3
    text = trained[0].with_suffix(".md").read_text("utf-8")
    assert "## validation" in text
    assert "majority" in text


def test_the_weights_are_complete(trained):
    """The sample on the card of those that it began with says nothing of these."""
    done = costream("models", "verify", trained[0])
    assert (done.returncode, done.stdout) == (0, f"ok    {trained[0]}\n")


def test_it_says_where_the_weights_are(trained):
    path, done = trained
    assert done.stdout.startswith(f"{path}: background, bend, step, wave\nvalidation: top-1 ")


@pytest.mark.slow
def test_all_classes_of_no_event_are_the_background(base, tmp_path):
    still = np.repeat(data_skeleton.STANDING[None], 36, 0)
    for n in range(3):
        for label in ("none", "Nothing"):
            data_skeleton.write_motion(tmp_path / "data" / label / f"{n}.csv", still)
        data_skeleton.write_act(tmp_path / "data" / "bend" / f"{n}.csv", "bend", n)
    path = tmp_path / "o.safetensors"
    done = run("train", base, "--data", tmp_path / "data", "-o", path, "--steps", 2)
    assert "background, which makes no segments: 'none', 'Nothing'" in done.stderr
    assert (read_card(path).labels, read_card(path).background) == (("none", "bend"), "none")
    found = evaluate("-m", path, "--data", tmp_path / "data")
    assert (found["labels"], found["examples"]) == (["none", "bend"], 9)


@pytest.mark.long
def test_recordings_with_timelines_are_learnt(base, tmp_path):
    """Between the acts somebody stands about, and then nobody is there."""
    media, labels = tmp_path / "media", tmp_path / "labels"
    labels.mkdir()
    for n in range(2):
        acts = [data_skeleton.act(label, n) for label in data_skeleton.ACTS]
        still = np.repeat(data_skeleton.STANDING[None], 20, 0)
        parts = [still, acts[0], np.zeros_like(still), acts[1], still[:2], acts[2]]
        data_skeleton.write_motion(media / f"r{n}.csv", np.concatenate(parts))
        begins = np.cumsum([0, *map(len, parts)])[[1, 3, 5]] / data_skeleton.RATE_HZ
        lines = [
            f"{b:.3f},{b + 36 / data_skeleton.RATE_HZ:.3f},{a}"
            for b, a in zip(begins, data_skeleton.ACTS, strict=True)
        ]
        text = "\n".join(["start_s,end_s,label", *lines]) + "\n"
        (labels / f"r{n}.csv.timeline.csv").write_text(text, "utf-8")
    output = tmp_path / "o.safetensors"
    given = ("--data", media, "--labels", labels, "--validation", 0)
    run("train", base, *given, "-o", output, "--steps", 2)
    # Of two recordings: the pause before the first act and that before the second.
    assert "10 user examples (background 4, bend 2, step 2, wave 2)" in read_card(output).trained_on


@pytest.mark.long
def test_fine_tuning_keeps_the_licence_and_repeats_with_its_seed(base, data, tmp_path):
    digests = []
    for name in ("a", "b"):
        path = tmp_path / name / "own.safetensors"
        call = ("train", base, "--data", data, "-o", path, "--steps", 3)
        done = costream(*call) if name == "a" else python("-m", "costream", *call)
        assert done.returncode == 0, done.stderr
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    assert "public domain" in read_card(path).licence
    assert "started from tiny" in read_card(path).trained_on


@pytest.mark.parametrize(
    ("of_base", "of_data", "scratch", "frontend", "expected"),
    [
        ("research", "free", False, False, "research"),
        ("research", None, False, False, "research"),
        ("free", "free", False, False, "free"),
        ("free", "non-commercial", False, False, "non-commercial"),
        ("free", None, False, False, None),
        (None, "free", False, False, None),
        ("research", "free", True, False, "free"),
        ("research", "free", True, True, "research"),  # whose frontend is kept
    ],
)
def test_trained_weights_have_the_narrower_licence_class(
    tmp_path, of_base, of_data, scratch, frontend, expected
):
    card = Card("base", "x", "cooadtr", {}, ("a",), 1.0, licence="words", licence_class=of_base)
    tensors = {"frontend.x": torch.zeros(1)} if frontend else {}
    settings = train_settings(tmp_path / "o", scratch=scratch, data_licence=of_data)
    none: Any = None
    terms = Workspace(settings, Weights(card, "", tensors), none, none, none).terms("examples")
    assert terms["licence_class"] == expected
    assert ("of base (words)" in terms["licence"]) == (not scratch or frontend)


@pytest.mark.long
def test_the_licence_class_of_the_examples_is_on_the_card(base, data, tmp_path):
    path = tmp_path / "own.safetensors"
    made = ("train", base, "--data", data, "-o", path, "--steps", 1, "--scratch", "--overwrite")
    run(*made, "--data-licence", "free")
    assert read_card(path).licence_class == "free"
    assert "- Licence (free): Licence of the examples" in path.with_suffix(".md").read_text("utf-8")
    run(*made)
    assert read_card(path).licence_class is None
    assert "- Licence (unknown): " in path.with_suffix(".md").read_text("utf-8")


@pytest.mark.long
def test_training_continues_from_trained_weights(trained, data, tmp_path):
    path = tmp_path / "again.safetensors"
    run("train", trained[0], "--data", data, "-o", path, "--steps", 2)
    card = read_card(path)
    assert card.labels == read_card(trained[0]).labels
    assert card.arguments["statistics"]
    assert card.metrics["validation"]["again"]["top1"] > 0.5


def test_a_line_says_how_many_labels_start_from_the_model(trained, tmp_path):
    data = data_skeleton.write_folder(tmp_path / "data", 2)
    (data / data_skeleton.ACTS[0]).rename(data / "new")
    command = ("train", trained[0], "--data", data, "--steps", 1, "--overwrite")
    told = run(*command, "-o", tmp_path / "own.safetensors").stderr
    assert "3 of 4 labels start from moves's\n" in told
    told = run(*command, "-o", tmp_path / "own.safetensors", "--scratch").stderr
    assert "labels start" not in told


def test_nothing_is_overwritten(base, data, tmp_path):
    path = tmp_path / "own.safetensors"
    path.write_bytes(b"mine")
    done = costream("train", base, "--data", data, "-o", path, "--steps", 1)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert path.read_bytes() == b"mine"


def test_a_rank_is_that_of_an_adapter(data, tmp_path):
    call = ("train", "costgcn", "--data", data, "-o", tmp_path / "o.safetensors", "--rank", 4)
    refused(2, "--rank: only adapters have a rank; add --adapter", *call)


def test_one_class_is_too_few(base, tmp_path):
    data_skeleton.write_act(tmp_path / "wave" / "a.csv", "wave", 0)
    done = costream("train", base, "--data", tmp_path, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 2
    assert "only one class (wave)" in done.stderr


def test_too_short_examples_are_named(base, data, tmp_path):
    table = tmp_path / "t.csv"
    lines = [f"{data / 'wave' / 'wave0.csv'},0,{end},wave" for end in (2, 0.1)]
    lines.append(f"{data / 'bend' / 'bend0.csv'},,,bend")
    table.write_text("\n".join(["file,start,end,label", *lines]) + "\n", "utf-8")
    output = tmp_path / "o.safetensors"
    done = costream("train", base, "--data", table, "-o", output, "--validation", 0)
    assert done.returncode == 2
    assert f"{table}, line 3" in done.stderr
    assert "too short to train on: 2 steps at 15 Hz, 4 are needed" in done.stderr
    assert not output.exists()


def test_all_recordings_that_cannot_be_used_are_named_at_once(base, data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / "bend" / "empty.csv").write_bytes(b"")
    (folder / "wave" / "text.csv").write_text("no table\n", "utf-8")
    done = costream("train", base, "--data", folder, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 4
    assert "2 recordings cannot be used: " in done.stderr
    assert "empty.csv: the file is empty" in done.stderr
    assert "text.csv: " in done.stderr


def test_of_many_unreadable_recordings_five_are_named_once(data, tmp_path):
    """And all are counted, whether they are found when they are opened or when they are read."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    for k in range(7):
        (folder / "bend" / f"none{k}.csv").write_text(f"no table {k}\n", "utf-8")
    done = costream("train", "auto", "--data", folder, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 4
    assert "7 recordings cannot be used: " in done.stderr
    assert [done.stderr.count(f"none{k}.csv: ") for k in range(7)] == [1] * 5 + [0] * 2
    assert "(and 2 more)" in done.stderr
    for k in range(7):
        data_skeleton.write_act(folder / "bend" / f"none{k}.csv", "bend", k, 3)
    done = costream("train", "auto", "--data", folder, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 2
    assert "7 examples cannot be used: " in done.stderr
    assert [done.stderr.count(f"none{k}.csv: too short") for k in range(7)] == [1] * 5 + [0] * 2


def test_classes_that_are_spelled_alike_are_refused(base, data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / "step").rename(folder / "Wave_")
    done = costream("train", base, "--data", folder, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 2
    assert "differ only in case or word separators: 'Wave_', 'wave'" in done.stderr


@pytest.mark.slow
def test_copies_of_a_recording_are_on_one_side_of_the_split(base, data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    for path in list(folder.glob("*/*.csv")):
        shutil.copy(path, path.with_name(f"z-{path.name}"))
    output = tmp_path / "o.safetensors"
    done = run("train", base, "--data", folder, "-o", output, "--steps", 1)
    assert "the same recording more than once: " in done.stderr
    assert re.match("24 examples to train, 6 to validate", read_card(output).split)


@pytest.mark.long
def test_classes_without_validation_are_warned_of(base, tmp_path):
    folder = data_skeleton.write_folder(tmp_path / "data", 1)
    output = tmp_path / "o.safetensors"
    done = run("train", base, "--data", folder, "-o", output, "--steps", 1)
    assert "no validation examples of bend, step, wave" in done.stderr
    assert read_card(output).metrics == {}


def test_a_network_that_takes_features_alone_cannot_be_taught(data, tmp_path):
    model = tmp_path / "encoder.safetensors"
    done = run("models", "init", "encoder", "-o", model)
    done = costream("train", model, "--data", data, "-o", tmp_path / "o.safetensors")
    assert done.returncode == 5
    assert "encoder cannot be trained on custom classes" in done.stderr


@pytest.mark.long
def test_an_interruption_says_how_to_continue(base, data, tmp_path):
    path = tmp_path / "own.safetensors"
    unfinished = tmp_path / "own.safetensors.partial"
    process = start("train", base, "--data", data, "-o", path, "--steps", 100000)
    while not unfinished.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    lines = errors.decode().splitlines()
    assert lines[-1] == f"costream: stopped; the same command resumes from {unfinished}"
    assert list(tmp_path.iterdir()) == [unfinished]

    changed = ("train", base, "--data", data, "-o", path, "--steps", 2)
    done = costream(*changed)
    assert done.returncode == 2
    assert f"{unfinished}: checkpoint of a training with other options or data" in done.stderr
    assert costream(*changed, "--overwrite").returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "own.html", "own.md", "own.safetensors"]  # fmt: skip


def test_a_training_that_harms_leaves_what_the_base_knew(trained, data, tmp_path):
    base, trainer = read_weights(trained[0]), SkeletonTrainer()
    settings = train_settings(tmp_path / "own.safetensors", data=data, steps=40)
    found = trainer.read(base.card, settings)
    others = dict(zip(data_skeleton.ACTS, (*data_skeleton.ACTS[1:], "bend"), strict=True))
    wrong = [replace(e, label=others.get(e.label, e.label)) for e in found.training]
    setup = trainer.setup(base, found.labels, settings)
    setup.frontend.requires_grad_(False)
    cache = FeatureCache(None, setup.card, setup.frontend)
    partials = [training_checkpoint(settings, base, [], end) for end in CHECKPOINT_SUFFIXES]
    workspace = Workspace(settings, base, cache, *partials)
    result = trainer.fit(setup, replace(found, training=wrong), workspace)
    for name, tensor in setup.network.state_dict().items():
        assert torch.equal(tensor, base.tensors[f"network.{name}"])
    assert (
        result.reason == "training made what moves knew of these labels no better, so it was kept"
    )
    assert min(result.history, key=lambda row: row[LOSS]) == result.history[0]
    assert len(result.history) > 1
