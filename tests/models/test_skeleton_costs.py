"""Counted multiply-accumulates against the products that torch computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from costream.models.skeleton.network import SkeletonNet
from costream.nn.graph import FoldedGraphConvolution
from kit.skeleton_nets import FORMS, assert_same, outputs, small_net

aten = torch.ops.aten


class Products(TorchDispatchMode):
    """Counts the multiply-accumulates of all matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in (aten.mm, aten.bmm):
            self.macs += out.numel() * args[0].shape[-1]
        elif packet in (aten.addmm, aten.addmm_):
            self.macs += out.numel() * args[1].shape[-1]
        elif packet is aten.convolution:
            self.macs += out.numel() * args[1][0].numel()
        return out


def copied(net: SkeletonNet, persons: int) -> float:
    """Return the products of a step with the identity, by which a residual takes its joints."""
    total, jump = 0.0, 1
    for block in net.blocks:
        beside = getattr(block.gcn, "convolves_residual", False)
        if beside and type(block.gcn.fold()) is FoldedGraphConvolution:
            total += persons * net.joints**2 * block.in_width / jump
        jump *= block.stride
    return total


@pytest.mark.parametrize("form", FORMS)
def test_steps_cost_what_is_counted(form: str) -> None:
    net = small_net(form)
    state, x = net.init_state(1), torch.randn(1, 100, 2, 5, 2, dtype=torch.float64)
    net.forward_steps(x[:, :80], state)
    with Products() as seen:
        given = [net.forward_step(frame, state) for frame in x[:, 80:92].unbind(1)]
    assert sum(out is not None for out in given) == 12 // net.stride
    assert seen.macs - 12 * copied(net, 2) == pytest.approx(12 * net.count_macs(), abs=6)
    x[:, 20:, 1] = 0
    state = net.init_state(1)
    net.forward_steps(x[:, :79], state)
    net.forward_step(x[:, 79], state)
    assert state.asleep.tolist() == [[0, 1]]
    with Products() as seen:
        [net.forward_step(frame, state) for frame in x[:, 80:92].unbind(1)]
    assert seen.macs - 12 * copied(net, 1) == pytest.approx(12 * net.count_macs(1), abs=6)


def test_without_padding_the_absent_cost_nothing_from_the_first_step() -> None:
    net = small_net("stgcn-none")
    x = torch.randn(1, 40, 2, 5, 2, dtype=torch.float64)
    costs = []
    for absent in ([], [1], [0, 1]):
        x[:, :, absent] = 0
        state = net.init_state(1)
        with Products() as seen:
            given = [net.forward_step(frame, state) for frame in x.unbind(1)]
        assert_same({t: y.logits for t, y in enumerate(given) if y is not None}, outputs(net, x))
        costs.append(seen.macs)
    heads = (40 - net.delay) * net.fc.weight.numel()
    assert costs[0] - heads == 2 * (costs[1] - heads)
    assert costs[2] == heads


@pytest.mark.parametrize("form", FORMS)
def test_clips_cost_what_is_counted(form: str) -> None:
    net = small_net(form)
    x = torch.randn(1, 40, 2, 5, 2, dtype=torch.float64)
    with torch.no_grad(), Products() as seen:
        logits = net(x)
    heads = [layer.weight.numel() for layer in (net.fc, net.reading) if layer is not None]
    more = (logits.numel() // 3 - 1) * sum(heads)  # causal: one a feature
    if FORMS[form].get("conv_first"):  # biases are mixed, once
        more += sum(3 * 5 * block.out_width for block in net.blocks)
    assert seen.macs == net.count_clip_macs(40) + more
    assert net.dense_macs == round(net.count_clip_macs(net.clip_length) / net.stride)
