"""Training step by step: what changes when a batch has one frame of each clip."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

M = TypeVar("M", bound=nn.Module)


def stepwise_momentum(module: M, steps: int) -> M:
    """Adapt the momentum of batch normalisation to clips of ``steps`` frames given one by one.

    The running statistics are then updated ``steps`` times as often. The momentum becomes 2 / (1 +
    steps (2 / momentum - 1)), with which they remember as many clips as before (Hedegaard and
    Iosifidis, "Continual 3D convolutional neural networks", ECCV 2022). In place; layers without
    momentum, whose statistics are plain means, are not changed. Raises ValueError for less than one
    step.
    """
    if steps < 1:
        raise ValueError(f"{steps} steps: at least 1 is needed")
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.momentum:
            layer.momentum = 2 / (1 + steps * (2 / layer.momentum - 1))
    return module
