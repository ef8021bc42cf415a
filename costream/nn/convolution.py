"""Convolution over time, ordinary and continual.

A step stores the newest frame and multiplies the last K frames with the weights, once; nothing is
recomputed for earlier frames (Hedegaard, Iosifidis, "Continual 3D Convolutional Neural
Networks for Real-time Processing of Videos", ECCV 2022). There the products of a frame with all K
taps are stored and accumulated; here the frames themselves are, contiguous in memory, so that a
step is one matrix product of inner size K * C without copying its operands, and a step whose output
a stride discards computes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.state import zeros
from costream.nn.timing import ClockedState, ContinualModule, check_shape, kernel_timing

_LAP = 2  # steps between two copies, as a multiple of the K - 1 frames that are copied


@dataclass
class ConvolutionState(ClockedState):
    """Frames that later outputs need.

    With dilation d, frames of equal t mod d are stored together, so that the K frames of an
    output are adjacent. Of L slots, the first K - 1 repeat the last ones of the previous lap.
    """

    frames: Tensor  # [B, P, d, L, C]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.views: _Views | None = None  # created on first use, never saved or copied


@dataclass(frozen=True)
class _Views:
    """Views of the ring for the steps; creating a view costs 1 us."""

    slots: tuple[tuple[Tensor, ...], ...]  # d x (L - K + 1) times [B P, C]: the newest frame
    windows: tuple[tuple[Tensor, ...], ...]  # as many [B P, K C]: the last K frames


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
        overlap = self.kernel - 1
        shape = (self.dilation, (1 + _LAP) * overlap, self.in_width)
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
        step. The result [B P, K I] is a view of the state that the next step changes, with columns
        in the order of the rows of ``matrix``. ``x`` [B, ..., I], or the same as [B P, I].
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
        slot = lap % len(views.slots[phase])
        if lap and not slot:
            overlap = self.kernel - 1
            ring = frames[:, :, phase]
            ring[:, :, :overlap] = ring[:, :, -overlap:]
        views.slots[phase][slot].copy_(rows.detach() if rows.requires_grad else rows)
        return views.windows[phase][slot] if due else None

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
        frames, size = state.frames, self.kernel
        starts = range(frames.shape[3] - size + 1)
        with torch.inference_mode(False):
            phases = frames.unbind(2)
            slots = tuple(p.flatten(0, 1)[:, size - 1 :].unbind(1) for p in phases)
            rows = [phase.flatten(0, 1).flatten(1) for phase in phases]
            spans = [(k * self.in_width, size * self.in_width) for k in starts]
            windows = tuple(tuple(row.narrow(1, *span) for span in spans) for row in rows)
            state.views = _Views(slots, windows)
        return state.views

    def _tails(self, state: ConvolutionState, time: int) -> list[Tensor]:
        """Return views [B, P, K - 1, C] of the last frames before ``time``, oldest phase first."""
        overlap = self.kernel - 1
        lap = state.frames.shape[3] - overlap
        tails = []
        for k in range(time, time + self.dilation):
            count, phase = divmod(k, self.dilation)  # frames of this phase so far
            end = overlap + (count - 1) % lap + 1 if count else overlap
            tails.append(state.frames[:, :, phase, end - overlap : end])
        return tails

    def _before(self, state: ConvolutionState, time: int) -> Tensor:
        """Return the (K - 1) * d frames before ``time`` in their order, [B, (K - 1) d, P, C]."""
        return torch.stack(self._tails(state, time), 3).flatten(2, 3).transpose(1, 2)

    def _store(self, rows: Tensor, state: ConvolutionState, time: int) -> None:
        """Store the last of ``rows`` [B, T, P, C], which end before ``time``, in the ring."""
        reach = (self.kernel - 1) * self.dilation
        last = torch.unflatten(rows[:, -reach:].transpose(1, 2), 2, (-1, self.dilation))
        for tail, new in zip(self._tails(state, time), last.unbind(3), strict=True):
            tail.copy_(new)


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
