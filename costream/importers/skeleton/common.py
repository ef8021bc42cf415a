"""Common code of the skeleton network importers: arguments of the card's network and frontend.

The sizes are read from the tensors; the joint layout, the stream (joints, bones or their motion)
and the form of the network may have to be set with ``--config``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from costream.checkpoints.skeleton_rules import Dialect, SkeletonSizes
from costream.errors import ModelError
from costream.importers.config import ImportSettings
from costream.importers.rules import ImportedNetwork
from costream.layouts import LAYOUTS, Layout, find_layout
from costream.nn.graph import adjacency
from costream.nn.timing import Timing, in_sequence

SKELETON_KEYS = (
    "layout",
    "stream",
    "padding",
    "window",
    "sliding",
    "persons",
    "axes",
    "normalise",
    "num_classes",
)
_ARCHITECTURES = {"stgcn": "costgcn", "agcn": "coagcn", "str": "costr"}
_AXES = {"ntu-25": 3, "openpose-18": 2, "body-25": 2, "coco-17": 2}


@dataclass(frozen=True)
class SkeletonPreprocessing:
    """Preprocessing of the skeletons that a dialect's published weights were trained on."""

    window: int  # frames of a clip
    rate_hz: float | None  # None: clips were resampled to ``window`` frames, whatever their length
    space: str  # normalisation of NTU skeletons, by the frontend's name for it
    picture: str  # normalisation of skeletons with two axes
    score: str  # how bones and motion combine scores
    min_score: float  # a joint with at most this score counts as missing


@dataclass(frozen=True)
class SkeletonNetworkSetting:
    """Complete description of a network, with every setting determined."""

    sizes: SkeletonSizes
    dialect: Dialect
    layout: Layout
    layout_name: str  # for the frontend: its name, or a TOML file
    stream: str  # "joint", "bone", "joint_motion" or "bone_motion"
    persons: int
    padding: str  # "same", or "none": temporal strides and zeros before frame 0, or neither
    window: int  # frames of the clips it was trained on
    sliding: int | None  # recomputed over the last clip every N steps; None: continual
    axes: int
    normalise: str
    data: SkeletonPreprocessing

    @property
    def strides(self) -> list[int]:
        """Temporal strides of the blocks: 2 where the width changes, as in all published ones."""
        return [2 if b.residual and self.padding != "none" else 1 for b in self.sizes.blocks]

    @property
    def timing(self) -> Timing:
        """Timing of the last block's features."""
        kernel = self.sizes.kernel
        padding = 0 if self.padding == "none" else (kernel - 1) // 2
        return in_sequence(*(Timing(kernel, padding, stride) for stride in self.strides))

    @property
    def pool(self) -> int:
        """Number of averaged features: as many as a clip has."""
        timing = self.timing
        frames = self.window - timing.receptive_field + 2 * timing.padding + 1
        return math.ceil(frames / timing.stride)

    def graph(self) -> Tensor:
        """Return the fixed part of the graph, float32 [3, V, V]."""
        layout = self.layout
        return adjacency(self.sizes.joints, layout.bones, layout.centre, self.dialect.partition)

    def imported(
        self, tensors: dict[str, Tensor], paper: str, compat: str | None = None
    ) -> ImportedNetwork:
        """Return network, frontend and numbered labels."""
        classes, kind = self.sizes.num_classes, self.dialect.kind
        return ImportedNetwork(
            _ARCHITECTURES[kind] if self.sliding is None else kind,
            self._arguments(compat),
            tensors,
            classes,
            tuple(f"class {k}" for k in range(classes)),
            paper,
            task="skeleton action recognition",
            frontend="joints",
            frontend_arguments=self._frontend(),
            rate_hz=self.data.rate_hz,
            delay_steps=self._delay(),
            limits=" ".join(self._limits(compat)),
        )

    def _limits(self, compat: str | None) -> Iterator[str]:
        if self.sliding is None and self.padding == "same":
            yield "Trained on whole clips, not on streams."
            if self.dialect.kind == "agcn":
                yield "Attends to each frame separately; in training, to the clip as a whole."
        if compat is not None:
            yield "Its attention is defective, as in its training, and does not mix joints."
        if self.data.rate_hz is None:
            yield (
                f"Trained on clips that were resampled to {self.data.window} frames whatever"
                " their length; a stream has a fixed rate."
            )

    def _delay(self) -> float:
        """Return the delay of an output relative to the middle of the clip it describes."""
        if self.sliding is not None:
            return (self.window - 1) / 2
        timing = self.timing
        return (timing.receptive_field - 1) / 2 + (self.pool - 1) * timing.stride / 2

    def _frontend(self) -> dict[str, Any]:
        scores = self.sizes.channels > self.axes
        return {
            "layout": self.layout_name,
            "axes": self.axes,
            "persons": self.persons,
            "streams": [self.stream],
            "normalise": self.normalise,
            "missing": "zero",
            "score": self.data.score if scores else None,
            "min_score": self.data.min_score if scores else 0.0,
        }

    def _arguments(self, compat: str | None) -> dict[str, Any]:
        sizes, dialect = self.sizes, self.dialect
        arguments = {
            "kind": dialect.kind,
            "num_classes": sizes.num_classes,
            "joints": sizes.joints,
            "bones": [list(bone) for bone in self.layout.bones],
            "centre": self.layout.centre,
            "channels": sizes.channels,
            "persons": self.persons,
            "widths": [block.outputs for block in sizes.blocks],
            "strides": self.strides,
            "kernel": sizes.kernel,
            "padding": self.padding,
            "pool": self.pool,
            "partition": dialect.partition,
            "compat": compat,
            "conv_first": dialect.stacked,
            "inner_residual": dialect.inner_residual,
            "temporal": "branches" if dialect.branches else "convolution",
        }
        if self.sliding is not None:
            # AGCN was trained with attention over clips, impossible for a stream; AGCN* was not.
            clips = dialect.kind == "agcn" and self.padding == "same"
            attention = "clip" if clips else "frame"
            arguments |= {"window": self.window, "hop": self.sliding, "attention": attention}
        return arguments


