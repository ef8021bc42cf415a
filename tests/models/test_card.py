"""Cards as text, and the effect of a temperature."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError
from costream.core.records import FeatureRow
from costream.models.oad.oadtr import OadTR
from costream.models.streaming import StreamingModel
from costream.weights_io.card import Card, Timeline

ARGUMENTS: dict[str, Any] = {
    "input_width": 6,
    "num_classes": 3,
    "embed_dim": 8,
    "num_heads": 2,
    "feedforward": 8,
    "window": 4,
}
CARD = Card("tiny", "online action detection", "oadtr", ARGUMENTS, ("none", "sit", "stand"), 4.0)


def test_a_card_comes_back_as_it_was() -> None:
    timeline = Timeline(0.4, 0.3, 1.0, 2.0, {"sit": 0.7}, 0.25)
    card = replace(CARD, timeline=timeline, temperature=1.3)
    assert Card.from_json(card.to_json()) == card


def test_cards_from_before_and_after_are_read() -> None:
    raw = json.loads(CARD.to_json())
    del raw["temperature"], raw["timeline"]["thresholds"], raw["timeline"]["smooth_s"]
    assert Card.from_json(json.dumps(raw)) == CARD
    raw["timeline"]["of_next_year"] = raw["of_next_year"] = 1
    assert Card.from_json(json.dumps(raw)) == CARD


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": 0.0}, "temperature 0.0 is not a number above 0"),
        ({"temperature": -1.0}, "temperature -1.0 is not a number above 0"),
        ({"temperature": float("nan")}, "temperature nan is not a number above 0"),
        ({"temperature": "hot"}, "cannot be read"),
        (
            {"timeline": Timeline(thresholds={"fly": 0.5})},
            "thresholds has fly, which is not a label",
        ),
        ({"timeline": Timeline(threshold=[1])}, r"timeline.threshold \[1\] is not a number"),
        ({"timeline": Timeline(low=0.9)}, "low 0.9 is above"),
        ({"temperature": 10**400}, "temperature 1000.* is not a number of usual size"),
        ({"rate_hz": ""}, "rate_hz '' is not a number"),
        ({"gap_tolerance_s": None}, "gap_tolerance_s None is not"),
        ({"labels": ("none", 3, "stand")}, r"labels\[1\] 3 is not a string"),
        ({"architecture": []}, r"architecture \[\] is not a string"),
        ({"frontend_arguments": 1}, "frontend_arguments 1 is not a table"),
        ({"background": "nothing"}, "background 'nothing' is not a label"),
        ({"costs": {"macs": "many"}}, "costs.macs 'many' is not a number"),
        ({"sample": {"metrics": 1}}, "sample.metrics 1 is not a table"),
    ],
)
def test_what_cannot_be_true_is_reported(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Card.from_json(replace(CARD, **wrong).to_json())


def test_a_temperature_divides_the_logits_of_the_present() -> None:
    torch.manual_seed(0)
    network = OadTR(**ARGUMENTS)
    values = np.random.default_rng(0).standard_normal((12, 6)).astype(np.float32)
    rows = [FeatureRow(i, i / 4, v) for i, v in enumerate(values)]
    cold, warm = (StreamingModel(replace(CARD, temperature=t), network) for t in (1.0, 2.5))
    states = [model.init_state(1) for model in (cold, warm)]
    state = network.init_state(1)
    for row in rows:
        with torch.inference_mode():
            out = network.forward_step(torch.from_numpy(row.values)[None], state)
        one, other = (m.step([row], s) for m, s in zip((cold, warm), states, strict=True))
        assert np.array_equal(one.probabilities, out.logits.softmax(-1).numpy())
        assert np.array_equal(other.probabilities, (out.logits / 2.5).softmax(-1).numpy())
        assert np.array_equal(one.anticipation, out.anticipation.softmax(-1).numpy())
        assert np.array_equal(one.anticipation, other.anticipation)
