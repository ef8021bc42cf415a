"""Common code of the skeleton network importers: arguments of the card's network and frontend.

The sizes are read from the tensors; the joint layout, the stream (joints, bones or their motion)
and the form of the network may have to be set with ``--config``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.core.layouts import LAYOUTS, Layout, find_layout
from costream.models.skeleton.ensemble import combine
from costream.models.skeleton.network import ATTENTION_FROM
from costream.nn.graph import adjacency
from costream.nn.timing import Timing, in_sequence
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.tensor_rules import (
    BATCH_NORM,
    COUNTER,
    ImportedNetwork,
    Make,
    TensorRule,
    apply,
    matrix,
    rows,
    shape_of,
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
SUBSETS = 3  # of a joint's neighbours: itself, inwards, outwards
BRANCHES = 6  # of ST-GCN++: four dilations, max pooling, 1x1
Naming = Callable[[str], str]  # our name, that of continual-skeletons -> theirs
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
class SkeletonPreprocessing:
    """Preprocessing of the skeletons that a dialect's published weights were trained on.

    The defaults are those of 2s-AGCN and continual-skeletons.
    """

    window: int = 300  # frames of a clip
    rate_hz: float | None = 30.0  # None: clips were resampled to ``window`` frames
    space: str = "ntu"  # normalisation of NTU skeletons, by the frontend's name for it
    image: str = "kinetics"  # normalisation of skeletons with two axes
    score: str = "difference"  # how bones and motion combine scores
    min_score: float = 0.0  # a joint with at most this score counts as missing


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
        """Return network, frontend and numbered labels."""
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
    unused = [dialect.theirs(f"{b.at}gcn.A") for b in sizes.blocks if _attends(b, dialect)]
    renamed = apply(_rules(sizes, dialect, spec.persons), tensors, unused)
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


@dataclass(frozen=True)
class SkeletonBlockSizes:
    """One block, numbered from 1."""

    number: int
    inputs: int
    outputs: int
    residual: bool  # convolution in the residual; False: identity or no residual

    @property
    def at(self) -> str:
        """Prefix of its tensor names."""
        return f"layers.layer{self.number}."


@dataclass(frozen=True)
class Dialect:
    """Structure, parameter names and training data of one implementation's networks."""

    theirs: Naming
    kind: str  # "stgcn", "agcn" or "str"
    paper: str
    data: SkeletonPreprocessing = SkeletonPreprocessing()
    padding: str | None = "same"  # None: networks with and without padding have the same tensors
    compat: str | None = None  # of its AGCN without padding, trained with a defective attention
    stacked: bool = False  # one convolution for all subsets, applied before mixing the joints
    inner_residual: bool = True  # around the graph convolution
    branches: bool = False  # temporal convolutions of several dilations (ST-GCN++)
    head_dims: int = 2  # 4: the classifier is a convolution
    shared_norm: bool = False  # the persons share the input normalisation
    graph: str = "both"  # what is stored: "both" parts, only the "fixed" or only the "learned" one
    partition: str = "in_out"  # of the neighbours; "distance": as the original ST-GCN does


@dataclass(frozen=True)
class SkeletonSizes:
    """Sizes of a network, read from its tensors."""

    joints: int
    channels: int  # values per joint
    norm_width: int  # number of values that the input normalisation has parameters for
    kernel: int  # in time
    num_classes: int
    blocks: tuple[SkeletonBlockSizes, ...]


def read_sizes(tensors: Mapping[str, Tensor], dialect: Dialect) -> SkeletonSizes:
    """Return the sizes; ModelError when a required tensor is missing."""
    theirs = dialect.theirs
    graph = "graph_attn" if dialect.graph != "fixed" else "A"
    joints = shape_of(tensors, theirs(f"layers.layer1.gcn.{graph}"), 3)[1]
    first = "gcn.conv.weight" if dialect.stacked else "gcn.g_conv.0.weight"
    inputs = channels = shape_of(tensors, theirs(f"layers.layer1.{first}"), 4)[1]
    blocks = []
    for number in count(1):
        block = f"layers.layer{number}."
        if theirs(f"{block}tcn.bn.weight") not in tensors:
            break
        outputs = shape_of(tensors, theirs(f"{block}tcn.bn.weight"), 1)[0]
        residual = theirs(f"{block}residual.t_conv.weight") in tensors
        blocks.append(SkeletonBlockSizes(number, inputs, outputs, residual))
        inputs = outputs
    if not blocks:
        raise ModelError(
            f"the checkpoint does not fit: missing: {theirs('layers.layer1.tcn.bn.weight')}"
        )
    conv = theirs("layers.layer1.tcn.t_conv.weight")
    return SkeletonSizes(
        joints,
        channels,
        shape_of(tensors, theirs("data_bn.weight"), 1)[0],
        9 if dialect.branches else shape_of(tensors, conv, 4)[2],  # 1 + 2 x the largest dilation
        shape_of(tensors, theirs("fc.weight"), dialect.head_dims)[0],
        tuple(blocks),
    )


def _rules(sizes: SkeletonSizes, dialect: Dialect, persons: int) -> list[TensorRule]:
    shared = persons * sizes.joints * sizes.channels // sizes.norm_width
    rules = batch_norm("data_bn", sizes.norm_width, dialect.theirs, shared)
    for block in sizes.blocks:
        if _attends(block, dialect):
            rules += _attention(block, sizes.joints, dialect.theirs)
        else:
            rules += _graph(block, sizes.joints, dialect)
        rules += _temporal(block, sizes.kernel, dialect)
    shape = (sizes.num_classes, sizes.blocks[-1].outputs, 1, 1)[: dialect.head_dims]
    rules.append(TensorRule("fc.weight", (dialect.theirs("fc.weight"),), shape, matrix))
    rules.append(TensorRule("fc.bias", (dialect.theirs("fc.bias"),), shape[:1]))
    return rules


