"""The backbone for sound: blocks give what the whole gives, each frame looked at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.models import blas as products
from costream.models.audio.audio_net import ContinualAudioNet
from weights.recipes.audio.backbone import without_norms

WIDTHS = (4, 6, 6, 8, 8, 10, 10)


def build(norm: bool = False, pool: int = 4) -> ContinualAudioNet:
    torch.manual_seed(0)
    net = ContinualAudioNet(5, WIDTHS, 7, pool, norm=norm)
    net.mel.fill(16_000, 50, 7800)
    net.centre.normal_(-3, 1)
    net.spread.uniform_(1, 3)
    return net.eval().requires_grad_(False)


def sound(steps: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(steps)
    return 0.1 * torch.randn(batch, steps, 4000, generator=generator)


def with_norms(pool: int = 4) -> ContinualAudioNet:
    net = build(norm=True, pool=pool)
    for layer in net.layers:
        for values in (layer.norm.running_mean, layer.norm.weight, layer.norm.bias):
            values.normal_(0.5, 0.5)
        layer.norm.running_var.uniform_(0.5, 2)
    return net


@pytest.mark.slow
@given(
    st.lists(st.one_of(st.just(1), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(1, 5),
    st.sampled_from([build, with_norms]),
    st.booleans(),
)
@settings(max_examples=24, deadline=None)
def test_any_chunks_give_the_same_as_the_clip(chunks, pool, made, gradients):
    net, x = made(pool=pool).double(), sound(sum(chunks), 2).double()
    state = net.init_state(2)
    with torch.set_grad_enabled(gradients):  # single hops are laid out in memory without
        tokens = torch.cat([net.forward_steps(part, state) for part in x.split(chunks, 1)], 1)
    torch.testing.assert_close(tokens, net(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["torch", "numpy"])
@torch.inference_mode()
def test_steps_in_float32_over_a_minute(form, monkeypatch):
    monkeypatch.setattr(products, "prefers_numpy", lambda *_: form == "numpy")
    net, x = build(), sound(240)
    state = net.init_state()
    tokens = torch.stack([net.forward_step(x[:, k], state) for k in range(240)], 1)
    exact = net.double()(x.double())
    assert (tokens - exact).abs().max() < 1e-5 * exact.abs().max()


def test_the_last_token_needs_no_more_than_the_receptive_field():
    net, x = build().double(), sound(12).double()
    field = round(net.receptive_field_s * 16_000)
    other = x.flatten(1).clone()
    other[:, : other.shape[1] - field] = torch.randn(other.shape[1] - field, dtype=torch.float64)
    torch.testing.assert_close(net(other)[:, -1], net(x)[:, -1], rtol=1e-10, atol=1e-10)
    other[:, other.shape[1] - field + 20] += 1.0
    assert (net(other)[:, -1] - net(x)[:, -1]).abs().max() > 1e-12


def hops(net, x, state) -> torch.Tensor:
    return torch.stack([net.forward_step(hop, state) for hop in x.unbind(1)], 1)


@pytest.mark.parametrize("take", [ContinualAudioNet.forward_steps, hops])
@torch.inference_mode()
def test_streams_that_join_late_or_start_again(take):
    net, x = build().double(), sound(10, 2).double()
    state = net.init_state(2)
    take(net, x[:, :4], state)
    state.reset([1])
    later = take(net, x[:, 4:], state)
    torch.testing.assert_close(later[:1], net(x)[:1, 4:], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(later[1:], net(x[1:, 4:]), rtol=1e-10, atol=1e-10)
    alone, other = net.init_state(1), net.init_state(1)
    take(net, x[:1, :4], alone)
    both = type(alone).cat([alone, other])
    torch.testing.assert_close(take(net, x[:, 4:], both), later, rtol=1e-10, atol=1e-10)


@torch.inference_mode()
def test_streams_that_are_taken_out_or_put_back_keep_their_past():
    net, x = build().double(), sound(10, 2).double()
    state, spare = net.init_state(2), net.init_state(2)
    hops(net, x[:, :4], state)
    alone = state.take([1])
    first = hops(net, x[1:, 4:6], alone)
    hops(net, x[:, :1], spare)
    spare.put([0], alone)
    torch.testing.assert_close(first, net(x)[1:, 4:6], rtol=1e-10, atol=1e-10)
    again = hops(net, torch.cat([x[1:, 6:], x[1:, 1:5]]), spare)
    expected = torch.cat([net(x)[1:, 6:], net(x)[1:, 1:5]])
    torch.testing.assert_close(again, expected, rtol=1e-10, atol=1e-10)


def test_a_stream_continues_in_another_mode():
    net, x = build().double(), sound(8).double()
    state = net.init_state()
    with torch.inference_mode():
        hops(net, x[:, :4], state)
    with torch.no_grad():
        later = hops(net, x[:, 4:], state)
    torch.testing.assert_close(later, net(x)[:, 4:], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_other_weights_are_seen_at_once():
    net, x = build().double(), sound(12).double()
    state, own = net.init_state(), net.init_state()
    hops(net, x[:, :4], state)
    net.layers[2].convolution.weight.mul_(0.5)
    other = build().double()
    other.load_state_dict(net.state_dict())
    own.load_tensors({k: v.clone() for k, v in state.tensors().items()})
    assert torch.equal(hops(net, x[:, 4:], state), hops(other, x[:, 4:], own))


def test_folding_the_norms_changes_nothing():
    net = with_norms()
    folded = without_norms(net)
    assert not [k for k in folded.state_dict() if "norm" in k]
    x = sound(6).double()
    torch.testing.assert_close(folded.double()(x), net.double()(x), rtol=1e-5, atol=1e-5)


def test_a_clip_recomputed_at_every_hop_costs_four_times_as_much():
    net = build()
    assert 3.9 < net.dense_macs / net.count_macs() < 4
