"""3D network built from modules of the PyPI package continual-inference, for comparison."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.bench.skeleton_peer import state_bytes
from costream.bench.timing import Contender
from costream.nn.video3d.blocks import Bottleneck3d, SqueezeExcitation
from costream.nn.video3d.encoder import VideoEncoder


class FrameGate(nn.Module):
    """Squeeze-and-excitation of each frame, on [N, C, T, H, W]."""

    def __init__(self, unit: SqueezeExcitation) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return cast(Tensor, self.unit(x, "zeros"))


def video_peer(net: VideoEncoder, name: str, macs: int) -> Contender | None:
    """Return the package's step for one stream with the weights of ``net``.

    None when the package is not installed, and for networks other than X3D with ``start`` "zeros".
    """
    if net.kind != "x3d" or net.start != "zeros":
        return None
    try:
        import continual
    except ImportError:
        return None
    net = copy.deepcopy(net)  # the package modifies modules passed to it
    stepping = continual.forward_stepping
    stem, last = net.stem, cast(nn.Conv3d, net.conv)
    layers = continual.Sequential(
        stepping(stem.conv_xy),
        _over_time(continual, stem.conv),
        stepping(nn.Sequential(stem.bn, nn.ReLU())),
        *(_block(continual, block) for block in net.blocks),
        stepping(nn.Sequential(last, net.conv_bn, nn.ReLU())),
    ).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)

    def step(x: Tensor) -> Tensor:
        y = layers.forward_step(x)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((2, 3)))
        return torch.relu(net.linear(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: state_bytes([layers, mean]))


def _block(continual: Any, block: Bottleneck3d) -> Any:
    stepping = continual.forward_stepping
    gate = [] if block.squeeze is None else [FrameGate(block.squeeze)]
    path = continual.Sequential(
        stepping(nn.Sequential(block.a, block.a_bn, nn.ReLU())),
        _over_time(continual, block.b),
        stepping(nn.Sequential(block.b_bn, *gate, nn.SiLU(), block.c, block.c_bn)),
    )
    if block.shortcut is None:
        both = continual.Residual(path)
    else:
        beside = stepping(nn.Sequential(block.shortcut, block.shortcut_bn))
        delay = continual.Delay(block.kernel // 2, temporal_fill="zeros")
        residual = continual.Sequential(delay, beside)
        both = continual.BroadcastReduce(residual, path, reduce="sum", auto_delay=False)
    return continual.Sequential(both, nn.ReLU())


def _over_time(continual: Any, conv: nn.Conv3d) -> Any:
    own = continual.Conv3d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        stride=conv.stride,
        padding=(conv.kernel_size[0] // 2, *conv.padding[1:]),
        groups=conv.groups,
        bias=False,
    )
    own.weight = conv.weight
    return own
