"""Converted networks: calls of a traced network, its head, and the report of a conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from costream.nn.network import PartGraph
from costream.nn.operation import APPROXIMATIONS
from costream.nn.parts import Part
from costream.nn.tracing import TimeDimension, take


class Placeholder(NamedTuple):
    """The place of an argument that is another node's value."""

    number: int


class Call(Part):
    """An operation of a traced network that treats every frame alone.

    ``arguments``: with an ``Placeholder`` for each value that it is called with.
    """

    def __init__(self, function: Callable[..., Any], arguments: Any, options: Any) -> None:
        super().__init__()
        self.function, self.arguments, self.options = function, arguments, options
        self.plain = arguments == tuple(map(Placeholder, range(len(arguments))))
        self.fixed = not any(isinstance(x, Placeholder | tuple | list) for x in options.values())

    def forward(self, *values: Any) -> Any:
        """Return the operation of these values."""
        if self.plain and self.fixed:
            return self.function(*values, **self.options)

        def value(x: Any) -> Any:
            return values[x.number] if isinstance(x, Placeholder) else x

        return self.function(*_fill(self.arguments, value), **_fill(self.options, value))


def _fill(spec: Any, value: Callable[[Any], Any]) -> Any:
    if isinstance(spec, Placeholder):
        return value(spec)
    if isinstance(spec, tuple | list):
        return type(spec)(_fill(x, value) for x in spec)
    if isinstance(spec, dict):
        return {k: _fill(x, value) for k, x in spec.items()}
    if isinstance(spec, slice):
        return slice(*(_fill(x, value) for x in (spec.start, spec.stop, spec.step)))
    return spec


class FrameHead:
    """Operations on each of the frames that come, whose results are stacked along dimension 1."""

    def __init__(self, axes: Sequence[TimeDimension | None]) -> None:
        self.axes = axes
        self.calls: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self.lead = next(k for k, a in enumerate(axes) if a is not None)
        self.merged = 1  # size of the dimension of time for one frame

    def __call__(self, *values: Any) -> Tensor:
        """Return the results [B, T', ...] for the boundary's values."""
        lead, axis = values[self.lead], self.axes[self.lead]
        assert axis is not None
        count = lead.shape[axis.dim] // self.merged
        outs = []
        for k in range(count):
            env = [
                x if a is None or count == 1 else take(x, a, count, k, 1)
                for x, a in zip(values, self.axes, strict=True)
            ]
            for call, inputs in self.calls:
                result = call(*[env[i] for i in inputs])
                env = [*env, result]
            outs.append(env[-1])
        return torch.stack(outs, 1)


@dataclass
class ConvertedLayer:
    """A line of the report: a layer and what it became."""

    layer: str
    operation: str
    became: str
    delay: int
    note: str = ""
    approximation: str = ""  # its name, where it is not exact


@dataclass
class ConversionReport:
    """What a network became."""

    entries: list[ConvertedLayer] = field(default_factory=list)
    error: float = 0.0  # clip against steps, largest difference
    change: float | None = None  # of the outputs for the example clip, from approximations

    def __str__(self) -> str:
        rows = [("layer", "operation", "became", "delay", "note")]
        rows += [(e.layer, e.operation, e.became, str(e.delay), e.note) for e in self.entries]
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = [
            "  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines.append(f"clip against steps: {self.error:.1e} at most, relative, on random input")
        used = dict.fromkeys(e.approximation for e in self.entries if e.approximation)
        lines += [f"{name}: {APPROXIMATIONS[name]}" for name in used]
        if self.change is not None:
            lines.append(f"changed by approximations: {self.change:.1e}, relative, on random input")
        return "\n".join(lines)


class Continual(PartGraph):
    """A converted network: the layers of ``source``, called frame by frame.

    It has the modules of ``source``, and so its ``state_dict``; training one trains the other.
    """

    def __init__(self, source: nn.Module, axis: int, frame: Tensor) -> None:
        super().__init__()
        self._modules, self._parameters = source._modules, source._parameters
        self._buffers = source._buffers
        self.axis, self._out_axis, self._frame = axis, axis, frame
        self._report = ConversionReport()
        self.training = source.training

    @property
    def out_axis(self) -> int:
        """Dimension of time in outputs for clips."""
        return self._out_axis

    def example(self) -> Tensor:
        """Return a frame of zeros like the one that the network was converted with."""
        own = next((p for p in self.parameters() if p.is_floating_point()), self._frame)
        dtype = own.dtype if self._frame.is_floating_point() else self._frame.dtype
        return self._frame.to(own.device, dtype)

    def report(self) -> ConversionReport:
        """Return what each layer became and what is not exact."""
        return self._report
