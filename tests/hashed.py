"""Weights that anybody can make again: the hash recipe of the reference arrays."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor

CONVOLUTIONS = (0, 3, 6, 8, 11, 13)


def values(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """The numbers of a tensor, between -scale and scale, from its name."""
    h = np.arange(math.prod(shape), dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    numbers = (h / 2**32 * 2 - 1) * scale
    return torch.from_numpy(numbers.astype(np.float32)).view(shape)


def vggish(
    widths: tuple[int, ...] = (64, 128, 256, 256, 512, 512), hidden: int = 4096, width: int = 128
) -> dict[str, Tensor]:
    """The state dict of torchvggish, without its PCA."""
    shapes: dict[str, tuple[int, ...]] = {}
    channels = 1
    for k, out in zip(CONVOLUTIONS, widths, strict=True):
        shapes[f"features.{k}"] = (out, channels, 3, 3)
        channels = out
    shapes["embeddings.0"] = (hidden, 24 * channels)
    shapes["embeddings.2"] = (hidden, hidden)
    shapes["embeddings.4"] = (width, hidden)
    weights = {}
    for name, shape in shapes.items():
        scale = math.sqrt(6 / math.prod(shape[1:]))
        weights[f"{name}.weight"] = values(f"{name}.weight", shape, scale)
        weights[f"{name}.bias"] = values(f"{name}.bias", shape[:1], 0.05)
    return weights


def pca(width: int = 128) -> dict[str, Tensor]:
    """The file of the post-processing that goes with it."""
    vectors, means = "pca_eigen_vectors", "pca_means"
    return {
        vectors: values(f"pproc.{vectors}", (width, width), 0.3),
        means: values(f"pproc.{means}", (width, 1), 0.5),
    }
