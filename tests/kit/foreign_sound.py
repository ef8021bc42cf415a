"""Checkpoints of networks for sound: VGGish by the hash recipe of its reference arrays, CoTrans."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor

from costream.models.oad.cooadtr import CoTrans

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


def cotrans(width: int = 128) -> tuple[dict[str, Tensor], CoTrans]:
    """A CoTrans of one block in the 0.17 dialect, and the same network as it should come out."""
    net = CoTrans(10, width, embed_dim=16, num_heads=4, feedforward=24, window=6, num_positions=16)
    names = {
        "0.": "input_projection.",
        "1.pe.weight": "positions.table",
        "3.0.1.": "encoder.layers.0.self_attn.",
        "3.1.fn.": "encoder.layers.0.norm1.",
        "3.2.1.0.": "encoder.layers.0.linear1.",
        "3.2.1.3.": "encoder.layers.0.linear2.",
        "3.3.fn.": "encoder.layers.0.norm2.",
        "4.fn.": "encoder.norm.",
        "5.": "head.",
    }
    ours = net.state_dict()
    theirs = {
        their + name.removeprefix(our): value
        for their, our in names.items()
        for name, value in ours.items()
        if name.startswith(our)
    }
    assert len(theirs) == len(ours)
    return theirs, net.eval()
