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
from typing import Any

import torch
from torch import Tensor

from costream.errors import ModelError
from costream.importers.config import ImportSettings
from costream.importers.rules import ImportedNetwork, TensorRule, apply, shape_of
from costream.layouts import LAYOUTS, Layout, find_layout
from costream.models.skeleton.network import ATTENTION_FROM
from costream.nn.graph import adjacency
from costream.nn.timing import Timing, in_sequence

_DATA_KEYS = ("layout", "stream", "padding", "window", "sliding", "persons", "axes", "normalise")
SKELETON_KEYS = (*_DATA_KEYS, "num_classes")

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
    config.check("num_classes", sizes.num_classes)
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
        padding=config.get("padding") or padding or config.require("padding"),
        window=config.get("window") or data.window,
        sliding=config.get("sliding"),
        axes=axes,
        normalise=config.get("normalise") or usual or config.require("normalise"),
        data=data,
    )
    if setting.padding == "none" and setting.window < setting.timing.receptive_field:
        raise ModelError(
            f"window={setting.window} frames are fewer than the {setting.timing.receptive_field}"
            " that the blocks see without padding"
        )
    return setting


def _stream(config: ImportSettings) -> str:
    streams: list[str] = config.require("stream")
    if len(streams) > 1:
        raise ModelError(f"stream={','.join(streams)}: a checkpoint has a single stream")
    return streams[0]


def _axes(sizes: SkeletonSizes, layout: Layout, config: ImportSettings) -> int:
    told = {2: 2, 4: 3}.get(sizes.channels) or _AXES.get(layout.name)
    axes: int = config.get("axes") or told or config.require("axes")
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
    said: int = config.check("persons", persons)
    return said


# Key maps. Our names are those of continual-skeletons; a dialect maps each of them to its own.
SUBSETS = 3  # of a joint's neighbours: itself, inwards, outwards
BRANCHES = 6  # of ST-GCN++: four dilations, max pooling, 1x1
_COUNTER = ".num_batches_tracked"
Naming = Callable[[str], str]  # our name -> theirs


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
    """Structure and parameter names of one implementation's network."""

    theirs: Naming
    kind: str  # "stgcn", "agcn" or "str"
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


def take(
    tensors: Mapping[str, Tensor], sizes: SkeletonSizes, dialect: Dialect, persons: int
) -> dict[str, Tensor]:
    """Return the tensors under our names.

    A normalisation that the persons share is repeated for each of them. Raises ModelError that
    names the tensors that are missing, left over or of another shape.
    """
    # S-TR also stores the graph in its attention blocks but does not use it there.
    idle = [b for b in sizes.blocks if _attends(b, dialect)]
    unused = [dialect.theirs(f"{block.at}gcn.A") for block in idle]
    return apply(_rules(sizes, dialect, persons), tensors, unused)


def _rules(sizes: SkeletonSizes, dialect: Dialect, persons: int) -> list[TensorRule]:
    shared = persons * sizes.joints * sizes.channels // sizes.norm_width
    rules = batch_norm("data_bn", sizes.norm_width, dialect.theirs, shared)
    for block in sizes.blocks:
        if _attends(block, dialect):
            rules += _attention(block, sizes.joints, dialect.theirs)
        else:
            rules += _graph(block, sizes.joints, dialect)
        rules += _temporal(block, sizes.kernel, dialect)
    width = sizes.blocks[-1].outputs
    shape = (sizes.num_classes, width, 1, 1)[: dialect.head_dims]
    weight = TensorRule("fc.weight", (dialect.theirs("fc.weight"),), shape, _as_linear)
    return [
        *rules,
        weight,
        TensorRule("fc.bias", (dialect.theirs("fc.bias"),), (sizes.num_classes,)),
    ]


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

    parts = ("weight", "bias", "running_mean", "running_var")
    rules = [TensorRule(f"{name}.{p}", (theirs(f"{name}.{p}"),), (width,), repeated) for p in parts]
    return [*rules, TensorRule(name + _COUNTER, (theirs(name + _COUNTER),), ())]


def with_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the counters of batch normalisations that checkpoints older than torch 0.4.1 lack."""
    if any(name.endswith(_COUNTER) for name in tensors):
        return dict(tensors)
    means = [name for name in tensors if name.endswith(".running_mean")]
    zero = torch.tensor(0)
    return {**tensors, **{n.removesuffix(".running_mean") + _COUNTER: zero for n in means}}


def _convolution(name: str, shape: tuple[int, ...], theirs: Naming) -> list[TensorRule]:
    return [
        TensorRule(f"{name}.weight", (theirs(f"{name}.weight"),), shape),
        TensorRule(f"{name}.bias", (theirs(f"{name}.bias"),), shape[:1]),
    ]


def _graph(block: SkeletonBlockSizes, joints: int, dialect: Dialect) -> list[TensorRule]:
    i, o, theirs, at = block.inputs, block.outputs, dialect.theirs, f"{block.at}gcn."
    stored = {"both": ("A", "graph_attn"), "fixed": ("A",), "learned": ("graph_attn",)}
    shape = (SUBSETS, joints, joints)
    rules = [TensorRule(at + part, (theirs(at + part),), shape) for part in stored[dialect.graph]]
    for k in range(SUBSETS):
        if dialect.stacked:
            rules += _part(f"{at}g_conv.{k}", f"{at}conv", (SUBSETS * o, i, 1, 1), k, theirs)
        else:
            rules += _convolution(f"{at}g_conv.{k}", (o, i, 1, 1), theirs)
        if dialect.kind == "agcn":
            for name in ("a_conv", "b_conv"):
                rules += _convolution(f"{at}{name}.{k}", (o // 4, i, 1, 1), theirs)
    if dialect.inner_residual and i != o:
        rules += _convolution(f"{at}gcn_residual.0", (o, i, 1, 1), theirs)
        rules += batch_norm(f"{at}gcn_residual.1", o, theirs)
    return rules + batch_norm(f"{at}bn", o, theirs)


def _part(
    name: str, whole: str, shape: tuple[int, ...], k: int, theirs: Naming
) -> list[TensorRule]:
    def part(parts: Sequence[Tensor]) -> Tensor:
        return parts[0].chunk(SUBSETS)[k].clone()

    return [
        TensorRule(f"{name}.weight", (theirs(f"{whole}.weight"),), shape, part),
        TensorRule(f"{name}.bias", (theirs(f"{whole}.bias"),), shape[:1], part),
    ]


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


def _as_linear(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].flatten(1)
