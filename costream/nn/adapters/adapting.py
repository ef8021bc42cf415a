"""Networks with adapters: adding them, counting what is learnt, fusing, saving the difference."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from costream.nn.adapters.low_rank import LoRA, Mask, SPLoRA
from costream.nn.attention import MultiheadAttention
from costream.nn.continual import Continual
from costream.nn.convolution import TemporalConvolution, TimeFrequencyConvolution
from costream.nn.layers import Conv1d, Conv2d, Conv3d
from costream.nn.parts import Layer, Linear
from costream.nn.position import RecyclingPositions

M = TypeVar("M", bound=nn.Module)
KINDS = ("lora", "splora", "mask")
_WEIGHTS: dict[str, tuple[type[nn.Module], ...]] = {
    "weight": (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Linear, Conv1d, Conv2d, Conv3d),
        *(TemporalConvolution, TimeFrequencyConvolution),
    ),
    "in_proj_weight": (nn.MultiheadAttention, MultiheadAttention),
}


def adapt(module: M, kind: str, rank: int = 8, *, whole: str | Collection[str] = ()) -> M:
    """Add an adapter to every linear layer, convolution and projection of attention, in place.

    The adapted weights are frozen, and so are tables of positions. Learnt are the adapters, and all
    other parameters as they are: biases, norms. Packed projections (``in_proj_weight``) have one
    adapter.

    Args:
        module: a network of layers of torch, of parts or of blocks of ``costream.nn``.
        kind: "lora", "splora" (``SPLoRA``), or "mask": no adapter, but masks, and the
            weights are learnt; the last two can be pruned.
        rank: of the adapters.
        whole: names, or one name, of layers all of whose weights are trained, such as the
        classifier. With
            "splora" they have masks.

    Returns the module. Raises ValueError for an unknown kind, a name in ``whole`` that no layer
    has, a network that has adapters, one without such layers or with parametrizations, and a
    converted network (adapt the one that it was converted from, ``fuse`` it, convert it again).
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} of adapters is not one of {', '.join(KINDS)}")
    found = _base_layers(module)
    whole = {whole} if isinstance(whole, str) else set(whole)
    if unknown := whole - {path for path, _, _ in found}:
        raise ValueError(f"whole: no layer is called {', '.join(sorted(unknown))}")
    for path, owner, name in found:
        if path not in whole:
            _add(owner, name, kind, rank)
        elif kind != "lora":
            _add(owner, name, "mask", rank)
    if kind != "mask":
        for _, table in _tables(module):
            table.requires_grad_(False)
    return module


