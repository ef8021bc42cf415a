"""Shipped cards are complete; completing a card changes no tensor; recipes without packs."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from costream.core.errors import UsageError
from costream.evaluation.sample import digest
from costream.training.card_text import card_text
from costream.weights_io.file import read_card, read_weights, write_weights
from kit.paths import RESEARCH, SHIPPED, WEIGHTS
from kit.paths import SAMPLES as SAMPLES_FOLDER
from weights.recipes.action import train as action
from weights.recipes.audio import train as audio
from weights.recipes.audio.data import read_clips
from weights.recipes.objects import train as objects
from weights.recipes.objects.data import read_images
from weights.recipes.release import SAMPLES, complete, licences, main, table_of
from weights.recipes.skeleton import train as skeleton
from weights.recipes.skeleton.sets import read_set

# Models by themselves: the others find joints for them. A rule for few films has no metrics.
WITH_LABELS = [p for p in SHIPPED if (card := read_card(p)).labels and card.name != "falls"]
MAY_BE_EMPTY = {"delay_s", "background", "familiarity", "compression"}


def intervals(table: Any) -> list[Any]:
    """The values of all keys that end in _95, at any depth."""
    if not isinstance(table, dict):
        return []
    found = [v for k, v in table.items() if k.endswith("_95")]
    return found + [v for value in table.values() for v in intervals(value)]


@pytest.mark.parametrize("path", WITH_LABELS, ids=lambda path: path.stem)
def test_a_card_says_everything(path: Path) -> None:
    card = read_card(path)
    empty = {f.name for f in fields(card) if getattr(card, f.name) in ("", None, {}, ())}
    assert empty <= MAY_BE_EMPTY
    assert card.costs.keys() == {"macs", "dense_macs", "ms", "machine"}
    assert 0 < card.costs["macs"] <= 1.01 * card.costs["dense_macs"]
    assert card.costs["ms"] > 0
    found = intervals(card.metrics)
    assert found
    assert all(0 <= low <= high <= 1 for low, high in found)
    assert digest(SAMPLES_FOLDER / card.sample["file"]) == card.sample["sha256"]
    assert card.sample["metrics"].keys() == {"accuracy", "log_loss"}
    told = {label for _, _, label in card.sample["truth"]}
    assert told - {None} <= set(card.labels)
    text = path.with_suffix(".md").read_text("utf-8")
    assert text == card_text(card, table_of(card))
    assert f"- On samples/{card.sample['file']}" in text


def test_every_shipped_model_has_a_sample() -> None:
    assert {"falls", *(path.stem for path in WITH_LABELS)} == SAMPLES.keys()


def test_every_shipped_model_has_its_licence_in_the_text() -> None:
    for folder in (WEIGHTS, RESEARCH):
        cards = [read_card(path) for path in SHIPPED if path.parent == folder]
        assert (folder / "LICENSES.md").read_text("utf-8") == licences(cards)


def test_a_card_is_completed_and_no_tensor_changed(tmp_path: Path) -> None:
    path = tmp_path / "cosounds.safetensors"
    shipped = read_weights(RESEARCH / path.name)
    sha256 = write_weights(path, replace(shipped.card, costs={}, sample={}), shipped.tensors)
    assert sha256 == shipped.sha256
    card = complete(path)
    again = read_weights(path)
    assert again.sha256 == shipped.sha256
    assert again.card == card
    assert card.sample["truth"] == shipped.card.sample["truth"]
    assert card.sample["metrics"] == pytest.approx(shipped.card.sample["metrics"], abs=0.02)
    same = {**shipped.card.costs, "ms": card.costs["ms"], "machine": card.costs["machine"]}
    assert card.costs == same
    assert replace(card, costs={}, sample={}) == replace(shipped.card, costs={}, sample={})
    assert path.with_suffix(".md").read_text("utf-8") == card_text(card, table_of(card))


def test_what_cannot_be_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cosounds.safetensors"
    stored = read_weights(RESEARCH / path.name)
    write_weights(path, replace(stored.card, name="mine"), stored.tensors)
    before = path.read_bytes()
    assert main([str(path)]) == 2
    assert main([str(tmp_path / "none.safetensors")]) == 5
    first, second = capsys.readouterr().err.splitlines()
    assert "there is no sample for mine" in first
    assert "there is no such file" in second
    assert path.read_bytes() == before
    shutil.copy(RESEARCH / path.name, path)
    with pytest.raises(Exception, match=r"street\.json: cannot be read"):
        complete(path, tmp_path)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (action, "not the fir_action pack"),
        (audio, "the training sounds are missing"),
        (objects, "the teacher is missing"),
        (skeleton, "the training motions are missing"),
    ],
)
def test_a_recipe_without_its_packs_is_one_line(
    train: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--packs", str(tmp_path), "--output", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_packs_that_are_not_there(tmp_path: Path) -> None:
    for read in (read_clips, partial(read_images, part="train"), partial(read_set, name="bandai")):
        with pytest.raises(UsageError, match="--packs"):
            read(tmp_path)


def test_the_weights_of_skeletons_are_small() -> None:
    for name in ("costgcn", "costgcn-2d", "costgcn-pairs"):
        assert (RESEARCH / f"{name}.safetensors").stat().st_size < 2_000_000
