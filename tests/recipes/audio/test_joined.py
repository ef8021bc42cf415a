"""Two temporal models of sound as one, and what the second learns from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.models.oad.cooadtr import CoTrans
from weights.recipes.audio.data import SoundClip
from weights.recipes.audio.joined import Standard, merged
from weights.recipes.audio.pieces import cut_short
from weights.recipes.audio.temporal import STREAM_STEPS, _told


def head(width: int, seed: int) -> CoTrans:
    torch.manual_seed(seed)
    sizes = {"embed_dim": 64, "num_heads": 4, "feedforward": 48, "window": 20, "num_positions": 40}
    net = CoTrans(7, width, skip=True, **sizes).eval().requires_grad_(False)
    for value in net.parameters():
        value.add_(0.1 * torch.randn_like(value))
    return net


def tokens(width: int) -> torch.Tensor:
    return torch.randn(8, 30, width, generator=torch.Generator().manual_seed(width))


@torch.no_grad()
def test_a_network_merged_with_itself_says_the_same() -> None:
    net, x = head(12, 0).double(), tokens(12).double()
    both = merged([net, net], [0.3, 0.7], [x, x]).double()
    expected, found = net(x, 5).logits, both(torch.cat([x, x], -1), 5).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_two_networks_as_one_say_nearly_their_weighted_sum() -> None:
    first, second, x, y = head(12, 0), head(20, 1), tokens(12), tokens(20)
    expected = 0.5 * first(x).logits + 0.25 * second(y).logits
    found = merged([first, second], [0.5, 0.25], [x, y])(torch.cat([x, y], -1)).logits
    off = (found - expected).square().mean().sqrt() / expected.std()
    assert off < 0.2  # of rows of 64 random values
    swapped = merged([second, first], [0.25, 0.5], [y, x])(torch.cat([y, x], -1)).logits
    torch.testing.assert_close(swapped, found, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_model_of_standard_tokens_becomes_one_of_tokens_as_they_are() -> None:
    net, raw = head(12, 2).double(), (3 + 5 * tokens(12)).double()
    standard = Standard(list(raw))
    given = standard(raw)
    assert given.mean().abs() < 1e-6
    assert given.std() == pytest.approx(1, abs=0.01)
    expected = net(given).logits
    torch.testing.assert_close(standard.unfold(net)(raw).logits, expected)


def test_recordings_are_cut_where_they_are_loud() -> None:
    samples = np.zeros(64_000, np.int16)
    samples[40_000:44_000] = 2000
    clip, lengths = SoundClip(samples, "cat", "set", "cat", "train", False), set()
    for seed in range(20):
        short = cut_short(clip, np.random.default_rng(seed))
        assert (short.label, short.group) == ("cat", "cat")
        assert np.square(short.samples, dtype=np.float64).sum() > 0
        lengths.add(len(short.samples))
    assert lengths <= {4000, 8000, 12_000, 16_000}
    assert len(lengths) > 1


def test_a_sound_after_quiet_is_told_at_once_and_others_later() -> None:
    told = _told([3, 4, 5, STREAM_STEPS], [False, True, False, False])
    assert told.tolist()[:16] == [0] * 5 + [1] * 2 + [2] * 7 + [3] * 2
    assert len(told) == STREAM_STEPS
