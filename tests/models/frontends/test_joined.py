"""Frontends of sound side by side, and networks that take the tokens of one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from costream.core.errors import ModelError
from costream.core.records import AudioBlock
from costream.models.frontend import load_frontend
from costream.models.joint import combine_models
from costream.models.oad.cooadtr import CoTrans
from costream.models.streaming import StreamingModel
from costream.weights_io.card import Card

AUDIO: dict[str, Any] = {"token_width": 12, "widths": [4] * 7, "feature_width": 8}
OTHER: dict[str, Any] = {
    "width": 0.1,
    "hop_frames": 25,
    "window_frames": 100,
    "sample_rate_hz": 16_000,
}
PARTS = {"audio": AUDIO, "efficientat": OTHER}


def joined() -> Any:
    torch.manual_seed(0)
    return load_frontend("joined-audio", parts=PARTS).eval().requires_grad_(False)


def model(name: str, front: nn.Module, kind: str, arguments: dict[str, Any]) -> StreamingModel:
    torch.manual_seed(len(name))
    sizes = {"num_classes": 3, "input_width": front.token_width, "embed_dim": 16, "num_heads": 2}
    card = Card(
        *(name, "sound classification", "cotrans", sizes, (f"{name} a", f"{name} b", "c"), 4.0),
        frontend=kind,
        frontend_arguments=arguments,
    )
    return StreamingModel(card, CoTrans(**sizes).eval().requires_grad_(False), front)


def blocks() -> list[AudioBlock]:
    waves = np.random.default_rng(0).normal(0, 0.1, (9, 4000)).astype(np.float32)
    return [AudioBlock(k, (k + 1) / 4, wave) for k, wave in enumerate(waves)]


def scores(net: StreamingModel) -> np.ndarray[Any, Any]:
    state = net.init_state()
    return np.concatenate([net.step([x], state).probabilities for x in blocks()])


def test_a_token_has_the_tokens_of_the_parts() -> None:
    net, x = joined(), 0.1 * torch.randn(2, 9, 4000)
    widths = [12, net.parts["efficientat"].token_width]
    assert net.token_width == sum(widths)
    for found, part in zip(net(x).split(widths, -1), net.parts.values(), strict=True):
        torch.testing.assert_close(found, part(x))
    assert net.columns() == {"audio": slice(0, 12), "efficientat": slice(12, sum(widths))}
    assert net.count_macs() == sum(part.count_macs() for part in net.parts.values())


@pytest.mark.parametrize("first", [True, False])
def test_a_network_of_one_part_runs_beside_that_of_both(first: bool) -> None:
    front = joined()
    both = model("both", front, "joined-audio", {"parts": PARTS})
    for name, arguments in PARTS.items():
        alone = model("one", front.parts[name], name, arguments)
        models = [alone, both] if first else [both, alone]
        together = combine_models(models)
        assert together.info.card.frontend == "joined-audio"
        assert together.macs == both.macs + alone.network_macs
        found = scores(together)
        for head, each in zip(together.info.heads, models, strict=True):
            np.testing.assert_allclose(found[:, head.columns], scores(each), atol=1e-5)


def test_other_weights_are_not_a_part() -> None:
    both = model("both", joined(), "joined-audio", {"parts": PARTS})
    torch.manual_seed(9)
    other = model("one", load_frontend("audio", **AUDIO).eval(), "audio", AUDIO)
    with pytest.raises(ModelError, match="one does not share the frontend of both"):
        combine_models([other, both])
    slower = replace(both.info.card, rate_hz=2.0, name="slow")
    with pytest.raises(ModelError, match="does not share"):
        combine_models([both, StreamingModel(slower, both.network, both.frontend)])
