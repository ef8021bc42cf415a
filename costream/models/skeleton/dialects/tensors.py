"""Names and shapes of the tensors of skeleton networks in each implementation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from torch import Tensor

from costream.core.errors import ModelError
from costream.models.skeleton.network import ATTENTION_FROM
from costream.weights_io.tensor_rules import (
    BATCH_NORM,
    COUNTER,
    Make,
    TensorRule,
    matrix,
    rows,
    shape_of,
)

SUBSETS = 3  # of a joint's neighbours: itself, inwards, outwards


BRANCHES = 6  # of ST-GCN++: four dilations, max pooling, 1x1


Naming = Callable[[str], str]  # our name, that of continual-skeletons -> theirs


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


def network_rules(sizes: SkeletonSizes, dialect: Dialect, persons: int) -> list[TensorRule]:
    """Return the rules of all tensors of a network for so many persons."""
    shared = persons * sizes.joints * sizes.channels // sizes.norm_width
    rules = batch_norm("data_bn", sizes.norm_width, dialect.theirs, shared)
    for block in sizes.blocks:
        if attends(block, dialect):
            rules += _attention(block, sizes.joints, dialect.theirs)
        else:
            rules += _graph(block, sizes.joints, dialect)
        rules += _temporal(block, sizes.kernel, dialect)
    shape = (sizes.num_classes, sizes.blocks[-1].outputs, 1, 1)[: dialect.head_dims]
    rules.append(TensorRule("fc.weight", (dialect.theirs("fc.weight"),), shape, matrix))
    rules.append(TensorRule("fc.bias", (dialect.theirs("fc.bias"),), shape[:1]))
    return rules


def attends(block: SkeletonBlockSizes, dialect: Dialect) -> bool:
    """Return whether a block attends to joints in place of using the graph."""
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
    name: str, shape: tuple[int, ...], theirs: Naming, stored: str = "", make: Make = rows
) -> list[TensorRule]:
    """Return the rules of a convolution; ``stored``: name of the one that it is a part of."""
    stored = stored or name
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
