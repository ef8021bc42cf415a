"""MoViNet-A0 to A2, Stream: 600 actions in video, frame by frame.

Kondratyuk et al., MoViNets: Mobile Video Networks for Efficient Video Recognition (CVPR 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.models.video.movinet.frontend import MoViNetFeatures
from costream.models.video.movinet.trunk import WINDOW, MoViNetState, MoViNetTrunk, WindowMeans
from costream.nn.video3d.sizes import TASK

PAPER = "https://arxiv.org/abs/2103.11511"
RATE_HZ = 5.0  # every fifth frame of 25


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
class MoViNet(MoViNetTrunk):
    """A ``MoViNetTrunk`` and a classifier of the mean over time.

    Args:
        num_classes: K.
        hidden: channels between the two layers of the classifier.
        size, stem, outputs, blocks, head, window: see ``MoViNetTrunk``.
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
        super().__init__(size, stem, outputs, blocks, head, window)
        self.num_classes = num_classes
        self.hidden = nn.Linear(head, hidden)
        self.classifier = nn.Linear(hidden, num_classes)

    @property
    def receptive_field(self) -> int:
        """Frames of the means over time; an output describes their middle."""
        return self.window

    @property
    def means_after(self) -> tuple[int, ...]:
        """Width of the classifier's input."""
        return (self.hidden.in_features,)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits [B, T, K] after every frame of clips [B, T, 3, H, W]."""
        return self.forward_steps(clips, self.init_state(len(clips))).logits

    def warmup(self, state: MoViNetState) -> tuple[bool, ...]:
        """Return for each stream whether the means have fewer than ``window`` frames."""
        return tuple(frames < self.window for frames in state.frames.tolist())

    def forward_step(self, x: Tensor, state: MoViNetState) -> OadOutput:
        """Take a frame [B, 3, H, W] of every stream, return the logits [B, K]."""
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: MoViNetState) -> OadOutput:
        """Take T frames [B, T, 3, H, W] of every stream, return the logits [B, T, K]."""
        rows = self.features(x, state)
        means = WindowMeans(state.means[-1], state.frames, x.shape[1])(rows)
        state.frames += x.shape[1]
        return OadOutput(self.classifier(F.silu(self.hidden(means))), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a frame of one stream."""
        return super().count_macs() + self._classifier_macs

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes the last ``window`` frames."""
        return self.window * super().count_macs() + self._classifier_macs

    @property
    def _classifier_macs(self) -> int:
        return self.hidden.weight.numel() + self.classifier.weight.numel()

    def as_frontend(self) -> tuple[str, MoViNetFeatures]:
        """Return the name of a frontend for other networks, and the trunk with its weights."""
        trunk = MoViNetFeatures(**self.arguments)
        tensors = self.state_dict()
        trunk.trunk.load_state_dict({name: tensors[name] for name in trunk.trunk.state_dict()})
        return "movinet", trunk
