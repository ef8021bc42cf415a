"""Adapters: the start is the base, fused is unfused, what is learnt, files of the difference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costream.nn as co
from costream.models.oad.tsn import ConvNorm, ResNet
from costream.nn.adapters.low_rank import SPLoRA
from costream.nn.convolution import TemporalConvolution
from kit import plain_nets as plain
from kit.stepping import check, check_part


def _disturb(net: nn.Module) -> None:
    """Learn something: W_down is no longer zero."""
    for name, parameter in net.named_parameters():
        if name.endswith(".down"):
            nn.init.normal_(parameter, std=0.1)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (2, 6)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 4, dilation=2), (2, 6, 12)),
    "conv2d (9, 1)": (lambda: nn.Conv2d(6, 4, (9, 1), padding=(4, 0), bias=False), (2, 6, 12, 5)),
    "conv3d groups": (lambda: nn.Conv3d(6, 4, 3, groups=2), (1, 6, 5, 5, 5)),
    "depthwise": (lambda: nn.Conv3d(6, 6, (5, 1, 1), groups=6), (1, 6, 6, 2, 2)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "encoder": (lambda: co.Encoder(co.EncoderConfig(8, 2, 16, depth=2, window=4)), (2, 9, 8)),
    "soft": (
        lambda: co.DeepEncoder(co.EncoderConfig(8, 2, 16, 2, 4), attention="soft"), (2, 9, 8),
    ),
    "temporal": (lambda: TemporalConvolution(6, 4, 3), (2, 9, 6)),
    "part": (lambda: co.Conv3d(6, 4, 3, padding=1), (1, 6, 5, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["lora", "splora", "mask"])
@pytest.mark.parametrize("name", LAYERS)
def test_starts_as_its_base_and_fuses(name, kind):
    make, shape = LAYERS[name]
    net, x = make().eval(), torch.randn(shape)
    names, base = list(net.state_dict()), net(x)
    assert co.adapt(net, kind, 3) is net
    assert torch.equal(net(x), base)
    _disturb(net)
    adapted = net(x)
    assert (kind == "mask") == torch.equal(adapted, base)
    other = copy.deepcopy(net)
    co.fuse(net)
    torch.testing.assert_close(net(x), adapted, rtol=0, atol=1e-6)
    assert torch.equal(other(x), adapted)
    assert list(net.state_dict()) == names
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_splora_is_its_equation(groups):
    """W_s * (m_row m_col^T) + (W_down * m_row 1^T)(W_up * 1 m_col^T), Eq. 5.4, within groups."""
    weight, ones = torch.randn(6, 12 // groups, 4, 3), torch.ones
    adapter = SPLoRA(weight, groups, 2)
    nn.init.normal_(adapter.down)
    adapter.kept.rows[1], adapter.kept.columns[[0, 7]] = False, False
    row, column = adapter.kept.rows[:, None].float(), adapter.kept.columns[None].float()
    product = (adapter.down * (row @ ones(1, 2))) @ (adapter.up * (ones(2, 1) @ column))
    dense, difference = row @ column, torch.zeros_like(weight)
    n, m = 6 // groups, 12 // groups
    for k in range(6):
        own = slice(k // n * m, (k // n + 1) * m)  # columns of its group
        difference[k] = weight[k] * dense[k, own, None, None]
        difference[k, :, 2, 1] += product[k, own]
    torch.testing.assert_close(adapter(weight), difference)
    assert adapter.count_learnt(weight) == 2 * (5 + 10)


def test_only_the_difference_is_learnt():
    net = nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(60, 3))
    base, whole = copy.deepcopy(net), nn.Linear(60, 3).weight.numel()
    co.adapt(net, "splora", 2, whole=["3"])
    assert co.count_learnt(net) == 2 * (4 + 6) + 6 + 2 * 6 + whole + 3
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.enable_grad():
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 4, 12)).square().sum().backward()
            optimizer.step()
    same = {k for k, v in net.state_dict().items() if torch.equal(v, before[k])}
    masks = {k for k in before if k.endswith((".rows", ".columns"))}
    assert same == {"0.parametrizations.weight.original"} | masks
    tensors, sha256 = co.adapter_state(net)
    assert "0.parametrizations.weight.original" not in tensors
    x = torch.randn(2, 4, 12)
    restored = co.load_adapter(copy.deepcopy(base), tensors, sha256).eval()
    torch.testing.assert_close(restored(x), net.eval()(x))
    other = copy.deepcopy(base)
    nn.init.zeros_(other[0].weight)
    with pytest.raises(ValueError, match="other base weights"):
        co.load_adapter(other, tensors, sha256)
    del tensors["1.bias"]
    with pytest.raises(ValueError, match=r"does not fit the network: 1\.bias"):
        co.load_adapter(
            copy.deepcopy(base), {k: v for k, v in tensors.items() if k != "1.bias"}, sha256
        )


def _damaged(tensors: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    ups = [k for k in tensors if k.endswith(".up")]
    if what == "no rank":
        return tensors | {ups[-1]: tensors[ups[-1]][:0]}
    if what == "shape":
        return tensors | {ups[0]: tensors[ups[0]][:, :2]}
    return {k: v for k, v in tensors.items() if what != k}


@pytest.mark.parametrize("what", ["no rank", "shape", "1.bias", "digest"])
def test_a_refused_adapter_leaves_the_network_as_it_was(what):
    base = nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.Linear(5, 3)).eval()
    base[2].weight.requires_grad_(False)
    tensors, sha256 = co.adapter_state(co.adapt(copy.deepcopy(base), "lora", 2))
    before, x = dict(base.named_parameters()), torch.randn(2, 4, 7)
    learnt, out = [p.requires_grad for p in base.parameters()], base(x)
    with pytest.raises(ValueError, match=r"rank 0|does not fit|other base"):
        co.load_adapter(base, _damaged(tensors, what), "" if what == "digest" else sha256)
    after = dict(base.named_parameters())
    assert list(after) == list(before)
    assert all(after[k] is before[k] for k in after)
    assert [p.requires_grad for p in base.parameters()] == learnt
    assert torch.equal(base(x), out)
    co.load_adapter(base, tensors, sha256)
    with pytest.raises(ValueError, match="has adapters"):
        co.load_adapter(base, tensors, sha256)


@pytest.mark.parametrize("kind", ["lora", "splora"])
def test_steps_of_adapted_networks_are_their_clips(kind):
    part = co.Sequential(
        nn.Conv1d(4, 6, 3, padding=1), nn.ReLU(), co.Residual(co.Conv1d(6, 6, 3, padding=1)),
        nn.Conv1d(6, 6, 5, groups=3), co.Linear(6, 2),
    )  # fmt: skip
    co.adapt(part.double(), kind, 2)
    assert co.count_learnt(part) == 2 * (10 + 12 + 12 + 8) + 6 + 6 + 6 + 2
    _disturb(part)
    check_part(part, torch.randn(2, 4, 14, dtype=torch.float64), [3, 1, 5])
    block = co.adapt(TemporalConvolution(4, 6, 3).double(), kind, 2)
    _disturb(block)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    check(block, x, block(x), [2, 0, 3])
    encoder = co.adapt(co.Encoder(co.EncoderConfig(8, 2, 16, 2, 4)).eval(), kind, 2)
    _disturb(encoder)
    rows, state = torch.randn(1, 9, 8), encoder.init_state(1)
    steps = torch.stack([encoder.forward_step(row, state) for row in rows.unbind(1)], 1)
    torch.testing.assert_close(steps, encoder(rows), rtol=0, atol=1e-5)


def test_fused_networks_convert():
    net = plain.VideoResNet("r2plus1d", 4, 5).eval()
    co.adapt(net, "splora", 2, whole=["fc"])
    _disturb(net)
    clip = torch.randn(1, 3, 8, 8, 8)
    adapted = net(clip)
    continual = co.convert(co.fuse(net), clip, approximate=["running mean"])
    torch.testing.assert_close(continual(clip)[:, -1], adapted)
    with pytest.raises(ValueError, match="convert it again"):
        co.adapt(continual, "lora")


class _CifarResNet(nn.Module):
    """ResNet-50 as it is used for CIFAR: a stem of 3x3 without stride, no pooling after it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ResNet()
        self.net.conv1 = ConvNorm(3, 64, 3)
        self.fc = nn.Linear(2048, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.net.conv1(x))
        for k in range(4):
            x = getattr(self.net, f"layer{k + 1}")(x)
        return self.fc(x.mean((2, 3)))


