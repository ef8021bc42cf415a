"""Convolution over time, ordinary and continual.

A step multiplies the newest frame and the K - 1 before it with the weights, once; nothing is
recomputed for earlier frames (Hedegaard, Iosifidis, "Continual 3D Convolutional Neural
Networks for Real-time Processing of Videos", ECCV 2022). There the products of a frame with all K
taps are stored and accumulated; here the K - 1 frames themselves are, so that a step is one matrix
product of inner size K * C, and a step whose output a stride discards computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.state import zeros
from costream.nn.timing import (
    ClockedState,
    ContinualModule,
    check_shape,
    in_order,
    kernel_timing,
    store,
)


@dataclass
class ConvolutionState(ClockedState):
    """The last K - 1 frames of each phase t mod d: frame t is in slot t div d mod (K - 1)."""

    frames: Tensor  # [B, P, d, K - 1, C]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.views: _Views | None = None  # created on first use, never saved or copied

    def converted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a state that costream 0.1 saved, in the form of this one.

        It had 3 (K - 1) slots, the first K - 1 of which repeated the last ones of the previous lap.
        """
        overlap, saved = self.frames.shape[3], tensors.get("frames")
        if saved is None or not overlap or saved.shape[3:4] != (3 * overlap,):
            return tensors
        time, phases = int(tensors["clock"].max()), []
        for phase, ring in enumerate(saved.unbind(2)):
            count = (time - phase - 1) // self.frames.shape[2] + 1  # frames of this phase
            end = overlap + (count - 1) % (2 * overlap) + 1 if count else overlap
            phases.append(torch.roll(ring[:, :, end - overlap : end], count % overlap, 2))
        return {**tensors, "frames": torch.stack(phases, 2)}


@dataclass(frozen=True)
class _Views:
    """Views of the ring for the steps; creating a view costs 1 us."""

    # For each phase and slot: its frame, [B P, C], and the frames from it on and before it, flat.
    slots: tuple[tuple[Tensor, ...], ...]
    parts: tuple[tuple[tuple[Tensor, Tensor], ...], ...]