def _base_layers(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return what ``_layers`` yields. Raises ValueError for a network that takes no adapters."""
    if any(isinstance(m, Continual) for m in module.modules()):
        raise ValueError("a converted network: adapt the network itself, fuse it, convert it again")
    if any(True for _ in adapters(module)):
        raise ValueError("the network has adapters; fuse them before others are added")
    found = list(_layers(module))
    if not found:
        raise ValueError(f"{type(module).__name__} has no linear layer and no convolution")
    if computed := [path for path, owner, _ in found if parametrize.is_parametrized(owner)]:
        raise ValueError(f"{computed[0]} computes its weight; remove its parametrizations first")
    return found


def _tables(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the learnt tables of positions, which adapters leave as they are, by their names."""
    for path, layer in module.named_modules():
        if isinstance(layer, RecyclingPositions) and isinstance(layer.table, nn.Parameter):
            yield f"{path}{'.' if path else ''}table", layer.table


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name of each layer, the owner of its weight and the name of that."""
    for path, layer in module.named_modules():
        for name, kinds in _WEIGHTS.items():
            if isinstance(layer, kinds) and getattr(layer, name, None) is not None:
                yield path, layer.layer if isinstance(layer, Layer) else layer, name


def _add(owner: nn.Module, name: str, kind: str, rank: int) -> None:
    weight = getattr(owner, name)
    groups = getattr(owner, "groups", 1)
    adapter: nn.Module
    if kind == "mask":
        adapter = Mask(weight, groups)
    else:
        weight.requires_grad_(False)
        adapter = (LoRA if kind == "lora" else SPLoRA)(weight, groups, rank)
    # Its check of types and shapes would compute W_t once more for nothing.
    parametrize.register_parametrization(owner, name, adapter, unsafe=True)


def adapters(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, LoRA | Mask]]:
    """Yield the name of each adapted layer, its owner, the name of its weight, and the adapter."""
    for path, layer in module.named_modules():
        held = layer.layer if isinstance(layer, Layer) else layer
        if not parametrize.is_parametrized(held):
            continue
        for name, chain in cast("dict[str, Any]", held.parametrizations).items():
            if isinstance(chain[0], LoRA | Mask):
                yield path, held, name, chain[0]


def original(owner: nn.Module, name: str) -> Tensor:
    """Return the weight W_s below an adapter, or that of a layer without one."""
    if not parametrize.is_parametrized(owner, name):
        return cast(Tensor, getattr(owner, name))
    return cast(Tensor, getattr(owner.parametrizations, name).original)


def count_learnt(module: nn.Module) -> int:
    """Return how many numbers training changes: of adapters, by their formula, and of other layers.

    Masked rows and columns of adapters and of masked weights do not count; buffers never do.
    """
    total = sum(p.numel() for p in module.parameters() if p.requires_grad)
    for _, owner, name, adapter in adapters(module):
        weight = original(owner, name)
        total -= sum(p.numel() for p in adapter.parameters())
        total -= weight.numel() if weight.requires_grad else 0
        if weight.requires_grad or isinstance(adapter, LoRA):
            total += adapter.count_learnt(weight)
    return total


def fuse(module: M) -> M:
    """Make W_t the weight of each layer with an adapter, in place; all parameters are learnt then.

    The result has the layers and the names of parameters that it had before ``adapt``.
    """
    for _, owner, name, _ in list(adapters(module)):
        with torch.no_grad():  # laid out in memory as W_s
            kept = torch.empty_like(original(owner, name)).copy_(getattr(owner, name))
        _replace_adapter(owner, name, nn.Parameter(kept))
    for _, table in _tables(module):
        table.requires_grad_(True)
    return module


def _replace_adapter(owner: nn.Module, name: str, weight: nn.Parameter) -> None:
    """Make this the weight of an adapted layer, without its adapter."""
    # Not remove_parametrizations: it takes W_t from the class, which copies share.
    entries = dict(owner._parameters)
    owner.__class__ = type(owner).__bases__[0]
    del owner._modules["parametrizations"]
    owner._parameters.clear()
    owner._parameters |= {name: weight, **entries}  # blocks rely on their order


def adapter_state(module: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return what distinguishes an adapted network from its base, and the SHA-256 of that.

    The tensors are ``state_dict`` without the frozen weights; the digest is over the
    name, type, shape and bytes of the frozen weights. Raises ValueError for a network without
    frozen weights.
    """
    frozen = _frozen(module)
    tensors = {k: v for k, v in module.state_dict().items() if k not in frozen}
    return tensors, _digest(frozen)


def load_adapter(module: M, tensors: Mapping[str, Tensor], sha256: str) -> M:
    """Add adapters to a base network as ``adapter_state`` returned them, in place.

    Raises ValueError when the base has other weights than the one that was adapted, the tensors do
    not fit, or the network takes no adapters (see ``adapt``); the network is then as it was.
    """
    before = [(o, n, w := getattr(o, n), w.requires_grad) for _, o, n in _base_layers(module)]
    try:
        _add_for(module, tensors)
        frozen, state = _frozen(module), module.state_dict()
        if _digest(frozen) != sha256:
            raise ValueError("the adapter belongs to other base weights: their SHA-256 differs")
        wrong = tensors.keys() ^ (state.keys() - frozen.keys())
        wrong |= {k for k in tensors.keys() - wrong if tensors[k].shape != state[k].shape}
        if wrong:
            names = ", ".join(sorted(wrong)[:3])
            raise ValueError(f"the adapter does not fit the network: {names}")
    except ValueError:
        for owner, name, weight, learnt in before:
            if parametrize.is_parametrized(owner, name):
                _replace_adapter(owner, name, weight)
            weight.requires_grad_(learnt)
        raise
    module.load_state_dict(dict(tensors), strict=False)
    return module


def _add_for(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Add the adapters that have such tensors."""
    for path, owner, name in list(_layers(module)):
        at = f"{path}." if path else ""
        key = f"{at}parametrizations.{name}.0."
        if f"{key}up" in tensors:
            kind = "splora" if f"{key}kept.rows" in tensors else "lora"
            _add(owner, name, kind, len(tensors[f"{key}up"]))
        elif f"{key}rows" in tensors:
            _add(owner, name, "mask", 1)


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen weights and tables of positions, by their names in ``state_dict``."""
    found: dict[str, Tensor] = {
        f"{path}{'.' if path else ''}parametrizations.{name}.original": original(owner, name)
        for path, owner, name, adapter in adapters(module)
        if isinstance(adapter, LoRA)
    }
    if not found:
        raise ValueError("the network has no adapters of low rank; masks are in its state_dict")
    return found | dict(_tables(module))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(bytes(tensor.flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()
