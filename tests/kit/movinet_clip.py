"""MoViNet over whole clips with the names of MoViNet-pytorch, layer by layer as published."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# One block a stage, with and without a kernel in time.
SMALL: dict[str, Any] = {
    "size": 44,
    "stem": 4,
    "outputs": [4, 6, 6, 6, 8],
    "blocks": [[[8, 1, 5]], [[8, 3, 3], [12, 3, 3]], [[8, 5, 3]], [[8, 1, 5]], [[12, 5, 3]]],
    "head": 10,
}
CROP = {"frontend.size": 44, "frontend.short_side": 44}


def checkpoint(sizes: dict[str, Any], classes: int, hidden: int = 12) -> dict[str, Tensor]:
    """Return random tensors of the port for these sizes."""
    tensors: dict[str, Tensor] = {}

    def conv(name: str, out: int, inside: int, *kernel: int, norm: bool = True) -> None:
        scale = 1.5 / math.sqrt(inside * math.prod(kernel))
        tensors[f"{name}.conv2d.weight"] = torch.randn(out, inside, *kernel) * scale
        if not norm:
            tensors[f"{name}.conv2d.bias"] = torch.randn(out) / 4
            return
        tensors[f"{name}.norm.weight"] = 1 + torch.randn(out) / 8
        tensors[f"{name}.norm.bias"] = torch.randn(out) / 4
        tensors[f"{name}.norm.running_mean"] = torch.randn(out) / 4
        tensors[f"{name}.norm.running_var"] = 1 + torch.rand(out)
        tensors[f"{name}.norm.num_batches_tracked"] = torch.tensor(7)

    conv("conv1.conv_1", sizes["stem"], 3, 3, 3)
    width = sizes["stem"]
    for stage, (out, blocks) in enumerate(zip(sizes["outputs"], sizes["blocks"], strict=True)):
        for k, (expanded, over_time, over_space) in enumerate(blocks):
            name = f"blocks.b{stage}_l{k}"
            conv(f"{name}.expand.conv_1", expanded, width, 1, 1)
            conv(f"{name}.deep.conv_1", expanded, 1, over_space, over_space)
            if over_time > 1:
                conv(f"{name}.deep.conv_2", expanded, 1, over_time, 1)
            inside = max(8, (expanded // 4 * 2 + 4) // 8 * 8)
            inside += 8 * (inside < 0.9 * (expanded // 4 * 2))
            conv(f"{name}.se.fc1.conv_1", inside, 2 * expanded, 1, 1, norm=False)
            conv(f"{name}.se.fc2.conv_1", expanded, inside, 1, 1, norm=False)
            conv(f"{name}.project.conv_1", out, expanded, 1, 1)
            if (k == 0 and stage != 3) or width != out:
                conv(f"{name}.res.1.conv_1", out, width, 1, 1)
            tensors[f"{name}.alpha"] = torch.tensor(0.7 + 0.1 * k)
            width = out
    conv("conv7.conv_1", sizes["head"], width, 1, 1)
    conv("classifier.0.conv_1", hidden, sizes["head"], 1, 1, norm=False)
    conv("classifier.3.conv_1", classes, hidden, 1, 1, norm=False)
    return tensors


def whole_clip(t: dict[str, Tensor], sizes: dict[str, Any], clip: Tensor, window: int) -> Tensor:
    """Return the logits [T, K] of all frames of a clip [T, 3, S, S].

    Convolutions over time are 3-D ones over the clip with zeros before it; means are taken over
    the last ``window`` frames by a matrix.
    """
    frames = len(clip)
    ages = torch.arange(frames)[:, None] - torch.arange(frames)
    mean = ((ages >= 0) & (ages < window)).to(clip.dtype)
    mean /= mean.sum(1, keepdim=True)

    def same(side: int, kernel: int, stride: int) -> tuple[int, int]:
        total = max(kernel - (side % stride or stride), 0)
        return total // 2, total - total // 2

    def conv(x: Tensor, name: str, stride: int = 1, act: bool = True) -> Tensor:
        weight = t[f"{name}.conv2d.weight"]
        groups = x.shape[1] if weight.shape[1] == 1 and x.shape[1] > 1 else 1
        if weight.shape[2] != weight.shape[3]:  # over time
            volume = F.pad(x.transpose(0, 1)[None], (0, 0, 0, 0, weight.shape[2] - 1, 0))
            x = F.conv3d(volume, weight[..., None], groups=groups)[0].transpose(0, 1)
        else:
            pads = same(x.shape[2], weight.shape[2], stride)
            x = F.conv2d(F.pad(x, pads * 2), weight, stride=stride, groups=groups)
        norm = [
            t[f"{name}.norm.{end}"] for end in ("running_mean", "running_var", "weight", "bias")
        ]
        x = F.batch_norm(x, *norm, eps=1e-3)
        return x * F.relu6(x + 3) / 6 if act else x

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ t[f"{name}.conv2d.weight"].flatten(1).t() + t[f"{name}.conv2d.bias"]

    def pooled(x: Tensor) -> Tensor:
        pads = same(x.shape[2], 3, 2) * 2
        ones = torch.ones_like(x[:, :1])
        return F.avg_pool2d(F.pad(x, pads), 3, 2) / F.avg_pool2d(F.pad(ones, pads), 3, 2)

    x = conv(clip, "conv1.conv_1", 2)
    for stage, blocks in enumerate(sizes["blocks"]):
        for k, (_, over_time, _) in enumerate(blocks):
            name = f"blocks.b{stage}_l{k}"
            stride = 2 if k == 0 and stage != 3 else 1
            y = conv(conv(x, f"{name}.expand.conv_1"), f"{name}.deep.conv_1", stride)
            y = conv(y, f"{name}.deep.conv_2") if over_time > 1 else y
            now = y.mean((2, 3))
            inner = dense(torch.cat([mean @ now, now], 1), f"{name}.se.fc1.conv_1")
            gate = dense(inner * F.relu6(inner + 3) / 6, f"{name}.se.fc2.conv_1")
            y = conv(
                y * (0.2 * gate + 0.5).clamp(0, 1)[..., None, None],
                f"{name}.project.conv_1",
                1,
                False,
            )
            x = pooled(x) if stride == 2 else x
            rest = f"{name}.res.1.conv_1"
            x = conv(x, rest, 1, False) if f"{rest}.conv2d.weight" in t else x
            x = x + t[f"{name}.alpha"] * y
    x = mean @ conv(x, "conv7.conv_1").mean((2, 3))
    x = dense(x, "classifier.0.conv_1")
    return dense(x * x.sigmoid(), "classifier.3.conv_1")
