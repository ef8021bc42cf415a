"""Continual 3D networks for action recognition in video: CoX3D, CoSlow, CoI3D."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.images import CentreCrop
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.models.window import SlidingWindow, WindowState
from costream.nn.timing import ContinualModule
from costream.nn.video3d.encoder import VideoEncoder
from costream.nn.video3d.folded import VideoState
from costream.nn.video3d.sizes import TASK, find_size


def _paper(name: str) -> dict[str, Any]:
    """Return the specification of a network for Kinetics-400, a clip or a continual one."""
    size = find_size(name)
    assert size is not None
    clip = name == size.clip
    more = {"window": size.frames} if clip else {"pool": size.features}
    return {
        "arguments": {"num_classes": 400, **size.arguments(), **more},
        "task": TASK,
        "rate_hz": size.rate_hz,
        "whole": True,
        "frontend": "crop",
        "frontend_arguments": {"size": size.size, "short_side": size.short_side},
    }


@register_model("cox3d", order=18, **_paper("cox3d-s"))
@register_model("cox3d-xs", architecture="cox3d", **_paper("cox3d-xs"))
@register_model(
    "cox3d-s",
    summary="actions in video, continual X3D of 160 x 160 pixels at 5 frames a second",
    listed=16,
    architecture="cox3d",
    bench="costream.bench.video3d:video_steps_table",
    **_paper("cox3d-s"),
)
@register_model(
    "cox3d-m",
    summary="actions in video, continual X3D of 224 x 224 pixels at 6 frames a second",
    listed=17,
    architecture="cox3d",
    bench="costream.bench.video3d:video_steps_table",
    **_paper("cox3d-m"),
)
@register_model(
    "cox3d-l",
    summary="actions in video, continual X3D of 312 x 312 pixels at 6 frames a second",
    listed=18,
    architecture="cox3d",
    bench="costream.bench.video3d:video_steps_table",
    **_paper("cox3d-l"),
)
@register_model(
    "coslow",
    summary="actions in video, continual Slow, a 3D ResNet-50",
    listed=19,
    order=19,
    bench="costream.bench.video3d:video_steps_table",
    **_paper("coslow"),
)
@register_model(
    "coi3d",
    summary="actions in video, continual I3D, a 3D ResNet-50",
    listed=20,
    order=20,
    bench="costream.bench.video3d:video_steps_table",
    **_paper("coi3d"),
)
class VideoNet(ContinualModule):
    """A ``VideoEncoder`` and a classifier.

    Hedegaard, Iosifidis, "Continual 3D Convolutional Neural Networks for Real-time Processing of
    Videos" (ECCV 2022). ``forward`` is the ordinary network with the same weights; a step differs
    from it: no zeros follow the newest frame, and squeeze-excitation is per frame.

    Args:
        num_classes: K.
        kind, size, widths, depths, stem_width, head, pool, start: see ``VideoEncoder``.
        dropout: of the encoder's rows, in training.
    """

    in_time = True  # one clock for all streams of a batch

    def __init__(  # noqa: PLR0913 - the sizes of the network
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

    def graph_key(self, x: Tensor, state: Any) -> Hashable:
        """Return the key of the encoder; see ``cuda_graph.GraphedStep``."""
        return self.encoder.graph_key(x, state)

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


@register_model("x3d", order=21, **_paper("x3d-s"))
@register_model("x3d-xs", architecture="x3d", **_paper("x3d-xs"))
@register_model("x3d-s", architecture="x3d", **_paper("x3d-s"))
@register_model("x3d-m", architecture="x3d", **_paper("x3d-m"))
@register_model("x3d-l", architecture="x3d", **_paper("x3d-l"))
@register_model("slow", order=22, **_paper("slow"))
@register_model("i3d", order=23, **_paper("i3d"))
class WindowVideoNet(SlidingWindow, VideoNet):  # type: ignore[misc]
    """A ``VideoNet`` that is recomputed over the last ``window`` frames, fewer at the start.

    Args:
        window: n, frames. ``hop``: steps from one output to the next.
        arguments: of ``VideoNet``; ``pool`` and ``start`` have no effect.
    """

    def __init__(self, *arguments: Any, window: int = 16, hop: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        least = 2 if self.encoder.halving else 1
        self._slide(window, least, hop)

    def graph_key(self, x: Tensor, state: Any) -> Hashable:
        """Return None: a window is one large computation, which starts fast enough."""
        return None

    def init_state(self, batch_size: int = 1) -> WindowState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        size = self.encoder.size
        return self._window_state(
            batch_size, self.window, 3, size, size, like=self.classifier.weight
        )


@frontend("cox3d", order=5)
class VideoFeatures(nn.Module):
    """``CentreCrop`` and a ``VideoEncoder`` that replicates the first frame: one token per frame.

    The defaults are CoX3D-S with its features of 2048 values; ``pool``: number of consecutive
    frames whose features are averaged.

    Raises ValueError for a network without an output at every frame.
    """

    takes = "video"
    in_time = True  # one clock for all streams of a batch

    def __init__(
        self,
        kind: str = "x3d",
        size: int = 160,
        short_side: int = 182,
        widths: Sequence[int] = (24, 48, 96, 192),
        depths: Sequence[int] = (3, 5, 11, 7),
        stem_width: int = 24,
        head: Sequence[int] = (432, 2048),
        pool: int = 13,
    ) -> None:
        super().__init__()
        self.crop = CentreCrop(size, short_side)
        self.box = self.crop.box
        self.encoder = VideoEncoder(
            kind, size, widths, depths, stem_width, head=head, pool=pool, start="replicate"
        )
        if self.encoder.stride > 1:
            raise ValueError(f"{kind} yields a token only every {self.encoder.stride} frames")
        self.token_width = self.encoder.token_width

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the square crop, uint8 [3, size, size], of an image, uint8 [h, w, 3]."""
        return self.crop.prepare(rgb)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of clips, uint8 [B, T, 3, H, W], from their start."""
        return self.encoder.forward_stream(self.crop(frames))

    def init_state(self, batch_size: int = 1) -> VideoState:
        """Return the initial state of a batch of streams."""
        return self.encoder.init_state(batch_size)

    def forward_step(self, frames: Tensor, state: VideoState) -> Tensor:
        """Return the tokens [B, D] of the next frame of every stream, uint8 [B, 3, H, W]."""
        return cast(Tensor, self.encoder.forward_step(self.crop(frames), state))

    def forward_steps(self, frames: Tensor, state: VideoState) -> Tensor:
        """Return the tokens [B, T, D] of the next T frames of every stream, [B, T, 3, H, W]."""
        return self.encoder.forward_steps(self.crop(frames), state)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        return self.encoder.count_macs()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of the same token when a clip of ``pool`` frames is recomputed."""
        return self.encoder.count_clip_macs(self.encoder.pool)
