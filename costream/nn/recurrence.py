"""Linear recurrences h_t = a_t * h_(t-1) + x_t: a clip by a scan in chunks, a step in O(1).

Exponential averages, linear attention (Katharopoulos et al., "Transformers are RNNs", ICML 2020),
selective state spaces (Gu and Dao, "Mamba", COLM 2024) and RG-LRU (De et al., "Griffin", 2024) are
of this form, with numbers a_t that are constant or computed from the frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from costream.nn.parts import Part, PartState, frames_of, room
from costream.nn.state import zeros
from costream.nn.timing import Timing, check_shape

_FEW = 16  # frames that are taken one by one
_LARGE = 256  # numbers of a frame from which on all are, on a CPU


def scan(x: Tensor, decay: Tensor | float, dim: int = 1, start: Tensor | None = None) -> Tensor:
    """Return h with h_t = decay_t * h_(t-1) + x_t along a dimension.

    Small frames are computed in chunks of sqrt(T), all of which are taken together (Blelloch,
    "Prefix sums and their applications", 1990), large ones one by one: there is no division, and
    sums are in single precision or better. ``co.convert`` takes networks that call it.

    Args:
        x: [B, ..., T, ...].
        decay: a number, or a tensor that broadcasts with ``x``.
        dim: of T.
        start: h before the first frame, as a frame of the result; zeros if left out.
    """
    if has_torch_function((x, decay)):
        return handle_torch_function(scan, (x, decay), x, decay, dim, start)
    kind, wide = _types(x, decay)
    factor, shape = torch.as_tensor(decay, device=x.device, dtype=wide), _shape(x, decay)
    a, b = (y.expand(shape).movedim(dim, 0) for y in (factor, x.to(wide)))
    if start is not None and len(b):
        b = torch.cat([b[:1] + a[:1] * start.to(wide), b[1:]])
    return (_scanned(a, b) if len(b) else b).movedim(0, dim).to(kind)


def _types(x: Tensor, decay: Tensor | float) -> tuple[torch.dtype, torch.dtype]:
    """Return the type of results, and that of sums, which is at least single precision."""
    kind = torch.result_type(x, decay)
    whole = not kind.is_floating_point and not kind.is_complex
    return kind, kind if whole else torch.promote_types(kind, torch.float32)


def _scanned(a: Tensor, b: Tensor) -> Tensor:
    """Return the scan of rows [T, ...] along the first dimension."""
    count = len(b)
    one_by_one = count <= _FEW or (b.is_cpu and b[0].numel() >= _LARGE)
    size = count if one_by_one else math.isqrt(count - 1) + 1
    left = -count % size
    if left:
        a = torch.cat([a, a.new_ones(left, *a.shape[1:])])
        b = torch.cat([b, b.new_zeros(left, *b.shape[1:])])
    factors, terms = (torch.unflatten(y, 0, (-1, size)).unbind(1) for y in (a, b))
    sums, products = [terms[0]], [factors[0]]
    for factor, term in zip(factors[1:], terms[1:], strict=True):
        sums.append(torch.addcmul(term, factor, sums[-1]))
        if size < count:
            products.append(factor * products[-1])
    inside = torch.stack(sums, 1)
    if size < count:
        ends = _scanned(products[-1], sums[-1])
        before = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        inside = inside + torch.stack(products, 1) * before.unsqueeze(1)
    return inside.flatten(0, 1)[:count]


def _shape(x: Tensor, decay: Tensor | float) -> list[int]:
    """Return the shape of the results."""
    shape = getattr(decay, "shape", ())
    return list(torch.broadcast_shapes(x.shape, shape))  # type: ignore[no-untyped-call]


@dataclass
class ScanState(PartState):
    """State of a linear recurrence."""

    hidden: Tensor  # [B, C, 1, ...], or [B, m, C, 1, ...]: see ``room``


class Scan(Part):
    """Linear recurrence h_t = decay_t * h_(t-1) + x_t over clips [B, C, T, ...].

    Args:
        decay: a number, or a tensor [C] with one for each channel (a Parameter is trained). If left
            out, it is an argument of each call, a clip or a frame that broadcasts with ``x``.
        axis: dimension of time in clips.

    The sum is kept in single precision or better. Calls raise ValueError for a missing decay, or
    for one too many.
    """

    decay: float | Tensor | None
    timing = Timing()

    def __init__(self, decay: float | Tensor | None = None, axis: int = 2) -> None:
        super().__init__()
        self.axis = axis
        if isinstance(decay, Tensor) and not isinstance(decay, nn.Parameter):
            self.register_buffer("decay", decay)
        else:
            self.decay = decay

    def forward(self, x: Tensor, decay: Tensor | None = None) -> Tensor:
        """Return h at every frame of a clip."""
        return scan(x, self._decay(x, decay), self.axis)

    def _decay(self, x: Tensor, decay: Tensor | None) -> Tensor | float:
        """Return the decay of a clip."""
        own = self.decay if decay is None else decay
        if own is None or (self.decay is not None and decay is not None):
            raise ValueError("the decay is needed once: when a Scan is made, or in each call")
        if decay is None and isinstance(own, Tensor) and own.dim() == 1:
            return own.view(-1, *[1] * (x.dim() - 2))
        return own

    def forward_step(self, x: Tensor, state: ScanState, decay: Tensor | None = None) -> Tensor:
        """Take a frame [B, C, ...] of every stream, and its decay; return h."""
        late = None if decay is None else decay.unsqueeze(self.axis)
        return self.advance(x.unsqueeze(self.axis), state, late).squeeze(self.axis)

    def forward_steps(self, x: Tensor, state: ScanState, decay: Tensor | None = None) -> Tensor:
        """Take T frames [B, C, T, ...], and their decays; return h at each."""
        return self.advance(x, state, decay) if x.shape[self.axis] else state.empty.clone()

    def start(self, batch_size: int, clip: Tensor, decay: Tensor | None = None) -> ScanState:
        """Return the initial state; ``clip``, ``decay``: a frame of one stream, [1, C, 1, ...]."""
        factor = clip if decay is None and self.decay is None else self._decay(clip, decay)
        (kind, wide), shape = _types(clip, factor), _shape(clip, factor)
        empty = room(batch_size, clip.new_empty(shape, dtype=kind), self.axis, 0, merged=True)
        hidden = room(batch_size, clip.new_empty(shape, dtype=wide), self.axis, 1)
        return ScanState(zeros(batch_size), empty, hidden)

    def advance(self, x: Tensor, state: ScanState, decay: Tensor | None = None) -> Tensor:
        """Take T frames, return as many."""
        hidden, axis = frames_of(state.hidden, state.empty.dim()), self.axis
        factor = self._decay(x, decay)
        sizes = _shape(x, factor)
        sizes[axis] = 1
        check_shape(sizes, hidden.shape)
        state.tick(x.shape[axis])
        if x.shape[axis] == 1:
            out = factor * hidden + x
        else:
            out = scan(x.to(hidden.dtype), factor, axis, hidden.movedim(axis, 0))
        hidden.copy_(out.detach().narrow(axis, x.shape[axis] - 1, 1))
        return out.to(state.empty.dtype)

    def extra_repr(self) -> str:
        """Return the decay, if it is a number."""
        return f"decay={self.decay}" if isinstance(self.decay, float) else ""
