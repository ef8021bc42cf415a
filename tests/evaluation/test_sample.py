"""Reproduction of the metrics on a card's sample."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.core.errors import ModelError
from costream.evaluation.sample import measure, reproduce
from costream.models.catalogue import find_weights, load_model
from costream.models.verify import verify
from costream.weights_io.file import read_card, read_weights, write_weights
from kit.paths import RESEARCH, SAMPLES
from kit.program import costream

COTRANS = RESEARCH / "cotrans.safetensors"
ROOM = SAMPLES / "room.mp4"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("cotrans", "cosounds", "costgcn", "costgcn-2d", "costgcn-pairs"),
        *("nanodet", "mn04", "encoder", "falls"),
    ],
)
def test_shipped_weights_are_what_their_cards_say(name: str) -> None:
    path = find_weights(name)
    found, told = reproduce(path), read_card(path).sample
    assert found is not None
    assert found["reason"] is None
    assert found["metrics"] == pytest.approx(told["metrics"], abs=told["tolerance"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["cooadtr", "cooadtr-b2", "oadtr", "eventful-vitdet"])
def test_weights_of_slow_models_are_what_their_cards_say(name: str) -> None:
    test_shipped_weights_are_what_their_cards_say(name)


def test_the_figures_are_those_of_a_run() -> None:
    file = SAMPLES / "band.ogg"
    done = costream("listen", file, "-m", "cotrans", "--scores", "-q", "-f", "jsonl")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    labels, delay_s = records[0]["labels"], records[0]["delay_s"]
    told = [r for r in records if r["type"] == "prediction"]
    truth = read_card(COTRANS).sample["truth"]
    right, loss = 0, 0.0
    for record in told:
        moment = max(0.0, record["time_s"] - delay_s)
        label = next(name for start, end, name in truth if start <= moment < end)
        right += record["top"][0][0] == label
        loss -= math.log(record["scores"][labels.index(label)])
    measured = measure(load_model("cotrans", COTRANS, device="cpu"), file, truth)
    assert measured.metrics["accuracy"] == pytest.approx(right / len(told))
    assert measured.metrics["log_loss"] == pytest.approx(loss / len(told), abs=1e-4)
    costs = [r for r in records if r["type"] == "compute"]
    assert {measured.macs} == {r["macs"] for r in costs}
    assert {measured.dense_macs} == {r["dense_macs"] for r in costs}
    assert measured.ms > 0


@pytest.mark.slow
def test_objects_are_there_or_not() -> None:
    model = load_model("eventful-vitdet", RESEARCH, device="cpu")
    nobody, somebody = (
        measure(model, ROOM, [[0.0, 9.0, label], [9.0, 10.0, "person"]], end_s=1.0).metrics
        for label in (None, "person")
    )
    assert nobody["accuracy"] + somebody["accuracy"] == 1.0  # the chair does not count
    assert nobody["accuracy"] == 1.0  # she comes in after three seconds
    assert nobody["log_loss"] < math.log(1 / 0.6)  # at worst just below the threshold
    assert somebody["log_loss"] > nobody["log_loss"]


@pytest.mark.slow
def test_an_object_beside_a_surer_thing_is_there() -> None:
    """The chair, which the truth does not name, has the higher score in many steps."""
    came_s = 3.12
    measured = measure(
        *(load_model("nanodet", device="cpu"), ROOM),
        *([[0.0, came_s, None], [came_s, 9.0, "person"]], 5.0),
    )
    run = costream("detect", ROOM, "-m", "nanodet", "--duration", "5", "-q", "-f", "jsonl")
    records = [json.loads(line) for line in run.stdout.splitlines()]
    steps = [
        (r["time_s"], {box[5]: box[4] for box in reversed(r["boxes"])})  # the surest box of each
        for r in records
        if r["type"] == "objects"
    ]
    assert any(best.get("chair", 0.0) > best.get("person", 1.0) for _, best in steps)
    right = sum(("person" in best) == (time_s >= came_s) for time_s, best in steps)
    assert measured.metrics["accuracy"] == pytest.approx(right / len(steps))
    assert right > 0.8 * len(steps)


def changed(path: Path, card: dict[str, Any] | None = None, noise: float = 0.0) -> Path:
    """The weights of cotrans with another card or other tensors, and a checksum that is right."""
    stored = read_weights(COTRANS)
    tensors, draw = dict(stored.tensors), torch.Generator().manual_seed(0)
    for name, value in stored.tensors.items():
        if name.startswith("network.") and value.ndim > 1:
            other = noise * value.float().std() * torch.randn(value.shape, generator=draw)
            tensors[name] = (value.float() + other).to(value.dtype)
    write_weights(path, replace(stored.card, **(card or {})), tensors)
    return path


def test_others_with_a_right_checksum_are_found_out(tmp_path: Path) -> None:
    path = changed(tmp_path / "cotrans.safetensors", noise=0.5)
    verify(path)  # there is nothing wrong with the file
    with pytest.raises(ModelError, match=r"differs from its card: on band\.ogg .*, not ") as e:
        reproduce(path)
    assert str(path) in str(e.value)


def test_labels_in_another_order_are_found_out(tmp_path: Path) -> None:
    labels = read_card(COTRANS).labels
    path = changed(tmp_path / "cotrans.safetensors", {"labels": (*labels[1:-1], *labels[::10])})
    verify(path)
    with pytest.raises(ModelError, match=r"accuracy 0\.\d+, not 0\.\d+"):
        reproduce(path)


def test_without_the_sample_nothing_is_checked(tmp_path: Path) -> None:
    none = reproduce(COTRANS, tmp_path)
    assert none == {"file": "band.ogg", "metrics": None, "reason": "band.ogg is not here"}
    shutil.copy(SAMPLES / "street.ogg", tmp_path / "band.ogg")
    other = reproduce(COTRANS, tmp_path)
    assert other is not None
    assert other["metrics"] is None
    assert other["reason"] == "band.ogg differs from the card's sample"
    assert reproduce(changed(tmp_path / "own.safetensors", {"sample": {}})) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truth": [[0.0, 9.0, "polka"]]}, "the sample of its card cannot be used"),
        ({"truth": []}, "the sample of its card cannot be used"),
        ({"metrics": {"beauty": 1.0}}, "cannot be used .*beauty"),
        ({"metrics": {"accuracy": float("nan")}}, "nan.* is not a number"),
        ({"sha256": None, "file": None}, "cannot be used"),
    ],
)
def test_a_damaged_card(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    sample = {**read_card(COTRANS).sample, **change}
    path = changed(tmp_path / "x.safetensors", {"sample": sample})
    with pytest.raises(ModelError, match=message):
        reproduce(path)
