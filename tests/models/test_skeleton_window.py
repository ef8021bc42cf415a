"""Skeleton networks over a sliding window."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from costream.models.skeleton.window import WindowSkeletonNet
from kit.skeleton_nets import BONES, SIZES, randomise

pytestmark = pytest.mark.usefixtures("no_grad")


def build(**options: object) -> WindowSkeletonNet:
    net = WindowSkeletonNet(3, 5, BONES, 0, 2, **{**SIZES, "window": 30, **options})
    randomise(net)
    return net.double().eval()


def stream(length: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, length, 2, 5, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "agcn", "attention": "clip", "hop": 3},
        {"padding": "none", "strides": (1,) * 4},
        {"padding": "causal"},
    ],
)
def test_the_clip_network_over_the_last_frames(options: dict[str, object]) -> None:
    net, x = build(**options), stream(70, batch=2)
    state, first = net.init_state(2), 16 if options.get("padding") == "none" else 0
    assert net.delay == first
    for t, frame in enumerate(x.unbind(1)):
        assert net.warmup(state) == (t < 30, t < 30)
        out = net.forward_step(frame, state)
        due = t >= first and (t - first) % net.stride == 0
        assert (out is not None) == due
        if out is not None:
            expected = net(x[:, max(0, t - 29) : t + 1])
            expected = expected[:, -1] if "causal" in options.values() else expected
            torch.testing.assert_close(out.logits, expected)
    state = net.init_state(2)
    chunks = torch.cat([net.forward_steps(p, state).logits for p in x.split(8, 1)], 1)
    torch.testing.assert_close(chunks[:, -1], out.logits if out else net(x[:, 69 - 29 :]))


def test_a_stream_that_begins_later_has_fewer_frames() -> None:
    net, x = build(padding="none", strides=(1,) * 4), stream(60, batch=2)
    state = net.init_state(2)
    for t in range(60):
        if t == 35:
            state.reset([1])
        out = net.forward_step(x[:, t], state)
        if t == 40:
            assert net.warmup(state) == (False, True)
            assert out.logits[1].tolist() == [0, 0, 0]
    torch.testing.assert_close(out.logits[0], net(x[:1, 30:])[0])
    torch.testing.assert_close(out.logits[1], net(x[1:, 35:])[0])


def test_macs_are_those_of_the_clip() -> None:
    net = build(hop=5)
    assert net.count_macs() == net.dense_macs == net.count_macs(1)
    assert net.dense_macs == round(net.count_clip_macs(30) / 5)


@pytest.mark.parametrize("options", [{"padding": "none", "window": 12}, {"hop": 0}])
def test_windows_that_are_too_short(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="at least"):
        build(**options)
