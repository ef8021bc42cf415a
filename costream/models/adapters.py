"""Adapter files: the tensors that a training added to the frozen weights of its base.

An adapter file has the card of the trained network, whose ``compression`` holds the digests of the
base, and all tensors of the network except those that its layers share with the base. The frontend
is that of the base, or adapted too. ``BASE+ADAPTER.safetensors`` names both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.build import new_network
from costream.models.eventful.box_heads import BINS
from costream.models.eventful.vitdet import ViTDet
from costream.models.frontend import load_frontend
from costream.nn.adapters.adapting import adapters, fuse, load_adapter
from costream.nn.adapters.low_rank import SPLoRA
from costream.nn.adapters.pruning import Pruner
from costream.weights_io.file import Weights

_STEPS = 18  # of an example clip


class WithFrontend(nn.Module):
    """A network and its frontend, which are adapted or pruned together."""

    def __init__(self, network: nn.Module, frontend: nn.Module) -> None:
        super().__init__()
        self.network, self.frontend = network, frontend

    def forward(self, clip: Tensor) -> Any:
        """Return the network's output for a clip [B, T, ...] of what the frontend takes."""
        return self.network(self.frontend(clip))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step."""
        return sum(int(cast(Any, part).count_macs()) for part in (self.network, self.frontend))


def with_adapter(base: Weights, adapter: Weights) -> Weights:
    """Return weights of an ordinary network: those of the base with the adapter fused in.

    Channels that the adapter masks are removed. A frontend that is not adapted is that of the base.
    Raises ModelError if the file is not an adapter, or belongs to another base.
    """
    card = adapter.card
    facts = card.compression
    if "base" not in facts:
        raise ModelError(f"{card.name} is not an adapter", hint="give it alone, as -m FILE")
    if facts["base"] != base.sha256:
        raise ModelError(f"the base of this adapter is not {base.card.name}")
    both = any(name.startswith("frontend.") for name in adapter.tensors)
    prefix = "" if both else "network."
    with torch.random.fork_rng(devices=[]):
        network = new_network(card).eval()
        if both:
            frontend = load_frontend(str(card.frontend), **card.frontend_arguments)
            network = WithFrontend(network, frontend.eval())
        held = network.state_dict()
        stored = {k: base.tensors.get(f"{prefix}{k}") for k in held}
        fits = {k: v for k, v in stored.items() if v is not None and v.shape == held[k].shape}
        network.load_state_dict(fits, strict=False)
        try:
            load_adapter(network, adapter.tensors, facts.get("frozen", ""))
            found = [a.kept for _, _, _, a in adapters(network) if isinstance(a, SPLoRA)]
            pruned = any(not bool(kept.rows.all() & kept.columns.all()) for kept in found)
            if pruned:
                Pruner(*prunable(network), "magnitude").finish()
            fuse(network)
        except ValueError as error:
            raise ModelError(f"the adapter cannot be used: {error}") from error
    tensors = {k: v for k, v in base.tensors.items() if k.startswith("frontend.")}
    tensors |= {f"{prefix}{k}": v.detach() for k, v in network.state_dict().items()}
    facts = {k: v for k, v in facts.items() if k not in ("base", "frozen")}
    facts |= {"pruned": ["network", "frontend"] if both else ["network"]} if pruned else {}
    return Weights(replace(card, compression=facts), f"{base.sha256}+{adapter.sha256}", tensors)


class WithoutChoice(nn.Module):
    """A detector up to the choice of boxes: its output is a function of its pictures."""

    def __init__(self, network: ViTDet) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the predictions [B, N] for pictures [B, 3, H, W] and for one box in each."""
        view = self.network.view(self.network.backbone(self.network.embed(pictures)))
        predicted = [part for pair in view.predicted for part in pair]
        for head, predictor in self.network.roi_heads.stages():
            predicted += predictor(head(F.adaptive_avg_pool2d(view.maps[0], BINS)))
        return torch.cat([part.reshape(len(pictures), -1) for part in predicted], 1)


def prunable(network: nn.Module) -> tuple[nn.Module, Tensor]:
    """Return a network as ``Pruner`` takes it, and an example of its input."""
    if isinstance(network, ViTDet):
        noise = torch.Generator().manual_seed(0)
        side = 4 * network.patch
        return WithoutChoice(network), torch.randn(1, 3, side, side, generator=noise)
    return network, example_clip(network)


def example_clip(network: Any) -> Tensor:
    """Return a clip of noise [1, T, ...] for a network of skeletons or tokens, or a frontend."""
    noise = torch.Generator().manual_seed(0)
    if isinstance(network, WithFrontend):
        frontend: Any = network.frontend
        if frontend.takes == "audio":
            return torch.randn(1, _STEPS, frontend.block, generator=noise) / 10
        width, height = frontend.box
        shape: tuple[int, ...] = (_STEPS, 3, height // 2, width // 2)
        return torch.randint(0, 256, (1, *shape), generator=noise, dtype=torch.uint8)
    if hasattr(network, "joints"):
        steps = _STEPS if network.form == "causal" else network.clip_length
        shape = (steps, network.persons, network.joints, network.channels)
        return torch.randn(1, *shape, generator=noise)
    layer = getattr(network, "input_projection", None)
    width = network.encoder.embed_dim if layer is None else layer.in_features
    return torch.randn(1, _STEPS, width, generator=noise)
