"""Sizes and input formats of the published 3D networks, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAPER = "https://arxiv.org/abs/2106.00050"
TASK = "action recognition"


@dataclass(frozen=True)
class VideoNetSize:
    """One network: its arguments except the number of classes, and its video input."""

    clip: str  # name of the ordinary network; with "co" before it, of the continual one
    kind: str  # see encoder.VIDEO_ARCHITECTURES
    size: int  # height and width of the input, in pixels
    short_side: int  # pixels of the short side after resizing, before the input is cropped
    frames: int  # of a clip
    rate_hz: float  # frames per second: 30, the rate of the data, divided by the frame interval
    depths: tuple[int, ...]

    @property
    def continual(self) -> str:
        """Name of the continual network."""
        return f"co{self.clip}"

    @property
    def features(self) -> int:
        """Number of features of a clip, whose mean is classified."""
        return self.frames // 2 if self.kind == "i3d" else self.frames

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``VideoEncoder`` except ``pool`` and ``start``."""
        x3d = self.kind == "x3d"
        return {
            "kind": self.kind,
            "size": self.size,
            "widths": [24, 48, 96, 192] if x3d else [256, 512, 1024, 2048],
            "depths": list(self.depths),
            "stem_width": 24 if x3d else 64,
            "head": [432, 2048] if x3d else [],
        }


_SHALLOW, _DEEP, _R50 = (3, 5, 11, 7), (5, 10, 25, 15), (3, 4, 6, 3)
SIZES = (
    VideoNetSize("x3d-xs", "x3d", 160, 182, 4, 2.5, _SHALLOW),
    VideoNetSize("x3d-s", "x3d", 160, 182, 13, 5.0, _SHALLOW),
    VideoNetSize("x3d-m", "x3d", 224, 256, 16, 6.0, _SHALLOW),
    VideoNetSize("x3d-l", "x3d", 312, 356, 16, 6.0, _DEEP),
    VideoNetSize("slow", "slow", 256, 256, 8, 3.75, _R50),
    VideoNetSize("i3d", "i3d", 224, 256, 8, 3.75, _R50),
)


def find_size(name: str) -> VideoNetSize | None:
    """Return the size of a network by its clip or continual name, or None if it is unknown."""
    return next((s for s in SIZES if name in (s.clip, s.continual)), None)
