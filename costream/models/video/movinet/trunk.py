"""Trunk of MoViNet-Stream: inverted bottlenecks that look back in time, frame by frame.

Kondratyuk et al., MoViNets: Mobile Video Networks for Efficient Video Recognition (CVPR 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.state import State, zeros

WINDOW = 50  # frames of the clips it was trained on
_STRIDED = (0, 1, 2, 4)  # stages that halve the picture, the others keep it


@dataclass
class MoViNetState(State):
    """Memory of each stream."""

    past: tuple[Tensor, ...]  # of each time convolution of K frames, its last K - 1 inputs
    means: tuple[Tensor, ...]  # rings [B, window, C] of spatial means
    frames: Tensor  # int64 [B], since the stream began


class MoViNetTrunk(nn.Module):
    """Mobile inverted bottlenecks whose convolutions over time look back only.

    Squeeze-excitation takes means over time. The published network averages all frames since the
    start, and was trained on clips of 50. Here means are over the last ``window`` frames, so that a
    stream of any length is like a clip: outputs are the same up to that frame. The means are
    recomputed at each step, so that no error accumulates.

    Batch norms and the factors of the residual branches are folded into the convolutions.

    Args:
        size: side of the input in pixels.
        stem, head: channels of the first and of the last convolution.
        outputs: channels of each stage.
        blocks: of each stage the blocks, [expanded channels, kernel in time, kernel in space].
        window: frames of the means over time.
    """

    def __init__(
        self,
        size: int,
        stem: int,
        outputs: Sequence[int],
        blocks: Sequence[Sequence[Sequence[int]]],
        head: int,
        window: int = WINDOW,
    ) -> None:
        super().__init__()
        if window < 1 or len(outputs) != len(blocks):
            raise ValueError(f"window {window} below 1, or {len(outputs)} outputs for other stages")
        self.size, self.window = size, window
        self.arguments: dict[str, Any] = {
            "size": size,
            "stem": stem,
            "head": head,
            "window": window,
            "outputs": list(outputs),
            "blocks": [list(map(list, stage)) for stage in blocks],
        }
        self.stem = nn.Conv2d(3, stem, 3, 2)
        self.blocks = nn.ModuleList()
        width, side = stem, _halved(size)
        for stage, (out, inside) in enumerate(zip(outputs, blocks, strict=True)):
            for k, (expanded, *kernel) in enumerate(inside):
                stride = 2 if k == 0 and stage in _STRIDED else 1
                block = _Block(width, out, expanded, kernel, stride, side)
                self.blocks.append(block)
                width, side = out, block.side
        self.side = side
        self.head = nn.Conv2d(width, head, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def init_state(self, batch_size: int = 1) -> MoViNetState:
        """Return the initial state of a batch of streams."""
        past = [block.past(batch_size) for block in self._blocks if block.time is not None]
        widths = [*(block.squeeze.in_features // 2 for block in self._blocks), *self.means_after]
        like = self.head.weight
        means = tuple(zeros(batch_size, self.window, width, like=like) for width in widths)
        return MoViNetState(tuple(past), means, zeros(batch_size))

    @property
    def means_after(self) -> tuple[int, ...]:
        """Widths of further means over time, of layers after the trunk."""
        return ()

    def features(self, x: Tensor, state: MoViNetState) -> Tensor:
        """Return a row [B, T, C] for each of T frames [B, T, 3, H, W] of every stream.

        The frames are not counted in the state.
        """
        streams, steps = x.shape[:2]
        x = F.hardswish(self.stem(_same(x.flatten(0, 1), self.stem)))
        past = iter(state.past)
        for block, ring in zip(self._blocks, state.means, strict=False):
            frames = None if block.time is None else next(past)
            x = block(x, frames, WindowMeans(ring, state.frames, steps))
        return F.hardswish(self.head(x)).mean((2, 3)).view(streams, steps, -1)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a frame of one stream."""
        total = _halved(self.size) ** 2 * self.stem.weight.numel()
        total += sum(block.count_macs() for block in self._blocks)
        return total + self.side**2 * self.head.weight.numel()

    @property
    def _blocks(self) -> Sequence[_Block]:
        return cast("Sequence[_Block]", self.blocks)


