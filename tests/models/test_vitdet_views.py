"""Feature maps and proposals updated where tokens changed, against those computed in full."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from costream.models.eventful.feature_maps import View
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from kit.eventful_nets import Given, video
from kit.object_nets import random_network

pytestmark = pytest.mark.usefixtures("no_grad")


def same(given: View, expected: View) -> None:
    for mine, theirs in zip(given.maps, expected.maps, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(given.predicted, expected.predicted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("size", "streams"), [((5, 7), 2), ((4, 4), 1), ((9, 6), 1)])
@pytest.mark.parametrize("count", [0, 1, 4, 10**6])
def test_maps_are_those_of_the_tokens_that_passed(
    size: tuple[int, int], streams: int, count: int
) -> None:
    network = random_network(scene_cut=None)
    state = network.init_state(streams, 16 * size[0], 16 * size[1])
    assert state.view is not None
    for t, tokens in enumerate(video(20, streams, *size, 16)):
        before = state.view.reference.clone()
        view = network.view_step(tokens, state, TopTokens(count), Operations())
        passed = (state.view.reference != before).any(2).sum(1)
        assert (passed == (size[0] * size[1] if t == 0 else min(count, passed[0]))).all()
        same(view, network.view(state.view.reference.view(tokens.shape)))


def test_a_scene_that_stands_still_comes_to_its_dense_result() -> None:
    network = random_network(scene_cut=None)
    first, tokens = video(2, 1, 5, 7, 16, busy=1.0)
    state = network.init_state(1, 80, 112)
    network.view_step(first, state, TopTokens(5), Operations())
    for _ in range(40):
        view = network.view_step(tokens, state, TopTokens(5), Operations())
    same(view, network.view(network.backbone(tokens)))


def test_only_what_hangs_on_tokens_is_computed() -> None:
    network = random_network(scene_cut=None)
    height, width = 16, 20
    state = network.init_state(1, 16 * height, 16 * width)
    tokens = torch.randn(1, height, width, 16)
    corner = 8 * width + 10
    policy = Given(corner + torch.tensor([0, 1, width, width + 1]))
    full, backbone, both = Operations(), Operations(), Operations()
    network.view_step(tokens, state, policy, full)
    assert full.total == network.count_macs(height, width)
    network.backbone.forward_step(tokens, state.backbone.clone(), policy, backbone)
    network.view_step(tokens, state, policy, both)
    foreseen, dense = (
        network.count_macs(height, width, k) - network.backbone.count_macs(height, width, k)
        for k in (4, None)
    )
    assert both.total - backbone.total == pytest.approx(foreseen, rel=0.05)
    assert foreseen < 0.2 * dense


def test_counts_rise_with_tokens() -> None:
    network = random_network()
    counts = [network.count_macs(5, 7, k) for k in range(36)]
    assert counts == sorted(counts)
    gate = 35 * network.backbone.dim
    maps, full = (
        network.count_macs(5, 7, k) - network.backbone.count_macs(5, 7, k) for k in (35, None)
    )
    assert maps == full + gate


@pytest.mark.parametrize("variant", ["eventful", "token-wise"])
def test_variants_of_the_paper_compute_maps_in_full(variant: str) -> None:
    network = random_network(variant=variant, scene_cut=None)
    state = network.init_state(1, 80, 112)
    assert state.view is None
    other = network.backbone.init_state(1, 5, 7)
    for tokens in video(4, 1, 5, 7, 16):
        view = network.view_step(tokens, state, TopTokens(6), Operations())
        encoded: Tensor = network.backbone.forward_step(tokens, other, TopTokens(6))
        same(view, network.view(encoded))
