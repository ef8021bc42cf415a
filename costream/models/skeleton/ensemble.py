"""Ensembles of skeleton networks on streams of joints, bones and their motion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.oad.cooadtr import OadOutput
from costream.models.skeleton.network import SkeletonNet, ntu_arguments, ntu_model
from costream.models.skeleton.step_plan import SkeletonState
from costream.models.spec import register_model
from costream.nn.state import State
from costream.nn.timing import ContinualModule
from costream.weights_io.tensor_rules import ImportedNetwork

FUSIONS = ("softmax", "logits")
_JOINTS = ntu_model("stgcn")
_TWO_STREAMS = {
    **_JOINTS,
    "arguments": {"members": [ntu_arguments("stgcn")] * 2, "channels": [[0, 1, 2], [3, 4, 5]]},
    "frontend_arguments": {**_JOINTS["frontend_arguments"], "streams": ["joint", "bone"]},
}


@dataclass
class EnsembleState(State):
    """States of the members."""

    members: tuple[SkeletonState, ...]


@register_model("skeleton-ensemble", order=25, **_TWO_STREAMS)
class SkeletonEnsemble(ContinualModule):
    """Adds the outputs of its members for the same frames.

    Args:
        members: arguments of a ``SkeletonNet`` each, with equal classes, persons and timing.
        channels: for each member, the channels of the input's joints that it takes.
        weights: of the members' outputs; the default is 1 for all.
        fusion: "softmax" adds probabilities, and returns the logarithm of their mean as logits;
            "logits" adds logits.

    Raises ValueError if these are inconsistent.
    """

    def __init__(
        self,
        members: Sequence[Mapping[str, Any]],
        channels: Sequence[Sequence[int]],
        weights: Sequence[float] | None = None,
        fusion: str = "softmax",
    ) -> None:
        super().__init__()
        shares = [1.0] * len(members) if weights is None else list(weights)
        if not members or len({len(members), len(channels), len(shares)}) > 1:
            counts = f"{len(members)} members, {len(channels)} channels, {len(shares)} weights"
            raise ValueError(f"an ensemble needs equal numbers, not {counts}")
        if fusion not in FUSIONS:
            raise ValueError(f"fusion {fusion!r} is not one of {', '.join(FUSIONS)}")
        self.members = nn.ModuleList(SkeletonNet(**arguments) for arguments in members)
        nets = self.networks
        if len({(n.timing, n.num_classes, n.persons, n.joints) for n in nets}) > 1:
            raise ValueError("the members differ in timing, classes, persons or joints")
        for net, taken in zip(nets, channels, strict=True):
            if len(taken) != net.channels:
                raise ValueError(f"channels {list(taken)} for a member that takes {net.channels}")
        self.channels, self.fusion = [list(taken) for taken in channels], fusion
        self.weights = shares if fusion == "logits" else [w / sum(shares) for w in shares]
        self.timing, self.window = nets[0].timing, nets[0].window
        self.persons, self.num_classes = nets[0].persons, nets[0].num_classes

    @property
    def networks(self) -> list[SkeletonNet]:
        """The members, in order."""
        return [cast(SkeletonNet, member) for member in self.members]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of clips [B, T, M, V, C] as ``SkeletonNet`` does."""
        return self._fuse([net(part) for net, part in self._parts(x)])

    def init_state(self, batch_size: int = 1) -> EnsembleState:
        """Return the initial state of a batch of streams."""
        return EnsembleState(tuple(net.init_state(batch_size) for net in self.networks))

    def warmup(self, state: EnsembleState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return self.networks[0].warmup(state.members[0])

    def forward_step(self, x: Tensor, state: EnsembleState) -> OadOutput | None:
        """Take a frame [B, M, V, C] of every stream, return logits [B, K], or None."""
        pairs = zip(self._parts(x), state.members, strict=True)
        outs = [net.forward_step(part, member) for (net, part), member in pairs]
        logits = [out.logits for out in outs if out is not None]
        return OadOutput(self._fuse(logits), None) if logits else None

    def forward_steps(self, x: Tensor, state: EnsembleState) -> OadOutput:
        """Take T frames [B, T, M, V, C], return the logits [B, T', K] of all outputs."""
        pairs = zip(self._parts(x), state.members, strict=True)
        logits = [net.forward_steps(part, member).logits for (net, part), member in pairs]
        return OadOutput(self._fuse(logits), None)

    def _parts(self, x: Tensor) -> list[tuple[SkeletonNet, Tensor]]:
        pairs = zip(self.networks, self.channels, strict=True)
        return [(net, x[..., taken]) for net, taken in pairs]

    def _fuse(self, logits: Sequence[Tensor]) -> Tensor:
        scores = torch.stack([y.softmax(-1) if self.fusion == "softmax" else y for y in logits])
        weights = scores.new_tensor(self.weights).view(-1, *[1] * (scores.dim() - 1))
        total = (weights * scores).sum(0)
        return total.log() if self.fusion == "softmax" else total

    def count_macs(self, persons: int | None = None) -> int:
        """Return the multiply-accumulates of one step of one stream; see ``SkeletonNet``."""
        return sum(net.count_macs(persons) for net in self.networks)

    @property
    def exact(self) -> bool:
        """Whether the outputs of all members equal a recomputation of their windows."""
        return all(net.exact for net in self.networks)

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes the clip."""
        return sum(net.dense_macs for net in self.networks)


def combine(parts: Sequence[ImportedNetwork], fusion: Sequence[float] | None) -> ImportedNetwork:
    """Return the ensemble of networks that differ only in their streams.

    ``fusion``: the weight of each network's scores, None: equal weights. Raises ModelError when
    classes, persons, layout or timing differ.
    """
    first, width = parts[0], parts[0].arguments["channels"]
    for part in parts:
        if "hop" in part.arguments:
            raise ModelError("sliding: ensembles of several streams only run step by step")
        _check_alike(first, part)
    streams = [stream for part in parts for stream in part.frontend_arguments["streams"]]
    arguments = {
        "members": [part.arguments for part in parts],
        "channels": [list(range(i * width, (i + 1) * width)) for i in range(len(parts))],
        "weights": list(fusion or [1.0] * len(parts)),
    }
    tensors = {
        f"members.{i}.{name}": tensor
        for i, part in enumerate(parts)
        for name, tensor in part.tensors.items()
    }
    return dataclasses.replace(
        first,
        architecture="skeleton-ensemble",
        arguments=arguments,
        tensors=tensors,
        frontend_arguments={**first.frontend_arguments, "streams": streams},
    )


def _check_alike(first: ImportedNetwork, other: ImportedNetwork) -> None:
    one, two = _compared(first), _compared(other)
    differing = [f"{key} ({one[key]} and {two[key]})" for key in one if one[key] != two[key]]
    if differing:
        raise ModelError(f"the checkpoints are not compatible: different {', '.join(differing)}")


def _compared(imported: ImportedNetwork) -> dict[str, Any]:
    frontend = {k: v for k, v in imported.frontend_arguments.items() if k != "streams"}
    keys = ("num_classes", "channels", "strides", "kernel", "padding", "pool")
    return {**frontend, **{key: imported.arguments[key] for key in keys}}
