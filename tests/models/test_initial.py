"""Random weights of any network: the same for the same seed, and marked as untrained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from costream.models.random_init import random_model
from costream.models.spec import architectures, initial_models, model_spec
from costream.weights_io.file import read_card, tensors_digest
from kit.program import costream

SMALL = {"input_width": 6, "num_classes": 3, "embed_dim": 8, "num_heads": 2, "feedforward": 8}


def digest(**how: Any) -> str:
    return tensors_digest(random_model("cooadtr", "x", SMALL, **how)[1].state_dict())


def test_every_architecture_can_be_begun_with() -> None:
    names = initial_models()
    begun = {model_spec(name).architecture or name for name in names}
    # Four are not: a function of a file builds the first, two find joints for models, the last is a
    # rule without weights.
    assert begun | {"user-network", "blazepose", "movenet", "falls"} == set(architectures())


@pytest.mark.parametrize(
    "architecture",
    [
        a
        for a in initial_models()
        if a not in ("oadtr", "vitdet", "vivit", "x3d-l", "cox3d-l", "slow", "i3d")
    ],
)
def test_a_card_says_what_it_is(architecture: str) -> None:
    card, network, frontend = random_model(architecture, "name", {})
    assert card.untrained
    assert card.name == "name"
    assert (frontend is None) == (card.frontend is None)
    assert all(label.startswith("random ") for label in card.labels)
    assert bool(card.labels) == (card.task not in ("encoder", "features"))
    parts = [network] if frontend is None else [network, frontend]
    assert sum(p.numel() for part in parts for p in part.parameters()) > 100_000
    assert (card.delay_s > 0) == card.task.endswith(("action recognition", "tagging"))


def test_the_seed_says_all() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert digest() == digest(seed=0) != digest(seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_trained_frontend_is_taken_as_it_is() -> None:
    card, _, frontend = random_model("oadtr", "x", {"embed_dim": 8}, "cooadtr")
    other = random_model("cooadtr", "x", {"embed_dim": 8}, "cooadtr", seed=3)[2]
    assert (card.rate_hz, card.arguments["input_width"]) == (8.0, 288)
    assert card.trained_on == "nothing, random weights; the frontend is that of cooadtr"
    assert card.licence.startswith("Frontend of cooadtr: Research use only")
    assert tensors_digest(frontend.state_dict()) == tensors_digest(other.state_dict())
    fresh = random_model("oadtr", "x", {"embed_dim": 8, "frontend.blocks": 0}, "tdn")
    assert fresh[0].frontend_arguments == {"blocks": 0}
    assert fresh[0].trained_on == "nothing, random weights"
    both = random_model("cooadtr", "x", {"embed_dim": 8}, "cooadtr+audio")
    assert both[0].arguments["input_width"] == 288 + 128
    assert both[0].trained_on == card.trained_on
    for wrong in ("cooadtr+tdn", "cooadtr+", "nowhere", "oadtr+cotrans+audio"):
        with pytest.raises(UsageError, match=r"not a video and an audio frontend|unknown model"):
            random_model("cooadtr", "x", {}, wrong)
    with pytest.raises(UsageError, match="cannot be changed by arguments"):
        random_model("oadtr", "x", {"frontend.blocks": 0}, "cooadtr")


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("cooadtrr", {}, "did you mean cooadtr"),
        ("cooadtr", {"windows": 3}, "unexpected keyword argument 'windows'"),
        ("cooadtr", {"num_classes": -1}, "negative"),
        ("oadtr", {"num_classes": 0}, r"head.weight would be empty \(0 x 2048\)"),
        ("cooadtr", {"feedforward": 0}, "would be empty"),
        ("oadtr", {"decoder_depth": -1}, "decoder_depth -1 must be at least 0"),
        ("oadtr", {"class_token": 4}, "class_token 4 is not 0 or one of 3 blocks"),
        ("cooadtr", {"rate_hz": 0}, "not a positive number"),
        ("cooadtr", {"frontend.box": 3}, "no frontend to take box"),
        ("costgcn", {"frontend.streams": ["x"]}, "streams"),
    ],
)
def test_mismatches_are_refused(architecture: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        random_model(architecture, "x", settings)


def test_results_are_marked(tmp_path: Path) -> None:
    settings = [f"--set={name}={value}" for name, value in SMALL.items()]
    done = costream("models", "init", "cooadtr", *settings, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "cooadtr-random.safetensors\n")
    assert "trained on nothing" in done.stderr
    file = tmp_path / "cooadtr-random.safetensors"
    assert read_card(file).trained_on == "nothing, random weights"
    again = costream("models", "init", "cooadtr", *settings, cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    np.save(tmp_path / "rows.npy", np.ones((4, 6), np.float32))
    done = costream("detect", "rows.npy", "-m", file, "-f", "jsonl", cwd=tmp_path)
    assert done.returncode == 0
    assert "cooadtr-random has random weights: its output is meaningless" in done.stderr
    header, first, *_ = map(json.loads, done.stdout.splitlines())
    assert header["options"]["weights"] == "nothing, random weights"
    assert first["top"][0][0].startswith("random ")
    wrong = costream("models", "init", "cooadtr", "--set", "window", "-o", "x.safetensors")
    assert wrong.returncode == 2
    assert "--set window: not name=value" in wrong.stderr
