"""Structured pruning: masked is removed, what is tied goes together, and steps are clips."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costream.nn as co
from costream.nn.adapters.channels import find_channels
from costream.nn.adapters.pruning import count_uses
from costream.nn.adapters.relevance import propagating
from costream.nn.graph import GraphConvolution, adjacency
from kit import plain_nets as plain
from kit.stepping import check_part

MEAN, WINDOW = ("running mean",), ("windowed attention",)
VIDEO, SOUND, ROWS = (2, 3, 8, 8, 8), (2, 4, 40), (2, 12, 8)


def _grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 12, 3, padding=1), nn.BatchNorm1d(12), nn.PReLU(12),
        nn.Conv1d(12, 6, 3, padding=1, groups=3), nn.ReLU(),
        nn.Conv1d(6, 12, 5, padding=2, groups=6), nn.ReLU(), nn.Conv1d(12, 16, 1), nn.GLU(1),
        nn.Conv1d(8, 2, 1),
    )  # fmt: skip


def _tcn() -> nn.Module:
    part = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, dilation=2), nn.ReLU())
    return nn.Sequential(part, nn.Conv1d(8, 2, 1))


class _Attention(nn.Module):
    """Self-attention that knows how many heads it has, and no other size; qkv packed, or apart."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.num_heads, self.packed = 4, packed
        self.qkv = nn.ModuleList(nn.Linear(8, 24 if packed else 8) for _ in range(3 - 2 * packed))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape[:2]
        if self.packed:
            q, k, v = self.qkv[0](x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (f(x).view(b, t, self.num_heads, -1).transpose(1, 2) for f in self.qkv)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Transformer(nn.Module):
    """Its layer norms fix the width of its rows, not what is inside of attention and layers."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.attention, self.norm, self.norm2 = _Attention(packed), nn.LayerNorm(8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return self.head(x + self.down(F.gelu(self.up(self.norm2(x)))))


# network -> shape of clips, time axis, approximations of its continual form
ZOO: dict[str, tuple[Any, tuple[int, ...], int, tuple[str, ...]]] = {
    "mc3_18": (lambda: plain.VideoResNet("mc3", 4, 5), VIDEO, 2, MEAN),
    "s3d": (lambda: plain.SeparableInception(4), (2, 3, 16, 16, 16), 2, MEAN),
    "x3d": (lambda: plain.X3dBlock(4, 6, True), (2, 4, 6, 8, 8), 2, MEAN),
    "tcn": (_tcn, SOUND, 2, ()),
    "wavenet": (plain.WaveNet, SOUND, 2, ()),
    "st-gcn": (plain.PlainStgcn, (2, 3, 24, 5, 2), 2, MEAN),
    "efficientnet": (plain.MelEfficientNet, (2, 1, 16, 24), 3, MEAN),
    "grouped": (_grouped, SOUND, 2, ()),
    "transformer": (lambda: _Transformer(False), ROWS, 1, WINDOW),
    "packed": (lambda: _Transformer(True), ROWS, 1, WINDOW),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", ["splora", "mask"])
@pytest.mark.parametrize("name", ZOO)
def test_pruned_networks_are_the_masked_ones_and_step(name, kind):
    make, shape, axis, approximate = ZOO[name]
    net, clip = make().double().eval(), torch.randn(shape, dtype=torch.float64)
    for layer in net.modules():  # as if trained
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.bias)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    before = sum(p.numel() for p in net.parameters())
    co.adapt(net, kind, 2)
    for parameter in net.parameters():
        if parameter.dim() == 2 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    pruner = co.Pruner(net, clip)
    for density in (0.7, 0.5):
        pruner.observe(lambda: net(clip).square().sum())
        assert pruner.prune(density) <= density
    masked = net(clip)
    assert pruner.finish() is net
    assert sum(p.numel() for p in net.parameters()) < 0.8 * before
    torch.testing.assert_close(net(clip), masked, rtol=0, atol=1e-9)
    continual = co.convert(net, clip, axis, approximate=approximate)
    length = continual.delay + 2 * continual.stride + 3
    long = torch.randn(2, *shape[1:axis], length, *shape[axis + 1 :], dtype=torch.float64)
    check_part(continual, long, [3, 1, 5])


def _chain() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 2, 3), nn.Flatten(1))


@pytest.mark.parametrize("criterion", ["magnitude", "gradient", "taylor", "lrp"])
def test_criteria_rank_channels(criterion):
    """Of four channels one has small weights, one no gradient."""
    net, x = _chain(), torch.randn(4, 3, 9)
    net[0].weight[0] *= 1e-3
    net[0].bias[0], net[0].bias[1] = 0.5, -1e6  # always active, never active
    weakest = {"magnitude": 0, "gradient": 1, "taylor": 1, "lrp": 1}[criterion]
    co.adapt(net, "mask")
    pruner = co.Pruner(net, x, criterion)
    if criterion != "magnitude":
        with pytest.raises(ValueError, match="call observe"):
            pruner.prune(0.8)
        pruner.observe(lambda: net(x).square().sum())
    assert pruner.prune(1.0) == 1
    if criterion != "magnitude":
        pruner.observe(lambda: net(x).square().sum())
    assert pruner.prune(0.8) == pruner.density == 0.75
    left = [k != weakest for k in range(4)]
    assert net[0].parametrizations.weight[0].rows.tolist() == left
    assert net[2].parametrizations.weight[0].columns.tolist() == left
    assert co.count_learnt(net) == 3 * 3 * 3 + 2 * 3 * 3 + 4 + 2


def test_relevance_is_conserved_and_the_rule():
    """Of every layer the relevances sum to what is explained; one layer is the equation."""
    net = nn.Sequential(
        nn.Conv1d(3, 6, 3, bias=False), nn.ReLU(), nn.Conv1d(6, 5, 3, bias=False), nn.ReLU(),
        nn.Flatten(), nn.Linear(25, 4, bias=False),
    ).double()  # fmt: skip
    x = torch.randn(7, 3, 9, dtype=torch.float64)
    with torch.enable_grad(), propagating(net):
        explained = net(x)[:, 2].clamp(min=0).sum()
        weights = [layer.weight for layer in net if hasattr(layer, "weight")]
        gradients = torch.autograd.grad(explained, weights)
    assert explained > 0
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close((weight * gradient).sum(), explained.detach())
    torch.testing.assert_close(net(x)[:, 2].clamp(min=0).sum(), explained.detach())
    layer, a = nn.Linear(4, 3, bias=False).double(), torch.randn(1, 4, dtype=torch.float64)
    with torch.enable_grad(), propagating(layer):
        a.requires_grad_()
        out = layer(a)
        (gradient,) = torch.autograd.grad(out.sum(), a)
    parts = (a * layer.weight).clamp(min=0)  # [k, j]
    expected = (parts / parts.sum(1, keepdim=True) * out.T).sum(0)
    torch.testing.assert_close((a * gradient)[0], expected)


def test_scores_leave_gradients_alone_and_one_channel_stays():
    net, x = co.adapt(_chain(), "splora", 1), torch.randn(4, 3, 9)
    pruner = co.Pruner(net, x)
    pruner.observe(lambda: net(x).square().sum())
    assert all(p.grad is None for p in net.parameters())
    assert pruner.prune(0.01) == 0.25
    assert co.count_learnt(net) == (3 + 1) + (1 + 2) + 4 + 2
    assert co.count_learnt(pruner.finish()) == 3 * 3 + 1 + 2 * 3 + 2
    assert (net[0].out_channels, net[2].in_channels) == (1, 1)


def test_pruned_networks_are_trained_with_their_masks():
    """What is masked has no part in training; a state of the masked network holds its masks."""
    net, x = co.adapt(_chain(), "splora", 2, whole=["2"]), torch.randn(8, 3, 9)
    other = copy.deepcopy(net)
    pruner = co.Pruner(net, x, "magnitude")
    pruner.prune(0.5)
    with torch.enable_grad():
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    trained = net(x)
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(x), trained)
    torch.testing.assert_close(pruner.finish()(x), trained)
    again = co.Pruner(other, x, "magnitude")  # goes on where the other was
    assert again.density == 0.5
    torch.testing.assert_close(again.finish()(x), trained)


def test_wide_layers_keep_a_multiple_of_eight():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 45), nn.ReLU(), nn.Linear(45, 36), nn.ReLU(), nn.Linear(36, 2))
    pruner = co.Pruner(co.adapt(net, "mask"), torch.randn(1, 4), "magnitude")
    for density in (0.7, 0.4):
        assert pruner.prune(density) <= density
    pruner.finish()
    widths = net[0].out_features, net[2].out_features
    assert all(width % 8 == 0 for width in widths)
    assert min(widths) >= 8


def test_of_equal_channels_the_most_expensive_go():
    layers = [nn.Conv1d(2, 8, 1), nn.Conv1d(8, 8, 1), nn.AvgPool1d(8)]
    net = nn.Sequential(*layers, nn.Conv1d(8, 8, 1), nn.Conv1d(8, 2, 1))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    x = torch.randn(1, 2, 24)
    pruner = co.Pruner(co.adapt(net, "mask"), x, "magnitude")
    assert pruner.prune(0.6) <= 0.6
    assert [len(layer.weight) for layer in pruner.finish() if hasattr(layer, "weight")][2:] == [
        8,
        2,
    ]


def test_multiplications_count_until_half_of_them_are_gone():
    layers = [nn.Conv1d(2, 16, 1), nn.Conv1d(16, 8, 1), nn.AvgPool1d(8)]
    net = nn.Sequential(*layers, nn.Conv1d(8, 16, 1), nn.Conv1d(16, 2, 1))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    pruner = co.Pruner(co.adapt(net, "mask"), torch.randn(1, 2, 24), "magnitude")
    left = {}
    for density in (0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25):
        pruner.prune(density)
        masks = [module for module in net.modules() if hasattr(module, "rows")]
        left[density] = [int(mask.rows.sum()) for mask in masks][::2]  # of the hidden layers
    assert left[0.6] == [16, 16]
    assert left[0.5] == [10, 16]  # behind the pooling there are an eighth of the multiplications
    assert left[0.25] == [10, 10]


def test_uses_of_weights_are_counted_through_joining():
    net = co.adapt(GraphConvolution(3, 4, adjacency(5, [(k, 0) for k in range(1, 5)], 0)), "mask")
    uses = count_uses(net, torch.randn(2, 6, 5, 3))
    assert set(uses.values()) == {6 * 5}
    assert len(uses) == 3 + 1  # partitions, joined to one product, and the residual


def test_schedule():
    steps = [co.gradual(k, 10, 0.3) for k in range(12)]
    assert steps[0] == 1
    assert steps[10] == steps[11] == pytest.approx(0.3)
    assert all(a > b for a, b in pairwise(steps[:11]))
    assert steps[0] - steps[1] > steps[8] - steps[9]
    with pytest.raises(ValueError, match="1 or more"):
        co.gradual(0, 0, 0.4)
    for step, density in ((1, 2.0), (-1, 0.5)):
        with pytest.raises(ValueError, match="from 0, and 0 to 1"):
            co.gradual(step, 10, density)


class _Fixed(nn.Module):
    """Layers whose outputs cannot go: normed together, of a size that is written down, put out."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.first = nn.Linear(3, 4), nn.Linear(4, 6)
        self.norm, self.second, self.last = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(self.free(x))))
        return self.last(x.reshape(-1, 2, 3).sum(1))


def test_what_is_fixed_has_a_reason():
    graph = find_channels(_Fixed(), torch.randn(2, 3))
    assert [len(f.units) for f in graph.families] == [4]
    assert graph.fixed == {
        "first": "layernorm takes them",
        "second": "its size is a constant elsewhere: what is left does not run alike",
        "last": "it is an output of the network",
    }


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda: nn.Conv1d(3, 2, 1), {}, "no channel of Conv1d can be removed"),
        (lambda: nn.GRU(3, 2), {}, "cannot be traced"),
        (lambda: co.adapt(_chain(), "mask"), {"criterion": "random"}, "'random'"),
        (_chain, {}, "0 has no masks"),
        (lambda: co.adapt(_chain(), "lora"), {}, "0 has no masks"),
    ],
)
def test_wrong_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        co.Pruner(make(), torch.randn(2, 3, 9), **arguments)


@pytest.mark.parametrize("density", [0, 1.1])
def test_wrong_densities(density):
    pruner = co.Pruner(co.adapt(_chain(), "mask"), torch.randn(2, 3, 9), "magnitude")
    with pytest.raises(ValueError, match="above 0"):
        pruner.prune(density)
