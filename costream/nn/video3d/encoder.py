"""3D convolutional networks: X3D and the ResNets Slow and I3D, from video to feature rows.

X3D: Feichtenhofer, CVPR 2020. Slow: Feichtenhofer et al., "SlowFast networks", ICCV 2019. I3D:
Carreira, Zisserman, CVPR 2017, in the form of Wang et al., "Non-local neural networks", CVPR
2018. Step by step: Hedegaard, Iosifidis, "Continual 3D Convolutional Neural Networks for
Real-time Processing of Videos", ECCV 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.choices import prefers_compiled
from costream.nn.folding import Foldable, Folded
from costream.nn.operation import ConversionError
from costream.nn.pooling import MeanState, TemporalMax, TemporalMean
from costream.nn.state import zeros
from costream.nn.timing import ContinualModule, Timing, check_shape, in_sequence
from costream.nn.video3d.architectures import VIDEO_ARCHITECTURES, VideoArchitecture
from costream.nn.video3d.bottleneck import Bottleneck3d, FoldedBottleneck
from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video3d.folded import FoldedHalving, FoldedPart, VideoState
from costream.nn.video3d.frame_ring import STARTS
from costream.nn.video3d.padding import convolution, odd_kernel_timing
from costream.nn.video3d.stem import FoldedStem, VideoStem

if TYPE_CHECKING:
    from costream.nn.video3d.compiled_step import CompiledStep

_SAVED = 50  # in units of 0.1 ms, by a compiled step of X3D-S


class FoldedVideo(Folded):
    """A ``VideoEncoder`` in evaluation, ready to step."""

    def __init__(self, net: VideoEncoder) -> None:
        super().__init__([*net.parameters(), *net.buffers()])
        self.frame_shape, self.start, self.mean = (net.size, net.size, 3), net.start, net.mean
        with torch.inference_mode(False), torch.no_grad():
            self.parts = self._fold(net)
            self.conv = None if net.conv is None else VolumeStep(net.conv, net.conv_bn)
            self.linear = None if net.conv is None else net.linear.weight.detach().T.contiguous()
        self._like, self._width = net.stem.conv.weight.detach(), net.token_width
        self._programs: dict[int, CompiledStep | None] = {}  # by the number of streams
        # Frames that a stream needs to reach each part and, last, the mean; with start "replicate",
        # to have reached it at an earlier step.
        timings = [part.timing for part in self.parts]
        before = [in_sequence(*timings[:k]) for k in range(len(timings) + 1)]
        self._bounds = [t.delay if net.start == "zeros" else t.stride for t in before]

    def _fold(self, net: VideoEncoder) -> list[FoldedPart]:
        parts: list[FoldedPart] = [FoldedStem(net.stem, net.start)]
        for number, block in enumerate(net.blocks):
            if net.halving is not None and number == net.halved:
                parts.append(FoldedHalving(net.halving, net.stem.conv.weight.detach()))
            parts.append(FoldedBottleneck(block, net.start))
        return parts

    def init_state(self, batch_size: int) -> VideoState:
        """Return the initial state of ``batch_size`` streams."""
        states, size = [], self.frame_shape
        for part in self.parts:
            states.append(part.init_state(batch_size, size))
            size = part.output_size(size)
        width = size[2] if self.conv is None else self.conv.out_width
        mean = self.mean.init_state(batch_size, (width,), self._like)
        return VideoState(zeros(batch_size), zeros(batch_size), tuple(states), mean)

    def step(self, x: Tensor, state: VideoState) -> Tensor | None:
        """Take a frame [B, 3, H, W] of every stream, return rows [B, D] or None.

        Raises ValueError for frames of another shape.
        """
        check_shape(x.shape, (len(state.taken), 3, *self.frame_shape[:2]))
        taken: list[int] = state.taken.tolist()
        state.tick()
        state.taken += 1
        if (program := self._program(x, state, taken)) is not None:
            return self._finish(state.compiled(program).run(x), state.mean)
        state.leave()
        y = x.permute(0, 2, 3, 1)
        for number, (part, part_state) in enumerate(zip(self.parts, state.parts, strict=True)):
            following = self.parts[number + 1 : number + 2]
            out = following[0].place(state.parts[number + 1]) if following else None
            output = part.step(y, part_state, self._new_streams(number, taken), out)
            if output is None:
                return None
            y = output
        return self._pool(y, state.mean, self._new_streams(len(self.parts), taken))

    def steps(self, x: Tensor, state: VideoState) -> Tensor:
        """Take T frames [B, T, 3, H, W], return what T steps would, [B, T', D].

        One by one: the products of a single frame are large already.
        """
        outputs = [self.step(frame, state) for frame in x.unbind(1)]
        rows = [row for row in outputs if row is not None]
        if rows:
            return torch.stack(rows, 1)
        return x.new_zeros(len(x), 0, self._width)

    def _program(self, x: Tensor, state: VideoState, taken: Sequence[int]) -> CompiledStep | None:
        """Return the compiled step, if there is one now for these streams and it is faster."""
        steps = min(taken)
        if steps < max(self._bounds) or not fast.runs_chains(x):
            return None
        if not fast.chains_after(_SAVED * steps):
            return None
        if len(taken) not in self._programs:
            self._programs[len(taken)] = None  # while it is measured
            self._programs[len(taken)] = self._compiled(x, state)
        return self._programs[len(taken)]

    def _compiled(self, x: Tensor, state: VideoState) -> CompiledStep | None:
        """Return the compiled step, or None without one or if it takes longer."""
        from costream.nn.video3d.compiled_step import CompiledStep

        try:
            program = CompiledStep(
                (self.frame_shape[0], self.frame_shape[1]), self.parts, self.conv
            )
        except ConversionError:
            return None
        states = state.clone(), state.clone()
        buffers = states[0].compiled(program)
        size = " x ".join(map(str, x.shape[:1] + self.frame_shape[:2]))
        name = f"3D network of {len(self.parts)} parts to {self._width} numbers, {size}"
        faster = prefers_compiled(name, lambda: buffers.run(x), lambda: self.step(x, states[1]))
        return program if faster else None

    def _new_streams(self, number: int, taken: Sequence[int]) -> list[int]:
        bound = self._bounds[number]
        return [row for row, count in enumerate(taken) if count < bound]

    def _pool(self, y: Tensor, state: MeanState, rows: Sequence[int]) -> Tensor | None:
        if self.conv is not None:
            y = self.conv.product(y)
        feature = y.mean((1, 2))
        if rows and self.start == "zeros":
            feature[list(rows)] = 0
        elif rows:
            self.mean.fill(state, rows, feature[list(rows)])
        return self._finish(feature, state)

    def _finish(self, feature: Tensor, state: MeanState) -> Tensor | None:
        """Return rows [B, D] for features [B, C] of the newest frame, or None."""
        mean = self.mean.forward_step(feature, state)
        if mean is None or self.linear is None:
            return mean
        return F.relu(torch.mm(mean, self.linear))


class VideoEncoder(ContinualModule, Foldable[FoldedVideo]):
    """Stem, stages of bottlenecks, mean over space and time; X3D has layers around the mean.

    Args:
        kind: one of ``VIDEO_ARCHITECTURES``.
        size: height and width of its square frames, in pixels.
        widths, depths: channels after each stage, and its number of blocks.
        stem_width: channels after the stem.
        head: of X3D, channels of the layers before and after the mean.
        pool: number of features in the mean of a stream; a clip uses all it has. More than a
            clip has improved accuracy in the paper ("extended pooling", 64).
        start: frames before the first of a stream: "zeros", as for clips in each layer, so that
            the first output comes at step ``delay``; or "replicate", copies of the first frame, so
            that there is an output from step 0 on.

    Raises ValueError for inconsistent arguments.
    """

    def __init__(
        self,
        kind: str,
        size: int,
        widths: Sequence[int],
        depths: Sequence[int],
        stem_width: int,
        *,
        head: Sequence[int] = (),
        pool: int = 1,
        start: str = "zeros",
    ) -> None:
        super().__init__()
        _check(kind, size, widths, depths, head, start)
        plan = VIDEO_ARCHITECTURES[kind]
        self.kind, self.size, self.pool, self.start = kind, int(size), int(pool), start
        self.stem = VideoStem(stem_width, plan.stem_kernel, plan.depthwise)
        self.stages = nn.ModuleList()
        for width, out, depth, kernels, stride in zip(
            (stem_width, *widths), widths, depths, plan.kernels, plan.strides, strict=False
        ):
            blocks = [
                _block(plan, k, width if not k else out, out, kernels, stride if not k else 1)
                for k in range(depth)
            ]
            self.stages.append(nn.ModuleList(blocks))
        self.token_width = head[1] if head else widths[-1]
        self.conv: nn.Conv3d | None = None
        if head:
            self.conv = convolution(widths[-1], head[0], (1, 1, 1))
            self.conv_bn = nn.BatchNorm3d(head[0])
            self.linear = nn.Linear(head[0], head[1], bias=False)
        self.halving: TemporalMax | None = None
        if plan.halves:
            self.halving = TemporalMax(2, 2, padding=(0 if start == "zeros" else 1, 0))
        self.layer_timing = in_sequence(*self._layers())
        # With start "replicate" no feature counts as zeros: see ``TemporalMean.fill``.
        self.mean = TemporalMean(self.pool, zeros=0 if start == "zeros" else self.pool - 1)
        self.timing = in_sequence(self.layer_timing, self.mean)
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def blocks(self) -> list[Bottleneck3d]:
        """Bottlenecks in order."""
        return [cast(Bottleneck3d, b) for stage in self.stages for b in cast(nn.ModuleList, stage)]

    @property
    def halved(self) -> int:
        """Number of blocks before ``halving``."""
        return len(cast(nn.ModuleList, self.stages[0]))

    @property
    def age(self) -> float:
        """Steps since the middle of the frames that an output of a stream describes."""
        return (self.layer_timing.receptive_field - 1 + (self.pool - 1) * self.stride) / 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows [B, D] of clips [B, T, 3, H, W], as the ordinary network does."""
        return self._project(self._features(x, "same").mean((2, 3, 4)))

    def forward_stream(self, x: Tensor) -> Tensor:
        """Return what stepping through clips [B, T, 3, H, W] would, [B, T', D], differentiable."""
        features = self._features(x, self.start).mean((3, 4)).transpose(1, 2)
        before = self.mean.padding
        features = torch.cat([features[:, :1].expand(-1, before, -1), features], 1)
        return self._project(self.mean(features)[:, before:])

    def init_state(self, batch_size: int = 1) -> VideoState:
        """Return the initial state of ``batch_size`` streams."""
        return self.folded().init_state(batch_size)

    def warmup(self, state: VideoState) -> tuple[bool, ...]:
        """Return for each stream whether it has fewer frames than an output depends on."""
        return tuple(steps < self.receptive_field for steps in state.taken.tolist())

    def graph_key(self, x: Tensor, state: VideoState) -> tuple[int, bool] | None:
        """Return the phase of its rings, and whether the mean starts a block; None at first.

        See ``cuda_graph.GraphedStep``.
        """
        if any(self.warmup(state)):
            return None
        kernels = {self.stem.kernel, *(block.kernel for block in self.blocks)}
        # Depthwise ones keep the frames before the newest, and half of them for the shortcut.
        laps = math.lcm(*(k - self.stem.separate for k in kernels)) * self.stride
        return state.peek() % laps, (state.mean.peek() + 1) % self.pool == 0

    @torch.no_grad()
    def forward_step(self, x: Tensor, state: VideoState) -> Tensor | None:
        """Take a frame [B, 3, H, W] of every stream, return rows [B, D], or None.

        There are rows at step ``delay`` of the batch and every ``stride`` steps after that. The
        network is in evaluation mode, with the parameters that it had when a stream or a chunk
        last started.
        """
        return (self._folded or self.folded()).step(x, state)

    @torch.no_grad()
    def forward_steps(self, x: Tensor, state: VideoState) -> Tensor:
        """Take T frames [B, T, 3, H, W], return the rows [B, T', D] of the steps that have some."""
        return self.folded().steps(x, state)

    def fold(self) -> FoldedVideo:
        """Return the folded network in evaluation mode, with the current parameters."""
        return FoldedVideo(self)

    def count_clip_macs(self, frames: int) -> int:
        """Return the multiply-accumulates of ``forward`` over a clip of ``frames`` frames."""
        return self._count(frames, squeezes=1)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step, the mean if there are strides in time."""
        each = 2 if self.halving else 1
        return round(self._count(each, squeezes=each) / each)

    def _count(self, frames: int, squeezes: int) -> int:
        """Return multiply-accumulates; ``squeezes``: times each squeeze-excitation is computed."""
        size = -(-self.size // 2)
        stem, total = self.stem, frames * size**2 * self.stem.conv.weight.numel()
        if stem.separate:
            total += frames * size**2 * stem.conv_xy.weight.numel()
        else:
            size = -(-size // 2)
        for number, block in enumerate(self.blocks):
            if self.halving and number == self.halved:
                frames //= 2
            within = -(-size // block.stride)
            total += frames * size**2 * block.a.weight.numel()
            for conv in (block.b, block.c, block.shortcut):
                total += frames * within**2 * conv.weight.numel() if conv is not None else 0
            if block.squeeze is not None:
                total += squeezes * 2 * block.squeeze.fc1.weight.numel()
            size = within
        if self.conv is not None:
            total += frames * size**2 * self.conv.weight.numel() + self.linear.weight.numel()
        return total

    def _features(self, x: Tensor, form: str) -> Tensor:
        """Return the input of the time pooling, [B, C, T', H', W'], for clips [B, T, 3, H, W]."""
        y = self.stem(x.transpose(1, 2), form)
        for number, block in enumerate(self.blocks):
            if self.halving and number == self.halved:
                y = torch.cat([y[:, :, :1], y], 2) if form == "replicate" else y
                y = F.max_pool3d(y, (2, 1, 1))
            y = block(y, form)
        return y if self.conv is None else F.relu(self.conv_bn(self.conv(y)))

    def _project(self, means: Tensor) -> Tensor:
        return means if self.conv is None else F.relu(self.linear(means))

    def _layers(self) -> list[ContinualModule | Timing]:
        """Return the timings of all layers before the mean."""
        parts: list[ContinualModule | Timing] = [odd_kernel_timing(self.stem.kernel, self.start)]
        for number, block in enumerate(self.blocks):
            if self.halving and number == self.halved:
                parts.append(self.halving)
            parts.append(odd_kernel_timing(block.kernel, self.start))
        return parts


def _block(
    plan: VideoArchitecture, number: int, width: int, out: int, kernels: Sequence[int], stride: int
) -> Bottleneck3d:
    """Return block ``number`` of a stage."""
    inner = int(2.25 * out) if plan.depthwise else out // 4
    return Bottleneck3d(
        width,
        inner,
        out,
        kernel=kernels[number % len(kernels)],
        stride=stride,
        depthwise=plan.depthwise,
        squeeze=squeeze_width(inner) if plan.depthwise and not number % 2 else 0,
    )


def squeeze_width(width: int) -> int:
    """Return the inner width of squeeze-excitation: a 16th, in multiples of 8, at least 90 %."""
    wanted = width / 16
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def _check(
    kind: str,
    size: int,
    widths: Sequence[int],
    depths: Sequence[int],
    head: Sequence[int],
    start: str,
) -> None:
    for name, value, known in (
        ("kind", kind, tuple(VIDEO_ARCHITECTURES)),
        ("start", start, STARTS),
    ):
        if value not in known:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}")
    if size < 1 or not 1 <= len(widths) == len(depths) <= 4 or min(depths) < 1:
        raise ValueError(f"size {size}, {len(widths)} widths and {len(depths)} depths do not fit")
    if len(head) != (2 if VIDEO_ARCHITECTURES[kind].depthwise else 0):
        raise ValueError(f"{kind} with a head of {len(head)} layers: x3d has 2, the others none")
