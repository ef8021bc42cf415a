"""Small skeleton networks whose every parameter matters, and what streams of them should give."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costream.models.skeleton.network import SkeletonNet
from kit.paths import REFS

REFERENCES = REFS / "skeleton"
BONES = ((1, 0), (2, 1), (3, 0), (4, 3))
NTU_BONES = (
    *((0, 1), (1, 20), (2, 20), (3, 2), (4, 20), (5, 4), (6, 5), (7, 6), (8, 20), (9, 8)),
    *((10, 9), (11, 10), (12, 0), (13, 12), (14, 13), (15, 14), (16, 0), (17, 16), (18, 17)),
    *((19, 18), (21, 22), (22, 7), (23, 24), (24, 11)),
)
SIZES = {"widths": (4, 4, 8, 8), "strides": (1, 2, 1, 2), "kernel": 5, "pool": 6}
# name -> options; every form of every network
FORMS: dict[str, dict[str, object]] = {
    "stgcn": {},
    "stgcn-none": {"padding": "none", "strides": (1, 1, 1, 1)},
    "stgcn-none-strided": {"padding": "none"},
    "stgcn-causal": {"padding": "causal"},
    "stgcn-distance": {"partition": "distance", "conv_first": True, "inner_residual": False},
    "stgcn-kernel-3": {"kernel": 3, "pool": 2},
    "agcn": {"kind": "agcn"},
    "agcn-none": {"kind": "agcn", "padding": "none", "strides": (1, 1, 1, 1)},
    "agcn-compat": {"kind": "agcn", "compat": "continual-skeletons", "padding": "none"},
    "agcn-causal": {"kind": "agcn", "padding": "causal"},
    "str": {"kind": "str", "widths": (4, 4, 8, 32, 32), "strides": (1, 2, 1, 2, 1)},
    "str-none": {
        "kind": "str",
        "widths": (4, 4, 8, 32, 32),
        "strides": (1,) * 5,
        "padding": "none",
    },
    "stgcn-causal-statistics": {"padding": "causal", "statistics": True},
    "branches": {"temporal": "branches", "widths": (12, 12, 14, 14), "conv_first": True},
    "branches-causal": {"temporal": "branches", "widths": (12, 12, 14, 14), "padding": "causal"},
}


def randomise(net: nn.Module) -> None:
    """Draw parameters and statistics so that no term is trivially 0 or 1."""
    for name, tensor in net.state_dict().items():
        if name.endswith(("running_var", "A")):
            tensor.uniform_(0.1, 1)
        elif tensor.is_floating_point() and tensor.dim() > 1 and "graph_attn" not in name:
            tensor.normal_(0, (tensor[0].numel()) ** -0.5)
        elif tensor.is_floating_point():
            tensor.normal_(0.3, 0.4)


def small_net(form: str, seed: int = 0, **options: object) -> SkeletonNet:
    """Return a float64 network of 5 joints, 2 persons and 3 classes in evaluation."""
    torch.manual_seed(seed)
    chosen = {**SIZES, **FORMS[form], **options}
    net = SkeletonNet(3, 5, BONES, 0, 2, chosen.pop("persons", 2), **chosen)
    with torch.no_grad():
        randomise(net)
    return net.double().eval()


def outputs(net: SkeletonNet, x: Tensor) -> dict[int, Tensor]:
    """Return the logits [B, K] of every step that should have some, from the clip network.

    Features of the last block are those of the ordinary blocks over the whole stream; zeros
    after its end reach none that have arrived. A step averages the last ``pool`` of them.
    """
    features = net.features(x).mean((1, 3))
    layers, early = net.layer_timing, net.mean.padding
    given = {}
    for step in range(x.shape[1]):
        if step < layers.delay or (step - layers.delay) % layers.stride:
            continue
        count = (step - layers.delay) // layers.stride + 1
        seen = features[:, max(0, count - net.pool) : count]
        if net.form == "causal":
            given[step] = net.fc(seen.mean(1)) + read(net, x[:, : step + 1])
        elif count + early >= net.pool:
            given[step] = net.fc(seen.sum(1) / net.pool)
    return given


def read(net: SkeletonNet, x: Tensor) -> Tensor | float:
    """Return the logits [B, K] of mean and deviation of the last frames of [B, T, M, V, C]."""
    if net.reading is None:
        return 0.0
    newest = x[:, -(net.pool - 1) * net.stride - 1 :].flatten(3)
    deviation, mean = torch.std_mean(newest, 1, correction=0)
    rows = torch.cat([mean, deviation.clamp(min=1e-4)], -1)
    return torch.stack([net.reading(row.mean(0)) for row in rows])


def stepped(net: SkeletonNet, x: Tensor, state: object = None) -> dict[int, Tensor]:
    """Step through ``x`` [B, T, M, V, C], return the logits of the steps that have some."""
    state = net.init_state(len(x)) if state is None else state
    given = {}
    for step, frame in enumerate(x.unbind(1)):
        out = net.forward_step(frame, state)
        if out is not None:
            given[step] = out.logits
    return given


def assert_same(given: dict[int, Tensor], expected: dict[int, Tensor], atol: float = 1e-9) -> None:
    """Compare the steps, and the logits relative to their scale."""
    assert list(given) == list(expected)
    if expected:
        one, two = torch.stack(list(given.values())), torch.stack(list(expected.values()))
        assert (one - two).abs().max() <= atol * max(1, two.abs().max())
