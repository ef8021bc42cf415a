"""ViViT: token-gated action recognition in video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.models.eventful.backbone import BackboneState, ViTDetBackbone
from costream.models.eventful.vivit.temporal import TEMPORAL
from costream.models.spec import register_model
from costream.nn.eventful.block import VARIANTS
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy
from costream.nn.state import State


class TubeletEmbedding(nn.Module):
    """One token of width ``dim`` for each ``steps`` x ``patch`` x ``patch`` pixels of a video."""

    def __init__(self, dim: int, steps: int, patch: int) -> None:
        super().__init__()
        shape = (steps, patch, patch)
        self.conv = nn.Conv3d(3, dim, shape, shape)

    def forward(self, clips: Tensor) -> Tensor:
        """Return tokens [B, S, N, D], row by row, for clips [B, T, 3, H, W]."""
        out: Tensor = self.conv(clips.transpose(1, 2)).flatten(3).permute(0, 2, 3, 1)
        return out

    def count_macs(self, tokens: int) -> int:
        """Return the multiply-accumulates of ``tokens`` tokens, and biases, like ``Operations``."""
        return tokens * sum(p.numel() for p in self.conv.parameters())


class SpatialEncoder(nn.Module):
    """A plain vision transformer over a class token, which comes first, and those of a tubelet.

    Positions are a learned table that is added once. A step computes tokens that have changed;
    the class token is gated like any other. See ``ViTDetBackbone`` for the arguments.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        depth: int,
        tokens: int,
        mlp_ratio: int,
        variant: str,
        scene_cut: float | None,
        refresh: int | None,
    ) -> None:
        super().__init__()
        self.tokens = tokens + 1
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.backbone = ViTDetBackbone(
            dim,
            heads,
            depth,
            size=None,
            global_blocks=range(depth),
            position_size=(1, self.tokens),
            mlp_ratio=mlp_ratio,
            variant=variant,
            scene_cut=scene_cut,
            refresh=refresh,
        )
        self.layer_norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class tokens [B, D] of tubelets [B, N, D], computed in full."""
        return self._class_of(self.backbone(self._with_class(x)))

    def init_state(self, batch_size: int) -> BackboneState:
        """Return the initial state of a batch of streams."""
        return self.backbone.init_state(batch_size, 1, self.tokens)

    def forward_step(
        self,
        x: Tensor,
        state: BackboneState,
        policy: Policy | Sequence[Policy],
        operations: Operations,
    ) -> Tensor:
        """Take the tokens [B, N, D] of the next tubelet of every stream, return class tokens."""
        x = self._with_class(x)
        return self._class_of(self.backbone.forward_step(x, state, policy, operations))

    def count_macs(self, updated: int | None = None) -> int:
        """Return the cost of a step of one stream, see ``EventfulBlock.count_macs``."""
        return self.backbone.count_macs(1, self.tokens, updated)

    def _with_class(self, x: Tensor) -> Tensor:
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)[:, None]

    def _class_of(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer_norm(x[:, 0, 0]))


@dataclass
class ViViTState(State):
    """State of both encoders for each stream."""

    spatial: BackboneState
    temporal: State


@register_model(
    "vivit",
    order=24,
    gated=True,
    model="costream.models.eventful.classifier:ActionModel",
    bench="costream.bench.vivit:vivit_steps_table",
    arguments={"num_classes": 400},
    task="action recognition",
    rate_hz=15.0,
    frontend="crops",
)
@register_model(
    "eventful-vivit",
    summary="actions in video, token-gated transformer",
    listed=22,
    architecture="vivit",
)
class ViViT(nn.Module):
    """A spatial encoder of every tubelet, a temporal encoder of its class tokens, a classifier.

    The factorised encoder of Arnab et al., "ViViT: a video vision transformer" (ICCV 2021); the
    spatial encoder has the gates of Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023). A step
    takes a tubelet, which is ``tubelet`` consecutive frames. Frames must be normalised.

    Equivalences: with all tokens, a stream's output after each step is that of ``forward``
    over the last ``window`` tubelets, or over all if there are fewer. With fewer tokens, it is
    the temporal encoder's output for the class tokens from the spatial one. ``forward_clip``
    differs in one respect: its streams begin with the clip. With "deepcot" the temporal
    encoder is another network, see ``DeepTemporal``.

    Args:
        num_classes: K.
        dim, heads, depth: D, H and the blocks of the spatial encoder. ``mlp_ratio``: of the
            feed-forward. The defaults are ViViT-B.
        size: height and width of a frame in tokens. ``patch``: side of a token in pixels.
        tubelet: frames of a tubelet. ``window``: tubelets in the temporal encoder's input.
        temporal_depth: its blocks. ``temporal``: "window", recomputed at each step, or
            "deepcot".
        variant: a name of ``VARIANTS`` without pooled keys; no weight depends on it.
        scene_cut, refresh: see ``ViTDetBackbone``. The paper has neither; a hand-held camera
            changes most tokens all the time, without a scene cut.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        num_classes: int,
        dim: int = 768,
        heads: int = 12,
        depth: int = 12,
        size: Sequence[int] = (14, 14),
        window: int = 16,
        temporal_depth: int = 4,
        temporal: str = "window",
        tubelet: int = 2,
        patch: int = 16,
        mlp_ratio: int = 4,
        variant: str = "exact",
        scene_cut: float | None = None,
        refresh: int | None = None,
    ) -> None:
        super().__init__()
        if temporal not in TEMPORAL:
            raise ValueError(f"temporal {temporal!r} is not one of {tuple(TEMPORAL)}")
        if variant in VARIANTS and VARIANTS[variant].pool > 1:
            raise ValueError(f"variant {variant!r} pools keys, which a class token does not allow")
        self.size, self.patch, self.tubelet, self.window = tuple(size), patch, tubelet, window
        self.num_classes = num_classes
        self.embedding = TubeletEmbedding(dim, tubelet, patch)
        self.spatial_model = SpatialEncoder(
            *(dim, heads, depth, size[0] * size[1], mlp_ratio, variant, scene_cut, refresh)
        )
        self.temporal_model: Any = TEMPORAL[temporal](dim, heads, temporal_depth, window, mlp_ratio)
        self.classifier = nn.Linear(dim, num_classes)

    @property
    def stride(self) -> int:
        """Frames from one output to the next."""
        return self.tubelet

    @property
    def delay(self) -> int:
        """Frames before that of the first output."""
        return self.tubelet - 1

    @property
    def receptive_field(self) -> int:
        """Frames that an output depends on, if all tokens are computed."""
        return self.tubelet * int(self.temporal_model.receptive_field)

    @property
    def tokens(self) -> int:
        """Tokens of a step, including the class token."""
        return self.spatial_model.tokens

    def forward(self, clips: Tensor) -> Tensor:
        """Return the logits [B, K] at the end of clips [B, T, 3, H, W], computed in full."""
        tokens = self.embed(clips)
        rows = torch.unflatten(self.spatial_model(tokens.flatten(0, 1)), 0, tokens.shape[:2])
        return cast(Tensor, self.classifier(self.temporal_model(rows)))

    @torch.no_grad()
    def forward_clip(
        self, clips: Tensor, policy: Policy, operations: Operations | None = None
    ) -> Tensor:
        """Return the logits [B, K] at the end of clips, each a stream that begins with it.

        As in the paper: the first tubelet is computed in full, the tokens of the others as
        ``policy`` selects, and the temporal encoder runs once.
        """
        operations = Operations() if operations is None else operations
        tokens, state = self.embed(clips, operations), self.spatial_model.init_state(len(clips))
        rows = [
            self.spatial_model.forward_step(x, state, policy, operations) for x in tokens.unbind(1)
        ]
        out = self.temporal_model(torch.stack(rows, 1), operations)
        return self.classify(out, operations)

    def init_state(self, batch_size: int = 1) -> ViViTState:
        """Return the initial state of a batch of streams."""
        spatial = self.spatial_model.init_state(batch_size)
        return ViViTState(spatial, self.temporal_model.init_state(batch_size))

    def warmup(self, state: ViViTState) -> tuple[bool, ...]:
        """Return for each stream whether its receptive field is not yet full."""
        return cast("tuple[bool, ...]", self.temporal_model.warmup(state.temporal))

    @torch.no_grad()
    def forward_step(
        self,
        tubelets: Tensor,
        state: ViViTState,
        policy: Policy | Sequence[Policy],
        operations: Operations | None = None,
    ) -> Tensor:
        """Take the next tubelet [B, t, 3, H, W] of every stream, return logits [B, K].

        ``policy``: which tokens are computed, one for all blocks or one for each.
        ``operations``: counts the operations.
        """
        operations = Operations() if operations is None else operations
        (tokens,) = self.embed(tubelets, operations).unbind(1)
        row = self.spatial_model.forward_step(tokens, state.spatial, policy, operations)
        out = self.temporal_model.forward_step(row, state.temporal, operations)
        return self.classify(out, operations)

    def embed(self, clips: Tensor, operations: Operations | None = None) -> Tensor:
        """Return tokens [B, S, N, D]. Raises ValueError for clips of another size."""
        wanted = tuple(side * self.patch for side in self.size)
        if clips.shape[3:] != wanted or clips.shape[1] % self.tubelet:
            raise ValueError(
                f"clips of {clips.shape[1]} frames of {clips.shape[4]}x{clips.shape[3]} pixels,"
                f" not a multiple of {self.tubelet} frames of {wanted[1]}x{wanted[0]}"
            )
        tokens: Tensor = self.embedding(clips)
        if operations is not None:
            rows = tokens.numel() // tokens.shape[-1]
            operations.linear += rows * self.embedding.conv.weight.numel()
            operations.bias += tokens.numel()
        return tokens

    def count_macs(self, updated: int | None = None) -> int:
        """Return the cost of a step of one stream, with its embedding, when its window is full.

        ``updated``: tokens that pass every gate; None: the stream begins.
        """
        embedding = self.embedding.count_macs(self.tokens - 1)
        ends = self.temporal_model.count_macs() + _size(self.classifier)
        return int(embedding + self.spatial_model.count_macs(updated) + ends)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of an output when all of its window is recomputed."""
        step = self.embedding.count_macs(self.tokens - 1) + self.spatial_model.count_macs()
        return int(self.window * step + self.temporal_model.dense_macs + _size(self.classifier))

    def classify(self, rows: Tensor, operations: Operations) -> Tensor:
        """Return logits [B, K] for outputs [B, D] of the temporal encoder."""
        operations.count_linear(len(rows), self.classifier)
        return cast(Tensor, self.classifier(rows))


def _size(layer: nn.Linear) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())
