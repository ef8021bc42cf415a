"""Steps of converted networks: layers that are computed together give what each of them would."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import costream.nn as co
from costream.bench.timing import fit_norms
from costream.nn.fast import use_kernels
from costream.nn.merged_layers import SqueezeGate
from costream.nn.video3d.encoder import VideoEncoder
from kit import plain_nets as plain


def _depthwise() -> nn.Module:
    """Return blocks of X3D wide enough for compiled loops, the stem in each channel over time."""
    stem = nn.Sequential(
        nn.Conv3d(3, 16, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
        nn.Conv3d(16, 16, (5, 1, 1), padding=(2, 0, 0), groups=16, bias=False),
        nn.BatchNorm3d(16),
        nn.ReLU(),
    )
    return nn.Sequential(stem, plain.X3dBlock(16, 20, True), plain.X3dBlock(20, 24, False))


class _Gated(nn.Module):
    """X3D with squeeze-excitation of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.net = VideoEncoder("x3d", 36, (16, 20), (2, 1), 16, head=(24, 8), pool=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net._features(x.transpose(1, 2), "zeros").mean((3, 4), keepdim=True)


MEAN = ("running mean",)
NETWORKS = {
    "channels last": (_depthwise, (1, 3, 20, 36, 36)),
    "gates": (_Gated, (1, 3, 20, 36, 36)),
    "channels first": (lambda: plain.VideoResNet("r2plus1d", 4, 5), (1, 3, 16, 8, 8)),
    "sound": (lambda: plain.MelEfficientNet(), (1, 1, 16, 24)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_equal_the_layers_one_by_one(name):
    make, shape = NETWORKS[name]
    axis = 3 if name == "sound" else 2
    net = make().eval()
    if name == "gates":
        fit_norms(net.net, torch.randn(2, *shape[1:]).transpose(1, 2))
    else:
        fit_norms(net, torch.randn(2, *shape[1:]))
    step = co.convert(net, torch.randn(shape), axis, approximate=MEAN)
    assert (name == "gates") == any(isinstance(n.part, SqueezeGate) for n in step._nodes)
    length = step.delay + 2 * step.stride + 2
    clip = torch.randn(2, *[length if k == axis else n for k, n in enumerate(shape)][1:])
    with torch.no_grad():
        together = step.forward_steps(clip, step.init_state(2))
        with use_kernels(False):
            state = step.init_state(2)
            alone = step.forward_steps(clip.narrow(axis, 0, length - 2), state)
        rest = step.forward_steps(clip.narrow(axis, length - 2, 2), state)  # the same state
    both = torch.cat([alone, rest], step.out_axis)
    assert together.numel()
    torch.testing.assert_close(together, both, rtol=1e-4, atol=1e-5)


def test_trained_weights_are_used():
    net = _depthwise().eval()
    step = co.convert(net, torch.randn(1, 3, 20, 36, 36), approximate=MEAN)
    frame, state = torch.randn(1, 3, 36, 36), step.init_state()
    with torch.no_grad():
        for _ in range(step.delay + 1):
            before = step.forward_step(frame, state)
        net[2].c[1].bias += 1.0
        after = step.forward_step(frame, state)
        other = step.double().forward_step(frame.double(), step.init_state(1, frame.double()))
    assert other is None
    assert (after - before).mean() > 0.2


def test_gradients_reach_weights_and_norms_learn_in_training():
    net = _depthwise()
    step = co.convert(net, torch.randn(1, 3, 20, 36, 36), approximate=MEAN)
    frame, state = torch.randn(2, 3, 36, 36), step.init_state(2)
    with torch.enable_grad():
        for _ in range(step.delay + 1):
            out = step.forward_step(frame, state)
        out.square().sum().backward()
    newest = [*net[2].a.parameters(), *net[2].c.parameters()]  # a state keeps no gradients
    assert all(p.grad is not None and p.grad.isfinite().all() for p in newest)
    mean = copy.deepcopy(net[0][2].running_mean)
    with torch.no_grad():
        step.train().forward_step(frame, state)
    assert not torch.equal(mean, net[0][2].running_mean)


def test_operations_are_those_of_the_layers():
    net = _depthwise().eval()
    step = co.convert(net, torch.randn(1, 3, 20, 36, 36), approximate=MEAN)
    by_hand = 18**2 * (3 * 16 * 9 + 16 * 5) + 18**2 * 16 * 32 + 9**2 * (32 * 27 + 32 * 20)
    by_hand += 9**2 * 16 * 20 + 2 * 32 * 16 + 9**2 * 20 * 40
    by_hand += 5**2 * (40 * 27 + 40 * 24 + 20 * 24)
    assert step.count_macs(torch.zeros(1, 3, 36, 36)) == by_hand
