"""State of a batch of streams, separate from the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound="State")
_Join: TypeAlias = Callable[[Sequence[Tensor]], Tensor]


def zeros(*shape: int, like: Tensor | None = None) -> Tensor:
    """Return zeros with dtype and device of ``like``; without it, a counter (int64, on the CPU).

    Counters stay on the CPU so that a step on an accelerator never waits for one. The result is
    an ordinary tensor even under ``torch.inference_mode``: a state outlives the mode it was
    created in.
    """
    with torch.inference_mode(False):
        if like is None:
            return torch.zeros(shape, dtype=torch.int64)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


class State:
    """Base of all states: a dataclass whose fields are tensors, States or tuples of States.

    Other fields are settings: copies share them, and no operation changes them.

    Two conventions make the operations below generic: the leading dimension of every tensor is
    the stream, and a stream that has seen nothing is all zeros. Counters are int64 [B].
    """

    def _parts(self) -> Iterator[tuple[str, Tensor | State]]:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(value, tuple):
                yield from ((f"{f.name}.{k}", part) for k, part in enumerate(value))
            elif isinstance(value, Tensor | State):
                yield f.name, value

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by a flat name, sharing memory with the state. For saving."""
        flat: dict[str, Tensor] = {}
        for name, part in self._parts():
            if isinstance(part, State):
                flat.update({f"{name}.{k}": v for k, v in part.tensors().items()})
            else:
                flat[name] = part
        return flat

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Copy the values of ``tensors()`` from a state of the same shapes, bit for bit.

        States of earlier versions are converted. Raises KeyError for missing or unknown names,
        ValueError for other shapes or types.
        """
        own, given = self.tensors(), self.converted(tensors)
        _check(own, given, self.batch_size)
        for name, tensor in own.items():
            tensor.copy_(given[name])

    def converted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the ``tensors()`` of a state that an earlier version saved, in the form of now."""
        found = dict(tensors)
        for name, part in self._parts():
            if isinstance(part, State):
                inner = {
                    key.removeprefix(f"{name}."): value
                    for key, value in tensors.items()
                    if key.startswith(f"{name}.")
                }
                found.update({f"{name}.{k}": v for k, v in part.converted(inner).items()})
        return found

    def clone(self: S) -> S:
        """Return an independent copy."""
        return self._map([self], lambda parts: parts[0].clone())

    def __reduce__(self: S) -> tuple[type[S], tuple[object, ...]]:
        """Return the fields only, for copies and pickles; other attributes are views of them."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return type(self), tuple(getattr(self, f.name) for f in fields)

    def __deepcopy__(self: S, memo: object) -> S:
        """Return a clone: other attributes of a state are views of its tensors."""
        return self.clone()

    @property
    def batch_size(self) -> int:
        """Number of streams."""
        return next(iter(self.tensors().values())).shape[0]

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Clear these streams (default: all)."""
        numbers = None if rows is None else numbers_of(rows)
        for _, part in self._parts():
            if isinstance(part, State):
                part.reset(numbers)
            elif numbers is None:
                part.zero_()
            else:
                part[numbers] = 0

    def take(self: S, rows: Iterable[int]) -> S:
        """Return a new state of only these streams, in this order (streams leave a batch)."""
        index = torch.tensor(numbers_of(rows), dtype=torch.int64)
        return self._map([self], lambda parts: parts[0].index_select(0, index.to(parts[0].device)))

    def put(self: S, rows: Iterable[int], other: S) -> None:
        """Copy the streams of ``other`` into these rows, bit for bit: the inverse of ``take``.

        In place: the memory of this state does not move. Raises as ``load_tensors`` does, and
        IndexError for a row out of range; nothing is changed then.
        """
        index = torch.tensor(numbers_of(rows), dtype=torch.int64)
        if not all(0 <= row < self.batch_size for row in index.tolist()):
            raise IndexError(f"rows {index.tolist()} not among {self.batch_size} streams")
        own, new = self.tensors(), other.tensors()
        _check(own, new, len(index))
        for name, tensor in own.items():
            tensor.index_copy_(0, index.to(tensor.device), new[name].to(tensor.device))

    @classmethod
    def cat(cls: type[S], states: Sequence[S]) -> S:
        """Return one state of all these streams (streams join a batch)."""
        return states[0]._map(states, lambda parts: torch.cat(list(parts)))

    def _map(self: S, states: Sequence[S], join: _Join) -> S:
        with torch.inference_mode(False):
            values = {
                f.name: _joined([getattr(s, f.name) for s in states], join)
                for f in dataclasses.fields(self)  # type: ignore[arg-type]
            }
        return type(self)(**values)


def numbers_of(rows: Iterable[int]) -> list[int]:
    """Return the numbers of streams, which may be a tensor, or a generator."""
    return list(map(int, rows))


def _joined(parts: Sequence[object], join: _Join) -> object:
    """Return a field's values in several states, joined."""
    head = parts[0]
    if isinstance(head, State):
        return head._map(parts, join)  # type: ignore[arg-type]
    if isinstance(head, tuple):
        return tuple(_joined(column, join) for column in zip(*parts, strict=True))
    return _laid_out(parts, join) if isinstance(head, Tensor) else head  # type: ignore[arg-type]


def _laid_out(parts: Sequence[Tensor], join: _Join) -> Tensor:
    """Return the joined tensors with their dimensions in memory as in the first.

    A step of maps with interleaved channels takes longer where they are not.
    """
    head = parts[0]
    if head.is_contiguous():
        return join(parts)
    inner = sorted(range(1, head.dim()), key=head.stride, reverse=True)
    joined = join([part.permute(0, *inner) for part in parts])
    return joined.permute(0, *(1 + inner.index(k) for k in range(1, head.dim())))


def _check(own: dict[str, Tensor], new: dict[str, Tensor], streams: int) -> None:
    """Raise KeyError or ValueError unless ``new`` is laid out as ``streams`` streams of ``own``."""
    if own.keys() != new.keys():
        raise KeyError(f"state does not fit, missing or unknown: {sorted(own.keys() ^ new.keys())}")
    for name, tensor in own.items():
        given, wanted = new[name], (streams, *tensor.shape[1:])
        if given.shape != wanted or given.dtype != tensor.dtype:
            raise ValueError(
                f"state {name}: {tuple(given.shape)} {given.dtype}, not {wanted} {tensor.dtype}"
            )
