"""Skeleton frontend with a network: what it has learnt of movements, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.skeleton.joints import JointsState, JointStreams
from costream.models.skeleton.network import SkeletonNet
from costream.models.skeleton.step_plan import SkeletonState
from costream.nn.state import State, zeros

# Arguments of a network that concern its classes, or the mean before them.
_OF_CLASSES = ("num_classes", "pool", "statistics")


def network_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a ``SkeletonNet`` that its features depend on."""
    return {key: value for key, value in arguments.items() if key not in _OF_CLASSES}


@dataclass
class SkeletonFeaturesState(State):
    """State of the joints and of the network, and its newest features."""

    joints: JointsState
    network: SkeletonState
    newest: Tensor  # [B, O]


@frontend("skeleton-features", order=17)
class SkeletonFeatures(JointStreams):
    """The features of a skeleton network before its classes, averaged over joints and persons.

    A token is float32 [D]: O features of the last block, then the streams ``also`` of all joints.
    Between the outputs of a network with strides in time they are those of its last output. Where
    nobody is present a token is all zeros.

    Args:
        network: the other arguments of a ``SkeletonNet`` with padding "causal", which takes these
            joints; those of its classes are left out.
        also: some of ``streams``. ``scale``: what they are multiplied by.
        joints: arguments of ``JointStreams``.

    Raises ValueError for a network with other padding, or that takes other joints, and for streams
    that there are not.
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        also: Sequence[str] = (),
        scale: float = 1.0,
        **joints: Any,
    ) -> None:
        super().__init__(**joints)
        self._scale = float(scale)
        given = network_of(network)
        if given.get("padding") != "causal":
            raise ValueError("only a network with padding 'causal' has features from step 0 on")
        width = int(given["widths"][-1])
        self.network = SkeletonNet(width, pool=1, **given)
        taken = self.network.persons, self.network.joints, self.network.channels
        if taken != (self.persons, self.joints, self.channels):
            raise ValueError(f"the network takes {taken} persons, joints and numbers of each")
        nn.init.eye_(self.network.fc.weight)  # its output is its input, the features
        nn.init.zeros_(self.network.fc.bias)
        unknown = [name for name in also if name not in self.streams]
        if unknown:
            raise ValueError(f"also {', '.join(unknown)}: not among the streams")
        size = self.channels // len(self.streams)
        places = [self.streams.index(name) * size for name in also]
        self._columns = [place + k for place in places for k in range(size)]
        self.features = width
        self.token_width = width + self.persons * self.joints * len(self._columns)

    @property
    def exact(self) -> bool:
        """Whether tokens equal a recomputation of all that they depend on."""
        return self.network.exact

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a step that recomputes all that its token depends on."""
        return super().count_macs() + self.network.dense_macs

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step; of a network with strides, the mean."""
        return super().count_macs() + self.network.count_macs()

    @torch.no_grad()
    def forward(self, clip: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of clips [B, T, S, V, axes + 1]."""
        step, state = super().forward_step, super().init_state(len(clip))
        joints = torch.stack([step(x, state) for x in clip.unbind(1)], 1)
        joints = joints.to(self.network.fc.weight)
        features = self.network(joints).repeat_interleave(self.network.stride, 1)
        return self._tokens_of(features[:, : joints.shape[1]], joints)

    def init_state(self, batch_size: int = 1) -> SkeletonFeaturesState:  # type: ignore[override]
        """Return the initial state of a batch of streams."""
        network = self.network.init_state(batch_size)
        newest = zeros(batch_size, self.features, like=self.network.fc.weight)
        return SkeletonFeaturesState(super().init_state(batch_size), network, newest)

    def forward_step(self, x: Tensor, state: SkeletonFeaturesState) -> Tensor:  # type: ignore[override]
        """Return the tokens [B, D] of the next step of every stream, [B, S, V, axes + 1].

        Raises ValueError as ``JointStreams`` does.
        """
        joints = super().forward_step(x, state.joints).to(state.newest)
        found = self.network.forward_step(joints, state.network)
        if found is not None:
            state.newest.copy_(found.logits)
        return self._tokens_of(state.newest, joints)

    def _tokens_of(self, features: Tensor, joints: Tensor) -> Tensor:
        """Return tokens [..., D] of features [..., O] and joints [..., P, V, C]."""
        also = self._scale * joints[..., self._columns].flatten(-3)
        present = joints.flatten(-3).any(-1, keepdim=True)
        return torch.cat([features * present, also], -1)
