"""Operations of the clip networks that papers compare continual 3D networks with.

As Hedegaard, Iosifidis (ECCV 2022) count: convolutions, 2 per number for batch norms, 1 for ReLU
and for the inputs of means and maxima, the classifier with its bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_CLASSES = 400
_BLOCKS = ((3, 256, 1), (4, 512, 1), (6, 1024, 3), (3, 2048, 3))  # ResNet-50: blocks, width, time
Kernel = tuple[int, int, int]


class ConvolutionCount:
    """Sums of operations and parameters of convolutions with batch norms."""

    def __init__(self) -> None:
        self.macs = self.parameters = 0

    def convolve(
        self, given: int, out: int, kernel: Kernel, frames: int, side: int, relu: bool = True
    ) -> None:
        """Add a convolution whose output has ``frames`` maps of ``side`` x ``side``."""
        weights = given * out * math.prod(kernel) + 2 * out
        self.macs += frames * side**2 * (weights + (out if relu else 0))
        self.parameters += weights

    def classify(self, width: int, numbers: int) -> None:
        """Add a mean of so many numbers and a classifier of ``width`` of them."""
        self.macs += numbers + (width + 1) * _CLASSES
        self.parameters += (width + 1) * _CLASSES


def r2plus1d(frames: int, side: int = 112) -> ConvolutionCount:
    """Count R(2+1)D-18: Tran et al., "A closer look at spatiotemporal convolutions" (CVPR 2018)."""
    count, side, given = ConvolutionCount(), side // 2, 64
    count.convolve(3, 45, (1, 7, 7), frames, side)
    count.convolve(45, 64, (3, 1, 1), frames, side)
    for stage, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            wide = given if block == 0 else out
            stride = 2 if stage and not block else 1
            between = 27 * wide * out // (9 * wide + 3 * out)
            later, half = -(-frames // stride), -(-side // stride)
            count.convolve(wide, between, (1, 3, 3), frames, half)
            count.convolve(between, out, (3, 1, 1), later, half)
            count.convolve(out, between, (1, 3, 3), later, half)
            count.convolve(between, out, (3, 1, 1), later, half)
            if stride > 1:
                count.convolve(wide, out, (1, 1, 1), later, half, relu=False)
            frames, side = later, half
        given = out
    count.classify(given, given * frames * side**2)
    return count


def slowfast(frames: int, faster: int, fusion: int, side: int = 256) -> ConvolutionCount:
    """Count SlowFast, ResNet-50: Feichtenhofer et al. (ICCV 2019).

    ``frames``: of the slow path; ``faster``: times as many of the fast one, whose width is an
    eighth. ``fusion``: kernel in time of the convolutions from one to the other.
    """
    count, many, side = ConvolutionCount(), frames * faster, side // 2
    count.convolve(3, 64, (1, 7, 7), frames, side)
    count.convolve(3, 8, (5, 7, 7), many, side)
    count.macs += (64 * frames + 8 * many) * side**2  # maxima
    side, wide, narrow = side // 2, 64, 8
    for blocks, out, time in _BLOCKS:
        count.convolve(narrow, 2 * narrow, (fusion, 1, 1), frames, side)
        paths = ((frames, wide + 2 * narrow, out, time), (many, narrow, out // 8, 3))
        half = side if out == _BLOCKS[0][1] else side // 2
        for maps, given, width, kernel in paths:
            for block in range(blocks):
                into, before = (width, half) if block else (given, side)
                count.convolve(into, width // 4, (kernel, 1, 1), maps, before)
                count.convolve(width // 4, width // 4, (1, 3, 3), maps, half)
                count.convolve(width // 4, width, (1, 1, 1), maps, half)
                if not block:
                    count.convolve(into, width, (1, 1, 1), maps, half, relu=False)
        side, wide, narrow = half, out, out // 8
    count.classify(wide + narrow, (wide * frames + narrow * many) * side**2)
    return count


@dataclass(frozen=True)
class Baseline:
    """A network of Table 4.1 of Hedegaard's thesis, in millions."""

    name: str
    frames: int
    count: Callable[[], ConvolutionCount]
    published: float
    parameters: float | None  # None: not at hand


BASELINES = (
    Baseline("r(2+1)d-18, 8 frames", 8, lambda: r2plus1d(8), 20_350.0, 31.51),
    Baseline("r(2+1)d-18, 16 frames", 16, lambda: r2plus1d(16), 40_710.0, 31.51),
    Baseline("slowfast-4x16", 4, lambda: slowfast(4, 8, 5), 36_460.0, 34.48),
    Baseline("slowfast-8x8", 8, lambda: slowfast(8, 4, 7), 66_250.0, None),
)
