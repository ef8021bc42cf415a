"""A checkpoint of EfficientNet-Lite with made-up weights, and the arithmetic that it stands for."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = (0.5, 1.0)  # width, depth
_STAGES = (
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)  # blocks, kernel, stride, factor, channels


def efficientnet_lite(width: float, depth: float, classes: int) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, float64, with the names of EfficientNet-Lite-PyTorch."""
    made = torch.Generator().manual_seed(0)
    out: dict[str, Tensor] = {}

    def layer(conv: str, norm: str, shape: tuple[int, ...]) -> None:
        fan = math.prod(shape[1:])
        out[f"{conv}.weight"] = torch.randn(shape, generator=made).double() * (2 / fan) ** 0.5
        for end, base in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            values = base + 0.2 * torch.rand(shape[0], generator=made).double()
            out[f"{norm}.{end}"] = values
        out[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    layer("_conv_stem", "_bn0", (32, 3, 3, 3))
    channels, number = 32, 0
    for k, (blocks, kernel, _, factor, wide) in enumerate(_STAGES):
        after = _eighths(wide * width)
        for _ in range(blocks if k in (0, 6) else math.ceil(blocks * depth)):
            at, inside = f"_blocks.{number}", channels * factor
            if factor > 1:
                layer(f"{at}._expand_conv", f"{at}._bn0", (inside, channels, 1, 1))
            layer(f"{at}._depthwise_conv", f"{at}._bn1", (inside, 1, kernel, kernel))
            layer(f"{at}._project_conv", f"{at}._bn2", (after, inside, 1, 1))
            channels, number = after, number + 1
    layer("_conv_head", "_bn1", (1280, channels, 1, 1))
    out["_fc.weight"] = torch.randn(classes, 1280, generator=made).double() / 36
    out["_fc.bias"] = torch.randn(classes, generator=made).double()
    return out


def published_answers(tensors: dict[str, Tensor], pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Return features [N, 1280] and logits [N, K] of pictures, uint8 [N, 3, S, S], in float64."""
    named = {name: value.double() for name, value in tensors.items()}

    def normed(x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        weight = named[f"{conv}.weight"]
        kernel = weight.shape[2]
        for axis in (-1, -2):  # TensorFlow's padding: the odd one is behind
            side = x.shape[axis]
            steps = -(-side // stride)
            missing = max(0, (steps - 1) * stride + kernel - side)
            parts = [missing // 2, missing - missing // 2]
            x = F.pad(x, parts if axis == -1 else [0, 0, *parts])
        groups = x.shape[1] if weight.shape[1] == 1 and x.shape[1] > 1 else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        mean, variance = named[f"{norm}.running_mean"], named[f"{norm}.running_var"]
        return F.batch_norm(
            x, mean, variance, named[f"{norm}.weight"], named[f"{norm}.bias"], eps=1e-3
        )

    x = (pictures.double() - 127) / 128
    x = normed(x, "_conv_stem", "_bn0", 2).clamp(0, 6)
    strides = _strides(named)
    for k, stride in enumerate(strides):
        at, y = f"_blocks.{k}", x
        if f"{at}._expand_conv.weight" in named:
            y = normed(y, f"{at}._expand_conv", f"{at}._bn0").clamp(0, 6)
        y = normed(y, f"{at}._depthwise_conv", f"{at}._bn1", stride).clamp(0, 6)
        y = normed(y, f"{at}._project_conv", f"{at}._bn2")
        x = x + y if stride == 1 and x.shape == y.shape else y
    features = normed(x, "_conv_head", "_bn1").clamp(0, 6).mean((2, 3))
    return features, F.linear(features, named["_fc.weight"], named["_fc.bias"])


def _strides(named: dict[str, Tensor]) -> list[int]:
    """Return the stride of each block: 2 in the first of the second, third, fourth, sixth stage."""
    count = sum(name.endswith("_project_conv.weight") for name in named)
    widths = [named[f"_blocks.{k}._project_conv.weight"].shape[0] for k in range(count)]
    changes = [k for k in range(1, count) if widths[k] != widths[k - 1]]
    halving = {changes[k] for k in (0, 1, 2, 4)}
    return [2 if k in halving else 1 for k in range(count)]


def _eighths(channels: float) -> int:
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
