"""Files of trainings are as small as those that they began with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from costream.models.build import save_model
from costream.models.catalogue import load_model
from costream.models.compact import compact, is_compact
from costream.models.int8 import SCALE, to_float
from costream.models.random_init import random_model
from costream.models.verify import random_items
from costream.nn.int8 import dequantise, quantise
from costream.weights_io.file import read_card, read_header, read_weights, write_weights
from kit import data_skeleton
from kit.runs import run

CARD = random_model("cooadtr", "x", {"input_width": 8, "embed_dim": 16})[0]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in float32 and in float16."""
    folder = tmp_path_factory.mktemp("bases")
    whole = data_skeleton.write_tiny_weights(folder / "whole.safetensors")
    stored = read_weights(whole)
    halved = {k: v.half() if v.is_floating_point() else v for k, v in stored.tensors.items()}
    write_weights(folder / "half.safetensors", stored.card, halved)
    return {"whole": whole, "half": folder / "half.safetensors"}


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_skeleton.write_folder(tmp_path_factory.mktemp("moves"), 2)


def rows(name: str) -> np.ndarray:
    model = load_model(name)
    state, found = model.init_state(), []
    for item in random_items(model, 6):
        probabilities = model.step([item], state).probabilities  # type: ignore[arg-type, union-attr]
        found += [] if probabilities is None else [probabilities[0]]
    return np.stack(found)


@pytest.mark.long
@pytest.mark.parametrize("base", ["whole", "half"])
def test_a_file_has_the_numbers_of_its_base(
    base: str, bases: dict[str, Path], moves: Path, tmp_path: Path
) -> None:
    path = tmp_path / "own.safetensors"
    given = ("--data", moves, "-o", path, "--steps", 2, "--validation", 0)
    told = run("train", bases[base], *given).stdout.splitlines()[-1]
    mb = path.stat().st_size / 1e6
    assert told == f"size: {mb:.2f} MB, {base} {bases[base].stat().st_size / 1e6:.2f} MB"
    assert is_compact(path) == (base == "half")
    matrices = {i.dtype for i in read_header(path).tensors.values() if len(i.shape) > 1}
    assert matrices == {"F16" if base == "half" else "F32"}
    load_model(str(path))


@pytest.mark.long
def test_what_is_pruned_and_its_adapter_are_smaller_than_their_base(
    bases: dict[str, Path], moves: Path, tmp_path: Path
) -> None:
    path, base = tmp_path / "own.safetensors", bases["half"]
    options = ("--adapter", "splora", "--rank", 2, "--density", 0.5, "--steps", 12)
    done = run("train", base, "--data", moves, "-o", path, *options, "--validation", 0)
    adapter = tmp_path / "own-adapter.safetensors"
    sizes = [file.stat().st_size for file in (path, adapter, base)]
    assert sizes[0] < sizes[2]
    assert f", adapter {sizes[1] / 1e6:.2f} MB, half " in done.stdout.splitlines()[-1]
    assert {i.dtype for i in read_header(adapter).tensors.values()} >= {"F16"}
    assert read_card(path).compression["density"] <= 0.5
    np.testing.assert_allclose(rows(f"{base}+{adapter}"), rows(str(path)), atol=2e-3)


def test_int8_weights_stay_as_they_were() -> None:
    torch.manual_seed(0)
    values, scale = quantise(torch.randn(40, 30))
    tensors = {"a.weight": dequantise(values, scale), "b.weight": torch.randn(40, 30)}
    tensors |= {"b.bias": torch.randn(40), "n": torch.tensor(3)}
    card, small = compact(CARD, tensors)
    assert card.compression["int8"] == {"tensors": 1}
    assert small["a.weight"].equal(values)
    torch.testing.assert_close(small["a.weight" + SCALE], scale, rtol=1e-6, atol=0)
    assert small["b.weight"].dtype == torch.float16
    assert small["b.bias"].dtype == torch.float32
    assert small["n"].equal(tensors["n"])
    again = to_float(small)
    torch.testing.assert_close(again["a.weight"], tensors["a.weight"], rtol=1e-6, atol=0)
    torch.testing.assert_close(again["b.weight"].float(), tensors["b.weight"], rtol=1e-3, atol=1e-6)


def test_numbers_beyond_float16_stay_float32() -> None:
    large, tiny = torch.full((2, 3), 1e6), torch.full((2, 3), 3e-9)
    _, small = compact(CARD, {"a.weight": large, "b.weight": tiny})
    assert small["a.weight"].equal(large)
    assert small["b.weight"].equal(tiny)


def test_networks_of_int8_weights_run(tmp_path: Path) -> None:
    card, network, _ = random_model("cooadtr", "x", {"input_width": 8, "embed_dim": 16})
    with torch.no_grad():
        for p in network.parameters():
            if p.dim() > 1 and p.numel() >= 256:
                p.copy_(dequantise(*quantise(p)))
    save_model(tmp_path / "whole.safetensors", card, network)
    small_card, small = compact(card, read_weights(tmp_path / "whole.safetensors").tensors)
    write_weights(tmp_path / "small.safetensors", small_card, small)
    whole, again = (rows(str(tmp_path / f"{n}.safetensors")) for n in ("whole", "small"))
    np.testing.assert_allclose(whole, again, atol=2e-3)
