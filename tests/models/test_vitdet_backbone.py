"""ViTDet's backbone, in full and token-gated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.models.eventful.backbone import BackboneState, ViTDetBackbone
from costream.nn.eventful.block import VARIANTS, use_bfloat16_products
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import AboveThreshold, Policy, TopShare, TopTokens
from kit.eventful_nets import NEEDS, REFS, Given, Recorded, small_backbone, video

SIZE = (6, 8)
N = 48


pytestmark = pytest.mark.usefixtures("no_grad", "small_updates")


def run(
    backbone: ViTDetBackbone, frames: Tensor, policy: Policy, state: BackboneState | None = None
) -> Tensor:
    """Frames [T, B, h, w, D] one after another."""
    state = state or backbone.init_state(frames.shape[1], *frames.shape[2:4])
    return torch.stack([backbone.forward_step(x, state, policy) for x in frames])


def relative(given: Tensor, expected: Tensor) -> float:
    return float((given - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(6, 8), (4, 10)])
def test_all_tokens_of_every_frame_are_the_dense_network(
    variant: str, size: tuple[int, int]
) -> None:
    backbone = small_backbone(variant)
    frames = video(5, 2, *size, 16)
    expected = torch.stack([backbone(x) for x in frames])
    assert relative(run(backbone, frames, TopTokens(size[0] * size[1])), expected) < 1e-5


def largest_difference(size: tuple[int, int], frames: int, count: int, scale: int = 1) -> float:
    """Between the default and token-wise gates over a video of this length.

    What is chosen is taken from one run, so that rounding does not choose for the other.
    """
    exact, dense = (small_backbone(v, scale=scale) for v in ("exact", "token-wise"))
    states = [net.init_state(1, *size) for net in (exact, dense)]
    worst = 0.0
    for x in video(frames, 1, *size, 16):
        noted = Recorded(TopTokens(count))
        expected = dense.forward_step(x, states[1], noted)
        given = exact.forward_step(x, states[0], Recorded(noted=noted.noted))
        worst = max(worst, relative(given, expected))
    return worst


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 49), st.sampled_from([1, 16]))
def test_the_default_is_token_wise(height: int, width: int, count: int, scale: int) -> None:
    limit = 1e-5 if scale == 1 else 2e-5
    assert largest_difference((height, width), 40, count, scale) < limit


@pytest.mark.long
@pytest.mark.parametrize(("count", "scale"), [(3, 1), (12, 1), (5, 16)])
def test_the_default_is_token_wise_over_300_frames(count: int, scale: int) -> None:
    assert largest_difference(SIZE, 300, count, scale) < (1e-5 if scale == 1 else 2e-5)


@pytest.mark.parametrize(
    ("variant", "left"), [("exact", 1e-5), ("token-wise", 1e-5), ("eventful", 1.0)]
)
def test_on_a_frozen_scene_only_the_papers_update_stays_behind(variant: str, left: float) -> None:
    backbone = small_backbone(variant)
    frames = video(2, 1, *SIZE, 16, busy=1.0)
    state = backbone.init_state(1, *SIZE)
    backbone.forward_step(frames[0], state, TopTokens(8))
    for _ in range(60):
        out = backbone.forward_step(frames[1], state, TopTokens(8))
    error = relative(out, backbone(frames[1]))
    assert error < left
    assert variant != "eventful" or error > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_streams_of_a_batch_are_as_if_alone(variant: str) -> None:
    backbone = small_backbone(variant)
    frames = video(6, 3, *SIZE, 16)
    state = backbone.init_state(3, *SIZE)
    run(backbone, frames[:2], TopTokens(9), state)
    state.reset([1])
    together = run(backbone, frames[2:], TopTokens(9), state)
    for stream, start in ((0, 0), (1, 2), (2, 0)):
        alone = run(backbone, frames[start:, stream : stream + 1], TopTokens(9))
        assert relative(together[:, stream], alone[2 - start :, 0]) < 1e-5
    joined = type(state).cat([state.take([2]), state.take([0])])
    after = backbone.forward_step(frames[0, [2, 0]], joined, TopTokens(9))
    expected = backbone.forward_step(frames[0], state, TopTokens(9))
    assert relative(after, expected[[2, 0]]) < 1e-5


def test_the_policy_may_change_with_the_frame_and_the_block() -> None:
    backbone = small_backbone()
    state, x = backbone.init_state(1, *SIZE), video(4, 1, *SIZE, 16)
    policies: list[Any] = [TopTokens(4), [TopTokens(3), TopTokens(7)], TopShare(0.5)]
    spent = []
    for frame, policy in zip(x, [TopTokens(4), *policies[1:], AboveThreshold(1e9)], strict=True):
        operations = Operations()
        backbone.forward_step(frame, state, policy, operations)
        spent.append(operations.linear)
    row = 16 * (3 * 16 + 16 + 4 * 16)
    assert spent == [2 * N * row, 10 * row, 2 * 24 * row, 0]


def test_a_scene_cut_and_a_refresh_compute_everything() -> None:
    backbone = small_backbone(scene_cut=0.8, refresh=5)
    x = video(9, 2, *SIZE, 16, busy=0.0)
    x[3:, 1] = torch.randn(*SIZE, 16)
    state = backbone.init_state(2, *SIZE)
    full = []
    for frame in x:
        operations = Operations()
        backbone.forward_step(frame, state, TopTokens(0), operations)
        full.append(operations.linear // (2 * N * 16 * 128))
    # stream 0 at frames 0 and 5, stream 1 at 0, 3 (the cut) and 8
    assert full == [2, 0, 0, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(6, 8), (6, 6)])
def test_counts_are_the_closed_forms(variant: str, size: tuple[int, int]) -> None:
    backbone = small_backbone(variant, window=(3, 4))
    frames, n = video(3, 1, *size, 16), size[0] * size[1]
    for count in (0, 5, 11, n // 2, n):
        state = backbone.init_state(1, *size)
        tokens = torch.arange(count) * n // max(count, 1)
        for number, x in enumerate(frames):
            operations = Operations()
            backbone.forward_step(x, state, Given(tokens), operations)
            updated = count if number else None
            y, across = tokens // size[1] // 2, size[1] // 2
            columns = len(set((y * across + tokens % size[1] // 2).tolist()))
            pooled = columns if VARIANTS[variant].pool > 1 else None
            expected = backbone.count_macs(*size, updated, pooled)
            if variant in ("exact", "rows") and number:  # windows are skipped, rows renewed
                assert operations.linear == count * 2 * 16 * 128
                if number == 1 and count >= 11 and variant == "exact":
                    assert operations.total == pytest.approx(expected, rel=0.2)
            else:
                assert operations.total == expected


def test_the_state_is_less_than_half_of_the_papers() -> None:
    """At 1024 pixels; theirs holds scores in single and weights in half precision, 4.8 GB."""
    squares = 4 * 12 * 4096**2 * (4 + 2)
    sizes = {}
    for variant in ("exact", "eventful"):
        with torch.device("meta"):
            state = ViTDetBackbone(variant=variant).init_state(1, 64, 64)
        sizes[variant] = sum(t.numel() * t.element_size() for t in state.tensors().values())
    assert sizes["exact"] < squares / 2
    assert sizes["eventful"] > squares


def test_half_precision_stays_near() -> None:
    backbone = small_backbone()
    frames = video(30, 1, *SIZE, 16)
    noted = Recorded(TopTokens(12))
    expected = run(backbone, frames, noted)
    half = small_backbone()
    use_bfloat16_products(half)
    given = run(half, frames, Recorded(noted=noted.noted))
    assert 1e-5 < relative(given, expected) < 3e-2


# --- the reference arrays ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    if not REFS.is_dir():
        pytest.skip(NEEDS)
    name = str(REFS / "vitdet_small_native_")
    weights = {k: torch.from_numpy(v) for k, v in np.load(f"{name}state.npz").items()}
    return {
        "frames": weights.pop("__frames__").view(6, 1, 16, 16, 48),
        "weights": weights,
        "outputs": dict(np.load(f"{name}outputs_0.npz")),
        "indices": np.load(f"{name}indices.npz"),
        "meta": json.loads(Path(f"{name}meta.json").read_text()),
    }


def reference_backbone(reference: dict[str, Any], variant: str) -> ViTDetBackbone:
    sizes = (48, 3, 4, (16, 16), (6, 6), (1, 3), (7, 7))
    backbone = ViTDetBackbone(*sizes, variant=variant).eval()
    backbone.load_state_dict(reference["weights"])
    return backbone


def test_the_network_is_the_reference(reference: dict[str, Any]) -> None:
    given = reference_backbone(reference, "exact")(reference["frames"].flatten(0, 1))
    expected = torch.from_numpy(reference["outputs"]["base"])
    assert (given.flatten(1, 2) - expected).abs().max() < 5e-5


RUNS: dict[str, tuple[str, list[Policy]]] = {
    "eventful_top16": ("eventful", [TopTokens(16)] * 6),
    "eventful_top48": ("eventful", [TopTokens(48)] * 6),
    "eventful_top96": ("eventful", [TopTokens(96)] * 6),
    "eventful_top200": ("eventful", [TopTokens(200)] * 6),
    "eventful_top256": ("eventful", [TopTokens(256)] * 6),
    "eventful_frac0.25": ("eventful", [TopShare(0.25)] * 6),
    "eventful_thr1.0": ("eventful", [AboveThreshold(1.0)] * 6),
    "eventful_thr2.5": ("eventful", [AboveThreshold(2.5)] * 6),
    "eventful_vary": ("eventful", [TopTokens(r) for r in (0, 48, 96, 16, 200, 48)]),
    "tokenwise_top48": ("token-wise", [TopTokens(48)] * 6),
    "tokenwise_top96": ("token-wise", [TopTokens(96)] * 6),
    "stgt_top48": ("stgt", [TopTokens(48)] * 6),
    "spatiotemporal_top48": ("spatiotemporal", [TopTokens(48)] * 6),
}


@pytest.mark.parametrize("name", RUNS)
def test_variants_are_the_reference(reference: dict[str, Any], name: str) -> None:
    variant, policies = RUNS[name]
    backbone = reference_backbone(reference, variant)
    state = backbone.init_state(1, 16, 16)
    for t, (frame, policy) in enumerate(zip(reference["frames"], policies, strict=True)):
        operations, noted = Operations(), Recorded(policy)
        out = backbone.forward_step(frame, state, noted, operations)
        assert operations.total == sum(reference["meta"][name]["counts"][t].values())
        if name in reference["outputs"]:
            expected = torch.from_numpy(reference["outputs"][name][t])
            assert (out.view(256, 48) - expected).abs().max() < 5e-5
        for k, tokens in enumerate(noted.noted):
            gate = ("qkv", "projection", "mlp")[k % 3]
            expected = reference["indices"][f"{name}|{t}|blocks.{k // 3}.{gate}_gate"]
            assert tokens.tolist() == expected.tolist()


def test_the_default_gives_the_token_wise_reference(reference: dict[str, Any]) -> None:
    out = run(reference_backbone(reference, "exact"), reference["frames"], TopTokens(48))
    expected = torch.from_numpy(reference["outputs"]["tokenwise_top48"])
    assert (out.view(6, 256, 48) - expected).abs().max() < 5e-5
