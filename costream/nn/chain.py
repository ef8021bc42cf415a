"""Small networks of convolutions as one call for one input, float32 on a CPU, compiled by Numba.

PyTorch makes a hundred calls for such a network, which take longer than their arithmetic, and
oneDNN is slow for depthwise convolutions of single small maps. Here the calls of the readable form
are recorded once for each shape of the input, and become a program of ``chain_kernels``.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from costream.nn import chain_kernels as kernels
from costream.nn import fast
from costream.nn.chain_program import FUNCTIONS, Map, ProgramBuilder, Window
from costream.nn.choices import prefers_compiled
from costream.nn.operation import ConversionError

_SHAPES = 8  # of inputs for which programs are kept
_STRIDES = (1, 1), (2, 2)
_IDLE = {"inplace", "keepdim", "memory_format"}  # keywords that do not change numbers
_CLOSE = 1e-3  # of the largest number of an output: sums in another order differ by less


class _Call(NamedTuple):
    """A call of a function of PyTorch."""

    function: Any
    args: Sequence[Any]
    keywords: dict[str, Any]
    out: Any


class _Recorder(TorchFunctionMode):
    """Notes the calls of PyTorch's functions in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        out = func(*args, **keywords)
        self.calls.append(_Call(func, args, keywords, out))
        return out


class Chain:
    """The program of a function of one input.

    Args:
        function: takes a tensor like ``example``, and returns one tensor. It may have convolutions,
            depthwise or of all channels, with activations; means of maps; linear layers; factors
            of channels; and products may be added to what was computed before, as in MobileNets.
        example: [1, C, H, W], or [1, H, W] if ``function`` makes a map of one channel of it.

    Raises ConversionError for other operations, other inputs, and if the output for an input of
    random numbers is not that of ``function``.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], example: Tensor) -> None:
        if len(example) != 1 or example.dtype != torch.float32:
            raise ConversionError("only a network of one input, float32, can be compiled")
        with fast.use_kernels(False), _Recorder() as recorder:
            out = function(example)
        finder = _Finder(recorder.calls, example)
        form = finder.maps.get(id(out))
        if form is None or id(out) in finder.pads:
            raise ConversionError("its output is not a map or vector of the network")
        program = finder.builder.program(form)
        with torch.inference_mode(False):  # it is written to in any mode
            buffer = torch.zeros(program.length)
        self._arrays = *program.arrays(), buffer.numpy()
        self._input = buffer[program.input :][: example.numel()].view(example.shape)
        output = buffer[program.output :][: form.size]
        output = output.view(form.channels, -1) if form.planar else output.view(-1, form.channels).T
        self._output, self._shape = output[: out.shape[1]], out.shape
        self._lock = threading.Lock()
        # Recorded calls do not tell all, such as weights that are computed from the input.
        x = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
        with fast.use_kernels(False):
            expected = function(x.clone())
        if not torch.allclose(self(x), expected, rtol=0, atol=_CLOSE * float(expected.abs().max())):
            raise ConversionError("its program gives another output than PyTorch")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for an input of the shape of the example."""
        with self._lock:
            self._input.copy_(x)
            kernels.run(*self._arrays)
            return self._output.reshape(self._shape).clone()


