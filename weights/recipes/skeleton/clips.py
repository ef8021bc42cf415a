"""The clip form of a causal CoST-GCN as matrix products over time-major rows, for training.

Convolutions over time in one thread run at a third of the speed of the products that they consist
of. Here rows are [T, N V, C], so that every tap of a kernel is one product of a contiguous slice.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.skeleton.blocks import SkeletonBlock, TemporalUnit
from costream.models.skeleton.network import SkeletonNet
from costream.nn.graph import GraphConvolution


def clip_logits(network: SkeletonNet, tokens: Tensor) -> Tensor:
    """Return what ``network(tokens)`` does, [B, T', K], for clips [B, T, M, V, C].

    Gradients and batch statistics are the same too. T is a multiple of the network's stride.
    """
    count, steps, persons, joints, channels = tokens.shape
    rows = network.data_bn(tokens.flatten(2).flatten(0, 1)).view(tokens.shape)
    x = rows.permute(1, 0, 2, 3, 4).reshape(steps, count * persons, joints, channels)
    for block in network.blocks:
        x = _block(block, x)
    pooled = x.view(len(x), count, -1, x.shape[3]).mean(2).transpose(0, 1)
    logits = cast(Tensor, network.fc(network.mean(pooled)))
    return logits if network.reading is None else logits + network.reading(network.describe(tokens))


def _block(block: SkeletonBlock, x: Tensor) -> Tensor:
    """Return [T', N, V, O] for rows [T, N, V, C]."""
    unit = cast(TemporalUnit, block.tcn)
    inner = _graph(cast(GraphConvolution, block.gcn), x)
    weight = unit.t_conv.weight[..., 0].permute(2, 1, 0).to(inner.dtype)  # [taps, C, O]
    y = _Taps.apply(inner.flatten(1, 2), weight, unit.stride)  # type: ignore[no-untyped-call]
    y = _norm(unit.bn, y + unit.t_conv.bias).view(-1, *inner.shape[1:3], block.out_width)
    if not block.has_residual:
        return F.relu(y)
    if block.residual is None:
        return F.relu(y + x)
    conv = block.residual.t_conv
    residual = F.linear(x[:: unit.stride], conv.weight.flatten(1), conv.bias)
    return F.relu(y + _norm(block.residual.bn, residual))


def _graph(unit: GraphConvolution, x: Tensor) -> Tensor:
    mixed = (unit.graph().permute(2, 0, 1).flatten(0, 1) @ x).view(*x.shape[:2], x.shape[2], -1)
    y = _norm(unit.bn, F.linear(mixed, unit._weight(), unit._bias(unit.graph())))
    if unit.convolves_residual:
        conv, norm = unit._beside
        y = y + _norm(norm, F.linear(x, conv.weight.flatten(1), conv.bias))
    elif unit.residual:
        y = y + x
    return F.relu(y)


def _norm(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return the batch norm of the last dimension, whose statistics are updated in training."""
    norm.num_batches_tracked.add_(int(norm.training))  # type: ignore[union-attr]
    rows = F.batch_norm(
        x.flatten(0, -2),
        norm.running_mean,
        norm.running_var,
        norm.weight,
        norm.bias,
        norm.training,
        norm.momentum or 0.0,
        norm.eps,
    )
    return rows.view(x.shape)


class _Taps(torch.autograd.Function):
    """Causal convolution [T', R, O] of time-major rows [T, R, C] with taps [K, C, O], newest last.

    With a stride s, output t belongs to frame s t.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, stride: int) -> Tensor:
        """Return the sum of the products of all taps."""
        ctx.stride, ctx.shape = stride, x.shape
        phases = [part.contiguous() for part in _padded(x, len(taps), stride)]
        ctx.save_for_backward(taps, *phases)
        frames = -(-len(x) // stride)
        out = x.new_zeros(frames * x.shape[1], taps.shape[2])
        for k, tap in enumerate(taps):
            out.addmm_(_slice(phases, k, stride, frames), tap)
        return out.view(frames, x.shape[1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of rows and taps."""
        taps, *phases = ctx.saved_tensors
        frames, stride = len(gradient), ctx.stride
        rows = gradient.reshape(-1, gradient.shape[2])
        own = [torch.zeros_like(part) for part in phases]
        out = torch.empty_like(taps, memory_format=torch.contiguous_format)
        turned = taps.transpose(1, 2).contiguous()
        for k in range(len(taps)):
            torch.mm(_slice(phases, k, stride, frames).T, rows, out=out[k])
            _slice(own, k, stride, frames).addmm_(rows, turned[k])
        joined = torch.stack(own, 1).flatten(0, 1) if stride > 1 else own[0]
        return joined[len(taps) - 1 :][: ctx.shape[0]], out, None


def _padded(x: Tensor, taps: int, stride: int) -> list[Tensor]:
    """Return the frames of each phase of the stride, after the zeros before frame 0."""
    early = taps - 1
    total = -(-(early + len(x)) // stride) * stride
    rows = F.pad(x, (0, 0, 0, 0, early, total - early - len(x)))
    return [rows[phase::stride] for phase in range(stride)]


def _slice(phases: list[Tensor], tap: int, stride: int, frames: int) -> Tensor:
    begin = tap // stride
    return phases[tap % stride][begin : begin + frames].flatten(0, 1)
