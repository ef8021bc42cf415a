"""Training on features: as independent loops of plain PyTorch do, and as users run it."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

from costream.core.errors import UsageError
from costream.core.label_sets import THUMOS14
from costream.models.build import build, save_model
from costream.models.random_init import random_model
from costream.training.command import train
from costream.training.features.feature_trainer import FeatureTrainer, feature_base
from costream.training.features.feature_windows import FeatureRows, FeatureWindows
from costream.training.features.recipes import Recipe, multilabel_cross_entropy
from costream.training.training_loop import Pace
from costream.weights_io.card import Timeline
from costream.weights_io.file import Weights, read_card, read_weights
from kit import cmert_oracle, oad_oracle
from kit.data_training import train_settings
from kit.runs import evaluate, refused, run

WIDTH, WINDOW, RATE_HZ = 5, 6, 4.0
LABELS = ("background", "dig", "jump")
SMALL = {"input_width": WIDTH, "embed_dim": 8, "dropout": 0.0}
ENCODER = {**SMALL, "num_heads": 2, "feedforward": 12, "window": WINDOW}
DECODER = {"decoder_depth": 2, "decoder_heads": 2, "decoder_feedforward": 12, "num_queries": 8}
MEMORY = {"context": 2, "memory_every": 2, "memory_samples": 3, "anticipated": 2, "refinements": 2}
OADTR = {"window": WINDOW, "ahead": 8, "batch": 128, "drop": 0.1}
MINIROAD = {"window": 128, "stride": 4, "padded": True, "batch": 16, "decoupled": True}
NETWORKS: dict[str, tuple[str, dict[str, Any], oad_oracle.Network, dict[str, Any]]] = {
    "CoOadTR, one block": ("cooadtr", ENCODER, oad_oracle.cooadtr(1, 2), OADTR),
    "CoOadTR, two blocks": ("cooadtr", {**ENCODER, "depth": 2}, oad_oracle.cooadtr(2, 2), OADTR),
    "OadTR": (
        *("oadtr", {**ENCODER, **DECODER, "depth": 2}),
        *(oad_oracle.oadtr(2, 2, 2, 2), OADTR),
    ),
    "MiniROAD": (
        *("miniroad", {**SMALL, "hidden": 6}, oad_oracle.miniroad),
        {**MINIROAD, "decay": 0.05, "clip": None, "unit": True},
    ),
    "CMeRT": (
        *("cmert", {**ENCODER, **MEMORY, "memory": 3, "refined": 4, "generated": 3}),
        cmert_oracle.network(
            {"heads": 2, "window": WINDOW, "context": 2, "every": 2, "samples": 3, "ahead": 2}
        ),
        {
            "window": WINDOW + 6,
            "ahead": 2,
            "stride": 4,
            "padded": True,
            "batch": 32,
            "decay": 5e-5,
            "clip": None,
        },
    ),
}
COUNTS = (31, 26, 37)


def write(folder: Path, counts: tuple[int, ...], seed: int) -> Path:
    """Write recordings of two actions, which also overlap, and their labels."""
    rng = np.random.default_rng(seed)
    vectors, database = np.random.default_rng(9).normal(size=(2, WIDTH)), {}
    (folder / "features").mkdir(parents=True)
    for k, count in enumerate(counts):
        true = np.zeros((count, 2))
        true[4:12, 0] = true[count - 9 : count - 3, 1] = true[9:14, 1] = 1
        rows = true @ vectors + 0.7 * rng.normal(size=(count, WIDTH))
        np.save(folder / "features" / f"v{k}.npy", rows.astype(np.float32))
        parts = ((4, 12, "dig"), (count - 9, count - 3, "jump"), (9, 14, "jump"))
        marks = [{"segment": [a / RATE_HZ, b / RATE_HZ], "label": x} for a, b, x in parts]
        database[f"v{k}"] = {"subset": "all", "duration": count / RATE_HZ, "annotations": marks}
    (folder / "gt.json").write_text(json.dumps({"database": database}), "utf-8")
    return folder


def contents(folder: Path, counts: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the rows and the targets, from the rule above."""
    out = []
    for k, count in enumerate(counts):
        true = torch.zeros(count, 3)
        true[4:12, 1] = true[count - 9 : count - 3, 2] = true[9:14, 2] = 1
        true[:, 0] = (true.sum(1) == 0).float()
        rows = np.load(folder / "features" / f"v{k}.npy")
        out.append((torch.from_numpy(rows), true))
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oad")
    write(folder / "train", COUNTS, 0)
    write(folder / "test", (44, 52), 1)
    return folder


