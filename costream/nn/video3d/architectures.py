"""Architectures of 3D networks apart from their sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VideoArchitecture:
    """Architecture of a kind of network, apart from its sizes."""

    stem_kernel: int  # over time
    kernels: tuple[tuple[int, ...], ...]  # over time, of the blocks of each stage, repeated
    strides: tuple[int, ...]  # in pixels, of the first block of each stage
    halves: bool = False  # the maximum of each two frames is taken after the first stage
    depthwise: bool = False  # X3D's blocks, stem and head


VIDEO_ARCHITECTURES = {
    "x3d": VideoArchitecture(5, ((3,),) * 4, (2, 2, 2, 2), depthwise=True),
    "slow": VideoArchitecture(1, ((1,), (1,), (3,), (3,)), (1, 2, 2, 2)),
    "i3d": VideoArchitecture(5, ((3,), (3, 1), (3, 1), (1, 3)), (1, 2, 2, 2), halves=True),
}
