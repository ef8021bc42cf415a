"""YAMNet: 521 kinds of sound, several at once, from patches of a second.

Plakal and Ellis, YAMNet (2020), https://github.com/tensorflow/models/tree/master/research/audioset
/yamnet: MobileNet v1 (Howard et al., 2017) trained on AudioSet (Gemmeke et al., ICASSP 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.records import AUDIO_TAGGING
from costream.models.audio.logmel import OFFSET
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros

FRAMES, BANDS = 96, 64  # of a patch: 0.96 s
HOP_FRAMES = 48  # from one patch to the next, as published
RATE_HZ = 100 / HOP_FRAMES  # patches a second
WIDTHS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
PAPER = "https://github.com/tensorflow/models/tree/master/research/audioset/yamnet"


@dataclass
class PatchState(State):
    """The newest frames of each stream."""

    frames: Tensor  # [B, 96 - hop_frames, 64], the newest last
    hops: Tensor  # int64 [B], processed so far


@register_model(
    "yamnet",
    order=26,
    bench="costream.bench.published:published_steps_table",
    arguments={"num_classes": 521},
    task=AUDIO_TAGGING,
    rate_hz=RATE_HZ,
    whole=True,
    frontend="logmel",
)
class YamNet(nn.Module):
    """MobileNet v1 over the newest 96 log-mel frames, with a score of its own for each class.

    Every hop computes the whole patch, as published. Sharing the convolutions of overlapping
    patches is not exact: each patch has zeros at both ends, and its last rows are 32 frames apart,
    which do not divide the hop. Before the first frame of a stream there is silence, ln(0.001).

    The batch norms are folded into the convolutions.

    Args:
        num_classes: K.
        hop_frames: frames of a token, 1 to 96.
        widths: channels of the first convolution and of the 13 depthwise separable ones.

    Raises ValueError for other numbers.
    """

    delay = 0

    def __init__(
        self, num_classes: int, hop_frames: int = HOP_FRAMES, widths: Sequence[int] = WIDTHS
    ) -> None:
        super().__init__()
        if not 1 <= hop_frames <= FRAMES or len(widths) != len(STRIDES):
            raise ValueError(
                f"hop_frames {hop_frames} not in 1 to {FRAMES}, or not {len(STRIDES)} widths"
            )
        self.num_classes, self.hop_frames = num_classes, hop_frames
        self.stem = nn.Conv2d(1, widths[0], 3, STRIDES[0])
        self.layers = nn.ModuleList(
            _Separable(*sizes) for sizes in zip(widths, widths[1:], STRIDES[1:], strict=False)
        )
        self.classifier = nn.Linear(widths[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        # Interleaved channels suit depthwise convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def window(self) -> int:
        """Tokens that an output depends on."""
        return -(-FRAMES // self.hop_frames)

    @property
    def receptive_field(self) -> int:
        """Tokens that an output depends on; their middle is what it describes."""
        return self.window

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits [N, K] of patches [N, 96, 64]."""
        x = F.relu_(self.stem(_pad(patches[:, None], STRIDES[0])))
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.classifier(x.mean((2, 3))))

    def init_state(self, batch_size: int = 1) -> PatchState:
        """Return the initial state of a batch of streams."""
        shape = (batch_size, FRAMES - self.hop_frames, BANDS)
        return PatchState(zeros(*shape, like=self.classifier.weight), zeros(batch_size))

    def warmup(self, state: PatchState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its patch is not full; ``ago``: steps before."""
        return tuple(n - ago < self.window for n in state.hops.tolist())

    def forward_step(self, x: Tensor, state: PatchState) -> OadOutput:
        """Take a token [B, hop_frames, 64] of every stream, return the logits [B, K]."""
        return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)

    def forward_steps(self, x: Tensor, state: PatchState) -> OadOutput:
        """Take T tokens [B, T, hop_frames, 64] of every stream, return the logits [B, T, K]."""
        count = FRAMES - self.hop_frames
        heard = (state.hops * self.hop_frames)[:, None]
        unheard = (torch.arange(count) < count - heard)[:, :, None].to(x.device)
        past = state.frames.masked_fill(unheard, math.log(OFFSET))
        rows = torch.cat([past, x.flatten(1, 2)], 1)
        state.frames.copy_(rows[:, rows.shape[1] - count :])
        state.hops += x.shape[1]
        patches = rows.unfold(1, FRAMES, self.hop_frames).transpose(2, 3)
        return OadOutput(self(patches.flatten(0, 1)).unflatten(0, patches.shape[:2]), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream: a patch."""
        places, total = FRAMES * BANDS, self.classifier.weight.numel()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                places //= module.stride[0] ** 2
                total += places * module.weight.numel()
        return total

    dense_macs = property(count_macs)


class _Separable(nn.Module):
    """Depthwise 3x3, ReLU, pointwise, ReLU."""

    def __init__(self, in_width: int, out_width: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_width, in_width, 3, stride, groups=in_width)
        self.pointwise = nn.Conv2d(in_width, out_width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, T', F'] for maps [N, I, T, F]."""
        x = F.relu_(self.depthwise(_pad(x, self.depthwise.stride[0])))
        return F.relu_(self.pointwise(x))


def _pad(x: Tensor, stride: int) -> Tensor:
    """Return maps with the zeros of TensorFlow's SAME around them; their sizes are even."""
    return F.pad(x, (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1))
