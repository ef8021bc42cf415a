"""Skeleton network built from modules of the PyPI package continual-inference, for comparison."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.bench.timing import Contender
from costream.models.skeleton.blocks import SkeletonBlock, TemporalUnit
from costream.models.skeleton.network import SkeletonNet
from costream.nn.graph import GraphConvolution


class ChannelsFirstGraph(nn.Module):
    """A graph convolution as the published networks compute it, on [N, C, T, V]."""

    def __init__(self, unit: GraphConvolution) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, T, V]."""
        unit, graph = self.unit, self.unit.graph()
        parts = [conv(torch.matmul(x, graph[k])) for k, conv in enumerate(unit.g_conv)]
        y = unit.bn(sum(parts))
        return torch.relu(y + (unit.gcn_residual(x) if unit.convolves_residual else x))


def skeleton_peer(net: SkeletonNet, name: str, macs: int) -> Contender | None:
    """Return the package's step for one stream with the weights of ``net``.

    None when the package is not installed, and for networks other than ST-GCN without padding.
    """
    if any(type(block.gcn) is not GraphConvolution for block in net.blocks):
        return None
    try:
        import continual
    except ImportError:
        return None
    net = copy.deepcopy(net)  # the package modifies modules passed to it
    blocks = continual.Sequential(*(_block(continual, block) for block in net.blocks)).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)
    shape = (net.persons, net.joints, net.channels)

    def step(x: Tensor) -> Tensor:
        frame = net.data_bn(x.flatten(1)).view(shape).transpose(1, 2).contiguous()
        y = blocks.forward_step(frame)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((0, 2))[None])
        return cast(Tensor, net.fc(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: state_bytes([blocks, mean]))


def _block(continual: Any, block: SkeletonBlock) -> Any:
    unit = cast(TemporalUnit, block.tcn)
    conv = continual.Conv2d(block.out_width, block.out_width, (block.kernel, 1))
    conv.weight, conv.bias = unit.t_conv.weight, unit.t_conv.bias
    graph = ChannelsFirstGraph(cast(GraphConvolution, block.gcn))
    stepping = continual.forward_stepping
    path = continual.Sequential(stepping(graph), conv, stepping(unit.bn))
    if block.residual is not None:
        beside = stepping(nn.Sequential(block.residual.t_conv, block.residual.bn))
        delay = continual.Delay(block.residual_delay, temporal_fill="zeros")
        residual = continual.Sequential(beside, delay)
        path = continual.BroadcastReduce(residual, path, reduce="sum", auto_delay=False)
    elif block.has_residual:
        path = continual.Residual(path, residual_shrink=True)
    return continual.Sequential(path, nn.ReLU())


def state_bytes(modules: list[nn.Module]) -> int:
    """Return the size in bytes of the stream state in the package's own modules."""
    own = [
        m
        for whole in modules
        for m in whole.modules()
        if type(m).__module__.startswith("continual.")
    ]
    buffers = [buffer for module in own for buffer in module.buffers(recurse=False)]
    return sum(b.numel() * b.element_size() for b in buffers)