def complete_setting(
    sizes: SkeletonSizes,
    dialect: Dialect,
    data: SkeletonPreprocessing,
    config: ImportSettings,
    padding: str | None = "same",
) -> SkeletonNetworkSetting:
    """Return the complete setting; ModelError for one that neither tensors nor config determine.

    ``padding``: the form of the dialect's network, None when it has two.
    """
    config.agree("num_classes", sizes.num_classes)
    layout = _layout(sizes, config)
    axes = _axes(sizes, layout, config)
    usual = data.picture if axes == 2 else data.space if layout.name == "ntu-25" else None
    setting = SkeletonNetworkSetting(
        sizes,
        dialect,
        layout,
        layout_name=layout.name if layout.name in LAYOUTS else config.get("layout"),
        stream=_stream(config),
        persons=_persons(sizes, dialect, config),
        padding=config.get("padding") or padding or config.need("padding"),
        window=config.get("window") or data.window,
        sliding=config.get("sliding"),
        axes=axes,
        normalise=config.get("normalise") or usual or config.need("normalise"),
        data=data,
    )
    if setting.padding == "none" and setting.window < setting.timing.receptive_field:
        raise ModelError(
            f"window={setting.window} frames are fewer than the {setting.timing.receptive_field}"
            " that the blocks see without padding"
        )
    return setting


def _stream(config: ImportSettings) -> str:
    streams: list[str] = config.need("stream")
    if len(streams) > 1:
        raise ModelError(f"stream={','.join(streams)}: a checkpoint has a single stream")
    return streams[0]


def _axes(sizes: SkeletonSizes, layout: Layout, config: ImportSettings) -> int:
    told = {2: 2, 4: 3}.get(sizes.channels) or _AXES.get(layout.name)
    axes: int = config.get("axes") or told or config.need("axes")
    if sizes.channels not in (axes, axes + 1):
        raise ModelError(
            f"the checkpoint takes {sizes.channels} values per joint, which is not {axes} axes with"
            " or without a score"
        )
    return axes


def _layout(sizes: SkeletonSizes, config: ImportSettings) -> Layout:
    fitting = [name for name, layout in LAYOUTS.items() if len(layout.joints) == sizes.joints]
    name: str | None = config.get("layout")
    if name is None and len(fitting) == 1:
        name = fitting[0]
    if name is None:
        several = f" ({' and '.join(fitting)} have as many)" if fitting else ""
        raise ModelError(
            f"the checkpoint has {sizes.joints} joints of an unknown layout{several}",
            hint="set the layout: --config layout=...",
        )
    layout = find_layout(name)
    if len(layout.joints) != sizes.joints:
        raise ModelError(
            f"layout={name} has {len(layout.joints)} joints, the checkpoint {sizes.joints}"
        )
    return layout


def _persons(sizes: SkeletonSizes, dialect: Dialect, config: ImportSettings) -> int:
    persons, rest = divmod(sizes.norm_width, sizes.joints * sizes.channels)
    if rest:
        raise ModelError(
            f"the checkpoint does not fit: the input normalisation has {sizes.norm_width} values,"
            f" which {sizes.joints} joints of {sizes.channels} do not divide"
        )
    if dialect.shared_norm and persons == 1:
        # Its features are averaged over the persons; the published data have two.
        return config.get("persons") or 2
    said: int = config.agree("persons", persons)
    return said
