"""Operations of a traced network, and what becomes of them in a continual one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from costream.nn.parts import Part

# What may be asked for where the exact continual form does not exist, or has a delay.
APPROXIMATIONS = {
    "running mean": "means and maxima over a clip become running ones, over as many frames as"
    " the clip has",
    "windowed attention": "attention to a clip becomes attention to a window of the last steps; in"
    " a stack of layers, each attends to a window of its inputs (DeepCoT)",
    "causal padding": "layers that pad both ends of a clip pad only its beginning: no delay",
    "recycling positions": "a table with a row for each frame of the clip begins again after its"
    " last row",
}


class ConversionError(Exception):
    """A network cannot be made continual: where, why, and what to change.

    Args:
        what: what is wrong. ``where``: the layer. ``hint``: what to change.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        line = what if where is None else f"{where}: {what}"
        super().__init__(line if hint is None else f"{line}; {hint}")


def check_arguments(
    module: Any, example: Any, time_axis: int, approximate: tuple[str, ...], window: int | None
) -> None:
    """Raise what ``convert`` raises for wrong arguments."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: an nn.Module, not {getattr(module, '__name__', module)!r}")
    if not isinstance(example, Tensor):
        raise TypeError(f"example: a tensor, not {type(example).__name__}")
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} steps: 1 or more")
    if unknown := set(approximate) - set(APPROXIMATIONS):
        raise ValueError(f"approximate: {sorted(unknown)} are not among {sorted(APPROXIMATIONS)}")
    if not 0 < time_axis < example.dim():
        raise ValueError(f"time_axis {time_axis} of a clip {tuple(example.shape)}: 1 or more")
    if not example.numel():
        what = f"the example {tuple(example.shape)} is empty"
        raise ConversionError(what, hint="give a clip with a usual number of frames")
    if _is_continual(module):
        what = f"{type(module).__name__} is continual already"
        raise ConversionError(what, hint="use its init_state and forward_step")


def untraceable(module: nn.Module, error: Exception) -> ConversionError:
    """Return the error for a network whose tracing raised this one."""
    hint = "its forward must not depend on values or sizes; see torch.fx"
    if any(text in str(error) for text in ("iterated", "as an integer")):
        hint = "a loop over frames, h = a * h + b, is co.scan(b, a, dim); others are RNN layers"
    elif "'len'" in str(error):
        hint = "use x.shape[0] in place of len(x)"
    elif "positional argument" in str(error):
        hint = "make tensors from others: x.new_zeros(...), torch.zeros_like(x)"
    if inside := [path for path, layer in module.named_modules() if _is_continual(layer)]:
        hint = f"{inside[0]} is continual already: convert a network of ordinary layers"
    return ConversionError(f"{type(module).__name__} cannot be traced: {error}", hint=hint)


def _is_continual(module: nn.Module) -> bool:
    """Return whether a module takes clips frame by frame by itself."""
    return hasattr(module, "init_state") and hasattr(module, "forward_step")


@dataclass
class Operation:
    """An operation of a traced network that takes a clip first."""

    root: nn.Module  # the network
    module: nn.Module | None  # the layer, if it is one
    target: Any  # its path, or the function, or the name of the method
    args: tuple[Any, ...]  # with the values of the example clip
    longer: tuple[Any, ...]  # with the values of a longer one
    kwargs: dict[str, Any]
    longer_kwargs: dict[str, Any]
    axis: int  # of time
    window: int  # steps of a window
    allowed: frozenset[str]  # approximations
    paths: dict[int | str, str] = field(default_factory=dict)  # of parameters: argument -> path
    with_states: bool = False  # the states of the recurrent layer are used, too

    @property
    def clip(self) -> Tensor:
        """The first argument."""
        clip: Tensor = self.args[0]
        return clip

    @property
    def frames(self) -> int:
        """Number of frames of the clip here."""
        return self.clip.shape[self.axis]

    def need(self, name: str, what: str) -> None:
        """Raise ConversionError unless this approximation is allowed."""
        if name not in self.allowed:
            raise ConversionError(what, hint=f"allow it: approximate=[{name!r}]")

    def argument(self, k: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[k] if len(self.args) > k else self.kwargs.get(name, default)


@dataclass
class Change:
    """What becomes of an operation.

    ``make``: returns the part from the network whose layers it shares. ``then``: the operation
    itself follows, on each frame of the part's outputs; ``newest``: on each frame.
    """

    make: Callable[[nn.Module], Part] | None
    note: str = ""
    approximation: str = ""  # its name, if it is not exact
    then: bool = False
    newest: bool = False
    newest_agrees: bool = False  # though not exact, its last output for the example is
    all_agree: bool = False  # though not exact, its outputs for the example are
    several: int = 1  # its first arguments are inputs
    once: bool = False  # for a clip it gives one frame
    index: tuple[Any, ...] | None = None  # what remains of an index
