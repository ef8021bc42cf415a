"""Fast forms of layers and loops, and the switch between them and the readable forms.

Fast forms leave out module calls, use cached views or are compiled. Each stands beside the readable
form that states the equation. ``enabled`` chooses between them everywhere; see ``use_kernels``.

Times are for one core. With one row of width 192, a linear layer takes 9 us and calling its module
4 us more; a layer norm 3 us and 5 us more. A step has six such calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from costream.nn.numba_kernels import Depthwise, Product

enabled = True


@contextmanager
def use_kernels(value: bool) -> Iterator[None]:
    """Compute by the fast forms, or else by the readable ones, in all threads.

    The results agree up to rounding, and both continue any state.
    """
    global enabled
    before, enabled = enabled, value
    try:
        yield
    finally:
        enabled = before


def linear(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a Linear. Reading ``owner.name`` alone takes 1 us."""
    if not enabled:
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    parameters = owner._modules[name]._parameters  # type: ignore[union-attr]
    if len(parameters) < 2:  # the weight has an adapter
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    weight, bias = parameters.values()
    return F.linear(x, weight, bias)  # type: ignore[arg-type]


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is an array of NumPy too."""
    return x.is_cpu and not x.requires_grad and x.dtype in (torch.float32, torch.float64)


def layer_norm(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a LayerNorm over the last dimension."""
    if not enabled:
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    layer = owner._modules[name]
    weight, bias = layer._parameters.values()  # type: ignore[union-attr]
    return torch.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)  # type: ignore


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU, x (1 + erf(x / sqrt 2)) / 2.

    On a CPU, contiguous tensors go to oneDNN, whose overhead is 10 us; for a few rows PyTorch's
    own kernel, to which transposed tensors go, takes 2 us. ``x`` may be overwritten if no
    gradient is required.
    """
    if not enabled or x.numel() > 8192 or x.numel() % 2 or not x.is_contiguous():
        return F.gelu(x)
    if torch.is_grad_enabled():
        return F.gelu(x.view(2, -1).t()).t().view(x.shape)
    torch._C._nn.gelu_(x.view(2, -1).t())  # type: ignore[attr-defined]
    return x


# Frames [B, H, W, C]: loops compiled for float32 on a CPU, otherwise PyTorch's.


_FEW = 1 << 16  # numbers; above this, several threads gain more than they cost


def prefers_kernel(count: int) -> bool:
    """Return whether a compiled loop over ``count`` numbers is used: it has one thread."""
    return enabled and (count <= _FEW or torch.get_num_threads() == 1)


def compiles(like: Tensor) -> bool:
    """Return whether there are compiled loops for tensors like this one."""
    return like.device.type == "cpu" and like.dtype == torch.float32


def swish(frames: Tensor, gate: Sequence[Tensor]) -> None:
    """Set frames [B, H, W, C] to the swish, x / (1 + exp(-x)), of their excitation.

    ``gate``: of squeeze-and-excitation, weights [C, h], biases [h], weights [h, C] and biases
    [C], or nothing.
    """
    if compiles(frames) and prefers_kernel(frames.numel()) and frames.is_contiguous():
        from costream.nn.numba_kernels import swish

        swish(frames, gate)
        return
    if gate:
        hidden = torch.addmm(gate[1], frames.mean((1, 2)), gate[0]).relu_()
        frames *= torch.addmm(gate[3], hidden, gate[2]).sigmoid_()[:, None, None]
    F.silu(frames, inplace=True)


def compile_depthwise(weight: Tensor, bias: Tensor, stride: int) -> Depthwise | None:
    """Return a compiled convolution for this ``weight`` [C, 1, K, h, w], or None.

    ``bias``: [C]. ``stride``: in pixels.
    """
    if not compiles(weight) or weight.shape[1] != 1 or weight.shape[3:] != (3, 3) or stride > 2:
        return None
    from costream.nn.numba_kernels import Depthwise
    from costream.nn.simd import LANES

    if len(weight) < LANES:
        return None
    return Depthwise(weight[:, 0].permute(1, 2, 3, 0), bias, stride)


def compile_product(taps: Tensor, bias: Tensor) -> Product | None:
    """Return a compiled ``Product`` with ``taps`` [rows, I, O] and ``bias`` [O], or None."""
    if not compiles(taps):
        return None
    from costream.nn.numba_kernels import Product
    from costream.nn.simd import LANES

    return None if len(bias) < LANES else Product(taps, bias)


compiled_blocks = False  # see ``compile_blocks``


def compile_blocks() -> None:
    """Make the steps of one stream through encoder blocks of any size compiled loops.

    Hops of sound too. Loading Numba takes a second and 130 MB, and a block of width 192 saves the
    second in 20,000 steps; hence the call. Large blocks do without it.
    """
    import costream.nn.encoder_kernels  # noqa: F401

    global compiled_blocks
    compiled_blocks = True


LARGE = 1 << 15  # weights; smaller products never save the second that loading Numba takes


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
