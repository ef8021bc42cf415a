"""ViViT under TAdaConv's names, under those of the Eventful Transformers, and tuned in part."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.label_sets import EPIC_VERBS
from costream.core.records import VideoFrame
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.models.eventful.vivit.importer import detect
from costream.models.eventful.vivit.network import ViViT
from costream.models.importing import import_files
from costream.models.verify import verify
from costream.nn.eventful.policies import TopTokens
from costream.weights_io.file import write_weights
from kit.action_nets import clips, small_vivit
from kit.eventful_nets import NEEDS, REFS
from kit.foreign_eventful import in_tadaconv

Import = Callable[..., tuple[Any, Any]]
VERBS = {"labels": "epic-verbs", "rate_hz": "30", "num_heads": "2"}


def network(**options: Any) -> ViViT:
    return small_vivit(num_classes=97, **options)


def tadaconv_file(net: ViViT, head: str = "head.linear1", **extra: Tensor) -> dict[str, Any]:
    state = {in_tadaconv(k, head): v for k, v in net.state_dict().items()}
    return {"epoch": 30, "model_state": state | extra, "cfg": "TASK_TYPE: classification"}


def nouns() -> dict[str, Tensor]:
    return {"head.linear2.weight": torch.zeros(300, 16), "head.linear2.bias": torch.zeros(300)}


def same_state(given: ViViT, expected: ViViT) -> None:
    mine, theirs = given.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())


def test_tadaconv(load: Import, tmp_path: Path) -> None:
    net = network()
    card, imported = load(tadaconv_file(net, **nouns()), **VERBS)
    same_state(imported, net)
    assert card.labels == EPIC_VERBS.names
    assert (card.task, card.rate_hz, card.delay_s) == ("action recognition", 30.0, 4.5 / 30)
    assert "Not used: head.linear2.bias, head.linear2.weight." in card.limits
    x = clips(1, 10)
    with torch.no_grad():
        assert torch.equal(imported(x), net(x))
    path = tmp_path / "x.safetensors"
    write_weights(path, card, {f"network.{k}": v for k, v in net.state_dict().items()})
    assert verify(path)
    model = load_model(str(path))
    assert model.info.box == (24, 24)  # twice the crop
    state, rgb = model.init_state(), np.zeros((12, 12, 3), np.uint8)
    frames = [VideoFrame(k, k / 30, k, lambda: rgb) for k in range(2)]
    probabilities = model.steps(frames, state)[-1].probabilities
    black = torch.full((1, 2, 3, 12, 12), -2.0)
    with torch.no_grad():
        expected = net(black).softmax(-1)
    assert probabilities is not None
    assert np.allclose(probabilities, expected, rtol=0, atol=1e-6)


def test_one_classifier_and_the_eventful_names(load: Import) -> None:
    net = small_vivit(num_classes=10)
    known = {"labels": "gtzan", "num_heads": 2}
    card, imported = load(tadaconv_file(net, "head.linear"), **known)
    same_state(imported, net)
    assert not card.limits
    same_state(load(net.state_dict(), **known)[1], net)


def test_a_temporal_encoder_alone_is_not_a_network(load: Import) -> None:
    only = {k: v for k, v in network().state_dict().items() if k.startswith("temporal_model")}
    with pytest.raises(ModelError, match=r"missing: embedding\.conv\.weight"):
        load(only, **VERBS)


def tuned_pair(tmp_path: Path, part: str) -> tuple[list[Path], ViViT]:
    """Files of a network and of one tuned behind it, and the network that they are together."""
    base, both = network(), network()
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            if name.startswith(("temporal_model.", "classifier.")):
                parameter += 1
    state = both.state_dict()
    if part == "alone":
        state = {k: v for k, v in state.items() if not k.startswith(("embedding.", "spatial_"))}
    paths = [tmp_path / "base.pyth", tmp_path / "tuned.pth"]
    torch.save(tadaconv_file(base, **nouns()), paths[0])
    torch.save(state, paths[1])
    return paths, both


@pytest.mark.parametrize("part", ["alone", "whole"])
def test_a_tuned_temporal_encoder_is_laid_over(part: str, tmp_path: Path) -> None:
    paths, both = tuned_pair(tmp_path, part)
    card, tensors = import_files(paths, "test", VERBS)
    imported = build(card, tensors)[0].eval()
    same_state(imported, both)  # type: ignore[arg-type]
    x = clips(2, 10)
    given = imported.forward_clip(x, TopTokens(3))  # type: ignore[operator]
    assert torch.equal(given, both.forward_clip(x, TopTokens(3)))


def test_a_temporal_encoder_of_another_network_is_refused(tmp_path: Path) -> None:
    paths, both = tuned_pair(tmp_path, "whole")
    state = both.state_dict()
    state["spatial_model.class_token"] = state["spatial_model.class_token"] + 1
    torch.save(state, paths[1])
    wrong = r"not a tuned temporal .* base\.pyth: spatial_model\.class"
    with pytest.raises(ModelError, match=wrong):
        import_files(paths, "test", VERBS)
    torch.save(
        {"temporal_model.class_token": torch.zeros(1, 1, 16), "other": torch.zeros(1)}, paths[1]
    )
    with pytest.raises(ModelError, match=r"base\.pyth: other"):
        import_files(paths, "test", VERBS)


def test_the_names_of_the_published_checkpoint() -> None:
    if not REFS.is_dir():
        pytest.skip(NEEDS)
    lines = (REFS / "keys_vivit_b_epic_kitchens.txt").read_text().splitlines()
    published = {}
    for line in lines:
        if not line.startswith("#"):
            name, shape = line.removesuffix(" float32").split(" ", 1)
            published[name] = tuple(int(n) for n in re.findall(r"\d+", shape))
    with torch.device("meta"):
        net = ViViT(97, size=(20, 20))
    assert {name: tuple(t.shape) for name, t in net.state_dict().items()} == published
    assert detect(net.state_dict())
    assert sum(t.numel() for t in net.parameters()) == 114_986_593
