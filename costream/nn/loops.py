"""Loops over frames [B, H, W, C]: compiled ones for float32 on a CPU, PyTorch's elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from costream.nn.depthwise import Depthwise

_FEW = 1 << 16  # numbers; dividing more than these among threads gains more than it costs


class Loops:
    """What is done to the numbers of frames, on any device, with numbers of any type."""

    def rectify(self, frames: Tensor, shift: Tensor, other: Tensor | None) -> None:
        """Make frames the ReLU of them, ``shift`` [C] and ``other`` frames together.

        The frame of a stream is contiguous; those of several may lie apart.
        """
        frames += shift
        if other is not None:
            frames += other
        frames.relu_()

    def weigh(self, frames: Tensor, oldest: int, taps: Tensor, out: Tensor) -> None:
        """Make ``out`` [B, H, W, C] the sum of frames [B, K, H, W, C] times their ``taps`` [K, C].

        ``oldest``: where the oldest frame lies; newer ones follow, behind the last the first.
        ``out``: as the frames of ``rectify``.
        """
        out.zero_()
        for k, tap in enumerate(taps):
            out.addcmul_(frames[:, (oldest + k) % len(taps)], tap)


def loops(like: Tensor) -> Loops:
    """Give the quickest ones for tensors like this one."""
    if not _compiles(like):
        return Loops()
    from costream.nn.kernels import CompiledLoops

    return CompiledLoops()


def depthwise(weight: Tensor, bias: Tensor, stride: int) -> Depthwise | None:
    """Give a compiled convolution if there is one for this ``weight`` [C, 1, K, h, w].

    ``bias``: [C]. ``stride``: of pixels.
    """
    if not _compiles(weight) or weight.shape[1] != 1 or weight.shape[3:] != (3, 3) or stride > 2:
        return None
    from costream.nn.depthwise import LANES, Depthwise

    if len(weight) < LANES:
        return None
    return Depthwise(weight[:, 0].permute(1, 2, 3, 0), bias, stride)


def is_for_one(count: int) -> bool:
    """Whether for so many numbers a compiled loop is quicker than all threads that there are."""
    return count <= _FEW or torch.get_num_threads() == 1


def _compiles(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32
