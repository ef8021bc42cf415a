"""Loops over frames [B, H, W, C]: compiled for float32 on a CPU, otherwise PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from costream.nn.numba_kernels import Depthwise

_FEW = 1 << 16  # numbers; above this, several threads gain more than they cost


class FrameLoops:
    """Operations on the numbers of frames, for any device and dtype."""

    def rectify(self, frames: Tensor, shift: Tensor, other: Tensor | None) -> None:
        """Set frames to the ReLU of their sum with ``shift`` [C] and ``other`` frames.

        The frame of one stream is contiguous; those of several streams need not be adjacent.
        """
        frames += shift
        if other is not None:
            frames += other
        frames.relu_()

    def weigh(self, frames: Tensor, oldest: int, taps: Tensor, out: Tensor) -> None:
        """Set ``out`` [B, H, W, C] to the sum of frames [B, K, H, W, C] times ``taps`` [K, C].

        ``oldest``: slot of the oldest frame; newer ones follow, wrapping around. ``out``: laid out
        as the frames of ``rectify``.
        """
        out.zero_()
        for k, tap in enumerate(taps):
            out.addcmul_(frames[:, (oldest + k) % len(taps)], tap)


def select_loops(like: Tensor) -> FrameLoops:
    """Return the fastest loops for tensors like this one."""
    if not _compiles(like):
        return FrameLoops()
    from costream.nn.kernels import CompiledLoops

    return CompiledLoops()


def depthwise(weight: Tensor, bias: Tensor, stride: int) -> Depthwise | None:
    """Return a compiled convolution for this ``weight`` [C, 1, K, h, w], or None.

    ``bias``: [C]. ``stride``: in pixels.
    """
    if not _compiles(weight) or weight.shape[1] != 1 or weight.shape[3:] != (3, 3) or stride > 2:
        return None
    from costream.nn.numba_kernels import LANES, Depthwise

    if len(weight) < LANES:
        return None
    return Depthwise(weight[:, 0].permute(1, 2, 3, 0), bias, stride)


def prefers_one_thread(count: int) -> bool:
    """Return whether a compiled loop over ``count`` numbers is faster than all threads together."""
    return count <= _FEW or torch.get_num_threads() == 1


def _compiles(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32