MARKS = {
    "OadTR": pytest.mark.slow,
    "MiniROAD": pytest.mark.long,
    "CMeRT": pytest.mark.long,
}  # of those that take long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stepwise"),
    [
        *((name, False) for name in NETWORKS),
        *(pytest.param(name, True, marks=MARKS.get(name, ())) for name in NETWORKS),
    ],
)
def test_training_is_that_of_an_independent_loop(
    name: str, stepwise: bool, data: Path, tmp_path: Path
) -> None:
    architecture, sizes, network, recipe = NETWORKS[name]
    card, module, _ = random_model(architecture, "base", {**sizes, "num_classes": 3})
    save_model(tmp_path / "base.safetensors", card, module)
    more = {"model": str(tmp_path / "base.safetensors"), "validation": 0.0, "verbosity": 0}
    given = {"data": data / "train" / "features", "labels": data / "train" / "gt.json"}
    chosen = {"epochs": 2, "learning_rate": 3e-3, "stepwise": stepwise}
    settings = train_settings(tmp_path / "own.safetensors", **more, **given, **chosen)
    base = read_weights(tmp_path / "base.safetensors")
    initial = FeatureTrainer().setup(base, LABELS, settings).network.state_dict()
    with torch.enable_grad():
        train(settings)
    trained = read_weights(tmp_path / "own.safetensors")
    with torch.enable_grad():
        expected = oad_oracle.train(
            *(network, initial, contents(data / "train", COUNTS)),
            **{**recipe, "stepwise": stepwise, "epochs": 2, "rate": 3e-3},
        )
    assert trained.tensors.keys() == {f"network.{k}" for k in expected}
    for key, tensor in expected.items():
        own = trained.tensors[f"network.{key}"]
        if key.endswith("in_proj_bias"):  # no output depends on that of keys
            own, tensor = (torch.cat([t.chunk(3)[0], t.chunk(3)[2]]) for t in (own, tensor))
        torch.testing.assert_close(own, tensor, atol=2e-4, rtol=1e-3)
    moved = [(expected[k] - initial[k]).abs().max().item() for k in expected]
    assert max(moved) > 2e-3
    # The figure of the command, of steps one after the other, is that of plain windows.
    tests = contents(data / "test", (44, 52))
    reach = 10**6 if name in ("MiniROAD", "CMeRT") else WINDOW
    found = [oad_oracle.scores(network, expected, rows, reach) for rows, _ in tests]
    true, probability = torch.cat([t for _, t in tests]), torch.cat(found)
    average = [average_precision_score(true[:, k], probability[:, k]) for k in (1, 2)]
    told = evaluate(
        *("-m", tmp_path / "own.safetensors", "--data", data / "test" / "features"),
        *("--labels", data / "test" / "gt.json"),
    )
    assert told["frames"]["mAP"] == pytest.approx(np.mean(average), abs=2e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_give_the_scores_and_gradients_of_clips(name: str) -> None:
    """Step-wise training takes the clip form, whose every step is one of a stream."""
    architecture, sizes, _, _ = NETWORKS[name]
    network: Any = random_model(architecture, "x", {**sizes, "num_classes": 3})[1].double().eval()
    rows = torch.randn(2, 20, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        state = network.init_state(2)
        steps = torch.stack([network.forward_step(x, state).logits for x in rows.unbind(1)], 1)
        torch.testing.assert_close(network(rows).logits, steps)
    target = torch.randn(2, 5, 3, dtype=torch.float64)
    with torch.enable_grad():
        (network(rows, 0, 5).logits * target).sum().backward()
        of_clip = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        network.zero_grad()
        for k in range(5):
            part = network(rows[:, : 16 + k], 0, 1).logits[:, -1]
            (part * target[:, k]).sum().backward()
        of_steps = [p.grad for p in network.parameters() if p.grad is not None]
    assert of_clip
    for one, other in zip(of_clip, of_steps, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_of_the_ignored_class_do_not_count() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 9.0], [0.0, 1.0, 2.0], [4.0, 0.0, 0.0]])
    targets = torch.tensor([[0.0, 1, 0], [1, 1, 0], [0, 1, 1], [0, 0, 0]])
    loss = multilabel_cross_entropy(logits, targets, 2)
    logs = logits[:2, :2].log_softmax(-1)
    assert float(loss) == pytest.approx(-float(logs[0, 1] + logs[1].sum()) / 2)
    whole = multilabel_cross_entropy(logits, targets, None, unit=True)
    logs = logits[:3].log_softmax(-1)
    each = -(F.normalize(targets[:3]) * logs).sum(-1)
    assert float(whole) == pytest.approx(float(each.mean()))
    assert float(multilabel_cross_entropy(logits, torch.zeros(4, 3), 2)) == 0


