"""MoViNet-A0 to A2, Stream: 600 actions in video, frame by frame.

Kondratyuk et al., MoViNets: Mobile Video Networks for Efficient Video Recognition (CVPR 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros
from costream.nn.video3d.sizes import TASK

PAPER = "https://arxiv.org/abs/2103.11511"
RATE_HZ = 5.0  # every fifth frame of 25
WINDOW = 50  # frames of the clips it was trained on
_STRIDED = (0, 1, 2, 4)  # stages that halve the picture, the others keep it


def _size(
    size: int, stem: int, head: int, stages: Sequence[tuple[int, list[int]]], last: list[list[int]]
) -> dict[str, Any]:
    """Return the arguments of a published size.

    ``stages``: widths of output and, block by block, expanded. ``last``: kernels, time and space,
    of the last stage after its first block.
    """
    kernels = [[[3, 3]] * len(widths) for _, widths in stages]
    kernels[0][0] = [1, 5]
    for stage in (2, 3, 4):
        kernels[stage][0] = [5, 3]
    kernels[4][1:] = last
    if len(kernels[3]) > 4:
        kernels[3][4] = [1, 5]
    blocks = [
        [[width, *kernel] for width, kernel in zip(widths, stage, strict=True)]
        for (_, widths), stage in zip(stages, kernels, strict=True)
    ]
    outputs = [width for width, _ in stages]
    return {"size": size, "stem": stem, "outputs": outputs, "blocks": blocks, "head": head}


_LAST = [[1, 5]] * 4 + [[3, 3], [1, 3]]
SIZES = {
    "movinet-a0": _size(
        *(172, 8, 480),
        [
            (8, [24]),
            (32, [80, 80, 80]),
            (56, [184, 112, 184]),
            (56, [184] * 4),
            (104, [384, 280, 280, 344]),
        ],
        [[1, 5]] * 3,
    ),
    "movinet-a1": _size(
        *(172, 16, 600),
        [
            (16, [40, 40]),
            (40, [96, 120, 96, 96]),
            (64, [216, 128, 216, 168, 216]),
            (64, [216, 216, 216, 128, 128, 216]),
            (136, [456, 360, 360, 360, 456, 456, 544]),
        ],
        _LAST,
    ),
    "movinet-a2": _size(
        *(224, 16, 640),
        [
            (16, [40, 40, 64]),
            (40, [96, 120, 96, 96, 120]),
            (72, [240, 160, 240, 192, 240]),
            (72, [240, 240, 240, 240, 144, 240]),
            (144, [480, 384, 384, 480, 480, 480, 576]),
        ],
        _LAST,
    ),
}


def crop_arguments(size: int) -> dict[str, Any]:
    """Return the arguments of the frontend: a square of values from 0 to 1."""
    return {"size": size, "short_side": size, "mean": 0.0, "deviation": 1.0}


def _paper(name: str) -> dict[str, Any]:
    arguments = SIZES[name]
    return {
        "arguments": {"num_classes": 600, **arguments},
        "task": TASK,
        "rate_hz": RATE_HZ,
        "whole": True,
        "frontend": "crop",
        "frontend_arguments": crop_arguments(arguments["size"]),
    }


@dataclass
class MoViNetState(State):
    """Memory of each stream."""

    past: tuple[Tensor, ...]  # of each time convolution of K frames, its last K - 1 inputs
    means: tuple[Tensor, ...]  # rings [B, window, C] of spatial means: of each block, of the head
    frames: Tensor  # int64 [B], since the stream began


@register_model("movinet", order=27, **_paper("movinet-a0"))
@register_model(
    "movinet-a0",
    architecture="movinet",
    bench="costream.bench.published:published_steps_table",
    **_paper("movinet-a0"),
)
@register_model(
    "movinet-a1",
    architecture="movinet",
    bench="costream.bench.published:published_steps_table",
    **_paper("movinet-a1"),
)
@register_model(
    "movinet-a2",
    architecture="movinet",
    bench="costream.bench.published:published_steps_table",
    **_paper("movinet-a2"),
)
class MoViNet(nn.Module):
    """Mobile inverted bottlenecks whose convolutions over time look back only.

    Squeeze-excitation and classifier take means over time. The published network averages all
    frames since the start, and was trained on clips of 50; here it is the last ``window`` ones, so
    that a stream of any length is like a clip: the same numbers up to that frame. The means are
    summed anew at each step, so that no error accumulates.

    Batch norms and the factors of the residual branches are folded into the convolutions.

    Args:
        num_classes: K.
        size: side of the input in pixels.
        stem, head: channels of the first and of the last convolution.
        outputs: channels of each stage.
        blocks: of each stage the blocks, [expanded channels, kernel in time, kernel in space].
        hidden: channels between the two layers of the classifier.
        window: frames of the means over time.
    """

    delay = 0

    def __init__(
        self,
        num_classes: int,
        size: int,
        stem: int,
        outputs: Sequence[int],
        blocks: Sequence[Sequence[Sequence[int]]],
        head: int,
        hidden: int = 2048,
        window: int = WINDOW,
    ) -> None:
        super().__init__()
        if window < 1 or len(outputs) != len(blocks):
            raise ValueError(f"window {window} below 1, or {len(outputs)} outputs for other stages")
        self.num_classes, self.size, self.window = num_classes, size, window
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
        self.hidden = nn.Linear(head, hidden)
        self.classifier = nn.Linear(hidden, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def receptive_field(self) -> int:
        """Frames of the means over time; their middle is what an output describes."""
        return self.window

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits [B, T, K] after every frame of clips [B, T, 3, H, W]."""
        return self.forward_steps(clips, self.init_state(len(clips))).logits

    def init_state(self, batch_size: int = 1) -> MoViNetState:
        """Return the initial state of a batch of streams."""
        like = self.classifier.weight
        past = [block.past(batch_size) for block in self._blocks if block.time is not None]
        widths = [block.squeeze.in_features // 2 for block in self._blocks]
        widths.append(self.hidden.in_features)
        means = tuple(zeros(batch_size, self.window, width, like=like) for width in widths)
        return MoViNetState(tuple(past), means, zeros(batch_size))

    def warmup(self, state: MoViNetState) -> tuple[bool, ...]:
        """Return for each stream whether the means have fewer than ``window`` frames."""
        return tuple(frames < self.window for frames in state.frames.tolist())

    def forward_step(self, x: Tensor, state: MoViNetState) -> OadOutput:
        """Take a frame [B, 3, H, W] of every stream, return the logits [B, K]."""
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: MoViNetState) -> OadOutput:
        """Take T frames [B, T, 3, H, W] of every stream, return the logits [B, T, K]."""
        streams, steps = x.shape[:2]
        x = F.hardswish(self.stem(_same(x.flatten(0, 1), self.stem)))
        past, means = iter(state.past), iter(state.means)
        for block in self._blocks:
            held = None if block.time is None else next(past)
            x = block(x, held, _Means(next(means), state.frames, steps))
        x = F.hardswish(self.head(x)).mean((2, 3)).view(streams, steps, -1)
        x = _Means(next(means), state.frames, steps)(x)
        state.frames += steps
        return OadOutput(self.classifier(F.silu(self.hidden(x))), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a frame of one stream."""
        total = _halved(self.size) ** 2 * self.stem.weight.numel()
        total += sum(block.count_macs() for block in self._blocks)
        total += self.side**2 * self.head.weight.numel()
        return total + self._classifier_macs

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes the last ``window`` frames."""
        return self.window * (self.count_macs() - self._classifier_macs) + self._classifier_macs

    @property
    def _classifier_macs(self) -> int:
        return self.hidden.weight.numel() + self.classifier.weight.numel()

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

    def forward(self, x: Tensor, past: Tensor | None, means: _Means) -> Tensor:
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


class _Means:
    """Means over the last ``window`` frames: over a ring [B, window, C], brought up to date."""

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


def _same(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return maps with the zeros of TensorFlow's SAME around them."""
    kernel, stride, side = layer.kernel_size[0], layer.stride[0], x.shape[2]
    more = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    before = more // 2
    return F.pad(x, (before, more - before) * 2)


def _halved(side: int) -> int:
    return -(-side // 2)


def squeezed(expanded: int) -> int:
    """Return the channels inside a squeeze-excitation: half, to a multiple of eight."""
    wanted = expanded // 4 * 2
    rounded = max(8, (wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
