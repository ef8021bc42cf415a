"""Steps of 3D networks: batch norms folded in, each frame computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.nn.bottleneck_step import FoldedBottleneck
from costream.nn.folding import Folded
from costream.nn.pooling import MaxState, MeanState, TemporalMax
from costream.nn.state import State, zeros
from costream.nn.timing import ClockedState, Timing, check_shape, in_sequence
from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video_stem import FoldedStem

if TYPE_CHECKING:
    from costream.nn.video3d.encoder import VideoEncoder


class FoldedPart(Protocol):
    """A part of a network in evaluation. Frames are [B, H, W, C], sizes (H, W, C)."""

    timing: Timing

    def init_state(self, batch_size: int, size: Sequence[int]) -> State:
        """Return the initial state of ``batch_size`` streams."""

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Return the output size for inputs of ``size``."""

    def place(self, state: Any) -> Tensor | None:
        """Return memory where the next frame may be written, to save a copy, or None."""

    def step(self, x: Tensor, state: Any, rows: Sequence[int], out: Tensor | None) -> Tensor | None:
        """Take a frame of every stream, return an output or None.

        ``rows``: see ``FrameRing.push``. ``out``: memory for the output.
        """


class FoldedHalving:
    """Maximum of each two frames; a ``Part``."""

    def __init__(self, pool: TemporalMax, like: Tensor) -> None:
        self.pool, self.timing, self._like = pool, pool.timing, like

    def init_state(self, batch_size: int, size: Sequence[int]) -> MaxState:  # noqa: D102
        return self.pool.init_state(batch_size, size, self._like)

    def output_size(self, size: Sequence[int]) -> tuple[int, int, int]:  # noqa: D102
        return size[0], size[1], size[2]

    def place(self, state: MaxState) -> None:  # noqa: D102
        return None

    def step(  # noqa: D102
        self, x: Tensor, state: MaxState, rows: Sequence[int], out: Tensor | None
    ) -> Tensor | None:
        if rows and not self.pool.padding:  # with padding, the pool knows which streams start
            x[list(rows)] = -torch.inf
        return self.pool.forward_step(x, state)


@dataclass
class VideoState(ClockedState):
    """State of a network."""

    steps: Tensor  # int64 [B], frames since the stream began
    parts: tuple[State, ...]
    mean: MeanState

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taken: Any = self.steps.numpy()  # a NumPy view of the same memory, which is faster


class FoldedVideo(Folded):
    """A ``VideoEncoder`` in evaluation, ready to step."""

    def __init__(self, net: VideoEncoder) -> None:
        super().__init__([*net.parameters(), *net.buffers()])
        self.picture, self.start, self.mean = (net.size, net.size, 3), net.start, net.mean
        with torch.inference_mode(False), torch.no_grad():
            self.parts = self._fold(net)
            self.conv = None if net.conv is None else VolumeStep(net.conv, net.conv_bn)
            self.linear = None if net.conv is None else net.linear.weight.detach().T.contiguous()
        self._like, self._width = net.stem.conv.weight.detach(), net.token_width
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
        states, size = [], self.picture
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
        check_shape(x.shape, (len(state.taken), 3, *self.picture[:2]))
        taken: list[int] = state.taken.tolist()
        state.tick()
        state.taken += 1
        y = x.permute(0, 2, 3, 1)
        for number, (part, kept) in enumerate(zip(self.parts, state.parts, strict=True)):
            following = self.parts[number + 1 : number + 2]
            out = following[0].place(state.parts[number + 1]) if following else None
            given = part.step(y, kept, self._young(number, taken), out)
            if given is None:
                return None
            y = given
        return self._pool(y, state.mean, self._young(len(self.parts), taken))

    def steps(self, x: Tensor, state: VideoState) -> Tensor:
        """Take T frames [B, T, 3, H, W], return what T steps would, [B, T', D].

        One by one: the products of a single frame are large already.
        """
        given = [self.step(frame, state) for frame in x.unbind(1)]
        rows = [row for row in given if row is not None]
        if rows:
            return torch.stack(rows, 1)
        return x.new_zeros(len(x), 0, self._width)

    def _young(self, number: int, taken: Sequence[int]) -> list[int]:
        bound = self._bounds[number]
        return [row for row, count in enumerate(taken) if count < bound]

    def _pool(self, y: Tensor, state: MeanState, rows: Sequence[int]) -> Tensor | None:
        if self.conv is not None:
            y = self.conv.rectify(self.conv.multiply(y))
        feature = y.mean((1, 2))
        if rows and self.start == "zeros":
            feature[list(rows)] = 0
        elif rows:
            self.mean.fill(state, rows, feature[list(rows)])
        mean = self.mean.forward_step(feature, state)
        if mean is None or self.linear is None:
            return mean
        return F.relu(torch.mm(mean, self.linear))
