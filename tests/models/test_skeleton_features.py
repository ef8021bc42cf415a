"""Features of a skeleton network as a frontend: beside the network itself, and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from costream.core.layouts import BODY_15
from costream.models.frontend import load_frontend
from costream.models.skeleton.joints import JointStreams
from costream.models.skeleton.network import SkeletonNet

JOINTS: dict[str, Any] = {
    "layout": "body-15",
    "axes": 2,
    "persons": 2,
    "streams": ["joint", "bone", "joint_motion"],
    "origin": 30,
    "heading": 0,
}
NETWORK: dict[str, Any] = {
    "joints": 15,
    "bones": [list(bone) for bone in BODY_15.bones],
    "channels": 6,
    "persons": 2,
    "widths": [6, 8, 10],
    "strides": [1, 2, 1],
    "kernel": 3,
    "padding": "causal",
}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, SkeletonNet]:
    """Return a frontend, and a network of seven classes with the same layers."""
    torch.manual_seed(1)
    network = SkeletonNet(7, pool=12, statistics=True, **NETWORK)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
    front: Any = load_frontend(
        "skeleton-features", network=NETWORK, also=["joint_motion", "joint"], scale=0.5, **JOINTS
    )
    layers = {k: v for k, v in network.state_dict().items() if k.startswith(("data_bn", "layers"))}
    missing, left = front.network.load_state_dict(layers, strict=False)
    assert (missing, left) == (["fc.weight", "fc.bias"], [])
    return front.eval(), network.eval()


def people(steps: int, seed: int = 0) -> torch.Tensor:
    """Return joints [1, T, 2, 15, 3] of two people, of whom one comes later; then nobody."""
    rng = np.random.default_rng(seed)
    joints = rng.normal(0, 1, (1, 1, 2, 15, 3)) + rng.normal(0, 0.1, (1, steps, 2, 15, 3))
    joints[..., 2] = 1
    joints[:, :9, 1] = 0
    joints[:, steps - 4 :] = 0
    return torch.from_numpy(joints.astype(np.float32))


def test_a_token_has_the_features_before_the_classes_and_the_joints(pair: Any) -> None:
    """By the layers of the network itself; between its outputs they are those of the last one."""
    front, network = pair
    clip, plain = people(31), JointStreams(**JOINTS)
    joints = plain(clip)
    with torch.no_grad():
        features = network.features(joints).mean((1, 3))[0]
    tokens = front(clip)[0]
    assert tokens.shape == (31, front.token_width) == (31, 10 + 2 * 15 * 4)
    for step, token in enumerate(tokens[:-4]):
        torch.testing.assert_close(token[:10], features[step // 2], rtol=1e-4, atol=1e-5)
    swapped = joints[0][..., [4, 5, 0, 1]].flatten(1)
    torch.testing.assert_close(tokens[:, 10:], 0.5 * swapped)


def test_steps_give_the_same_and_nobody_is_zeros(pair: Any) -> None:
    front, _ = pair
    clip, state = people(31), front.init_state(1)
    steps = torch.stack([front.forward_step(x, state)[0] for x in clip.unbind(1)])
    torch.testing.assert_close(steps, front(clip)[0], rtol=1e-4, atol=1e-5)
    assert steps[:-4].any(1).all()
    assert not steps[-4:].any()


def test_costs_are_those_of_the_joints_and_the_network(pair: Any) -> None:
    front, network = pair
    classes = network.count_macs() - front.network.count_macs()
    assert front.count_macs() == JointStreams(**JOINTS).count_macs() + front.network.count_macs()
    assert abs(classes) < 2 * 15 * 6 * 7 + 10 * 10
    assert front.exact
    assert front.dense_macs > 3 * front.count_macs()