def test_counts_of_the_paper():
    """Table 5.1, ResNet-50 on CIFAR-10: learnt parameters, and its FLOPs.

    These are multiply-accumulates, and two for each number that a batch norm takes.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        net = _CifarResNet().eval()
        assert round(co.count_learnt(net) / 1000, 1) == 23_520.8
        normalised: list[int] = []
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_hook(lambda _, __, out: normalised.append(out.numel()))
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, 3, 32, 32))
        macs = counter.get_total_flops() // 2
    for rank, learnt in ((32, 1_644.5), (8, 466.3)):
        adapted = co.adapt(copy.deepcopy(net), "lora", rank, whole=["fc"])
        assert round(co.count_learnt(adapted) / 1000, 1) == learnt
    assert round(macs / 1e6, 1) == 1_297.8
    assert round((macs + 2 * sum(normalised)) / 1e6, 1) == 1_304.7


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda: nn.Linear(2, 2), {"kind": "dora"}, "'dora'"),
        (lambda: nn.Linear(2, 2), {"kind": "lora", "rank": 0}, "at least 1"),
        (lambda: nn.Linear(2, 2), {"kind": "lora", "whole": ["head"]}, "head"),
        (lambda: nn.ReLU(), {"kind": "lora"}, "no linear layer"),
        (lambda: co.adapt(nn.Linear(2, 2), "lora"), {"kind": "lora"}, "fuse them"),
        (lambda: plain.TemporalBlock(2, 2, 1), {"kind": "lora"}, "conv1 computes its weight"),
    ],
)
def test_wrong_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        co.adapt(make(), **arguments)


def test_networks_without_adapters_have_no_difference():
    with pytest.raises(ValueError, match="no adapters"):
        co.adapter_state(co.adapt(nn.Linear(2, 2), "mask"))
