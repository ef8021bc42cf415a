"""TSN features of video chunks, as used to train online action detection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.frontends.flow import flow_images
from costream.frontends.pixels import IMAGENET_MEAN, IMAGENET_STD
from costream.frontends.resnet import ResNet
from costream.nn.state import State, zeros
from costream.records import VideoFrame

STREAMS = ("rgb", "flow")


@dataclass
class TSNState(State):
    """Step count of each stream; chunks are processed independently."""

    steps: Tensor  # int64 [B]


class TSN(nn.Module):
    """Residual networks on the middle frame of a chunk and on the optical flow through it.

    Wang et al., "Temporal segment networks" (ECCV 2016), as features of OadTR, LSTR, MiniROAD and
    others: video at 24 frames a second in chunks of 6, so 4 tokens a second; the image is the
    fourth, the flow that between the 6 as 5 fields of 2 channels (see ``flow.flow_pictures``). A
    token is the output of the RGB network, then that of the flow network. Frames are resized to
    ``short`` and cropped in the middle. Published networks with 3072 values a row take the flow of
    a BN-Inception, which this is not; those with 4096 that of a ResNet.

    Args:
        streams: of "rgb" and "flow", in this order.
        frames: per chunk. ``short``: pixels of the shorter side. ``crop``: side of the
            square crop in pixels.
        layers, width: see ``ResNet``.
    """

    takes = "video"

    def __init__(
        self,
        streams: Sequence[str] = STREAMS,
        frames: int = 6,
        short: int = 256,
        crop: int = 224,
        layers: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
    ) -> None:
        super().__init__()
        if not streams or list(streams) != [s for s in STREAMS if s in streams]:
            raise ValueError(f"streams must be rgb, flow or rgb and flow, not {', '.join(streams)}")
        if frames < 2 or not 0 < crop <= short:
            raise ValueError(f"frames {frames} must be at least 2, crop {crop} from 1 to {short}")
        self.streams, self.frames, self.short, self.crop = tuple(streams), frames, short, crop
        self.box = (math.ceil(short * 16 / 9),) * 2  # right for 16:9
        channels = {"rgb": 3, "flow": 2 * (frames - 1)}
        self.networks = nn.ModuleDict({s: ResNet(channels[s], layers, width) for s in streams})
        self.parts = {s: int(n.token_width) for s, n in self.networks.items()}  # type: ignore[arg-type]
        self.token_width = sum(self.parts.values())
        self._channels = [channels[s] for s in streams]
        mean, deviation = (
            {"rgb": IMAGENET_MEAN, "flow": (128.0,)},
            {"rgb": IMAGENET_STD, "flow": (128.0,)},
        )
        self.mean: Tensor
        self.deviation: Tensor
        for name, values in (("mean", mean), ("deviation", deviation)):
            each = [v * (channels[s] // len(v)) for s in streams if (v := values[s])]
            table = torch.tensor([x for row in each for x in row])[:, None, None]
            self.register_buffer(name, table, persistent=False)

    def prepare(self, frames: Sequence[VideoFrame]) -> npt.NDArray[np.uint8]:
        """Return the input for a chunk, uint8 [C, crop, crop]: an image, then flow.

        Raise ValueError for a wrong number of frames, ModelError if there is flow but no OpenCV.
        """
        if len(frames) != self.frames:
            raise ValueError(f"a chunk has {self.frames} frames, not {len(frames)}")
        middle = self.frames // 2
        needed = frames if "flow" in self.streams else frames[middle : middle + 1]
        pictures = [self._resize(frame.rgb) for frame in needed]
        parts: list[npt.NDArray[np.uint8]] = []
        if "rgb" in self.streams:
            parts.append(pictures[middle if len(pictures) > 1 else 0].transpose(2, 0, 1))
        if "flow" in self.streams:
            parts.append(flow_images(pictures))
        whole = np.concatenate(parts)
        top, left = ((side - self.crop) // 2 for side in whole.shape[1:])
        return whole[:, top : top + self.crop, left : left + self.crop]

    def init_state(self, batch_size: int = 1) -> TSNState:
        """Return the initial state of a batch of streams."""
        return TSNState(zeros(batch_size))

    def forward(self, chunks: Tensor) -> Tensor:
        """Return the tokens [..., D] of chunks, uint8 [..., C, crop, crop]."""
        flat = chunks.flatten(0, -4).to(self.mean.dtype)
        flat = (flat - self.mean) / self.deviation
        seen = torch.split(flat, self._channels, 1)
        parts = [net(x) for net, x in zip(self.networks.values(), seen, strict=True)]
        return torch.cat(parts, -1).view(*chunks.shape[:-3], -1)

    def forward_step(self, chunks: Tensor, state: TSNState) -> Tensor:
        """Return the tokens [B, D] of the next chunk of every stream, uint8 [B, C, crop, crop]."""
        state.steps += 1
        tokens: Tensor = self(chunks)
        return tokens

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one chunk, without computing the flow."""
        nets = cast("list[ResNet]", list(self.networks.values()))
        return sum(net.count_macs(self.crop) for net in nets)

    def _resize(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], resized to the shorter side ``short``."""
        height, width = rgb.shape[:2]
        scale = self.short / min(height, width)
        if scale == 1:
            return rgb
        size = [max(self.short, round(scale * side)) for side in (height, width)]
        pixels = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
        out = F.interpolate(pixels, size, mode="bilinear", antialias=True)[0]
        return out.permute(1, 2, 0).contiguous().numpy()
