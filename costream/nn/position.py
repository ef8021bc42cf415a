"""Positional encodings for endless streams."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.ring import recording
from costream.nn.state import State, zeros


@dataclass
class PositionState(State):
    """Number of tokens that each stream has seen."""

    steps: Tensor  # int64 [B]


class RecyclingPositions(nn.Module):
    """Adds row ``t mod T`` of a table to the token of step ``t``.

    The table has any number of rows T; with T >= 2n - 1 no window of n tokens is ambiguous.
    "Recycling Positional Encoding" of Hedegaard et al., Continual Transformers (ICLR 2023).

    Args:
        rows: T. ``width``: d. ``learned``: a trained table, otherwise the fixed cyclic one.
    """

    table: Tensor

    def __init__(self, rows: int, width: int, learned: bool = True) -> None:
        super().__init__()
        if learned:
            self.table = nn.Parameter(0.02 * torch.randn(rows, width))
        else:
            self.register_buffer("table", cyclic_table(rows, width))

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """Return ``x`` [B, T, d] with positions added, as if ``offset`` steps lay before it.

        ``offset`` may be int64 [B]: random offsets train the model to expect any row first.
        """
        start = torch.as_tensor(offset, device=x.device).reshape(-1, 1)
        times = start + torch.arange(x.shape[1], device=x.device)
        return x + self.table[times % self.table.shape[0]]

    def init_state(self, batch_size: int = 1) -> PositionState:
        """Return the initial state of ``batch_size`` streams."""
        return PositionState(zeros(batch_size))

    def forward_step(self, x: Tensor, state: PositionState) -> Tensor:
        """Return the tokens ``x`` [B, d] of one step with their positions added."""
        recorded = recording()
        if recorded is not None:
            rows = recorded.times(state.steps) % self.table.shape[0]
            recorded.count(state.steps)
            return x + self.table[rows]
        if len(x) == 1 and fast.enabled():
            steps = state.steps.numpy()  # read in a tenth of a tensor's time
            t = int(steps[0])
            steps[0] = t + 1
            table = self.table
            return x + table[t % len(table)]
        rows = state.steps % self.table.shape[0]
        state.steps += 1
        return x + self.table[rows]

    def forward_steps(self, x: Tensor, state: PositionState) -> Tensor:
        """Return the tokens ``x`` [B, T, d] of T steps with their positions added."""
        out = self(x, state.steps)
        state.steps += x.shape[1]
        return out  # type: ignore[no-any-return]


class RotaryPositions:
    """Rotary positions: queries and keys are rotated with the step, so that only distances count.

    Values 2i and 2i + 1 of a head are a point, rotated by t b^(-2i / e) at step t (Su et al.,
    RoFormer, 2021). Angles are computed in float64: in float32 the angles of step 1,000,000 would
    be 0.06 off. Not a module, because ``module.float()`` must not round the rates.

    Args:
        width: e, even. ``base``: b.
    """

    def __init__(self, width: int, base: float = 10_000.0) -> None:
        if width % 2:
            raise ValueError(f"rotary positions need heads of even width, not {width}")
        self.rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self._placed = {self.rates.device: self.rates}

    def turns(self, times: Tensor, like: Tensor) -> Tensor:
        """Return cos + i sin of the angles at ``times``, int64 [...], as complex [..., e / 2].

        They are on the device of ``like``, with its precision, but at least that of float32.
        """
        if times.device not in self._placed:
            self._placed[times.device] = self.rates.to(times.device)
        angles = times[..., None].double() * self._placed[times.device]
        wide = like.dtype is torch.float64
        turns = torch.polar(torch.ones_like(angles), angles)
        return turns.to(like.device, torch.complex128 if wide else torch.complex64)


def turn_pairs(rows: Tensor, turns: Tensor) -> None:
    """Rotate the pairs of ``rows`` [..., e] in place: (x0, x1) to (x0 c - x1 s, x1 c + x0 s).

    ``turns``: c + i s, complex, broadcast over [..., e / 2].
    """
    pairs = torch.unflatten(rows, -1, (-1, 2))
    if rows.dtype in (torch.float32, torch.float64):
        torch.view_as_complex(pairs).mul_(turns)
        return
    turned = torch.view_as_complex(pairs.float()) * turns  # complex numbers need at least 32 bits
    pairs.copy_(torch.view_as_real(turned))


def cyclic_table(rows: int, width: int) -> Tensor:
    """Return the fixed table, float32 [rows, width], whose first row follows its last one.

    Every column is a sine or cosine of a triangle wave, so that it is continuous around the
    cycle; then a running mean over 5 rows smooths the corners. It follows the fixed recycling
    encoding of Continual Transformers step by step, down to its float64 sampling grid: trained
    weights depend on it.
    """
    half = width // 2
    ratio = rows ** (1 / half)
    skips = [math.trunc(v) for v in _linspace(ratio, rows, half)]
    columns = [_cyclic_column(i, rows, half, skips) for i in range(width)]
    raw = torch.stack(columns, 1).to(torch.float32)
    smooth = torch.stack([raw.roll(shift, 0) for shift in (2, 1, 0, -1, -2)]).mean(0)
    return smooth - raw.mean(0)


def _cyclic_column(i: int, rows: int, half: int, skips: list[int]) -> Tensor:
    pair = 3 * (i // 3) + 1
    skip = skips[pair] if pair < half else skips[-1]
    if rows > skip:
        end: float = math.ceil(rows / skip) * skip
    else:
        end, skip = rows, rows
    grid = torch.arange(0, end + 0.01, 0.01, dtype=torch.float64)
    picks = [math.trunc(v) for v in _linspace(0, len(grid) - 1, rows + 1)]
    grid = grid[picks[:rows]]
    triangle = (grid.remainder(2 * skip) - skip).abs()
    phase = 0.0 if i <= half else 2 * math.pi * (half - i) / half
    angle = 2 * math.pi / skip * triangle + phase
    return angle.cos() if i % 2 else angle.sin()


def _linspace(start: float, stop: float, count: int) -> list[float]:
    """Return ``count`` evenly spaced float64 numbers, rounded like numpy.linspace."""
    if count == 1:
        return [start]
    step = (stop - start) / (count - 1)
    return [start + k * step for k in range(count - 1)] + [stop]