def test_how_long_the_rest_takes_is_said_once_after_the_first_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]

    def said(seconds_a_step: float, first: int) -> dict[int, str]:
        pace = Pace(10, 50, clock=lambda: now[0])
        out: dict[int, str] = {}
        for step in range(first, 50):
            pace.begin(step, lambda: torch.zeros(()))
            now[0] += seconds_a_step
            out[step] = capsys.readouterr().err
        return {step: text for step, text in out.items() if text}

    found = said(6.0, 0)
    assert list(found) == [10]
    assert "an epoch takes 1.0 min, the rest 4 min at most" in found[10]
    assert list(said(6.0, 15)) == [25]  # resumed
    assert said(0.1, 0) == {}


def test_windows_are_all_there_once_an_epoch_in_an_order_of_the_seed() -> None:
    rows = torch.arange(20.0)[:, None]
    targets = F.one_hot(torch.arange(20) % 2, 2).float()
    targets[10] = 0  # unknown
    windows = FeatureWindows([FeatureRows(rows, targets)], Recipe(4, ahead=2, batch=5), None, 7)
    assert (windows.windows, windows.epoch, windows.streams) == (14, 2, 5)
    newest = []
    for step in range(2):
        windows.begin(step, torch.zeros)  # type: ignore[arg-type]
        batch = windows.batch()
        assert batch.rows.shape == (5, 4, 1)
        assert batch.coming.shape == (5, 1, 2, 2)
        newest += batch.rows[:, -1, 0].int().tolist()
        for k in range(5):
            place = int(batch.rows[k, -1, 0])
            assert batch.targets[k, 0].equal(targets[place])
            assert batch.coming[k, 0].equal(targets[place + 1 : place + 3])
    assert len(set(newest)) == 10
    assert set(newest) <= set(range(3, 18)) - {10}
    again = FeatureWindows([FeatureRows(rows, targets)], Recipe(4, ahead=2, batch=5), None, 7)
    again.begin(1, torch.zeros)  # type: ignore[arg-type]
    assert again.batch().rows[:, -1, 0].int().tolist() == newest[5:]


def test_sizes_are_those_of_the_paper_where_shipped_weights_take_other_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3072), np.float32))
    base = feature_base(train_settings(tmp_path / "x", model="miniroad", data=tmp_path))
    assert isinstance(base, Weights)
    # The published network, apart from its classifier of 22 classes.
    assert sum(t.numel() for t in base.tensors.values()) == 15_763_478
    told = capsys.readouterr().err
    assert "rows of 3072 values: a new miniroad in the sizes of its paper" in told
    np.save(tmp_path / "a.npy", np.zeros((4, 288), np.float32))
    shipped = feature_base(train_settings(tmp_path / "x", model="cooadtr", data=tmp_path))
    assert shipped is not None
    assert shipped.card.frontend == "tdn"