class _Block(nn.Module):
    """Expand, convolve in space and then in time, weigh the channels, project; plus a shortcut."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        expanded: int,
        kernel: Sequence[int],
        stride: int,
        side: int,
    ) -> None:
        super().__init__()
        (over_time, over_space), self.stride, self._side_before = kernel, stride, side
        self.side = _halved(side) if stride == 2 else side
        self.expand = nn.Conv2d(in_width, expanded, 1)
        self.space = nn.Conv2d(expanded, expanded, over_space, stride, groups=expanded)
        self.time = (
            nn.Conv1d(expanded, expanded, over_time, groups=expanded) if over_time > 1 else None
        )
        inside = squeezed(expanded)
        self.squeeze = nn.Linear(2 * expanded, inside)
        self.excite = nn.Linear(inside, expanded)
        self.project = nn.Conv2d(expanded, out_width, 1)
        changes = stride > 1 or in_width != out_width
        self.shortcut = nn.Conv2d(in_width, out_width, 1) if changes else None

    def past(self, batch_size: int) -> Tensor:
        """Return the initial frames before those of the time convolution, [B, K - 1, C, h, w]."""
        assert self.time is not None
        width, _, kernel = self.time.weight.shape
        return zeros(batch_size, kernel - 1, width, self.side, self.side, like=self.time.weight)

    def forward(self, x: Tensor, past: Tensor | None, means: WindowMeans) -> Tensor:
        """Return [B T, O, h', w'] for maps [B T, I, h, w] that follow ``past``."""
        y = F.hardswish(self.expand(x))
        y = F.hardswish(self.space(_same(y, self.space)))
        if self.time is not None:
            assert past is not None
            y = F.hardswish(_over_time(y, self.time, past))
        now = torch.unflatten(y.mean((2, 3)), 0, (-1, means.steps))
        weights = self.excite(F.hardswish(self.squeeze(torch.cat([means(now), now], 2))))
        weights = (0.2 * weights + 0.5).clamp(0, 1).flatten(0, 1)  # Keras's hard sigmoid
        y = self.project(y * weights[:, :, None, None])
        if self.stride > 1:  # zeros around the picture do not count in the mean
            odd = x.shape[2] % 2
            x = F.avg_pool2d(x, 3, 2, padding=odd, ceil_mode=True, count_include_pad=False)
        return cast(Tensor, y + (x if self.shortcut is None else self.shortcut(x)))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a frame."""
        before, after = self._side_before**2, self.side**2
        total = before * self.expand.weight.numel()
        parts = [self.space, self.project, *filter(None, [self.time, self.shortcut])]
        total += after * sum(part.weight.numel() for part in parts)
        return total + self.squeeze.weight.numel() + self.excite.weight.numel()


class WindowMeans:
    """Means over the last ``window`` frames, which a ring [B, window, C] holds."""

    def __init__(self, ring: Tensor, frames: Tensor, steps: int) -> None:
        self._ring, self._frames, self.steps = ring, frames, steps

    def __call__(self, x: Tensor) -> Tensor:
        """Take the values [B, T, C] of T frames, return the means after each."""
        rows, window, out = torch.arange(len(x)), self._ring.shape[1], []
        for k, values in enumerate(x.unbind(1)):
            frames = self._frames + k
            self._ring[rows, frames % window] = values
            counts = (frames + 1).clamp(max=window)[:, None].to(x.device, x.dtype)
            out.append(self._ring.sum(1) / counts)
        return torch.stack(out, 1)


def _over_time(x: Tensor, layer: nn.Conv1d, past: Tensor) -> Tensor:
    """Return the convolution [B T, C, h, w] of frames that follow ``past``, which is updated."""
    frames = torch.unflatten(x, 0, (len(past), -1))
    steps, kernel = frames.shape[1], past.shape[1] + 1
    rows = torch.cat([past, frames], 1)
    past.copy_(rows[:, -past.shape[1] :])
    taps = layer.weight[:, 0, :, None, None].unbind(1)
    assert layer.bias is not None
    out = rows[:, :steps] * taps[0]
    for k in range(1, kernel):
        out.addcmul_(rows[:, k : k + steps], taps[k])
    return (out + layer.bias[:, None, None]).flatten(0, 1)


def same_pads(side: int, layer: nn.Conv2d) -> tuple[int, int]:
    """Return the zeros of TensorFlow's SAME before and after maps with this side."""
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    more = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    return more // 2, more - more // 2


def _same(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return maps with the zeros of TensorFlow's SAME around them."""
    return F.pad(x, same_pads(x.shape[2], layer) * 2)


def _halved(side: int) -> int:
    return -(-side // 2)


def squeezed(expanded: int) -> int:
    """Return the channels inside a squeeze-excitation: half, to a multiple of eight."""
    wanted = expanded // 4 * 2
    rounded = max(8, (wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
