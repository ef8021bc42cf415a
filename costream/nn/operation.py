"""Operations of a traced network, and what becomes of them in a continual one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from costream.errors import ModelError
from costream.nn.parts import Part

# What may be asked for where the exact continual form does not exist, or has a delay.
APPROXIMATIONS = {
    "running mean": "means and maxima over a whole clip are over the frames of its length so far",
    "windowed attention": "attention to a whole clip is to the window of steps before; in a stack"
    " of layers each has a window of its own inputs (DeepCoT)",
    "causal padding": "layers that pad both ends of a clip pad only its beginning: no delay",
}


class ConversionError(ModelError):
    """A network cannot be continual; the message names the layer and what to change."""


@dataclass
class Operation:
    """An operation of a traced network that takes a clip first."""

    root: nn.Module  # the network
    module: nn.Module | None  # the layer, if it is one
    target: Any  # its path, or the function, or the name of the method
    args: tuple[Any, ...]  # with the values of the example clip
    longer: tuple[Any, ...]  # with those of a longer one
    kwargs: dict[str, Any]
    axis: int  # of time
    window: int  # steps of a window
    allowed: frozenset[str]  # approximations
    paths: dict[int | str, str] = field(default_factory=dict)  # of parameters: argument -> path

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
    several: bool = False  # its inputs are all clips
    once: bool = False  # for a clip it gives one frame
    index: tuple[Any, ...] | None = None  # what remains of an index
