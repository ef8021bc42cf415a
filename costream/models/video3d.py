"""Continual 3D networks for action recognition in video: CoX3D, CoSlow, CoI3D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from costream.models.oad.cooadtr import OadOutput
from costream.nn.timing import ContinualModule
from costream.nn.video3d.encoder import VideoEncoder
from costream.nn.video_step import VideoState


class VideoNet(ContinualModule):
    """A ``VideoEncoder`` and a classifier.

    Hedegaard, Iosifidis, "Continual 3D Convolutional Neural Networks for Real-time Processing of
    Videos" (ECCV 2022). The weights are those of the ordinary network, which ``forward`` is; a
    step differs from it: no zeros follow the newest frame, and squeeze-excitation is per frame.

    Args:
        num_classes: K.
        kind, size, widths, depths, stem_width, head, pool, start: see ``VideoEncoder``.
        dropout: of the encoder's rows, in training.
    """

    in_time = True  # one clock for all streams of a batch

    def __init__(
        self,
        num_classes: int,
        kind: str,
        size: int,
        widths: Sequence[int],
        depths: Sequence[int],
        stem_width: int,
        head: Sequence[int] = (),
        pool: int = 8,
        start: str = "zeros",
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.encoder = VideoEncoder(
            kind, size, widths, depths, stem_width, head=head, pool=pool, start=start
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(self.encoder.token_width, num_classes)
        self.num_classes, self.timing = num_classes, self.encoder.timing

    @property
    def window(self) -> int:
        """Frames that an output depends on, those before frame 0 included."""
        return self.receptive_field

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, K] of clips [B, T, 3, H, W], as the ordinary network does."""
        return cast(Tensor, self.classifier(self.dropout(self.encoder(x))))

    def forward_stream(self, x: Tensor) -> Tensor:
        """Return the outputs of stepping through clips, [B, T', K], with gradients."""
        return cast(Tensor, self.classifier(self.dropout(self.encoder.forward_stream(x))))

    def init_state(self, batch_size: int = 1) -> VideoState:
        """Return the initial state of a batch of streams."""
        return self.encoder.init_state(batch_size)

    def warmup(self, state: VideoState) -> tuple[bool, ...]:
        """Return for each stream whether its receptive field is not yet full."""
        return self.encoder.warmup(state)

    @torch.no_grad()
    def forward_step(self, x: Tensor, state: VideoState) -> OadOutput | None:
        """Take a frame [B, 3, H, W] of every stream, return logits [B, K], or None.

        Logits come at step ``delay`` of the batch and every ``stride`` steps after that.
        """
        row = self.encoder.forward_step(x, state)
        return None if row is None else OadOutput(self.classifier(row), None)

    @torch.no_grad()
    def forward_steps(self, x: Tensor, state: VideoState) -> OadOutput:
        """Take T frames [B, T, 3, H, W], return the logits [B, T', K] of all outputs."""
        return OadOutput(self.classifier(self.encoder.forward_steps(x, state)), None)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream; with strides, their mean."""
        return self.encoder.count_macs() + round(self.classifier.weight.numel() / self.stride)

    def count_clip_macs(self, frames: int) -> int:
        """Return the multiply-accumulates of ``forward`` over a clip of ``frames`` frames."""
        return self.encoder.count_clip_macs(frames) + self.classifier.weight.numel()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes a clip of ``pool`` features.

        For a strided network, with outputs at every ``stride``-th step only, the mean over steps.
        """
        return round(self.count_clip_macs(self.encoder.pool * self.stride) / self.stride)
