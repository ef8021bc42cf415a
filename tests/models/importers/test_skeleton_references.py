"""Skeleton importers against the full-size key lists and reference arrays of others' code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.models.importing import import_files
from costream.models.skeleton.network import SkeletonNet
from costream.weights_io.card import Card
from kit import paths

REFS = paths.REFS / "skeleton"
NTU = {"layout": "ntu-25", "stream": "joint"}
Load = Callable[..., tuple[Card, Any]]
FULL = [
    *(
        ("keys_skeleton.json", form, {**NTU, "padding": "none" if "_mod" in form else "same"})
        for kind in ("st_gcn", "a_gcn", "s_tr")
        for form in (kind, f"{kind}_mod", f"co{kind}", f"co{kind}_mod")
    ),
    ("keys_stgcn_yysijie_kinetics.json", None, {"stream": "joint"}),
    ("keys_2sagcn_ntu60.json", None, NTU),
    ("keys_pyskl_stgcn_coco.json", None, {"stream": "joint", "rate_hz": 25}),
    ("keys_pyskl_stgcnpp_coco.json", None, {"stream": "joint", "rate_hz": 25}),
]


@pytest.fixture
def refs() -> Path:
    if not REFS.is_dir():
        pytest.skip("needs the reference arrays: put them at ../shared/refs/skeleton")
    return REFS


def arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
    with np.load(path) as file:
        content = dict(file)
    weights = {k[3:]: torch.from_numpy(v) for k, v in content.items() if k.startswith("sd/")}
    return content, weights


def imported(path: Path, **config: object) -> tuple[Card, dict[str, Tensor]]:
    return import_files([path], "test", {key: str(value) for key, value in config.items()})


@pytest.mark.long
@pytest.mark.parametrize(("file", "form", "config"), FULL)
def test_every_full_size_key_finds_its_place(
    refs: Path, tmp_path: Path, file: str, form: str | None, config: dict[str, Any]
) -> None:
    shapes = json.loads((refs / file).read_text("utf-8"))
    shapes = shapes if form is None else shapes[form]
    weights = {
        name: torch.ones(shape) if shape else torch.tensor(1) for name, shape in shapes.items()
    }
    torch.save({"state_dict": weights}, tmp_path / "x.pth")
    card, tensors = imported(tmp_path / "x.pth", **config)
    with torch.device("meta"):
        network = SkeletonNet(**card.arguments)
    expected = {f"network.{name}": value.shape for name, value in network.state_dict().items()}
    assert {name: value.shape for name, value in tensors.items()} == expected
    assert card.arguments["widths"] == [64] * 4 + [128] * 3 + [256] * 3
    strided = config.get("padding") != "none"
    assert card.arguments["strides"] == ([1, 1, 1, 1, 2, 1, 1, 2, 1, 1] if strided else [1] * 10)
    defective = form in ("a_gcn_mod", "coa_gcn_mod")
    assert card.arguments["compat"] == ("continual-skeletons" if defective else None)
    if "pyskl" not in file:  # clips of 300 frames
        assert card.arguments["pool"] == (75 if strided else 220)
        timing = (network.receptive_field, network.delay, network.stride)
        assert timing == ((449, 296, 4) if strided else (300, 299, 1))


def test_correct_attention_can_be_asked_for(refs: Path, tmp_path: Path) -> None:
    shapes = json.loads((refs / "keys_skeleton.json").read_text("utf-8"))["a_gcn_mod"]
    torch.save({name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "x.pth")
    card, _ = imported(tmp_path / "x.pth", **NTU, padding="none", compat="none")
    assert card.arguments["compat"] is None


@pytest.mark.parametrize("form", ["cost_gcn", "coa_gcn_mod", "cos_tr"])
def test_continual_names_are_the_regular_ones(refs: Path, tmp_path: Path, form: str) -> None:
    lists = json.loads((refs / "keys_skeleton.json").read_text("utf-8"))
    regular = {
        name: torch.rand(shape) if shape else torch.tensor(1)
        for name, shape in lists[form.removeprefix("co")].items()
    }
    places = lists[f"{form}__from_regular"]
    torch.save(regular, tmp_path / "regular.pt")
    torch.save({places[name]: value for name, value in regular.items()}, tmp_path / "co.pt")
    config = {**NTU, "padding": "none"}
    (_, one), (_, two) = (imported(tmp_path / f, **config) for f in ("regular.pt", "co.pt"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def steps(network: Any, x: np.ndarray) -> dict[int, Tensor]:
    """Logits by step of a stream [C, T, V, M]."""
    frames = torch.from_numpy(x).to(network.fc.weight.dtype).permute(1, 3, 2, 0)
    state, found = network.init_state(1), {}
    for t, frame in enumerate(frames):
        out = network.forward_step(frame[None], state)
        if out is not None:
            found[t] = out.logits[0]
    return found


@pytest.mark.long
@pytest.mark.parametrize("continual", [False, True])
@pytest.mark.parametrize(
    ("file", "window", "padding", "names"),
    [
        ("small_stgcn_mod_T100.npz", 100, "none", "cost_gcn_mod__from_regular"),
        ("small_agcn_T200.npz", 200, "same", "coa_gcn__from_regular"),
    ],
)
@torch.inference_mode()
def test_continual_skeletons_step_as_they_do_there(
    refs: Path, load: Load, file: str, window: int, padding: str, names: str, continual: bool
) -> None:
    content, weights = arrays(refs / file)
    if continual:
        places = json.loads((refs / "keys_skeleton.json").read_text("utf-8"))[names]
        weights = {places[name]: value for name, value in weights.items()}
        assert weights.keys() == set(content["co_keys"].tolist())
    card, network = load(weights, **NTU, window=window, padding=padding)
    found = steps(network.double(), content["x"])
    assert list(found) == content["step_index"].tolist()
    expected = torch.from_numpy(content["y_step"])
    torch.testing.assert_close(torch.stack(list(found.values())), expected, rtol=1e-9, atol=1e-9)
    single = torch.stack([v.double() for v in steps(network.float(), content["x"]).values()])
    assert (single - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert card.arguments["pool"] == json.loads(str(content["info"]))["pool_kernel"]


@torch.inference_mode()
def test_2s_agcn_over_a_clip(refs: Path, load: Load) -> None:
    content, weights = arrays(refs / "dialect_2sagcn_ntu.npz")
    card, network = load(weights, **NTU, window=60, sliding=59)
    assert (card.architecture, card.arguments["num_classes"]) == ("agcn", 20)
    assert (card.delay_s, card.arguments["hop"]) == (pytest.approx(29.5 / 30), 59)
    expected = torch.from_numpy(content["y"][0])
    found = steps(network.double(), content["x"][0])
    torch.testing.assert_close(found[59], expected, rtol=1e-9, atol=1e-9)
    single = steps(network.float(), content["x"][0])[59].double()
    assert (single - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.inference_mode()
def test_2s_agcn_in_a_stream_attends_frame_by_frame(refs: Path, load: Load) -> None:
    _, weights = arrays(refs / "dialect_2sagcn_ntu.npz")
    card, network = load(weights, **NTU, window=60)
    assert (card.architecture, card.arguments["pool"]) == ("coagcn", 15)
    whole = load(weights, **NTU, window=60, sliding=1)[1]
    for block, other in zip(network.double().blocks, whole.double().blocks, strict=True):
        frame = torch.randn(2, 1, 25, block.in_width, dtype=torch.float64)
        torch.testing.assert_close(block.gcn(frame), other.gcn(frame), rtol=1e-9, atol=1e-9)
        clip = torch.randn(2, 5, 25, block.in_width, dtype=torch.float64)
        assert not torch.allclose(block.gcn(clip), other.gcn(clip))


def test_2s_agcn_gets_its_graph_from_the_layout(refs: Path, load: Load) -> None:
    _, weights = arrays(refs / "dialect_2sagcn_ntu.npz")
    _, network = load(weights, **NTU)
    with np.load(refs / "adjacency.npz") as file:
        graph = torch.from_numpy(file["continual_ntu25"]).float()
    for block in network.blocks:
        assert torch.equal(block.gcn.A, graph)
