"""Base classes of networks that find objects in frames cut into patches."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.eventful.backbone import GatedBlocks
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.token_gate import TokenGate
from costream.nn.maps import ChannelNorm


class PatchEmbedding(nn.Module):
    """One token of width ``dim`` for each square of ``patch`` x ``patch`` pixels.

    ``stem``: channels of 3x3 convolutions before it, each of which halves the image; with them
    a network can be trained on far fewer images (Xiao et al., "Early convolutions help
    transformers see better", NeurIPS 2021).
    """

    def __init__(self, dim: int, patch: int, stem: Sequence[int] = ()) -> None:
        super().__init__()
        widths = (3, *stem)
        side = patch >> len(stem)
        if side << len(stem) != patch:
            raise ValueError(f"{len(stem)} halvings do not divide patches of {patch} pixels")
        self.stem = nn.Sequential(*(StemLayer(*pair) for pair in itertools.pairwise(widths)))
        self.conv = nn.Conv2d(widths[-1], dim, side, side)

    def forward(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D] for images [B, 3, H, W]."""
        # Norms then read the channels of a place from contiguous memory.
        x = pictures.contiguous(memory_format=torch.channels_last)
        for layer in (*self.stem, self.conv):
            x = layer(x)
            if operations is not None:
                operations.count_linear(x[:, 0].numel(), cast(nn.Conv2d, layer))
        return x.permute(0, 2, 3, 1)


class StemLayer(nn.Conv2d):
    """A 3x3 convolution with stride 2 and without bias, a norm of its channels, GELU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, 2, 1, bias=False)
        self.norm = ChannelNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return feature maps [B, out, H/2, W/2] for feature maps [B, in, H, W]."""
        return F.gelu(self.norm(super().forward(x)))


class FrameDetector(nn.Module, ABC):
    """Base of networks that find objects in frames cut into patches.

    ``patch``: side of a patch in pixels; ``classes``: number of classes. ``token_gate``: learned
    policy of its gates; None: they choose by distances.
    """

    patch: int
    classes: int
    embedding: PatchEmbedding | ShuffleEmbedding

    def __init__(self) -> None:
        super().__init__()
        self.token_gate: TokenGate | None = None

    @abstractmethod
    def init_state(self, batch_size: int, height: int, width: int) -> Any:
        """Return the initial state of streams of frames of this size, in pixels."""

    @abstractmethod
    def view_step(self, tokens: Tensor, state: Any, policy: Any, operations: Operations) -> Any:
        """Take the tokens [B, h, w, D] of the next frame of every stream.

        Return the input of ``detect``. ``policy``: which tokens are computed.
        """

    @abstractmethod
    def detect(
        self, view: Any, size: tuple[int, int], operations: Operations | None = None
    ) -> list[Detections]:
        """Return the objects in images of this ``size``, height and width in pixels."""

    @abstractmethod
    def count_macs(self, height: int, width: int, updated: int | None = None) -> int:
        """Return the cost of ``view_step`` for one stream of frames of this size, in tokens.

        ``updated``: tokens that pass every gate; None: the stream begins.
        """

    def forward_step(
        self, pictures: Tensor, state: Any, policy: Any, operations: Operations | None = None
    ) -> list[Detections]:
        """Take the next frame of every stream, [B, 3, H, W], return its objects.

        ``policy``: which tokens are computed, see ``view_step``. ``operations``: counts the
        operations.
        """
        operations = Operations() if operations is None else operations
        view = self.view_step(self.embed(pictures, operations), state, policy, operations)
        return self.detect(view, (pictures.shape[2], pictures.shape[3]), operations)

    def embed(self, pictures: Tensor, operations: Operations | None = None) -> Tensor:
        """Return tokens [B, h, w, D]. ValueError for sides that are not multiples of ``patch``."""
        self.check_size(*pictures.shape[2:])
        return cast(Tensor, self.embedding(pictures, operations))

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError unless these are multiples of ``patch``."""
        if height % self.patch or width % self.patch:
            raise ValueError(f"{width}x{height} pixels are not multiples of {self.patch}")


class CategoryDetector(FrameDetector, GatedBlocks):
    """Base of detectors whose classes are the columns ``categories``, ascending, of the output."""

    categories: Tensor

    def __init__(
        self,
        categories: Sequence[int],
        dim: int,
        patch: int,
        score: float,
        scene_cut: float | None,
        refresh: int | None,
    ) -> None:
        """``score``: detections below it are dropped. Others: see ``ViTDetBackbone``."""
        super().__init__()
        if not categories or list(categories) != sorted(set(categories)) or categories[0] < 0:
            raise ValueError(f"categories {categories} do not ascend from 0")
        self.classes = self.num_classes = len(categories)
        self.dim, self.patch, self.score = dim, patch, score
        self.scene_cut, self.refresh = scene_cut, refresh
        self.embedding = PatchEmbedding(dim, patch)
        self.register_buffer("categories", torch.tensor(list(categories)), persistent=False)

    @abstractmethod
    def encode(self, tokens: Tensor) -> Any:
        """Return the input of ``detect`` for the patches [B, h, w, D] of independent frames."""

    def forward(self, pictures: Tensor) -> list[Detections]:
        """Return the objects of each of the pictures [B, 3, H, W], processed independently."""
        view = self.encode(self.embed(pictures))
        return self.detect(view, (pictures.shape[2], pictures.shape[3]))
