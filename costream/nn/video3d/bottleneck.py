"""Residual bottlenecks of 3D networks: over clips with gradients, and frame by frame.

Clips are [B, C, T, H, W]. ``form``: their padding in time, see ``padding``; unless it is "same",
squeeze-excitation acts on each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.fused import RELU
from costream.nn.operation import ConversionError
from costream.nn.state import State
from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video3d.frame_ring import FrameRing, FrameRingState
from costream.nn.video3d.padding import centre_frames, convolution, odd_kernel_timing, pad_time
from costream.nn.video3d.tap_sums import TapSums, TapSumsState

if TYPE_CHECKING:
    from costream.nn.chain_program import Map, ProgramBuilder


class SqueezeExcitation(nn.Module):
    """Channels scaled by a function of their means over a clip or a frame (Hu et al., 2018)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, form: str) -> Tensor:
        """Return the scaled clips, [B, C, T, H, W] as ``x``."""
        whole = form == "same"
        means = x.mean((2, 3, 4)) if whole else x.mean((3, 4)).transpose(1, 2)
        gate = self.gate(means)
        return x * (
            gate[:, :, None, None, None] if whole else gate.transpose(1, 2)[..., None, None]
        )

    def gate(self, means: Tensor) -> Tensor:
        """Return the factors of the channels, [..., C], for their means [..., C]."""
        return torch.sigmoid(cast(Tensor, self.fc2(torch.relu(self.fc1(means)))))


class Bottleneck3d(nn.Module):
    """``relu(c(b(a(x))) + shortcut(x))``, each convolution with a batch norm.

    Args:
        in_width, inner_width, out_width: channels before, inside and after.
        kernel: over time, odd. It belongs to a, a pointwise convolution (Slow, I3D), or to b.
        depthwise: b is depthwise, has the kernel over time, and is followed by squeeze-excitation
            of inner width ``squeeze``, if that is not 0, and by swish (X3D).
        stride: of b, in pixels.
    """

    def __init__(
        self,
        in_width: int,
        inner_width: int,
        out_width: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        depthwise: bool = False,
        squeeze: int = 0,
    ) -> None:
        super().__init__()
        self.kernel, self.depthwise, self.stride = kernel, depthwise, stride
        first, second = (1, kernel) if depthwise else (kernel, 1)
        groups = inner_width if depthwise else 1
        self.a = convolution(in_width, inner_width, (first, 1, 1))
        self.a_bn = nn.BatchNorm3d(inner_width)
        self.b = convolution(inner_width, inner_width, (second, 3, 3), stride, groups)
        self.b_bn = nn.BatchNorm3d(inner_width)
        self.squeeze = SqueezeExcitation(inner_width, squeeze) if squeeze else None
        self.c = convolution(inner_width, out_width, (1, 1, 1))
        self.c_bn = nn.BatchNorm3d(out_width)
        self.shortcut: nn.Conv3d | None = None
        if stride > 1 or in_width != out_width:
            self.shortcut = convolution(in_width, out_width, (1, 1, 1), stride)
            self.shortcut_bn = nn.BatchNorm3d(out_width)

    @property
    def activation(self) -> Callable[..., Tensor]:
        """Activation after b."""
        return F.silu if self.depthwise else F.relu

    def forward(self, x: Tensor, form: str) -> Tensor:
        """Return [B, O, T', H', W'] for clips ``x`` [B, C, T, H, W]."""
        early, late = (1, self.kernel) if self.depthwise else (self.kernel, 1)
        y = F.relu(self.a_bn(self.a(pad_time(x, form, early))))
        y = self.b_bn(self.b(pad_time(y, form, late)))
        y = self.activation(y if self.squeeze is None else self.squeeze(y, form))
        beside = centre_frames(x, form, self.kernel)
        if self.shortcut is not None:
            beside = self.shortcut_bn(self.shortcut(beside))
        return F.relu(self.c_bn(self.c(y)) + beside)


@dataclass
class Bottleneck3dState(State):
    """Input frames of a block, and what its kernel over time needs if that is inside."""

    inputs: FrameRingState
    inner: TapSumsState | None