@pytest.fixture(scope="module")
def thumos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set like THUMOS14: a vector for each class and noise, as a pickle of videos."""
    folder, names = tmp_path_factory.mktemp("thumos"), THUMOS14.names
    rng = np.random.default_rng(0)
    vectors, database, features = rng.normal(size=(22, 24)), {}, {}
    for k in range(12):
        subset, labels = "test" if k % 4 == 3 else "validation", np.zeros(150, int)
        for place, action in enumerate(rng.permutation(21)[:6] + 1):
            labels[12 + 22 * place : 24 + 22 * place] = action
        rows = vectors[labels] + 0.5 * rng.normal(size=(150, 24))
        name = f"video_{subset}_{k:07d}"
        features[name] = {"rgb": rows[:, :16].astype("f4"), "flow": rows[:, 16:].astype("f4")}
        starts = [12 + 22 * place for place in range(6)]
        marks = [{"segment": [a / 4, a / 4 + 3], "label": names[labels[a]]} for a in starts]
        database[name] = {"subset": subset, "duration": 37.5, "annotations": marks}
    # Every class of THUMOS14 has a label, as in its published annotations.
    for k, name in enumerate(names[1:]):
        mark = {"segment": [0.0, 2.5], "label": name}
        database[f"extra_{k}"] = {"subset": "validation", "duration": 25.0, "annotations": [mark]}
        rows = vectors[[k + 1] * 10 + [0] * 90] + 0.5 * rng.normal(size=(100, 24))
        features[f"extra_{k}"] = {
            "rgb": rows[:, :16].astype("f4"),
            "flow": rows[:, 16:].astype("f4"),
        }
    (folder / "features.pickle").write_bytes(pickle.dumps(features))
    (folder / "gt.json").write_text(json.dumps({"database": database}), "utf-8")
    return folder


def test_features_in_map_out(thumos: Path, tmp_path: Path) -> None:
    sizes = ("--set", "input_width=24", "--set", "embed_dim=32", "--set", "feedforward=32")
    run("models", "init", "cooadtr", *sizes, "--set", "window=8", "-o", tmp_path / "b.safetensors")
    call = ("--data", thumos / "features.pickle", "--labels", thumos / "gt.json#validation")
    more = ("--learning-rate", 0.01, "--epochs", 3, "-o", tmp_path / "own.safetensors")
    told = run("train", tmp_path / "b.safetensors", *call, *more)
    assert "the files have no times: 4 rows per second (--fps changes it)" in told.stderr
    assert "validation: mAP of frames 0.9" in told.stdout
    card = read_card(tmp_path / "own.safetensors")
    assert (card.labels, card.rate_hz) == (THUMOS14.names, 4.0)
    assert "windows of 8 rows, labelled at the newest row" in card.trained_on
    assert "Adam 0.01, x 0.1 after each" in card.trained_on
    assert "| chance | 0.0" in (tmp_path / "own.md").read_text("utf-8")
    assert "Portions" not in (tmp_path / "own.html").read_text("utf-8")
    given = ("-m", tmp_path / "own.safetensors", "--data", thumos / "features.pickle")
    asked = ("--labels", thumos / "gt.json#test", "--protocol", "thumos")
    scores = evaluate(*given, *asked)
    assert scores["frames"]["mAP"] > 0.95
    assert scores["protocol"] == "THUMOS14"
    assert len(scores["portions"]) == 10
    assert scores["portions"][9]["calibrated_mAP"] > 0.95
    text = run("evaluate", *given, *asked).stdout
    assert "Portions of actions" in text
    assert "OadTR                Kinetics     0.652  Wang et al., ICCV 2021" in text
    assert "calibrated mAP (mcAP)" in text


def test_what_cannot_be_trained_is_one_line(data: Path, tmp_path: Path) -> None:
    folder = data / "train"
    given = ("--data", folder / "features", "--labels", folder / "gt.json")
    own = ("-o", tmp_path / "own.safetensors")
    base = tmp_path / "wide.safetensors"
    card, network, _ = random_model("cooadtr", "wide", {**ENCODER, "input_width": 7})
    save_model(base, card, network)
    wrong = "wide takes rows of 7 values, not 5; costream models init"
    refused(2, wrong, "train", base, *given, *own)
    card, network, _ = random_model("cooadtr", "long", {**ENCODER, "window": 64})
    save_model(base, card, network)
    told = run("train", base, *given, *own, "--fps", RATE_HZ, code=2).stderr
    assert "no recording has labels after 64 rows" in told
    refused(2, "no frontend to train", "train", base, *given, *own, "--fine-tune")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    call = ("train", "miniroad", "--data", nothing, *given[2:], *own)
    refused(2, "there are no .npy, .npz or pickle files of features", *call)
    (nothing / "a.pickle").write_bytes(b"junk")
    refused(4, "a.pickle", *call)
    moves = tmp_path / "moves"
    (moves / "a").mkdir(parents=True)
    (moves / "a" / "x.csv").write_text("time\n", "utf-8")
    line = refused(2, "on features only", "train", "costgcn", "--data", moves, *own, "--epochs", 2)
    assert "--epochs" in line


def test_files_of_different_rates_are_named(tmp_path: Path) -> None:
    for name, rate_hz in (("a", 4.0), ("b", 5.0)):
        folder = tmp_path / "classes" / name
        folder.mkdir(parents=True)
        rows = np.zeros((40, WIDTH), np.float32)
        np.savez(folder / "x.npz", features=rows, rate_hz=rate_hz)
    card, network, _ = random_model("cooadtr", "base", ENCODER)
    save_model(tmp_path / "base.safetensors", card, network)
    settings = train_settings(
        tmp_path / "own", model=str(tmp_path / "base.safetensors"), data=tmp_path / "classes"
    )
    assert feature_base(settings) is not None
    with pytest.raises(UsageError, match=r"different rows per second: 4 \(.*\), 5 \("):
        FeatureTrainer().read(card, settings)


def test_the_file_is_complete(data: Path, tmp_path: Path) -> None:
    """With validation, an interruption aside: weights, card and report agree."""
    card, network, _ = random_model("miniroad", "base", {**SMALL, "hidden": 6})
    save_model(tmp_path / "base.safetensors", card, network)
    folder = data / "train"
    given = {"data": folder / "features", "labels": folder / "gt.json", "verbosity": 0}
    settings = train_settings(
        tmp_path / "own.safetensors", model=str(tmp_path / "base.safetensors"), steps=2, **given
    )
    with torch.enable_grad():
        train(settings)
    stored = read_weights(tmp_path / "own.safetensors")
    build(stored.card, stored.tensors)
    assert stored.card.metrics["validation"].keys() == {
        *("own", "nearest centroid of mean tokens", "chance")
    }
    assert "2 steps of" in stored.card.trained_on


@pytest.mark.parametrize(("rate", "is_kept"), [(1e3, True), (3e-3, False)])
def test_what_a_base_knows_is_kept_where_training_harms(
    data: Path, tmp_path: Path, rate: float, is_kept: bool
) -> None:
    sizes = {**SMALL, "hidden": 6, "num_classes": len(LABELS)}
    card, network, _ = random_model("miniroad", "base", sizes)
    timeline = Timeline(threshold=0.4, thresholds={"dig": 0.6})
    card = replace(card, labels=LABELS, trained_on="other recordings", timeline=timeline)
    card = replace(card, background=LABELS[0], description="")
    save_model(tmp_path / "base.safetensors", card, network)
    given = {"data": data / "train" / "features", "labels": data / "train" / "gt.json"}
    given |= {"model": str(tmp_path / "base.safetensors"), "learning_rate": rate, "epochs": 20}
    settings = train_settings(tmp_path / "own.safetensors", verbosity=0, **given)
    with torch.enable_grad():
        train(settings)
    base, own = (read_weights(tmp_path / f"{name}.safetensors") for name in ("base", "own"))
    same = all(torch.equal(own.tensors[name], tensor) for name, tensor in base.tensors.items())
    assert same is is_kept
    assert ("so it was kept" in own.card.limits) is is_kept


def test_a_threshold_of_a_label_that_is_not_learnt_is_left_out(data: Path, tmp_path: Path) -> None:
    labels = (*LABELS, "swim")
    card, network, _ = random_model("miniroad", "base", {**SMALL, "num_classes": len(labels)})
    timeline = Timeline(threshold=0.4, thresholds={"dig": 0.6, "swim": 0.7})
    card = replace(card, labels=labels, background=LABELS[0], timeline=timeline)
    save_model(tmp_path / "base.safetensors", replace(card, trained_on="others"), network)
    given = {"data": data / "train" / "features", "labels": data / "train" / "gt.json"}
    given |= {"model": str(tmp_path / "base.safetensors"), "steps": 2}
    with torch.enable_grad():
        train(train_settings(tmp_path / "own.safetensors", verbosity=0, **given))
    assert "swim" not in read_card(tmp_path / "own.safetensors").timeline.thresholds
