"""Channels of a network that can only be removed together: its dependency graph.

The network is traced (``torch.fx``) while it runs on an example. Beside every value there are
*labels*: for each of its numbers the channel that it belongs to, or 0. A layer gives each of its
outputs a channel; operations that move numbers (views, slices, concatenation) are run on the labels
themselves; where two channels are combined in one number (a residual, a gate, a depthwise or
grouped convolution, a sum over features such as a product of queries and keys) they become one.
Where a channel is combined with what needs it (a layer norm, the network's output), it is fixed.

What is found is then tried: channels are removed from a copy and masked in another, whose outputs
must agree. A family of channels that fails is fixed, with the reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from costream.nn.adapters.adapting import fuse
from costream.nn.adapters.labels import Labeller
from costream.nn.attention import MultiheadAttention, RetroactiveAttention, SingleOutputAttention
from costream.nn.block import EncoderBlock
from costream.nn.eventful.block import EventfulBlock
from costream.nn.pooling import TemporalMean, TemporalStatistics
from costream.nn.tracing import ExampleTracer, analysed
from costream.nn.widths import empty_like, resize


class Side(NamedTuple):
    """A dimension of a parameter or buffer along which channels are removed."""

    path: str  # of the module
    name: str
    dim: int


@dataclass
class Unit:
    """Channels that are removed together."""

    sides: dict[Side, list[int]] = field(default_factory=dict)  # what goes along each side


@dataclass
class Family:
    """Units of the same sides, at least one of which stays."""

    units: list[Unit]
    heads: list[tuple[str, str]] = field(default_factory=list)  # module, attribute: their number


@dataclass
class ChannelGraph:
    """The families of a network, and the reason for each group of channels that is fixed."""

    families: list[Family]
    fixed: dict[str, str]  # layer -> reason


class _Tracer(ExampleTracer):
    """A tracer that also stops at means and at transformer blocks, which need no tracing."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is taken as one operation."""
        known = isinstance(m, EncoderBlock | EventfulBlock | TemporalMean | TemporalStatistics)
        return known or super().is_leaf_module(m, module_qualified_name)


def find_channels(net: nn.Module, example: Tensor) -> ChannelGraph:
    """Return the channels of a network that can be removed together.

    ``example``: an input [B, ...] on the CPU; its numbers do not matter. Raises ValueError for a
    network that ``torch.fx`` cannot trace and without blocks of our encoders, or without a channel
    that could be removed.
    """
    with torch.no_grad():
        root = analysed(fuse(copy.deepcopy(net).cpu()))
        example = example[:1].double() if example.is_floating_point() else example[:1]
        families, fixed = list(_block_families(root)), dict[str, str]()
        watched = copy.deepcopy(root)  # modules may keep what they see
        try:
            graph = _Tracer(example).trace(watched)
        except Exception as error:
            reason = f"{type(net).__name__} cannot be traced: {error}"
            if not families:
                raise ValueError(reason) from error
            fixed["all but the blocks"] = reason
        else:
            labeller = Labeller(watched, graph)
            labeller.run(example)
            known = {side for f in families for side in f.units[0].sides}
            traced, fixed = _families(labeller)
            families += [f for f in traced if known.isdisjoint(f.units[0].sides)]
            for side in known:
                fixed.pop(side.path, None)
        if not _agree(root, example, families):
            families = [f for f in families if _can_go(root, example, f, fixed)]
        if not any(len(f.units) > 1 for f in families):
            reasons = "; ".join(f"{k}: {v}" for k, v in list(fixed.items())[:3])
            raise ValueError(f"no channel of {type(net).__name__} can be removed ({reasons})")
        return ChannelGraph(families, fixed)


# Attention whose steps take any number of heads.
_HEADED = (MultiheadAttention, SingleOutputAttention, RetroactiveAttention)


def _block_families(root: nn.Module) -> Iterator[Family]:
    """Yield the hidden features of each transformer block, and the heads of encoder blocks.

    Its layer norms fix the width of its rows.
    """
    for path, block in root.named_modules():
        if isinstance(block, EventfulBlock):
            yield _hidden(f"{path}.mlp_1", f"{path}.mlp_2", block.mlp_1)
        if not isinstance(block, EncoderBlock):
            continue
        yield _hidden(f"{path}.linear1", f"{path}.linear2", block.linear1)
        attention = block.self_attn
        if type(attention) not in _HEADED:
            continue
        inside, wide = f"{path}.self_attn", attention.inner_dim
        names = ["in_proj_weight"] + ["in_proj_bias"] * (attention.in_proj_bias is not None)
        units = []
        for head in range(0, wide, attention.head_dim):
            own = list(range(head, head + attention.head_dim))
            packed = [part * wide + k for part in range(3) for k in own]
            unit = Unit({Side(inside, name, 0): packed for name in names})
            unit.sides[Side(f"{inside}.out_proj", "weight", 1)] = own
            units.append(unit)
        yield Family(units)


