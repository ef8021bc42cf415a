"""Agreement of a converted network with itself, by clip and by steps, and with its original."""

from __future__ import annotations

import torch
from torch import Tensor

from costream.nn.network import PartGraph
from costream.nn.tracing import random_like

TOLERANCE = 1e-6  # relative, in double precision
_FRAMES = 48  # of a clip for the check, at most, unless the delay is longer


def steps_against_clip(net: PartGraph, example: Tensor) -> float:
    """Return the largest relative difference between a random clip's outputs at once and by steps.

    ``example``: a clip [1, ..., T, ...] that the network takes.
    """
    length = max(net.delay + net.stride + 2, min(example.shape[net.axis], _FRAMES))
    clip = torch.cat([example] * (-(-length // example.shape[net.axis])), net.axis)
    clip = random_like(clip.narrow(net.axis, 0, length))
    whole, state = net(clip), net.init_state(1, clip.select(net.axis, 0))
    half = length // 2
    steps = [net.forward_step(x, state) for x in clip.unbind(net.axis)[:half]]
    done = [x.unsqueeze(net.out_axis) for x in steps if x is not None]
    rest = net.forward_steps(clip.narrow(net.axis, half, length - half), state)
    return difference(*common(torch.cat([*done, rest], net.out_axis), whole, net.out_axis))


def common(a: Tensor, b: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the frames that two outputs share, from the first on."""
    if a.shape == b.shape:
        return a, b
    count = min(a.shape[axis], b.shape[axis])
    return a.narrow(axis, 0, count), b.narrow(axis, 0, count)


def difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest number of ``b``."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) if a.numel() else 0.0
