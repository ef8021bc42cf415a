"""ViViT: equality with the dense network, with its own window, and after a restart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.eventful.vivit.network import ViViT, ViViTState
from costream.nn.eventful.attention import RowAttention
from costream.nn.eventful.block import VARIANTS, EventfulBlock
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy, TopTokens
from kit.action_nets import DenseViViT, clips, small_vivit
from kit.eventful_nets import Recorded

N = 10  # 3 x 3 tokens and the class token
WINDOW = 5
UNPOOLED = [name for name, variant in VARIANTS.items() if variant.pool == 1]
ALL = TopTokens(N)


pytestmark = pytest.mark.usefixtures("no_grad", "small_updates")


def relative(given: Tensor, expected: Tensor) -> float:
    return float((given - expected).abs().max() / expected.abs().max())


def stepped(
    network: ViViT, x: Tensor, policy: Policy, state: ViViTState | None = None
) -> list[Tensor]:
    """The logits after each tubelet of clips [B, T, 3, H, W]."""
    state = state or network.init_state(len(x))
    return [network.forward_step(tubelet, state, policy) for tubelet in x.split(2, 1)]


@pytest.mark.parametrize("variant", UNPOOLED)
@pytest.mark.parametrize(("kind", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_all_tokens_are_the_dense_network(variant: str, kind: torch.dtype, near: float) -> None:
    network = small_vivit(variant=variant).to(kind)
    dense, x = DenseViViT(network).to(kind), clips(2, 2 * WINDOW).to(kind)
    expected = dense(x)
    assert relative(network(x), expected) < near
    assert relative(network.forward_clip(x, ALL), expected) < near
    assert relative(stepped(network, x, ALL)[-1], expected) < near


def test_a_stream_is_the_dense_network_over_its_newest_window() -> None:
    network = small_vivit()
    dense, x = DenseViViT(network), clips(2, 2 * 13)
    for step, logits in enumerate(stepped(network, x, ALL)):
        window = x[:, 2 * max(0, step + 1 - WINDOW) : 2 * step + 2]
        assert relative(logits, dense(window)) < 1e-5


@pytest.mark.parametrize("variant", UNPOOLED)
def test_with_fewer_tokens_it_is_the_temporal_encoder_over_the_newest_rows(variant: str) -> None:
    network = small_vivit(variant=variant)
    spatial, x = network.spatial_model, clips(1, 2 * 12)
    state, rows = spatial.init_state(1), []
    tokens = network.embed(x)
    for step, logits in enumerate(stepped(network, x, TopTokens(4))):
        rows.append(spatial.forward_step(tokens[:, step], state, TopTokens(4), Operations()))
        newest = torch.stack(rows[-WINDOW:], 1)
        assert relative(logits, network.classifier(network.temporal_model(newest))) < 1e-5
    # a clip by itself is a stream that begins with it
    alone = network.forward_clip(x[:, : 2 * WINDOW], TopTokens(4))
    assert relative(alone, stepped(network, x[:, : 2 * WINDOW], TopTokens(4))[-1]) < 1e-5


def test_fewer_tokens_come_close_and_end_at_the_dense_network_when_all_stands_still() -> None:
    network = small_vivit()
    x = clips(1, 2)
    still = torch.cat([x, clips(1, 2).repeat(1, 30, 1, 1, 1)], 1)
    outputs = stepped(network, still, TopTokens(3))
    expected = network(still[:, -2 * WINDOW :])
    assert relative(outputs[1], expected) > 1e-3
    assert relative(outputs[-1], expected) < 1e-5


@pytest.mark.long
def test_120_steps_are_token_wise_ones() -> None:
    exact, dense = (small_vivit(variant=v, depth=2) for v in ("exact", "token-wise"))
    states, worst = [net.init_state(1) for net in (exact, dense)], 0.0
    for tubelet in clips(1, 2 * 120).split(2, 1):
        noted = Recorded(TopTokens(3))
        expected = dense.forward_step(tubelet, states[1], noted)
        given = exact.forward_step(tubelet, states[0], Recorded(noted=noted.noted))
        worst = max(worst, relative(given, expected))
    assert worst < 1e-5


def test_a_deepcot_stack_steps_as_it_goes_through_clips() -> None:
    network, x = small_vivit(temporal="deepcot"), clips(2, 2 * 14)
    outputs = stepped(network, x, ALL)
    for step in (0, 3, 8, 13):
        assert relative(outputs[step], network(x[:, : 2 * step + 2])) < 1e-5
    state = network.init_state(1)
    warm = []
    for tubelet in x[:1].split(2, 1):
        network.forward_step(tubelet, state, ALL)
        warm.append(network.warmup(state)[0])
    assert warm == [True] * 8 + [False] * 6  # 2 (5 - 1) + 1 rows
    assert network.receptive_field == 2 * 9


@pytest.mark.parametrize("temporal", ["window", "deepcot"])
def test_streams_of_a_batch_are_as_if_alone(temporal: str) -> None:
    network, x = small_vivit(temporal=temporal), clips(3, 2 * 9)
    state = network.init_state(3)
    stepped(network, x[:, :6], TopTokens(4), state)
    state.reset([1])
    together = stepped(network, x[:, 6:], TopTokens(4), state)
    for stream, start in ((0, 0), (1, 3), (2, 0)):
        alone = stepped(network, x[stream : stream + 1, 2 * start :], TopTokens(4))
        for k, logits in enumerate(alone[3 - start :]):
            assert relative(together[k][stream : stream + 1], logits) < 1e-5
    joined = type(state).cat([state.take([2]), state.take([0])])
    after = network.forward_step(x[[2, 0], :2], joined, TopTokens(4))
    expected = network.forward_step(x[:, :2], state, TopTokens(4))
    assert relative(after, expected[[2, 0]]) < 1e-5


@pytest.mark.parametrize("variant", UNPOOLED)
@pytest.mark.parametrize("temporal", ["window", "deepcot"])
def test_what_is_spent_is_what_is_foreseen(variant: str, temporal: str) -> None:
    network, x = small_vivit(variant=variant, temporal=temporal), clips(1, 2 * 8)
    for block in network.modules():
        if isinstance(block, EventfulBlock) and isinstance(block.attention, RowAttention):
            block.attention.every = None  # turns are foreseen about, as they may meet tokens
    state = network.init_state(1)
    for step, tubelet in enumerate(x.split(2, 1)):
        spent = Operations()
        network.forward_step(tubelet, state, TopTokens(2), spent)
        if step >= WINDOW - 1 or temporal == "deepcot":
            foreseen = network.count_macs(2 if step else None)
            # rows whose sums have turned over are renewed
            assert spent.total == foreseen or (variant == "exact" and spent.total > foreseen)
        else:
            assert spent.total < network.count_macs(2 if step else None)


def test_a_scene_cut_and_a_refresh_compute_everything() -> None:
    network = small_vivit(scene_cut=0.8, refresh=5)
    x = clips(1, 2, busy=0.0).repeat(1, 9, 1, 1, 1)
    x[:, 6:] = clips(1, 2).repeat(1, 6, 1, 1, 1)
    state, full = network.init_state(1), []
    for tubelet in x.split(2, 1):
        spent = Operations()
        network.forward_step(tubelet, state, TopTokens(1), spent)
        full.append(spent.gate == 0)
    assert full == [True, False, False, True, False, False, False, False, True]


def test_it_learns() -> None:
    network = small_vivit()
    with torch.enable_grad():
        network.train()(clips(2, 2 * WINDOW)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variant": "spatial"}, "pools keys"),
        ({"variant": "none"}, "variant 'none'"),
        ({"temporal": "none"}, "temporal 'none'"),
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small_vivit(**options)


def test_clips_of_another_size_are_refused() -> None:
    network = small_vivit()
    for shape in ((1, 2, 3, 16, 12), (1, 3, 3, 12, 12)):
        with pytest.raises(ValueError, match=r"not a multiple of 2 frames of 12x12"):
            network(torch.zeros(shape))
