"""Fast layers for steps of one row: no module calls, and weights stored by columns.

Times are for one core. With one row of width 192, a linear layer takes 9 us and calling its module
4 us more; a layer norm 3 us and 5 us more. A step has six such calls.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a Linear. Reading ``owner.name`` alone takes 1 us."""
    weight, bias = owner._modules[name]._parameters.values()  # type: ignore[union-attr]
    return F.linear(x, weight, bias)  # type: ignore[arg-type]


def layer_norm(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a LayerNorm over the last dimension."""
    layer = owner._modules[name]
    weight, bias = layer._parameters.values()  # type: ignore[union-attr]
    return torch.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)  # type: ignore


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU, x (1 + erf(x / sqrt 2)) / 2.

    On a CPU, contiguous tensors go to oneDNN, whose overhead is 10 us; for a few rows PyTorch's
    own kernel, to which transposed tensors go, takes 2 us. ``x`` may be overwritten if no
    gradient is required.
    """
    if x.numel() > 8192 or x.numel() % 2 or not x.is_contiguous():
        return F.gelu(x)
    if torch.is_grad_enabled():
        return F.gelu(x.view(2, -1).t()).t().view(x.shape)
    torch._C._nn.gelu_(x.view(2, -1).t())  # type: ignore[attr-defined]
    return x


def by_columns(weight: Tensor, max_bytes: int = 1 << 20) -> Tensor:
    """Return a matrix [out, in] stored by columns, or unchanged if larger than ``max_bytes``.

    A product of a row with it then runs along contiguous outputs. While the weights stay in the
    cache that takes 0.6 of the time at width 192; where they are read from memory it is 10 %
    slower, hence the limit. For 8 rows or more, one step of many streams, it was 2 times faster
    at width 1024 too.
    """
    if weight.numel() * weight.element_size() > max_bytes:
        return weight
    return weight.t().contiguous().t()


def store_by_columns(module: nn.Module, max_bytes: int = 1 << 20) -> None:
    """Store the weight matrices of ``module`` as ``by_columns`` does; names and shapes stay.

    Call it once before inference. Serialisers may need ``.contiguous()``.
    """
    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.data = by_columns(parameter.data, max_bytes)


# Loops over frames [B, H, W, C]: compiled for float32 on a CPU, otherwise PyTorch's.


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


def prefers_one_thread(count: int) -> bool:
    """Return whether a compiled loop over ``count`` numbers is faster than all threads together."""
    return count <= _FEW or torch.get_num_threads() == 1


# Memory retention of the C library's allocator.


_MEBIBYTE = 1 << 20


def keep_freed_memory() -> None:
    """Make this process reuse the memory of freed tensors.

    The GNU C library takes large blocks from the system and returns them when they are freed,
    and the system clears every page again: where a step needs several tensors of a megabyte, this
    was found to double its time. When the library frees a block, it sets the size up to which it
    retains memory to the size of that block (32 MiB at most); so this function frees one. It has
    no effect with other C libraries.
    """
    torch.empty(30 * _MEBIBYTE, dtype=torch.uint8)
