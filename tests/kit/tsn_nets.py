"""Small TSN networks and checkpoints of them as MMAction2 writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SIZES: dict[str, Any] = {"layers": [2, 1], "width": 4}
SMALL: dict[str, Any] = {**SIZES, "short": 36, "crop": 32}
WIDTH = 32  # of what one of them gives


def randomise(net: nn.Module) -> None:
    """Return BatchNorm statistics as after training."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0, 0.1)
            nn.init.uniform_(part.running_var, 0.2, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.1)


def checkpoint(channels: int, seed: int = 0) -> dict[str, Tensor]:
    """A state dictionary under MMAction2's names."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}

    def unit(name: str, outputs: int, inputs: int, size: int) -> None:
        at = f"backbone.{name}"
        shape = (outputs, inputs, size, size)
        state[f"{at}.conv.weight"] = torch.randn(shape, generator=generator) * 0.1
        for part, low in (("weight", 0.5), ("bias", -0.1), ("running_mean", 0), ("running_var", 1)):
            state[f"{at}.bn.{part}"] = low + 0.2 * torch.rand(outputs, generator=generator)
        state[f"{at}.bn.num_batches_tracked"] = torch.tensor(7)

    unit("conv1", 4, channels, 7)
    inputs = 4
    for layer, (blocks, width) in enumerate(((2, 4), (1, 8)), 1):
        for i in range(blocks):
            at = f"layer{layer}.{i}"
            unit(f"{at}.conv1", width, inputs, 1)
            unit(f"{at}.conv2", width, width, 3)
            unit(f"{at}.conv3", 4 * width, width, 1)
            if i == 0:
                unit(f"{at}.downsample", 4 * width, inputs, 1)
            inputs = 4 * width
    state["cls_head.fc_cls.weight"] = torch.randn(5, WIDTH, generator=generator)
    state["cls_head.fc_cls.bias"] = torch.zeros(5)
    return state


def features(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """What a checkpoint gives for pictures [N, C, h, w], written out with its own names."""

    def unit(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"backbone.{name}.conv.weight"]
        x = nn.functional.conv2d(x, weight, None, stride, weight.shape[-1] // 2)
        names = ("running_mean", "running_var", "weight", "bias")
        norm = [state[f"backbone.{name}.bn.{part}"] for part in names]
        return nn.functional.batch_norm(x, *norm, eps=1e-5)

    x = nn.functional.max_pool2d(unit(x, "conv1", 2).relu(), 3, 2, 1)
    for layer, blocks in ((1, 2), (2, 1)):
        for i in range(blocks):
            at, stride = f"layer{layer}.{i}", 2 if layer == 2 and i == 0 else 1
            beside = x if i else unit(x, f"{at}.downsample", stride)
            inner = unit(unit(x, f"{at}.conv1").relu(), f"{at}.conv2", stride).relu()
            x = (unit(inner, f"{at}.conv3") + beside).relu()
    return x.mean((2, 3))
