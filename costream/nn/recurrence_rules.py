"""Rules of conversion of recurrences, sums from the first frame on, and shifts by assignment."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from costream.nn.operation import Change, ConversionError, Operation
from costream.nn.parts import Part
from costream.nn.recurrence import Scan


def recurrence(op: Operation) -> Change | None:
    """``co.scan(x, decay, dim)``."""
    decay, dim, first = op.args[1:4]
    if dim % op.clip.dim() != op.axis:
        return None
    if first is not None:
        raise ConversionError("it starts from a state", hint="leave the start out")
    fixed = None if isinstance(decay, Tensor) else decay
    return _scanned(op, fixed, "a state for each number of its input and decay")


def running_sum(op: Operation) -> Change | None:
    """``torch.cumsum(x, dim)``."""
    if op.argument(1, "dim") % op.clip.dim() != op.axis:
        return None
    if op.argument(2, "dtype") is not None:
        raise ConversionError("it has a dtype", hint="convert its input before")
    return _scanned(op, 1, "a sum from the first frame on, which grows with the stream")


def _scanned(op: Operation, decay: float | None, note: str) -> Change:
    axis = op.axis
    if not axis:
        raise ConversionError("time is the first dimension", hint="make the batch the first")

    def make(root: nn.Module) -> Part:
        return Scan(decay, axis)

    return Change(make, note, several=1 if decay is not None else 2)


def assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy of ``x`` with ``x[index] = value``."""
    out = x.clone()
    out[index] = value
    return out


def shift_of(item: slice, longer: slice, frames: tuple[int, int]) -> tuple[int, int]:
    """Return how many frames before and after a slice of time are left out.

    ``item``, ``longer``: for clips with these numbers of ``frames``. ConversionError for slices
    that depend on the end of a clip in other ways.
    """
    sides = []
    for index, count in zip((item, longer), frames, strict=True):
        start, stop, step = index.indices(count)
        if step != 1:
            raise ConversionError("it writes every other frame", hint="write all of them")
        sides.append((start, count - stop))
    if sides[0] != sides[1]:
        raise ConversionError(
            f"it writes frames {item.start}:{item.stop} of the clip",
            hint="write all but some at the beginning or at the end",
        )
    return sides[0]
