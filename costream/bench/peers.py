"""Networks built from modules of the PyPI package continual-inference, for comparison."""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.bench.counts import OadSizes, continual_encoder_macs
from costream.bench.timing import (
    Contender,
    peer_name,
    peer_state_size,
    state_size,
)
from costream.models.skeleton.blocks import SkeletonBlock, TemporalUnit
from costream.models.skeleton.network import SkeletonNet
from costream.nn.encoder import Encoder
from costream.nn.graph import GraphConvolution
from costream.nn.video3d.bottleneck import Bottleneck3d, SqueezeExcitation
from costream.nn.video3d.encoder import VideoEncoder

_PARTS = ("self_attn", "linear1", "linear2", "norm1", "norm2")


def encoder_peer(encoder: Encoder, x: Tensor) -> Contender | None:
    """Return the package's encoder with our weights; None if not installed or not supported."""
    try:
        import continual
    except ImportError:
        return None
    config = encoder.config
    if config.depth > 2:
        return None  # the package only supports one and two blocks
    activation = nn.GELU() if config.activation == "gelu" else nn.ReLU()
    factory = continual.TransformerEncoderLayerFactory(
        config.embed_dim,
        config.num_heads,
        config.feedforward,
        0.0,
        activation,
        sequence_len=config.window,
    )
    model = continual.TransformerEncoder(factory, num_layers=config.depth).to(x).eval()
    own = encoder.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it calls a deprecated function of torch
        model.load_state_dict({key: own[_encoder_name(key)] for key in model.state_dict()})

    def step(x: Tensor) -> Tensor:
        out = model.forward_step(x)
        return out if isinstance(out, Tensor) else x  # no output until its window is full

    sizes = OadSizes(config.embed_dim, config.feedforward, config.window)
    macs = continual_encoder_macs(config.depth, sizes)
    return Contender(peer_name(), step, macs, lambda: state_size(model.buffers()))


def _encoder_name(key: str) -> str:
    """Translate ``layers.0.1.fn._ff_block.fn.linear1.bias`` to ``layers.0.linear1.bias``."""
    parts = key.split(".")
    start = next(k for k, part in enumerate(parts) if part in _PARTS)
    return ".".join([*parts[:2], *(part for part in parts[start:] if part != "fn")])


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
    blocks = continual.Sequential(
        *(_skeleton_block(continual, block) for block in net.blocks)
    ).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)
    shape = (net.persons, net.joints, net.channels)

    def step(x: Tensor) -> Tensor:
        frame = net.data_bn(x.flatten(1)).view(shape).transpose(1, 2).contiguous()
        y = blocks.forward_step(frame)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((0, 2))[None])
        return cast(Tensor, net.fc(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: peer_state_size([blocks, mean]))


def _skeleton_block(continual: Any, block: SkeletonBlock) -> Any:
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
        *(_video_block(continual, block) for block in net.blocks),
        stepping(nn.Sequential(last, net.conv_bn, nn.ReLU())),
    ).eval()
    mean = continual.AvgPool1d(net.pool, stride=1)

    def step(x: Tensor) -> Tensor:
        y = layers.forward_step(x)
        if isinstance(y, Tensor):
            y = mean.forward_step(y.mean((2, 3)))
        return torch.relu(net.linear(y)) if isinstance(y, Tensor) else x  # no output until full

    return Contender(name, step, macs, lambda: peer_state_size([layers, mean]))


def _video_block(continual: Any, block: Bottleneck3d) -> Any:
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
