"""Skeleton action networks: ST-GCN, AGCN and S-TR, for clips and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.core.layouts import NTU_25
from costream.models.oad.cooadtr import OadOutput
from costream.models.skeleton.blocks import PADDINGS, SkeletonBlock, Spatial
from costream.models.skeleton.step import FoldedSkeleton
from costream.models.skeleton.step_plan import SkeletonState
from costream.models.spec import register_model
from costream.nn.folding import Foldable
from costream.nn.graph import (
    AdaptiveGraphConvolution,
    GraphConvolution,
    SpatialAttention,
    adjacency,
)
from costream.nn.pooling import TemporalMean, TemporalStatistics
from costream.nn.timing import ContinualModule, in_sequence

KINDS = ("stgcn", "agcn", "str")
WIDTHS = (64, 64, 64, 64, 128, 128, 128, 256, 256, 256)
STRIDES = (1, 1, 1, 1, 2, 1, 1, 2, 1, 1)
ATTENTION_FROM = 4  # the first block of S-TR with attention instead of the graph
STARRED = {"strides": [1] * len(STRIDES), "padding": "none", "pool": 220}  # networks named *


def ntu_arguments(kind: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of a network for NTU RGB+D 60."""
    return {
        "num_classes": 60,
        "joints": len(NTU_25.joints),
        "bones": [list(bone) for bone in NTU_25.bones],
        "centre": NTU_25.centre,
        "kind": kind,
        **more,
    }


def ntu_model(kind: str, **more: Any) -> dict[str, Any]:
    """Return the specification of a network for NTU RGB+D 60 as 2s-AGCN prepares it."""
    return {
        "arguments": ntu_arguments(kind, **more),
        "task": "skeleton action recognition",
        "rate_hz": 30.0,
        "whole": True,
        "frontend": "joints",
        "frontend_arguments": {
            "layout": NTU_25.name,
            "persons": 2,
            "normalise": "ntu",
            "missing": "zero",
        },
    }