def _attends(block: SkeletonBlockSizes, dialect: Dialect) -> bool:
    return dialect.kind == "str" and block.number >= ATTENTION_FROM


def block_naming(
    before: Callable[[int], str], parts: Mapping[str, str], others: Mapping[str, str]
) -> Naming:
    """Return a naming that maps prefixes.

    ``before``: prefix of a block's names, by its number from 1; ``parts``: our prefix of the rest
    of the name -> theirs; ``others``: the same for tensors outside the blocks.
    """

    def theirs(ours: str) -> str:
        match = re.fullmatch(r"layers\.layer(\d+)\.(.+)", ours)
        if match is None:
            return _swap(ours, others)
        return before(int(match[1])) + _swap(match[2], parts)

    return theirs


def _swap(name: str, table: Mapping[str, str]) -> str:
    ours = next((start for start in table if name.startswith(start)), "")
    return table.get(ours, "") + name.removeprefix(ours)


def batch_norm(name: str, width: int, theirs: Naming, repeats: int = 1) -> list[TensorRule]:
    """Return the rules of a batch normalisation."""

    def repeated(parts: Sequence[Tensor]) -> Tensor:
        return parts[0].repeat(repeats)

    names = [f"{name}.{part}" for part in BATCH_NORM]
    rules = [TensorRule(ours, (theirs(ours),), (width,), repeated) for ours in names]
    counter = f"{name}.{COUNTER}"
    return [*rules, TensorRule(counter, (theirs(counter),), ())]


def _convolution(
    name: str, shape: tuple[int, ...], theirs: Naming, whole: str = "", make: Make = rows
) -> list[TensorRule]:
    """Return the rules of a convolution; ``whole``: name of one that it is made from."""
    stored = whole or name
    return [
        TensorRule(f"{name}.weight", (theirs(f"{stored}.weight"),), shape, make),
        TensorRule(f"{name}.bias", (theirs(f"{stored}.bias"),), shape[:1], make),
    ]


def _graph(block: SkeletonBlockSizes, joints: int, dialect: Dialect) -> list[TensorRule]:
    i, o, theirs, at = block.inputs, block.outputs, dialect.theirs, f"{block.at}gcn."
    stored = {"both": ("A", "graph_attn"), "fixed": ("A",), "learned": ("graph_attn",)}
    names = [at + part for part in stored[dialect.graph]]
    rules = [TensorRule(name, (theirs(name),), (SUBSETS, joints, joints)) for name in names]
    for k in range(SUBSETS):
        if dialect.stacked:
            shape = (SUBSETS * o, i, 1, 1)
            rules += _convolution(f"{at}g_conv.{k}", shape, theirs, f"{at}conv", _subset(k))
        else:
            rules += _convolution(f"{at}g_conv.{k}", (o, i, 1, 1), theirs)
        if dialect.kind == "agcn":
            for name in ("a_conv", "b_conv"):
                rules += _convolution(f"{at}{name}.{k}", (o // 4, i, 1, 1), theirs)
    if dialect.inner_residual and i != o:
        rules += _convolution(f"{at}gcn_residual.0", (o, i, 1, 1), theirs)
        rules += batch_norm(f"{at}gcn_residual.1", o, theirs)
    return rules + batch_norm(f"{at}bn", o, theirs)


def _subset(k: int) -> Make:
    return lambda parts: parts[0].chunk(SUBSETS)[k].clone()


def _attention(block: SkeletonBlockSizes, joints: int, theirs: Naming) -> list[TensorRule]:
    i, o, at = block.inputs, block.outputs, f"{block.at}gcn."
    return [
        *batch_norm(f"{at}data_bn", i * joints, theirs),
        *_convolution(f"{at}attention_conv.qkv_conv", (o // 4 * 2 + o, i, 1, 1), theirs),
        *_convolution(f"{at}attention_conv.attn_out", (o, o, 1, 1), theirs),
        *batch_norm(f"{at}bn", o, theirs),
    ]


def _temporal(block: SkeletonBlockSizes, kernel: int, dialect: Dialect) -> list[TensorRule]:
    o, theirs, at = block.outputs, dialect.theirs, f"{block.at}tcn."
    if dialect.branches:
        rules = _branches(at, o, theirs)
    else:
        rules = _convolution(f"{at}t_conv", (o, o, kernel, 1), theirs)
    rules += batch_norm(f"{at}bn", o, theirs)
    if block.residual:
        to = f"{block.at}residual."
        rules += _convolution(f"{to}t_conv", (o, block.inputs, 1, 1), theirs)
        rules += batch_norm(f"{to}bn", o, theirs)
    return rules


def _branches(at: str, o: int, theirs: Naming) -> list[TensorRule]:
    narrow = o // BRANCHES
    rules: list[TensorRule] = []
    for i in range(BRANCHES):
        width = o - (BRANCHES - 1) * narrow if i == 0 else narrow
        to = f"{at}branches.{i}"
        if i == BRANCHES - 1:
            rules += _convolution(to, (width, o, 1, 1), theirs)
            continue
        rules += _convolution(f"{to}.0", (width, o, 1, 1), theirs)
        rules += batch_norm(f"{to}.1", width, theirs)
        if i < BRANCHES - 2:
            rules += _convolution(f"{to}.3.conv", (width, width, 3, 1), theirs)
    rules += batch_norm(f"{at}transform.0", o, theirs)
    return rules + _convolution(f"{at}transform.2", (o, o, 1, 1), theirs)