class _Finder:
    """Goes through recorded calls, and appends the operations of a program.

    Attributes:
        builder: of the program.
        maps: those that tensors have become, by their ids.
        pads: zeros to the left of a map and above it, by the ids of tensors that have some.
    """

    def __init__(self, calls: Sequence[_Call], example: Tensor) -> None:
        channels = example.shape[1] if example.dim() == 4 else 1
        self.builder = ProgramBuilder((channels, *example.shape[-2:]))
        self.maps = {id(example): self.builder.input}
        self.pads: dict[int, tuple[int, int]] = {}
        given = [(*call.args, *call.keywords.values()) for call in calls]
        self._last = {id(arg): k for k, args in enumerate(given) for arg in args}
        for k, (call, args) in enumerate(zip(calls, given, strict=True)):
            known = [self.maps[id(arg)] for arg in args if id(arg) in self.maps]
            if known and isinstance(call.out, Tensor):
                ends = call.out is args[0] or self._last[id(args[0])] == k
                self.maps[id(call.out)] = self._found(call, known, ends)

    def _found(self, call: _Call, known: Sequence[Map], ends: bool) -> Map:
        """Return the map that a call returns.

        ``known``: maps among its arguments; ``ends``: whether the first argument is not used again.
        """
        function, args, keywords, out = call
        x = known[0]
        if function in (torch.conv2d, F.pad):
            return self._convolve(x, call) if function is torch.conv2d else self._pad(x, call)
        if keywords.keys() - _IDLE or any(id(arg) in self.pads for arg in args):
            raise ConversionError("keywords, or edges of other operations, cannot be compiled")
        if function in FUNCTIONS and ends:
            return self.builder.apply(x, function)
        if function in (Tensor.add_, Tensor.add) and ends and len(known) == 2:
            return self.builder.add(*known)
        if function in (Tensor.mul, torch.mul) and len(known) == 2 and known[1][2:4] == (1, 1):
            return self.builder.scale(*known)
        if function is F.linear and args[0].dim() == 2:
            return self.builder.multiply(x, *args[1:])
        if function is Tensor.mean and args[1:] == ((2, 3),):
            return self.builder.mean(x)
        same = function in (Tensor.__getitem__, Tensor.contiguous, Tensor.to)
        if same and out.numel() == args[0].numel():
            return x
        raise ConversionError(f"{getattr(function, '__name__', function)} cannot be compiled")

    def _pad(self, x: Map, call: _Call) -> Map:
        """Note the zeros around a map for the convolution that reads it."""
        how = dict(zip(("input", "pad", "mode", "value"), call.args, strict=False)) | call.keywords
        zeros = how.get("mode", "constant") == "constant" and not how.get("value")
        sides = how["pad"]
        if not zeros or len(sides) != 4 or min(sides) < 0 or id(how["input"]) in self.pads:
            raise ConversionError("edges of this kind cannot be compiled")
        self.pads[id(call.out)] = sides[0], sides[2]
        return x

    def _convolve(self, x: Map, call: _Call) -> Map:
        if len(call.args) != 7 or call.keywords or call.out.dim() != 4:
            raise ConversionError("a convolution that is called so cannot be compiled")
        image, weight, bias, stride, padding, dilation, groups = call.args
        square = weight.shape[2] == weight.shape[3] and isinstance(padding, tuple)
        if not square or stride not in _STRIDES or dilation != (1, 1):
            raise ConversionError("a convolution of this kind cannot be compiled")
        left, above = self.pads.get(id(image), (0, 0))
        size = call.out.shape[2], call.out.shape[3]
        window = Window(size, stride[0], above + padding[0], left + padding[1])
        if groups == 1:
            return self.builder.convolve(x, weight, bias, window)
        if not groups == weight.shape[0] == image.shape[1]:
            raise ConversionError("a convolution of groups cannot be compiled")
        return self.builder.convolve_each(x, weight, bias, window)


class Chains:
    """The programs of a network for some shapes of its input.

    Args:
        network: its parameters are stored.
    """

    def __init__(self, network: nn.Module) -> None:
        self._made: dict[tuple[int, ...], Chain | None] = {}
        named = [
            (module._parameters, name, tensor)
            for module in network.modules()
            for name, tensor in module._parameters.items()
            if tensor is not None
        ]
        self._held = [(parameters, name) for parameters, name, _ in named]
        self._parameters = [tensor for _, _, tensor in named]
        self._counted = [tensor for tensor in self._parameters if not tensor.is_inference()]
        self._places, self._changes = self._now()

    def fit(self) -> bool:
        """Return whether the parameters are those that were stored.

        Modules that were exchanged, and changes through ``.data`` in place, are not noticed.
        """
        # By lists, as a live stream asks before each step: a third of the time of a loop.
        now = [parameters.get(name) for parameters, name in self._held]
        if not all(map(operator.is_, now, self._parameters)):
            return False
        return self._now() == (self._places, self._changes)

    def _now(self) -> tuple[list[int], list[int]]:
        """Return where the parameters are, and how often those that count it were changed."""
        places = [tensor.data_ptr() for tensor in self._parameters]
        return places, [tensor._version for tensor in self._counted]

    def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return ``function(x)``, by a program if there is one and it is faster."""
        if x.shape not in self._made:
            if len(self._made) == _SHAPES:
                self._made.clear()
            self._made[x.shape] = self._faster(function, x)
        return (self._made[x.shape] or function)(x)

    def _faster(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Chain | None:
        """Return the program of a function, or None without one or if it takes longer."""
        try:
            chain = Chain(function, x)
        except ConversionError:
            return None
        work = self._name(x)
        return chain if prefers_compiled(work, lambda: chain(x), lambda: function(x)) else None

    def _name(self, x: Tensor) -> str:
        """Return what is computed, and its size."""
        count, shape = sum(t.numel() for t in self._parameters), "x".join(map(str, x.shape))
        return f"network of {count} weights, {shape}"


_chains: WeakKeyDictionary[nn.Module, Chains] = WeakKeyDictionary()


def chained(network: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function(x)`` for one input, float32, without gradients.

    ``function``: computes with the parameters of ``network`` and no others. The first call for a
    shape takes a tenth of a second.
    """
    chains = _chains.get(network)
    if chains is None or not chains.fit():
        chains = _chains[network] = Chains(network)
    return chains(function, x)
