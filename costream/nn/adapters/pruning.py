"""Structured pruning: rank channels, mask them step by step, and remove what is masked.

The criteria are from Yeom et al., "Pruning by explaining" (2021), on the weights W_t that a layer
has: the magnitude, the gradient, the first-order Taylor term of the loss, and the relevance that
layer-wise relevance propagation gives its outputs (``relevance``). Scores of a layer are divided by
their L2 norm, so that layers can be compared, and each by the root of what the channel costs: early
layers have few weights and most of the multiplications. (Molchanov et al., "Pruning convolutional
neural networks for resource efficient inference", 2017, subtract it, with a factor to choose.)
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from costream.nn.adapters.adapting import adapters, fuse, original
from costream.nn.adapters.channels import Unit, find_channels, remove_units
from costream.nn.adapters.low_rank import Mask, SPLoRA
from costream.nn.adapters.relevance import propagating

Lost = dict[str, list[int]]  # rows and columns of each layer that are masked
CRITERIA = ("magnitude", "gradient", "taylor", "lrp")
_LANES, _WIDE = 8, 32  # units that go together in families of at least so many
_FEW = 0.5  # share of the multiplications from which on they no longer count


class Pruner:
    """Structured pruning of a network with "splora" or "mask" adapters.

    Channels that residuals, gates, depthwise and grouped convolutions or heads of attention tie
    together are one unit. A layer keeps at least one of its units, a wide one a multiple of eight.

    Args:
        net: an ordinary network after ``adapt``; prune it before it is converted.
        example: an input [B, ...] on the CPU of any size that it takes; its numbers do not
            matter, but layers are used as often as it takes.
        criterion: score of a unit, the mean over its rows of weights: "magnitude", sum |w|;
            "gradient", sum |g|; "taylor", |sum w g|, for the gradient g of the loss; "lrp", the
            relevance |sum w g| of layer-wise propagation, see ``observe``. It is divided by the
            root of what goes with the unit: its share of the weights that are left, plus that of
            their multiplications for the example until half of these are gone.

    Raises ValueError for an unknown criterion, a layer without masks, and a network that cannot be
    traced or has no channel to remove; its message says why.
    """

    def __init__(self, net: nn.Module, example: Tensor, criterion: str = "taylor") -> None:
        if criterion not in CRITERIA:
            raise ValueError(f"criterion {criterion!r} is not one of {', '.join(CRITERIA)}")
        self.net, self.criterion = net, criterion
        self.graph = find_channels(net, example)
        self._layers: dict[str, tuple[nn.Module, str, Mask]] = {}
        for path, owner, name, adapter in adapters(net):
            mask = adapter.kept if isinstance(adapter, SPLoRA) else adapter
            if isinstance(mask, Mask):
                self._layers[path] = (owner, name, mask)
        self._families = [f for f in self.graph.families if len(f.units) > 1]
        for side in (s for f in self._families for s in f.units[0].sides):
            layer = net.get_submodule(side.path)
            if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd) and (
                side.path not in self._layers
            ):
                raise ValueError(f"{side.path} has no masks: adapt with 'splora' or 'mask'")
        self._uses = count_uses(net, example)
        self._seen: dict[str, Tensor] = {}  # sums over observations, for each row

    @property
    def fixed(self) -> dict[str, str]:
        """Layers whose outputs are not pruned, at least in part, and the reason for each."""
        return self.graph.fixed

    @property
    def density(self) -> float:
        """Share of the weights of layers that is left."""
        lost = _lost(self._masks())
        sizes = [self._size(path, 0, 0) for path in lost]
        return sum(self._size(path, *counts) for path, counts in lost.items()) / sum(sizes)

    def observe(self, loss: Callable[[], Tensor]) -> None:
        """Add the gradients of a loss to the scores; not needed for "magnitude".

        ``loss``: runs the network, returns a scalar. Gradients of parameters stay as they are. For
        "lrp" the scalar is what is to be explained: the sum of the logits of the true classes.
        """
        rule = propagating(self.net) if self.criterion == "lrp" else nullcontext()
        with torch.enable_grad(), parametrize.cached(), rule:
            weights = {path: getattr(o, name) for path, (o, name, _) in self._layers.items()}
            weights = {path: w for path, w in weights.items() if w.requires_grad}
            found = torch.autograd.grad(loss(), list(weights.values()), allow_unused=True)
        for (path, weight), g in zip(weights.items(), found, strict=True):
            if g is None:
                continue
            rows = g.abs() if self.criterion == "gradient" else g * weight.detach()
            rows = rows.flatten(1).sum(1).abs()
            self._seen[path] = self._seen[path] + rows if path in self._seen else rows

    def prune(self, density: float) -> float:
        """Mask the units of the lowest scores, over all layers; return the density reached.

        What is masked stays masked. Observations are forgotten. ``density``: share of weights that
        may stay, above 0; it is not reached where all that is left is fixed. Raises ValueError for
        others, and if the criterion needs observations and there are none.
        """
        if not 0 < density <= 1:
            raise ValueError(f"density {density}: must be above 0, at most 1")
        masks = self._masks()
        gone, lost = self._gone(masks), _lost(masks)
        ranked = self._ranked(gone, lost)
        sizes = {path: self._size(path, *lost[path]) for path in self._layers}
        total, most = sum(sizes.values()), sum(self._size(p, 0, 0) for p in sizes) * density
        for k, units in ranked:
            if total <= most:
                break
            if len(gone[k]) + len(units) >= len(self._families[k].units):
                continue
            gone[k] += units
            for path, dim, indices in (part for unit in units for part in self._masked(unit)):
                masks[path][dim][indices] = False
                lost[path][dim] += len(indices)
                total -= sizes[path]
                sizes[path] = self._size(path, *lost[path])
                total += sizes[path]
        self._seen.clear()
        for path, (rows, columns) in masks.items():
            self._layers[path][2].rows.copy_(rows)
            self._layers[path][2].columns.copy_(columns)
        return self.density

    def finish(self) -> nn.Module:
        """Fuse the adapters, remove what is masked, in place; return the network.

        It has ordinary, smaller layers, and in evaluation mode it is what the masked one was.
        """
        gone = self._gone(self._masks())
        fuse(self.net)
        with torch.no_grad():
            remove_units(self.net, zip(self._families, gone, strict=True))
        return self.net

    def _masks(self) -> dict[str, list[Tensor]]:
        """Return copies of the masks on the CPU, where many small questions cost no waiting."""
        pairs = {path: (mask.rows, mask.columns) for path, (_, _, mask) in self._layers.items()}
        return {path: [m.to("cpu", copy=True) for m in two] for path, two in pairs.items()}

    def _gone(self, masks: dict[str, list[Tensor]]) -> list[list[Unit]]:
        """Return the units of each family that are masked now: masks may have been loaded."""
        return [[u for u in f.units if self._is_masked(u, masks)] for f in self._families]

    def _scored(self, masked: list[list[Unit]], lost: Lost) -> list[tuple[float, int, Unit]]:
        """Return the score of each unit that is left, the number of its family, and the unit.

        ``masked``: the units of each family that are not left.
        """
        scores = {path: self._rows(path).tolist() for path in self._layers}
        costs = self._costs(lost)
        found = []
        for k, family in enumerate(self._families):
            gone = {id(unit) for unit in masked[k]}
            for unit in family.units:
                if id(unit) in gone:
                    continue
                outputs = [(path, at) for path, dim, at in self._masked(unit) if not dim]
                rows = [scores[path][index] for path, at in outputs for index in at]
                cost = sum(costs[path][dim] * len(at) for path, dim, at in self._masked(unit))
                found.append((sum(rows) / len(rows) / cost**0.5, k, unit))
        return found

    def _ranked(self, masked: list[list[Unit]], lost: Lost) -> list[tuple[int, list[Unit]]]:
        """Return what may go next, least scores first: the number of a family, and units of it.

        Wide families lose ``_LANES`` units at once, such that a multiple of it is left: that is
        how many a processor computes together.
        """
        left: dict[int, list[tuple[float, Unit]]] = {}
        for score, k, unit in self._scored(masked, lost):
            left.setdefault(k, []).append((score, unit))
        found = []
        for k, scored in left.items():
            scored.sort(key=lambda entry: entry[0])
            lanes = _LANES if len(self._families[k].units) >= _WIDE else 1
            ends = range(len(scored) % lanes or lanes, len(scored) + 1, lanes)
            for end in ends:
                group = scored[max(0, end - lanes) : end]
                score = sum(score for score, _ in group) / len(group)
                found.append((score, k, [unit for _, unit in group]))
        found.sort(key=lambda entry: entry[0])
        return [(k, units) for _, k, units in found]

    def _costs(self, lost: Lost) -> dict[str, tuple[float, float]]:
        """Return what a row and a column of each layer cost: shares of weights, and of products.

        Half of the products are asked for, and fewer lose more of what was learnt.
        """
        sizes = {path: self._size(path, *lost[path]) for path in self._layers}
        macs = {path: size * self._uses[path] for path, size in sizes.items()}
        weights, products = sum(sizes.values()), max(1, sum(macs.values()))
        at_first = sum(self._size(path, 0, 0) * self._uses[path] for path in sizes)
        counted = products > _FEW * at_first
        costs = {}
        for path, (rows, columns) in lost.items():
            share = sizes[path] / weights + counted * macs[path] / products
            height, width = original(*self._layers[path][:2]).shape[:2]
            costs[path] = share / max(1, height - rows), share / max(1, width - columns)
        return costs

    def _rows(self, path: str) -> Tensor:
        """Return the scores of a layer's rows."""
        owner, name, _ = self._layers[path]
        if self.criterion == "magnitude":
            rows = getattr(owner, name).detach().flatten(1).abs().sum(1)
        elif path in self._seen:
            rows = self._seen[path]
        elif self._seen:
            rows = original(owner, name).new_zeros(len(original(owner, name)))
        else:
            raise ValueError(f"criterion {self.criterion!r} needs observations: call observe")
        scaled: Tensor = rows / rows.norm().clamp(min=1e-30)
        return scaled

    def _masked(self, unit: Unit) -> Iterator[tuple[str, int, list[int]]]:
        """Yield the layer, the dimension and the indices of each mask that a unit has."""
        for side, indices in unit.sides.items():
            if side.path in self._layers and side.name == self._layers[side.path][1]:
                yield side.path, side.dim, indices

    def _is_masked(self, unit: Unit, masks: dict[str, list[Tensor]]) -> bool:
        rows = [masks[path][0][at] for path, dim, at in self._masked(unit) if not dim]
        return bool(rows) and not any(bool(row.any()) for row in rows)

    def _size(self, path: str, rows: int, columns: int) -> int:
        """Return the numbers of a layer's weight without so many rows and columns."""
        weight = original(*self._layers[path][:2])
        return (len(weight) - rows) * (weight.shape[1] - columns) * weight[0, 0].numel()


