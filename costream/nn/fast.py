"""Fast forms of layers, and the choice between them and the readable forms.

A fast form leaves out module calls, uses cached views or is compiled (``encoder_kernels``). Next to
it stands the readable form, which states the equation. ``use_kernels`` chooses between the two.

Times are for one core. With one row of width 192, a linear layer takes 9 us and calling its module
4 us more; a layer norm 3 us and 5 us more. A step has six such calls.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Single steps of a stream after which compiled ones, which save about 0.1 ms each, would have saved
# the time that loading them takes.
STEPS_WORTH_LOADING = 1 << 13


class _Choice(threading.local):
    fast = True


_choice = _Choice()


def enabled() -> bool:
    """Return whether this thread computes by the fast forms."""
    return _choice.fast


@contextmanager
def use_kernels(value: bool) -> Iterator[None]:
    """Compute by the fast forms, or else by the readable ones, in this thread.

    The results agree up to rounding, and both continue any state.
    """
    before, _choice.fast = _choice.fast, value
    try:
        yield
    finally:
        _choice.fast = before


def compile_blocks() -> None:
    """Load the compiled steps of encoders and skeleton networks now.

    Streams use them from their next step on.

    Loading takes a second and 130 MB, the first time on a machine 17 seconds. Without this call
    it begins, in another thread, when a stream has taken ``STEPS_WORTH_LOADING`` single steps.
    """
    import costream.nn.encoder_kernels
    import costream.nn.graph_kernels
    import costream.nn.retroactive_kernels  # noqa: F401


def compile_chains() -> None:
    """Load the compiled programs of small convolutional networks now, as ``compile_blocks`` does.

    The first time on a machine takes about ten seconds.
    """
    import costream.nn.chain_kernels  # noqa: F401


def kernels_after(steps: int) -> bool:
    """Return whether compiled steps are loaded; begin to load them for a stream's ``steps``.

    A step counts once for each 0.1 ms that a compiled one saves.
    """
    return _loaded_after(steps, "costream.nn.retroactive_kernels", "RunningSums", compile_blocks)


def chains_after(steps: int) -> bool:
    """Return whether compiled programs of convolutions are loaded, as ``kernels_after`` does."""
    return _loaded_after(steps, "costream.nn.chain_kernels", "run", compile_chains)


_begun: set[Callable[[], None]] = set()


def _loaded_after(steps: int, module: str, name: str, load: Callable[[], None]) -> bool:
    """Return whether a module is loaded as far as ``name``.

    ``load`` is called in a thread, once in a process, if a stream has taken so many ``steps``.
    """
    if hasattr(sys.modules.get(module), name):
        return True
    if steps >= STEPS_WORTH_LOADING and load not in _begun:
        _begun.add(load)
        threading.Thread(target=load).start()
    return False


def linear(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a Linear. Reading ``owner.name`` alone takes 1 us."""
    if not _choice.fast:
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    parameters = owner._modules[name]._parameters  # type: ignore[union-attr]
    if len(parameters) < 2:  # the weight has an adapter
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    weight, bias = parameters.values()
    return F.linear(x, weight, bias)  # type: ignore[arg-type]


def layer_norm(owner: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return ``owner.name(x)`` for a LayerNorm over the last dimension."""
    if not _choice.fast:
        return getattr(owner, name)(x)  # type: ignore[no-any-return]
    layer = owner._modules[name]
    weight, bias = layer._parameters.values()  # type: ignore[union-attr]
    return torch.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)  # type: ignore


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU, x (1 + erf(x / sqrt 2)) / 2.

    On a CPU, contiguous tensors go to oneDNN, whose overhead is 10 us; for a few rows PyTorch's
    kernel for transposed tensors takes 2 us. ``x`` may be overwritten if no
    gradient is required.
    """
    if not _choice.fast or x.numel() > 8192 or x.numel() % 2 or not x.is_contiguous():
        return F.gelu(x)
    if torch.is_grad_enabled():
        return F.gelu(x.view(2, -1).t()).t().view(x.shape)
    torch._C._nn.gelu_(x.view(2, -1).t())  # type: ignore[attr-defined]
    return x


def has_numpy_view(x: Tensor) -> bool:
    """Return whether a tensor can be read and written as a NumPy array."""
    return x.is_cpu and not x.requires_grad and x.dtype in (torch.float32, torch.float64)


def compiles(x: Tensor) -> bool:
    """Return whether there are compiled loops for the device and type of a tensor."""
    return x.is_cpu and x.dtype == torch.float32


def runs_chains(x: Tensor) -> bool:
    """Return whether compiled programs may compute with a tensor here."""
    return (
        _choice.fast
        and compiles(x)
        and type(x) is Tensor  # not a symbol of a traced network
        and not torch.is_grad_enabled()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.compiler.is_compiling()
    )
