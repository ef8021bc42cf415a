"""Ensembles of skeleton networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from costream.models.skeleton.ensemble import SkeletonEnsemble
from kit.skeleton_nets import BONES, SIZES, randomise

pytestmark = pytest.mark.usefixtures("no_grad")


def member(**options: object) -> dict[str, object]:
    sizes = {"num_classes": 3, "joints": 5, "bones": BONES, "channels": 2, "padding": "causal"}
    return {**sizes, **SIZES, **options}


def build(fusion: str = "softmax", weights: list[float] | None = None) -> SkeletonEnsemble:
    members = [member(), member(kind="agcn")]
    net = SkeletonEnsemble(members, [[0, 1], [3, 2]], weights, fusion)
    randomise(net)
    return net.double().eval()


def stream(length: int) -> Tensor:
    return torch.randn(2, length, 2, 5, 4, dtype=torch.float64)


def by_hand(net: SkeletonEnsemble, x: Tensor, weights: tuple[float, float]) -> Tensor:
    one, two = net.networks[0](x[..., :2]), net.networks[1](x[..., [3, 2]])
    if net.fusion == "logits":
        return weights[0] * one + weights[1] * two
    total = weights[0] * one.softmax(-1) + weights[1] * two.softmax(-1)
    return total / sum(weights)


@pytest.mark.parametrize("fusion", ["softmax", "logits"])
@pytest.mark.parametrize("weights", [None, [2.0, 1.0]])
def test_clips_steps_and_chunks_add_up(fusion: str, weights: list[float] | None) -> None:
    net, x = build(fusion, weights), stream(24)
    expected = by_hand(net, x, tuple(weights) if weights else (1.0, 1.0))
    given = net(x)
    torch.testing.assert_close(given.softmax(-1) if fusion == "softmax" else given, expected)
    state = net.init_state(2)
    steps = [net.forward_step(frame, state) for frame in x.unbind(1)]
    assert [t for t, out in enumerate(steps) if out is not None] == [*range(0, 24, net.stride)]
    stepped = torch.stack([out.logits for out in steps if out is not None], 1)
    torch.testing.assert_close(stepped, given)
    state = net.init_state(2)
    chunks = torch.cat([net.forward_steps(p, state).logits for p in x.split(5, 1)], 1)
    torch.testing.assert_close(chunks, given)
    assert net.warmup(state) == (net.window > 24,) * 2


def test_streams_of_an_ensemble_begin_again() -> None:
    net, x = build(), stream(40)
    state = net.init_state(2)
    net.forward_steps(x[:, :20], state)
    state.reset([1])
    given = net.forward_steps(x[:, 20:], state).logits
    torch.testing.assert_close(given[1], net(x[1:, 20:])[0])
    torch.testing.assert_close(given[0], net(x[:1])[0, 5:])


def test_costs_add_up() -> None:
    net = build()
    assert net.count_macs() == sum(m.count_macs() for m in net.networks)
    assert net.count_macs(1) < net.count_macs()
    assert net.dense_macs == sum(m.dense_macs for m in net.networks)


@pytest.mark.parametrize(
    ("members", "channels", "options", "message"),
    [
        ([], [], {}, "0 members"),
        ([member()], [[0, 1], [2, 3]], {}, "1 members, 2 channels, 1 weights"),
        ([member()], [[0, 1]], {"weights": [1, 2]}, "1 channels, 2 weights"),
        ([member()], [[0, 1]], {"fusion": "max"}, "fusion 'max' is not one of softmax, logits"),
        ([member()], [[0, 1, 2]], {}, r"channels \[0, 1, 2\] for a member that takes 2"),
        ([member(), member(pool=3)], [[0, 1], [2, 3]], {}, "differ in timing"),
    ],
)
def test_members_that_do_not_go_together(
    members: list[dict[str, object]],
    channels: list[list[int]],
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        SkeletonEnsemble(members, channels, **options)
