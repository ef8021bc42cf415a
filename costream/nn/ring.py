"""Ring buffers for the rows of a sliding window, written in place and never rolled.

A ring of ``n`` rows is a tensor [B, ..., n]: the row of step ``t`` is in slot ``t mod n`` of the
last dimension. Attention does not depend on the order of keys, so the rows are never sorted.
Streams of a batch may have started at different times: each has its own step count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK_ROWS = 4096  # rows of windows taken at once


class RingFill(NamedTuple):
    """The slots that hold rows after a step, including the newest row."""

    slot: int | Tensor  # of the newest row; int64 [B] when the streams differ
    length: int  # slots from this index on are empty in every stream
    mask: Tensor | None  # bool [B, length], True where there is a row; None when all are filled


class DeviceCounters:
    """Counters of a state on a device, for steps that read no number in Python.

    Every step that is recorded counts in both places.
    """

    def __init__(self, counters: Sequence[Tensor], device: torch.device) -> None:
        self.full = False  # whether all windows are, so that there is nothing to mask
        self._counters = list(counters)
        self._own = {c.data_ptr(): c.to(device, copy=True) for c in counters}

    def upload(self) -> None:
        """Copy the state's counters to the device."""
        for counter in self._counters:
            self._own[counter.data_ptr()].copy_(counter)

    def count(self, steps: Tensor, by: int = 1) -> None:
        """Count a step of every stream, or ``by``."""
        steps.add_(by)
        self._own[steps.data_ptr()].add_(by)

    def times(self, steps: Tensor) -> Tensor:
        """Return the steps taken so far, int64 [B] on the device, valid until they are counted."""
        return self._own[steps.data_ptr()]

    def advance(self, steps: Tensor, window: int) -> RingFill:
        """Return what ``advance`` does, on the device."""
        times = self.times(steps)
        slot, mask = times % window, None
        if not self.full:
            mask = torch.arange(window, device=times.device) <= times[:, None]
        self.count(steps)
        return RingFill(slot, window, mask)


_active = threading.local()


def recording() -> DeviceCounters | None:
    """Return the recording of this thread's step, if it is being recorded."""
    found: DeviceCounters | None = getattr(_active, "recording", None)
    return found


@contextmanager
def record(recording: DeviceCounters, full: bool) -> Iterator[None]:
    """Take the slots of rings from ``recording``. ``full``: all windows are."""
    recording.full, _active.recording = full, recording
    try:
        yield
    finally:
        _active.recording = None


def advance(steps: Tensor, window: int) -> RingFill:
    """Count one step of every stream and return the slot of its row.

    ``steps``: int64 [B] on the CPU, steps taken so far; changed in place.
    """
    if (recorded := recording()) is not None:
        return recorded.advance(steps, window)
    taken: list[int] = steps.tolist()
    steps.add_(1)
    first = taken[0]
    if taken.count(first) == len(taken):
        return RingFill(first % window, min(first + 1, window), None)
    slot = torch.tensor([t % window for t in taken])
    filled = [min(t + 1, window) for t in taken]
    length = max(filled)
    if min(filled) == length:
        return RingFill(slot, length, None)
    return RingFill(slot, length, torch.arange(length) < torch.tensor(filled)[:, None])


def write(ring: Tensor, slot: int | Tensor, row: Tensor) -> None:
    """Put ``row`` [B, ...] into ``ring`` [B, ..., n]. A state keeps no gradient.

    ValueError for another number of streams, which torch would broadcast.
    """
    if row.shape[0] != ring.shape[0]:
        raise ValueError(f"{len(row)} rows do not fit the state of {len(ring)} streams")
    if row.requires_grad:
        row = row.detach()
    if isinstance(slot, int):
        ring.select(-1, slot).copy_(row)
    elif len(slot) == 1:
        ring.index_copy_(-1, slot.to(ring.device), row.unsqueeze(-1))
    else:
        ring[torch.arange(len(slot), device=ring.device), ..., slot.to(ring.device)] = row


def read(rows: Tensor, slot: int | Tensor) -> Tensor:
    """Return the row [B, d] in this slot of ``rows`` [B, n, d]."""
    if isinstance(slot, int):
        return rows.select(1, slot)
    return rows[torch.arange(len(slot), device=rows.device), slot.to(rows.device)]


def visible(steps: Tensor, window: int, count: int, together: int = 1) -> Tensor:
    """Return which rows each of the next ``count`` rows sees, as bool [B, count, n + count].

    The rows are the ring's, in slot order, then the new ones. ``together``: number of rows
    that arrive in the same step and see the same rows.
    """
    last = steps[:, None] - 1
    held = last - (last - torch.arange(window)) % window  # step of each slot, < 0 where empty
    now = steps[:, None] + torch.arange(count)
    rows = torch.cat([held, now], 1)[:, None, :]
    newest = torch.arange(count) // together * together + together - 1
    end = (steps[:, None] + newest)[:, :, None]
    return (rows >= 0) & (rows <= end) & (rows > end - window)


def windows(steps: Tensor, window: int, count: int) -> tuple[Tensor, Tensor]:
    """Return what each slot would hold after each of the next ``count`` steps.

    The result is int64 [B, count, n], an index into the ring's rows followed by the new rows, and
    bool [B, count, n], True where the slot holds a row.
    """
    now = (steps[:, None] + torch.arange(count))[:, :, None]
    slots = torch.arange(window)
    times = now - (now - slots) % window
    fresh = times - steps[:, None, None]
    return torch.where(fresh >= 0, window + fresh, slots), times >= 0


def histories(steps: Tensor, window: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of ``windows`` with each window's rows from the oldest to the newest."""
    now = (steps[:, None] + torch.arange(count))[:, :, None]
    times = now - torch.arange(window - 1, -1, -1)
    fresh = times - steps[:, None, None]
    return torch.where(fresh >= 0, window + fresh, times % window), times >= 0


def split(index: Tensor, filled: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of the results of ``windows`` along time, which bounds memory.

    ``rows``: of the windows of all streams at one step.
    """
    size = max(1, _CHUNK_ROWS // rows)
    return zip(torch.split(index, size, 1), torch.split(filled, size, 1), strict=True)


def gather(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows [B, count, n, ...] of ``rows`` [B, m, ...] at ``index`` [B, count, n]."""
    batch = torch.arange(rows.shape[0], device=rows.device)[:, None, None]
    return rows[batch, index.to(rows.device)]


def slots_first(ring: Tensor) -> Tensor:
    """Return the view [B, n, ...] of a ring [B, ..., n]."""
    return ring.movedim(-1, 1)


def store(ring: Tensor, rows: Tensor, steps: Tensor) -> None:
    """Put new rows into ``ring`` [B, ..., n] of streams that have taken ``steps``.

    ``rows`` [B, n + count, ...]: the ring's rows, then the new ones. A state keeps no gradient.
    """
    window = ring.shape[-1]
    index, _ = windows(steps, window, rows.shape[1] - window)
    slots_first(ring).copy_(gather(rows.detach(), index[:, -1:])[:, 0])