def _lost(masks: dict[str, list[Tensor]]) -> Lost:
    """Return how many rows and columns of each layer are masked."""
    return {path: [int((~m).sum()) for m in two] for path, two in masks.items()}


def count_uses(net: nn.Module, example: Tensor) -> dict[str, float]:
    """Return how often a number of each adapted weight is multiplied for an example."""
    root = copy.deepcopy(net).cpu()
    places = [(path, owner, name) for path, owner, name, _ in adapters(root)]
    fuse(root).eval()
    weights = {path: getattr(owner, name) for path, owner, name in places}
    with torch.no_grad(), _Counting(weights) as counting:
        root(example[:1])
    return {path: counting.macs[path] / weight.numel() for path, weight in weights.items()}


class _Counting(TorchDispatchMode):
    """Counts the multiplications of weights, and of what only moves or joins them."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs: Counter[str] = Counter()
        self._sizes = {path: weight.numel() for path, weight in weights.items()}
        self._held = list(weights.values())  # keeps their memory from being reused
        self._paths = {_memory(weight): [path] for path, weight in weights.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
        found = [p for a in given if isinstance(a, Tensor) for p in self._paths.get(_memory(a), [])]
        size = sum(self._sizes[path] for path in found)
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            for path in found:
                share = self._sizes[path] / size
                self.macs[path] += int(count(*args, **kwargs, out_val=out) * share / 2)
        elif found and isinstance(out, Tensor) and out.numel() == size:
            self._held.append(out)
            self._paths[_memory(out)] = found
        return out


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def gradual(step: int, steps: int, density: float) -> float:
    """Return the density after ``step`` of ``steps``, from 1 to ``density``, fast at first.

    The cubic schedule of Zhu, Gupta, "To prune, or not to prune" (2017). Raises ValueError for
    less than 1 step, a step below 0 and a density that is not 0 to 1.
    """
    if step < 0 or not 0 <= density <= 1:
        raise ValueError(f"step {step} to a density of {density}: from 0, and 0 to 1")
    if steps < 1:
        raise ValueError(f"a schedule of {steps} steps: 1 or more")
    left = 1 - min(max(step / steps, 0.0), 1.0)
    return density + (1 - density) * left**3
