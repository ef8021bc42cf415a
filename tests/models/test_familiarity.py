"""Familiarity: from the logits of a card that says how, in every record, absent without one."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from costream.core.errors import ModelError
from costream.core.records import AudioBlock
from costream.models.catalogue import load_model
from costream.models.head_scores import familiarity_of
from costream.runtime.counters import is_unfamiliar
from costream.weights_io.card import Card, Familiarity
from costream.weights_io.file import read_weights, write_weights
from kit.paths import SAMPLES
from kit.runs import run
from kit.sound_nets import write

LABELS = ("dog", "rain", "other", "silence")
KNOWN = Familiarity(centre=0.4, scale=0.5, limit=0.6, rest="other", hint="unlike streets")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "plain", LABELS)
    write(tmp_path, "sounds", LABELS)
    path = tmp_path / "sounds.safetensors"
    stored = read_weights(path)
    write_weights(path, replace(stored.card, familiarity=KNOWN), stored.tensors)
    return tmp_path


def test_it_is_the_energy_of_the_events_without_the_rest() -> None:
    card = Card("x", "", "", {}, LABELS, 4.0, background="silence", familiarity=KNOWN)
    logits = np.array([[0.1, 0.2, 9.0, 9.0], [3.0, 1.0, -9.0, -9.0]], np.float32)
    found = familiarity_of(card)(logits)
    energy = np.log(np.exp(logits[:, :2].astype(float)).sum(-1))
    np.testing.assert_allclose(found, 1 / (1 + np.exp((0.4 - energy) / 0.5)), rtol=1e-6)
    assert found[0] < 0.9 < found[1]


def test_steps_and_chunks_agree_and_a_card_without_it_has_none(folder) -> None:
    waves = 0.1 * np.random.default_rng(0).standard_normal((9, 4000), np.float32)
    blocks = [AudioBlock(i, (i + 1) / 4, wave) for i, wave in enumerate(waves)]
    model = load_model("plain,sounds", folder)
    state = model.init_state()
    single = np.concatenate([model.step([block], state).familiarity for block in blocks])
    together = model.steps(blocks, model.init_state())
    assert single.shape == (9, 2)
    assert np.isnan(single[:, 0]).all()
    np.testing.assert_allclose([r.familiarity[0, 1] for r in together], single[:, 1], atol=1e-5)
    plain = load_model("plain", folder)
    assert plain.step(blocks[:1], plain.init_state()).familiarity is None


def test_records_have_it(folder) -> None:
    weights = str(folder / "sounds.safetensors")
    done = run("listen", SAMPLES / "street.ogg", "-m", weights, "--end", "5", "-q", "-f", "jsonl")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    header, summary = records[0], records[-1]
    steps = [r for r in records if r["type"] == "prediction"]
    assert header["options"]["familiar"] == 0.6
    assert header["options"]["unfamiliar"] == "unlike streets"
    assert all(0 < r["familiarity"] < 1 for r in steps)
    strange = [r["familiarity"] < 0.6 and r["top"][0][0] != "silence" for r in steps]
    assert summary["unfamiliar_s"] == pytest.approx(sum(strange) / 4)
    assert (
        "familiarity"
        not in run(
            "listen",
            SAMPLES / "street.ogg",
            "-m",
            str(folder / "plain.safetensors"),
            "--end",
            "1",
            "-q",
            "-f",
            "jsonl",
        ).stdout
    )


@pytest.mark.long
def test_tables_and_reports_show_it(folder, tmp_path) -> None:
    stored = read_weights(folder / "sounds.safetensors")
    for name, limit in (("sounds", 1.0), ("sure", 0.0)):
        card = replace(stored.card, familiarity=replace(KNOWN, limit=limit))
        write_weights(tmp_path / f"{name}.safetensors", card, stored.tensors)
    summaries = {}
    for name in ("sounds", "sure"):
        weights, out = tmp_path / f"{name}.safetensors", tmp_path / name
        done = run("batch", SAMPLES / "street.ogg", "-m", str(weights), "-o", str(out))
        run("report", str(out / "street.ogg.jsonl"), "-o", str(tmp_path / f"{name}.html"))
        row = next(csv.DictReader((out / "compute.csv").open()))
        summary = json.loads((out / "summary.json").read_text())
        assert summary["unfamiliar_s"] == pytest.approx(float(row["unfamiliar_s"]))
        said = f"unfamiliar for {summary['unfamiliar_s']:.1f} s of 1 input: compute.csv"
        assert (said in done.stderr) == (name == "sounds")
        html = (tmp_path / f"{name}.html").read_text()
        assert ("unlike streets" in html) == ("Unfamiliar input" in html) == (name == "sounds")
        summaries[name] = summary["unfamiliar_s"]
    assert summaries["sure"] == 0 < summaries["sounds"]


def test_what_is_heard_says_nothing_of_what_is_seen() -> None:
    seen, heard = (
        SimpleNamespace(
            head=SimpleNamespace(
                columns=slice(4 * k, 4 * k + 4),
                card=Card("x", "", "", {}, LABELS, 4.0, familiarity=KNOWN, frontend=frontend),
            )
        )
        for k, frontend in enumerate(("tdn", "audio"))
    )
    event, quiet, none = [0.9, 0.1, 0, 0], [0.0, 0.1, 0, 0.9], [np.nan] * 4
    for other, familiarity, entries, count in (
        (event, [0.1, 0.9], (seen, heard), 1),  # a sound that it knows
        (none, [0.1, np.nan], (seen, heard), 1),
        (event, [0.9, 0.1], (seen, heard), 1),
        (event, [0.9, 0.9], (seen, heard), 0),
        (event, [0.1, 0.9], (heard, heard), 0),  # the same sound, which one of both knows
        (quiet, [0.1, 0.1], (seen, heard), 1),
    ):
        result = SimpleNamespace(
            familiarity=np.array([familiarity]), probabilities=np.array([event + other])
        )
        assert is_unfamiliar((result, entries)) == bool(count)


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"rest": "nobody"}])
def test_a_card_with_a_wrong_one_cannot_be_read(wrong) -> None:
    card = Card("x", "", "", {}, LABELS, 4.0, familiarity=replace(KNOWN, **wrong))
    with pytest.raises(ModelError, match="familiarity"):
        Card.from_json(card.to_json())
    assert Card.from_json(replace(card, familiarity=KNOWN).to_json()).familiarity == KNOWN
