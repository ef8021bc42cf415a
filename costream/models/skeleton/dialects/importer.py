"""Common code of the skeleton network importers: arguments of the card's network and frontend.

The sizes are read from the tensors; the joint layout, the stream (joints, bones or their motion)
and the form of the network may have to be set with ``--config``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.layouts import LAYOUTS, Layout, find_layout
from costream.models.skeleton.dialects.tensors import (
    SUBSETS,
    Dialect,
    SkeletonSizes,
    attends,
    network_rules,
    read_sizes,
)
from costream.models.skeleton.ensemble import combine
from costream.nn.graph import adjacency
from costream.nn.timing import Timing, in_sequence
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import (
    ImportedNetwork,
    apply,
    with_counters,
)

_DATA_KEYS = ("layout", "stream", "padding", "window", "sliding", "persons", "axes", "normalise")
SKELETON_KEYS = (*_DATA_KEYS, "num_classes")
# Streams in the names of published files: a word of the name, or the entire name in pyskl.
_STREAM_PATTERNS = {
    "bone_motion": r"\bbone[- ]motion\b|^bm$",
    "joint_motion": r"\bjoint[- ]motion\b|^jm$",
    "bone": r"\bbone\b|^b$",
    "joint": r"\bjoint\b|^j$",
}
_ARCHITECTURES = {"stgcn": "costgcn", "agcn": "coagcn", "str": "costr"}
_CAMERA_HZ = 30.0  # of the published data, where clips were resampled
_LAYOUT = "ntu-25"  # of the published networks with 25 joints
_AXES = {"ntu-25": 3, "openpose-18": 2, "body-25": 2, "coco-17": 2}


def stream_of_name(path: Path) -> dict[str, list[str]]:
    """Return the setting ``stream`` if the name of a checkpoint contains one, else nothing."""
    name = path.stem.lower().replace("_", "-")
    for stream, pattern in _STREAM_PATTERNS.items():
        if re.search(pattern, name):
            return {"stream": [stream]}
    return {}


# What importers of skeleton networks declare besides their names and tensors.
SKELETON_IMPORTER: dict[str, Any] = {
    "keys": SKELETON_KEYS,
    "of_file_name": stream_of_name,
    "combine": combine,
}


@dataclass(frozen=True)
class SkeletonSpec:
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
    compat: str | None  # the defective attention of AGCN*, see ``Dialect.compat``

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

    def imported(self, tensors: dict[str, Tensor]) -> ImportedNetwork:
        """Return network and frontend as for the card; labels are numbered."""
        classes, kind = self.sizes.num_classes, self.dialect.kind
        return ImportedNetwork(
            _ARCHITECTURES[kind] if self.sliding is None else kind,
            self._arguments(),
            tensors,
            classes,
            paper=self.dialect.paper,
            task="skeleton action recognition",
            frontend="joints",
            frontend_arguments=self._frontend(),
            rate_hz=self.dialect.data.rate_hz,
            delay_steps=self._delay(),
            limits=" ".join(self._limits()),
        )

    def _limits(self) -> Iterator[str]:
        data = self.dialect.data
        if self.sliding is None and self.padding == "same":
            yield "Trained on whole clips, not on streams."
            if self.dialect.kind == "agcn":
                yield "Attends to each frame separately; in training, to the clip as a whole."
        if self.compat is not None:
            yield "Its attention is defective, as in its training, and does not mix joints."
        if data.rate_hz is None:
            yield (
                f"Trained on clips that were resampled to {data.window} frames whatever"
                " their length; a stream has a fixed rate."
            )

    def _delay(self) -> float:
        """Return the delay of an output relative to the middle of the clip it describes."""
        if self.sliding is not None:
            return (self.window - 1) / 2
        timing = self.timing
        return (timing.receptive_field - 1) / 2 + (self.pool - 1) * timing.stride / 2

    def _frontend(self) -> dict[str, Any]:
        data, scores = self.dialect.data, self.sizes.channels > self.axes
        return {
            "layout": self.layout_name,
            "axes": self.axes,
            "persons": self.persons,
            "streams": [self.stream],
            "normalise": self.normalise,
            "missing": "zero",
            "score": data.score if scores else None,
            "min_score": data.min_score if scores else 0.0,
        }

    def _arguments(self) -> dict[str, Any]:
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
            "compat": self.compat,
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


def convert_skeleton(
    foreign: ForeignCheckpoint, dialect: Dialect, settings: ImportSettings
) -> ImportedNetwork:
    """Return the network of a checkpoint.

    Raises ModelError for missing or unused tensors, and for a setting that neither tensors nor
    ``settings`` determine.
    """
    tensors = with_counters(foreign.tensors)
    sizes = read_sizes(tensors, dialect)
    spec = _complete(sizes, dialect, settings)
    # S-TR also stores the graph in its attention blocks but does not use it there.
    unused = [dialect.theirs(f"{b.at}gcn.A") for b in sizes.blocks if attends(b, dialect)]
    renamed = apply(network_rules(sizes, dialect, spec.persons), tensors, unused)
    if dialect.graph == "learned":
        renamed |= {f"{block.at}gcn.A": spec.graph().clone() for block in sizes.blocks}
    elif dialect.graph == "fixed":
        ones = torch.ones(SUBSETS, sizes.joints, sizes.joints)
        renamed |= {f"{block.at}gcn.graph_attn": ones.clone() for block in sizes.blocks}
    return spec.imported(renamed)


def _complete(sizes: SkeletonSizes, dialect: Dialect, settings: ImportSettings) -> SkeletonSpec:
    settings.check("num_classes", sizes.num_classes)
    settings.suggest({"rate_hz": _CAMERA_HZ} if dialect.data.rate_hz is None else {})
    streams: list[str] = settings.require("stream", ["joint"])
    padding = settings.get("padding") or dialect.padding or settings.require("padding", "same")
    layout = _layout(sizes, settings)
    axes = _axes(sizes, layout, settings)
    data = dialect.data
    usual = data.image if axes == 2 else data.space if layout.name == "ntu-25" else None
    if len(streams) > 1:
        raise ModelError(f"stream={','.join(streams)}: a checkpoint has a single stream")
    persons = _persons(sizes, dialect, settings)
    compat = None
    if dialect.kind == "agcn":
        compat = settings.get("compat") or (dialect.compat if padding == "none" else None)
    spec = SkeletonSpec(
        sizes,
        dialect,
        layout,
        layout_name=layout.name if layout.name in LAYOUTS else settings.get("layout"),
        stream=streams[0],
        persons=persons,
        padding=padding,
        window=settings.get("window") or data.window,
        sliding=settings.get("sliding"),
        axes=axes,
        normalise=settings.get("normalise") or usual or settings.require("normalise", "none"),
        compat=None if compat == "none" else compat,
    )
    if spec.padding == "none" and spec.window < spec.timing.receptive_field:
        raise ModelError(
            f"window={spec.window} frames are fewer than the {spec.timing.receptive_field}"
            " that the blocks see without padding"
        )
    return spec


def _axes(sizes: SkeletonSizes, layout: Layout, settings: ImportSettings) -> int:
    usual = {2: 2, 4: 3}.get(sizes.channels) or _AXES.get(layout.name)
    axes: int = settings.get("axes") or usual or settings.require("axes", sizes.channels)
    if sizes.channels not in (axes, axes + 1):
        raise ModelError(
            f"the checkpoint takes {sizes.channels} values per joint, which is not {axes} axes with"
            " or without a score"
        )
    return axes


def _layout(sizes: SkeletonSizes, settings: ImportSettings) -> Layout:
    known = [name for name, layout in LAYOUTS.items() if len(layout.joints) == sizes.joints]
    if len(known) > 1 and _LAYOUT in known:
        settings.suggest({"layout": _LAYOUT})
    name: str = settings.get("layout") or (known[0] if len(known) == 1 else "")
    if not name:
        several = f" ({' and '.join(known)} have as many)" if known else ""
        settings.require("layout")
        settings.settle(f"the checkpoint has {sizes.joints} joints of an unknown layout{several}")
    layout = find_layout(name)
    if len(layout.joints) != sizes.joints:
        raise ModelError(
            f"layout={name} has {len(layout.joints)} joints, the checkpoint {sizes.joints}"
        )
    return layout


def _persons(sizes: SkeletonSizes, dialect: Dialect, settings: ImportSettings) -> int:
    persons, rest = divmod(sizes.norm_width, sizes.joints * sizes.channels)
    if rest:
        raise ModelError(
            f"the checkpoint does not fit: the input normalisation has {sizes.norm_width} values,"
            f" which {sizes.joints} joints of {sizes.channels} do not divide"
        )
    if dialect.shared_norm and persons == 1:
        # Its features are averaged over the persons; the published data have two.
        return settings.get("persons") or 2
    return int(settings.check("persons", persons))