@register_model(
    "costgcn",
    summary="skeleton actions, continual graph convolutions",
    listed=10,
    order=11,
    **ntu_model("stgcn"),
)
@register_model(
    "costgcn-s1",
    summary="skeleton actions, CoST-GCN*: strides 1, no padding",
    listed=11,
    architecture="costgcn",
    bench="costream.bench.skeletons:skeleton_steps_table",
    **ntu_model("stgcn", **STARRED),
)
@register_model(
    "coagcn",
    summary="skeleton actions, continual adaptive graphs",
    listed=12,
    order=12,
    **ntu_model("agcn"),
)
@register_model(
    "coagcn-s1",
    summary="skeleton actions, CoAGCN*: strides 1, no padding",
    listed=13,
    architecture="coagcn",
    bench="costream.bench.skeletons:skeleton_steps_table",
    **ntu_model("agcn", **STARRED),
)
@register_model(
    "costr",
    summary="skeleton actions, continual spatial attention",
    listed=14,
    order=13,
    **ntu_model("str"),
)
@register_model(
    "costr-s1",
    summary="skeleton actions, CoS-TR*: strides 1, no padding",
    listed=15,
    architecture="costr",
    bench="costream.bench.skeletons:skeleton_steps_table",
    **ntu_model("str", **STARRED),
)
class SkeletonNet(ContinualModule, Foldable[FoldedSkeleton]):
    """Batch norm, blocks of space and time, mean over time, joints and persons, Linear.

    Hedegaard et al., "Continual spatio-temporal graph convolutional networks" (Pattern
    Recognition 2023). ``forward`` is the ordinary network over a clip, ``forward_step`` its
    continual form, with an output every ``stride`` steps from step ``delay`` on. Parameter
    names are those of the ordinary networks of continual-skeletons.

    An absent person is all zeros, [V, C]. Clips and streams process it like a person at the origin,
    but in a stream nothing is computed for a person who has been absent for the receptive field of
    the blocks.

    Args:
        num_classes: K. ``joints``: V. ``bones``: (child, parent) pairs that lead to ``centre``.
        channels: C, numbers per joint. ``persons``: M.
        kind: "stgcn"; "agcn", whose graphs follow the joints; "str", which from block 4 on
            attends to joints instead.
        widths, strides: of the blocks. ``kernel``: of time, odd.
        padding: of time. "same": the paper's regular form, zeros on both sides of a clip; a
            stream has those before frame 0. "none": the form of the starred networks, whose
            stream output with strides of 1 is exactly that of the clip network over the last
            frames. "causal": zeros before frame 0 only, no output depends on later frames,
            and there is an output from step 0 on.
        pool: features of the last block that a stream averages; a clip averages all of its
            features, with "causal" at most ``pool`` for the logits of each feature.
        partition: see ``costream.nn.graph.adjacency``. ``attention``, ``compat``: see
            ``AdaptiveGraphConvolution``; with attention "clip" there is no stream.
        conv_first, inner_residual: see ``GraphConvolution``. ``temporal``: "convolution", or
            "branches" as in ST-GCN++, which has other kernels.
        dropout: of each block's temporal unit, in training.
        statistics: with padding "causal", a second Linear on statistics of the input: mean and
            standard deviation of each number of a joint over the newest frames, from that of
            the oldest averaged feature on; persons are averaged. Its logits, initially zeros,
            are added to those of the first.

    Raises ValueError for inconsistent arguments.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        num_classes: int,
        joints: int,
        bones: Sequence[Sequence[int]],
        centre: int = 0,
        channels: int = 3,
        persons: int = 2,
        *,
        kind: str = "stgcn",
        widths: Sequence[int] = WIDTHS,
        strides: Sequence[int] = STRIDES,
        kernel: int = 9,
        padding: str = "same",
        pool: int = 75,
        partition: str = "in_out",
        attention: str = "frame",
        compat: str | None = None,
        conv_first: bool = False,
        inner_residual: bool = True,
        temporal: str = "convolution",
        dropout: float = 0.0,
        statistics: bool = False,
    ) -> None:
        super().__init__()
        if statistics and padding != "causal":
            raise ValueError(f"statistics need padding 'causal', not {padding!r}")
        _check(kind, padding, temporal, kernel, widths, strides)
        self.num_classes, self.joints, self.channels = num_classes, joints, channels
        self.persons, self.pool, self.form = persons, pool, padding
        graph = adjacency(joints, bones, centre, partition)

        def spatial(number: int) -> Spatial:
            if kind == "agcn":
                return lambda c, o: AdaptiveGraphConvolution(
                    c, o, graph, attention=attention, compat=compat
                )
            if kind == "str" and number >= ATTENTION_FROM:
                return lambda c, o: SpatialAttention(c, o, joints)
            return lambda c, o: GraphConvolution(
                c, o, graph, conv_first=conv_first, residual=inner_residual
            )

        self.data_bn = nn.BatchNorm1d(persons * joints * channels)
        sizes = zip([channels, *widths], widths, strides, strict=False)
        self.layers = nn.ModuleDict(
            {
                f"layer{number}": SkeletonBlock(
                    c,
                    o,
                    spatial(number),
                    kernel=kernel,
                    stride=stride,
                    padding=padding,
                    residual=number > 1,
                    branched=temporal == "branches",
                    dropout=dropout,
                )
                for number, (c, o, stride) in enumerate(sizes, 1)
            }
        )
        self.fc = nn.Linear(widths[-1], num_classes)
        self.layer_timing = in_sequence(*self.blocks)
        early = -(-self.layer_timing.padding // self.layer_timing.stride)
        self.mean = TemporalMean(
            pool,
            zeros=0 if padding != "same" else min(early, pool - 1),
            partial=padding == "causal",
        )
        self.timing = in_sequence(self.layer_timing, self.mean)
        self.statistics: TemporalStatistics | None = None
        self.reading: nn.Linear | None = None
        if statistics:
            self.statistics = TemporalStatistics((pool - 1) * self.stride + 1)
            self.reading = nn.Linear(2 * joints * channels, num_classes, bias=False)
            nn.init.zeros_(self.reading.weight)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                nn.init.zeros_(cast(Tensor, module.bias))

    @property
    def blocks(self) -> list[SkeletonBlock]:
        """The blocks, in order."""
        return [cast(SkeletonBlock, block) for block in self.layers.values()]

    @property
    def window(self) -> int:
        """Frames that an output depends on, those before frame 0 included."""
        return self.receptive_field

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, K] of clips [B, T, M, V, C].

        With padding "causal": [B, T', K], the stream's outputs at every ``stride``-th frame.
        """
        y = self.features(x).mean((1, 3))
        logits = cast(Tensor, self.fc(self.mean(y) if self.form == "causal" else y.mean(1)))
        return logits if self.reading is None else logits + self.reading(self.describe(x))

    def describe(self, x: Tensor) -> Tensor:
        """Return the input of ``reading``, [B, T', 2 V C], for clips [B, T, M, V, C].

        Raise ValueError for a network without ``statistics``.
        """
        if self.statistics is None:
            raise ValueError("the network has no statistics")
        return cast(Tensor, self.statistics(x.flatten(3))).mean(2)[:, :: self.stride]

    def features(self, x: Tensor) -> Tensor:
        """Return the output [B, M, T', V, O] of the last block for clips [B, T, M, V, C]."""
        rows = cast(Tensor, self.data_bn(x.flatten(2).flatten(0, 1))).view(x.shape)
        frames = rows.transpose(1, 2).flatten(0, 1)
        for block in self.blocks:
            frames = block(frames)
        return torch.unflatten(frames, 0, (x.shape[0], self.persons))

    def init_state(self, batch_size: int = 1) -> SkeletonState:
        """Return the initial state of a batch of streams."""
        return self.folded().init_state(batch_size)

    def warmup(self, state: SkeletonState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(steps < self.receptive_field for steps in state.steps.tolist())

    def forward_step(self, x: Tensor, state: SkeletonState) -> OadOutput | None:
        """Take a frame [B, M, V, C] of every stream, return logits [B, K], or None.

        Logits come at step ``delay`` of the batch and every ``stride`` steps after that. The
        network is used in evaluation mode, with its parameters at the last call of ``init_state``
        or ``forward_steps``.
        """
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            logits = (self._folded or self.folded()).step(x, state)
        return None if logits is None else OadOutput(logits, None)

    @torch.no_grad()
    def forward_steps(self, x: Tensor, state: SkeletonState) -> OadOutput:
        """Take T frames [B, T, M, V, C], return the logits [B, T', K] of all outputs."""
        return OadOutput(self.folded().steps(x, state), None)

    def fold(self) -> FoldedSkeleton:
        """Return the network folded for steps in evaluation, with its current parameters."""
        return FoldedSkeleton(self)

    def count_macs(self, persons: int | None = None) -> int:
        """Return the multiply-accumulates of the matrix products of a step of one stream.

        For a strided network, the mean over steps. ``persons``: number computed; default: all.
        """
        bodies = self.persons if persons is None else persons
        total, jump = 0.0, 1
        for block in self.blocks:
            of_input, of_output = block.count_macs(self.joints)
            total += bodies * (of_input / jump + of_output / (jump * block.stride))
            jump *= block.stride
        return round(total + self._classifier_macs / jump)

    @property
    def clip_length(self) -> int:
        """Frames of the shortest clip with ``pool`` features."""
        if self.form != "same":
            return self.receptive_field
        return (self.pool - 1) * self.stride + 1

    @property
    def exact(self) -> bool:
        """Whether its outputs equal a recomputation of the window without padding at its ends."""
        return self.form != "same"

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes the clip.

        For a strided network, with outputs at every ``stride``-th step only, the mean over steps.
        """
        return round(self.count_clip_macs(self.clip_length) / self.stride)

    def count_clip_macs(self, frames: int) -> int:
        """Return the multiply-accumulates of ``forward`` over a clip of ``frames`` frames."""
        total = 0
        for block in self.blocks:
            of_input, of_output = block.count_macs(self.joints)
            total += frames * of_input
            frames = block.count_frames(frames)
            total += frames * of_output
        return self.persons * total + self._classifier_macs

    @property
    def _classifier_macs(self) -> int:
        reading = 0 if self.reading is None else self.reading.weight.numel()
        return self.fc.weight.numel() + reading


def _check(
    kind: str,
    padding: str,
    temporal: str,
    kernel: int,
    widths: Sequence[int],
    strides: Sequence[int],
) -> None:
    for name, value, allowed in (
        ("kind", kind, KINDS),
        ("padding", padding, PADDINGS),
        ("temporal", temporal, ("convolution", "branches")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(allowed)}")
    if not kernel % 2:
        raise ValueError(f"kernel {kernel} has no centre: it must be odd")
    if not widths or len(widths) != len(strides):
        raise ValueError(f"{len(widths)} widths and {len(strides)} strides")