class TemporalConvolution(ContinualModule):
    """Convolution over time with a kernel shared by all positions; features last.

    ``weight`` has the shape and the name of ``torch.nn.Conv1d``'s, [O, I, K], but is stored as
    [K, I, O], so that the matrix of a step is a view of it and always up to date. Serialisers that
    need contiguous tensors must call ``.contiguous()``.

    Args:
        in_width: I. ``out_width``: O. ``kernel``: K. ``stride``, ``dilation``: in frames.
        padding: zeros before and after the clip; the causal form is ((K - 1) * dilation, 0). A
            stream only has those before.
        bias: whether there is a bias.

    Raises ValueError for sizes below 1 and for more padding before the clip than the kernel
    reaches back, since there would be outputs before frame 0.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_width: int,
        out_width: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width
        self.kernel, self.dilation = kernel, dilation
        self.timing, self.right_padding = kernel_timing(kernel, stride, dilation, padding)
        self._delay, self._stride = self.timing.delay, stride  # plain attributes are read faster
        weight = torch.empty(kernel, in_width, out_width)
        self.weight = nn.Parameter(weight.permute(2, 1, 0))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_width)) if bias else None)
        self.reset_parameters()
        self._matrix: Tensor | None = None

    def reset_parameters(self) -> None:
        """Initialise the weights as ``torch.nn.Conv1d`` does."""
        bound = 1 / math.sqrt(self.in_width * self.kernel)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def resize(self) -> None:
        """Take the widths from the weights."""
        self.out_width, self.in_width = self.weight.shape[:2]

    @property
    def matrix(self) -> Tensor:
        """Weights as [K I, O]: a view, or a copy if the memory layout of ``weight`` was changed."""
        weight, held = self._parameters.get("weight"), self._matrix
        if weight is None:  # it has an adapter
            return self.weight.permute(2, 1, 0).reshape(-1, self.out_width)
        if torch.is_grad_enabled():
            return weight.permute(2, 1, 0).reshape(-1, self.out_width)
        # Creating the view takes 5 us. It is cached while the weights stay at the same address; it
        # keeps that memory alive, so nothing else can be allocated there.
        if held is None or held.data_ptr() != weight.data_ptr():
            held = weight.detach().permute(2, 1, 0).reshape(-1, self.out_width)
            self._matrix = held
        return held

    def forward(self, x: Tensor) -> Tensor:
        """Return the ordinary convolution [B, T', ..., O] of a clip [B, T, ..., I]."""
        padding = (0, 0, 0, 0, self.padding, self.right_padding)
        return self._convolve(F.pad(as_rows(x), padding), x)

    def init_state(self, batch_size: int = 1, positions: int = 1) -> ConvolutionState:
        """Return the initial state of ``batch_size`` streams with this many positions each."""
        shape = (self.dilation, self.kernel - 1, self.in_width)
        return ConvolutionState(
            zeros(batch_size), zeros(batch_size, positions, *shape, like=self.weight)
        )

    def forward_step(self, x: Tensor, state: ConvolutionState) -> Tensor | None:
        """Take a frame [B, ..., I] of every stream, return an output [B, ..., O] or None."""
        window = self.window(x, state)
        if window is None:
            return None
        bias = self._parameters["bias"]
        if bias is None:
            out = torch.mm(window, self.matrix)
        else:
            out = torch.addmm(bias, window, self.matrix)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self.out_width)

    def window(self, x: Tensor, state: ConvolutionState) -> Tensor | None:
        """Take a frame and return the frames that the output of this step needs, or None.

        For callers with other weights, such as folded ones: ``window @ matrix`` is the
        step. The result [B P, K I] has columns in the order of the rows of ``matrix``. ``x``
        [B, ..., I], or the same as [B P, I].
        """
        frames = state.frames
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        batch, positions = frames.shape[:2]
        if rows.shape != (batch * positions, self.in_width) or (x.dim() > 2 and len(x) != batch):
            shape = (batch, positions, self.in_width)
            raise ValueError(f"frame of shape {tuple(x.shape)} does not fit the state for {shape}")
        time = state.tick()
        due = time >= self._delay and not (time - self._delay) % self._stride
        if self.kernel == 1:
            return rows if due else None
        views = state.views or self._make_views(state)
        lap, phase = divmod(time, self.dilation)
        slot, rows = lap % (self.kernel - 1), rows.detach() if rows.requires_grad else rows
        window = torch.cat([*views.parts[phase][slot], rows], 1) if due else None
        views.slots[phase][slot].copy_(rows)
        return window

    def forward_steps(self, x: Tensor, state: ConvolutionState) -> Tensor:
        """Take T frames [B, T, ..., I], return what T steps would, [B, T', ..., O].

        T' may be 0.
        """
        rows = as_rows(x)
        shape = state.frames.shape
        check_shape((len(x), *rows.shape[2:]), (shape[0], shape[1], shape[4]))
        time = state.tick(x.shape[1])
        if self.kernel > 1:
            rows = torch.cat([self._before(state, time), rows], 1)
            self._store(rows.detach(), state, time + x.shape[1])
        return self._convolve(rows[:, self.timing.next_output(time) - time :], x)

    def count_macs(self, positions: int = 1) -> int:
        """Return the multiply-accumulates of a step that gives an output, for one stream."""
        return positions * self.kernel * self.in_width * self.out_width

    def _convolve(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the convolution of padded ``rows`` [B, T, P, I] with the positions of ``x``."""
        shape = (*x.shape[2:-1], self.out_width)
        if rows.shape[1] < self.receptive_field:
            return x.new_zeros(x.shape[0], 0, *shape)
        stride, dilation = (self.stride, 1), (self.dilation, 1)
        # As images of T x P, the rows are in torch's channels_last layout, which is fast.
        images, weight = rows.permute(0, 3, 1, 2), self.weight.unsqueeze(3)
        out = F.conv2d(images, weight, self.bias, stride, 0, dilation)
        return out.permute(0, 2, 3, 1).reshape(x.shape[0], -1, *shape)

    def _make_views(self, state: ConvolutionState) -> _Views:
        with torch.inference_mode(False):
            phases = state.frames.flatten(0, 1).unbind(1)
            slots = tuple(phase.unbind(1) for phase in phases)
            places = [k * self.in_width for k in range(self.kernel - 1)]
            rows = [phase.flatten(1) for phase in phases]
            parts = tuple(tuple((row[:, k:], row[:, :k]) for k in places) for row in rows)
            state.views = _Views(slots, parts)
        return state.views

    def _rings(self, state: ConvolutionState, time: int) -> Iterator[tuple[Tensor, int]]:
        """Yield rings [B, P, K - 1, C], and how many frames before ``time``, oldest phase first."""
        for k in range(time, time + self.dilation):
            count, phase = divmod(k, self.dilation)
            yield state.frames[:, :, phase], count

    def _before(self, state: ConvolutionState, time: int) -> Tensor:
        """Return the (K - 1) * d frames before ``time`` in their order, [B, (K - 1) d, P, C]."""
        tails = [in_order(ring, count, 2) for ring, count in self._rings(state, time)]
        return torch.stack(tails, 3).flatten(2, 3).transpose(1, 2)

    def _store(self, rows: Tensor, state: ConvolutionState, time: int) -> None:
        """Store the last of ``rows`` [B, T, P, C], which end before ``time``, in the ring."""
        reach = (self.kernel - 1) * self.dilation
        last = torch.unflatten(rows[:, -reach:].transpose(1, 2), 2, (-1, self.dilation))
        for (ring, count), new in zip(self._rings(state, time), last.unbind(3), strict=True):
            store(ring, new, count, 2)


def as_rows(x: Tensor) -> Tensor:
    """Return a clip [B, T, ..., C] as [B, T, P, C]."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:-1]), x.shape[-1])


# Convolution over time and frequency, ordinary and continual: causal in time.
#
# Spectrogram frames arrive several at a time (a hop of audio is a dozen of them), so a step is a
# convolution over a few frames and the few earlier ones that it still reaches; no frame passes
# through a layer twice (the continual convolution of Hedegaard, Iosifidis, ECCV 2022, in 2D).


class TimeFrequencyConvolution(nn.Module):
    """Convolution of images of frames x bands, features last; zeros precede frame 0.

    ``weight`` has the shape and the name of ``torch.nn.Conv2d``'s, [O, I, K_time, K_band]. Frames
    are padded in front so that output j needs frames up to (j + 1) * stride - 1; bands on both
    sides by (K_band - 1) / 2, or not at all for an even kernel. The state of a stream is a tensor
    of the last K_time - stride frames.

    Args:
        in_width: I. ``out_width``: O.
        kernel, stride: over frames and bands. bias: whether there is a bias.

    Raises ValueError for a kernel over time that is shorter than its stride.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_width: int,
        out_width: int,
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not 1 <= stride[0] <= kernel[0] or stride[1] < 1:
            raise ValueError(f"strides {stride} must be at least 1, in time at most {kernel[0]}")
        self.in_width, self.out_width = in_width, out_width
        self.kernel, self.stride = kernel, stride
        self.reach = kernel[0] - stride[0]  # frames before the new ones
        self.pads = (0, (kernel[1] - 1) // 2 if kernel[1] % 2 else 0)
        # The layout in which a convolution of few frames runs at full speed; in torch's default
        # layout the # weights are rearranged at every call, which takes two to four times as long.
        weight = torch.empty(out_width, *kernel, in_width).permute(0, 3, 1, 2)
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_width)) if bias else None)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T / stride, F', O] of a clip [B, T, F, I]; T is a multiple of the stride."""
        return self._convolve(F.pad(x, (0, 0, 0, 0, self.reach, 0)))

    def resize(self) -> None:
        """Take the widths from the weights."""
        self.out_width, self.in_width = self.weight.shape[:2]

    def init_state(self, batch_size: int, bands: int) -> Tensor:
        """Return the initial state: zero frames [B, K_time - stride, F, I] for F bands."""
        return zeros(batch_size, self.reach, bands, self.in_width, like=self.weight)

    def forward_steps(self, x: Tensor, past: Tensor) -> Tensor:
        """Take frames [B, T, F, I], return [B, T / stride, F', O] and update ``past`` in place."""
        if not self.reach:
            return self._convolve(x)
        rows = torch.cat([past, x], 1)
        past.copy_(rows[:, -self.reach :].detach())
        return self._convolve(rows)

    def bands(self, bands: int) -> int:
        """Return the number of output bands F' for F input bands."""
        return (bands + 2 * self.pads[1] - self.kernel[1]) // self.stride[1] + 1

    def count_macs(self, frames: int, bands: int) -> int:
        """Return the multiply-accumulates for this many new frames and bands of one stream."""
        taps = self.kernel[0] * self.kernel[1] * self.in_width * self.out_width
        return frames // self.stride[0] * self.bands(bands) * taps

    def _convolve(self, rows: Tensor) -> Tensor:
        images = rows.permute(0, 3, 1, 2)
        out = F.conv2d(images, self.weight, self.bias, self.stride, self.pads)
        return out.permute(0, 2, 3, 1)