class FoldedBottleneck:
    """A ``Bottleneck3d`` in evaluation; no gradients. See ``encoder.FoldedPart``.

    A block whose kernel over time is inside stores sums of its outputs, and for the shortcut its
    inputs without the pixels that a stride omits. Others store their inputs.

    ``start``: see ``FrameRing``.
    """

    def __init__(self, block: Bottleneck3d, start: str) -> None:
        self.timing = odd_kernel_timing(block.kernel, start)
        self.half, self.depthwise, self.stride = block.kernel // 2, block.depthwise, block.stride
        self.a = VolumeStep(block.a, block.a_bn)
        self.b = VolumeStep(block.b, block.b_bn)
        self.c = VolumeStep(block.c, block.c_bn)
        self.shortcut = None
        if block.shortcut is not None:
            strided = not block.depthwise  # else the inputs that are stored are
            self.shortcut = VolumeStep(block.shortcut, block.shortcut_bn, strided=strided)
        layers = [] if block.squeeze is None else [block.squeeze.fc1, block.squeeze.fc2]
        pairs = [(fc.weight.detach().T.contiguous(), fc.bias.detach()) for fc in layers]
        self.squeeze = [part for pair in pairs for part in pair]
        self.inputs = FrameRing(self.half if block.depthwise else block.kernel, start)
        self.inner = TapSums(self.b, start) if block.depthwise else None
        self._like = block.a.weight.detach()

    def init_state(self, batch_size: int, size: Sequence[int]) -> Bottleneck3dState:  # noqa: D102
        inner = None
        if self.inner is not None:
            inner = self.inner.init_state(batch_size, self.a.output_size(size), self._like)
            size = -(-size[0] // self.stride), -(-size[1] // self.stride), size[2]
        return Bottleneck3dState(self.inputs.init_state(batch_size, size, self._like), inner)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        return self.c.output_size(self.b.output_size(size))

    def place(self, state: Bottleneck3dState) -> Tensor | None:  # noqa: D102
        return None if self.inner is not None else self.inputs.next_slot(state.inputs)

    def step(  # noqa: D102
        self, x: Tensor, state: Bottleneck3dState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        if self.inner is not None:
            kept = x[:, :: self.stride, :: self.stride]
            past = self.inputs.past(kept, state.inputs, rows)
            sums = cast(TapSumsState, state.inner)
            late = sums.peek() < self.timing.delay
            y = self.inner.push(self.a.product(x), sums, rows)
            output = None
            if not late:
                _excite(y, self.squeeze)
                output = self._add(F.silu(y, inplace=True), past, out)
            self.inputs.replace(kept, state.inputs, rows)
            return output
        time = self.inputs.push(x, state.inputs, rows)
        if time < self.timing.delay:
            return None
        hidden = self.a.over_time(state.inputs, time, RELU).squeeze(1)
        y = self.b.convolve(hidden.permute(0, 3, 1, 2), RELU).permute(0, 2, 3, 1)
        return self._add(y, self.inputs.frame(state.inputs, time - self.half), out)

    def compile(self, x: Map, program: ProgramBuilder) -> Map:  # noqa: D102
        if self.inner is None or self.half != 1:
            raise ConversionError("a bottleneck of another kernel over time cannot be compiled")
        height, width = (-(-side // self.stride) for side in (x.height, x.width))
        past = program.hold(self.a.taps.shape[1], height, width)
        y = program.apply(self.a.compile(x, program), F.relu)
        y = self.b.compile(y, program)
        if self.squeeze:
            first, first_bias, second, second_bias = self.squeeze
            hidden = program.multiply(program.mean(y), first.T, first_bias)
            gate = program.multiply(program.apply(hidden, F.relu), second.T, second_bias)
            y = program.scale(y, program.apply(gate, torch.sigmoid))
        y, beside = self.c.compile(program.apply(y, F.silu), program), past
        if self.shortcut is not None:
            y, beside = self.shortcut.compile(past, program), y
        out = program.apply(program.add(y, beside), F.relu)
        program.keep(x, past, self.stride)
        return out

    def _add(self, y: Tensor, past: Tensor, out: Tensor | None) -> Tensor:
        """Return relu(c(y) + shortcut(past))."""
        if self.shortcut is None:
            return self.c.product(y, out, past)
        return self.shortcut.product(past, out, self.c.product(y, relu=False))


def _excite(frames: Tensor, weights: Sequence[Tensor]) -> None:
    """Scale the channels of frames [B, H, W, C] by ``SqueezeExcitation.gate``, in place.

    ``weights``: [C, h], [h], [h, C] and [C]; none: nothing is done.
    """
    if weights:
        first, first_bias, second, second_bias = weights
        hidden = torch.addmm(first_bias, frames.mean((1, 2)), first).relu_()
        frames *= torch.addmm(second_bias, hidden, second).sigmoid_()[:, None, None]