def _hidden(first: str, second: str, layer: nn.Linear) -> Family:
    """Return the features between two linear layers of these paths."""
    sides = [Side(first, "weight", 0), Side(first, "bias", 0), Side(second, "weight", 1)]
    return Family([Unit({side: [k] for side in sides}) for k in range(len(layer.weight))])


def _families(labeller: Labeller) -> tuple[list[Family], dict[str, str]]:
    atoms, units, fixed = labeller.atoms, dict[int, Unit](), dict[str, str]()
    for (path, name, dim), labels in labeller.sides.items():
        for index, label in enumerate(labels.tolist()):
            at = atoms.find(label)
            if at in atoms.fixed or not label:
                if dim == 0 and label:
                    fixed[path] = atoms.fixed[at]
                continue
            unit = units.setdefault(at, Unit())
            unit.sides.setdefault(Side(path, name, dim), []).append(index)
    families: dict[frozenset[Side], Family] = {}
    for unit in units.values():
        families.setdefault(frozenset(unit.sides), Family([])).units.append(unit)
    return list(families.values()), fixed


def _can_go(root: nn.Module, example: Tensor, family: Family, fixed: dict[str, str]) -> bool:
    """Return whether a family's units can be removed; note the attributes that count them."""
    if _agree(root, example, [family]):
        return True
    family.heads = _counters(root, family)
    if family.heads and _agree(root, example, [family]):
        return True
    for side in family.units[0].sides:
        if side.dim == 0:
            fixed[side.path] = "its size is a constant elsewhere: what is left does not run alike"
    return False


def _counters(root: nn.Module, family: Family) -> list[tuple[str, str]]:
    """Return the attributes that may hold the number of a family's units: numbers of heads."""
    found = set()
    for side in family.units[0].sides:
        path = side.path
        while True:
            for name, value in vars(root.get_submodule(path)).items():
                if "head" in name and type(value) is int and value == len(family.units):
                    found.add((path, name))
            if not path or any(p == path for p, _ in found):
                break
            path = path.rpartition(".")[0]
    return sorted(found)


def _agree(root: nn.Module, example: Tensor, families: Iterable[Family]) -> bool:
    """Return whether a network without one unit of each family is the one with masked units."""
    gone = [(f, [f.units[len(f.units) // 2]]) for f in families if len(f.units) > 1]
    masked, cut = copy.deepcopy(root), copy.deepcopy(root)
    for side, indices in gather(u for _, units in gone for u in units).items():
        tensor = getattr(masked.get_submodule(side.path), side.name)
        if side.dim == 1:
            tensor.index_fill_(1, torch.tensor(indices), 0)
    remove_units(cut, gone)
    try:
        a, b = _first(masked(example)), _first(cut(example))
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-8, atol=1e-10)


def _first(output: Any) -> Tensor:
    """Return the first tensor of an output."""
    return cast(Tensor, output[0] if isinstance(output, tuple) else output)


def gather(units: Iterable[Unit]) -> dict[Side, list[int]]:
    """Return what goes along each side when these units go."""
    sides: dict[Side, list[int]] = {}
    for unit in units:
        for side, indices in unit.sides.items():
            sides.setdefault(side, []).extend(indices)
    return sides


def remove_units(root: nn.Module, gone: Iterable[tuple[Family, list[Unit]]]) -> None:
    """Remove units of families from the parameters of a network without adapters, in place."""
    gone = list(gone)
    for side, indices in gather(u for _, units in gone for u in units).items():
        layer = root.get_submodule(side.path)
        _cut(layer, side, indices)
    resize(root)
    for family, units in gone:
        for path, name in family.heads:
            module = root.get_submodule(path)
            setattr(module, name, getattr(module, name) - len(units))


def _cut(layer: nn.Module, side: Side, indices: list[int]) -> None:
    tensor = getattr(layer, side.name).detach()
    left = torch.ones(tensor.shape[side.dim], dtype=torch.bool)
    left[indices] = False
    index = left.nonzero().flatten().to(tensor.device)
    shape = [len(index) if d == side.dim else n for d, n in enumerate(tensor.shape)]
    kept = empty_like(tensor, shape).copy_(tensor.index_select(side.dim, index))
    if side.name in layer._parameters:
        gradient = cast(nn.Parameter, layer._parameters[side.name]).requires_grad
        layer._parameters[side.name] = nn.Parameter(kept, requires_grad=gradient)
    else:
        layer._buffers[side.name] = kept
