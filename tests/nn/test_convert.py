"""Conversion: networks of other people's kinds, frame by frame, or a refusal that is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import costream.nn as co
from kit import plain_nets as plain
from kit.stepping import check_part

MEAN, WINDOW = ("running mean",), ("windowed attention",)


def _x3d() -> nn.Module:
    blocks = [plain.X3dBlock(4, 6, True), plain.X3dBlock(6, 8, False)]
    head = [
        nn.Conv3d(8, 8, 1),
        nn.ReLU(),
        nn.AvgPool3d((4, 2, 2), 1),
        nn.Conv3d(8, 5, 1),
        nn.Flatten(),
    ]
    stem = nn.Conv3d(4, 4, (5, 1, 1), padding=(2, 0, 0), groups=4)
    flat = nn.Conv3d(3, 4, (1, 3, 3), (1, 2, 2), (0, 1, 1))
    return nn.Sequential(flat, stem, *blocks, *head)


def _movinet() -> nn.Module:
    a, b = (
        plain.CausalConv3d(3, 6, (3, 3, 3), padding=(0, 1, 1)),
        plain.CausalConv3d(6, 6, (5, 1, 1)),
    )
    return nn.Sequential(a, nn.Hardswish(), b, plain.SqueezeExcite(6, 3), nn.Conv3d(6, 2, 1))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(4, 8), encoder, nn.Linear(8, 3))


VIDEO, SOUND, ROWS = (1, 3, 8, 8, 8), (1, 4, 40), (1, 12, 8)
# network -> shape of a clip, time axis, approximations, delay
ZOO: dict[str, tuple[Any, tuple[int, ...], int, tuple[str, ...], int]] = {
    "r3d_18": (lambda: plain.VideoResNet("r3d", 4, 5), VIDEO, 2, MEAN, 54),
    "r3d_18 causal": (
        lambda: plain.VideoResNet("r3d", 4, 5), VIDEO, 2, (*MEAN, "causal padding"), 0,
    ),
    "mc3_18": (lambda: plain.VideoResNet("mc3", 4, 5), VIDEO, 2, MEAN, 5),
    "r2plus1d_18": (lambda: plain.VideoResNet("r2plus1d", 4, 5), VIDEO, 2, MEAN, 54),
    "s3d": (plain.SeparableInception, (1, 3, 16, 16, 16), 2, MEAN, 15),
    "x3d": (_x3d, (1, 3, 4, 16, 16), 2, MEAN, 7),
    "movinet": (_movinet, VIDEO, 2, MEAN, 0),
    "tcn": (
        lambda: nn.Sequential(*(plain.TemporalBlock(4, 4, 2**k) for k in (0, 1, 2))),
        SOUND, 2, (), 0,
    ),
    "wavenet": (plain.WaveNet, SOUND, 2, (), 0),
    "st-gcn": (plain.PlainStgcn, (1, 3, 24, 5, 2), 2, MEAN, 12),
    "efficientnet": (plain.MelEfficientNet, (1, 1, 16, 24), 3, MEAN, 5),
    "conformer": (
        lambda: nn.Sequential(plain.ConformerBlock(), plain.ConformerBlock()), ROWS, 1, WINDOW, 6,
    ),
    "transformer": (_transformer, (1, 12, 4), 1, WINDOW, 0),
    "gru": (lambda: nn.GRU(8, 4, batch_first=True), ROWS, 1, (), 0),
    "attention": (plain.SelfAttention, ROWS, 1, WINDOW, 0),
    "frame then time": (plain.FrameThenTime, (1, 6, 3, 8, 8), 1, (), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    make, shape, axis, approximate, delay = ZOO[name]
    net = make().eval()
    example = torch.randn(shape)
    continual = co.convert(net, example, axis, approximate=approximate)
    assert continual.delay == delay
    assert continual.report().error < 1e-9
    assert continual.state_dict().keys() == net.state_dict().keys()
    assert all(a is b for a, b in zip(continual.parameters(), net.parameters(), strict=True))
    length = continual.delay + 2 * continual.stride + 3
    clip = torch.randn(2, *shape[1:axis], length, *shape[axis + 1 :], dtype=torch.float64)
    check_part(continual.double(), clip, [3, 1, 5])
    single = clip.float()
    stepped = continual.float().forward_steps(single, continual.init_state(2))
    whole = continual(single).narrow(continual.out_axis, 0, stepped.shape[continual.out_axis])
    assert (stepped - whole).abs().max() <= 1e-5 * max(1, whole.abs().max())


def test_exact_networks_are_the_network_itself():
    net, clip = plain.WaveNet().eval(), torch.randn(1, 4, 50)
    continual = co.convert(net, clip)
    torch.testing.assert_close(continual(clip), net(clip))
    assert continual.report().change is None
    state = continual.init_state()
    torch.testing.assert_close(continual.forward_steps(clip, state), net(clip))


def test_head_gives_the_clip_once_its_frames_are_there():
    """The mean over the last of as many features as the clip has is that over the clip."""
    net, clip = plain.FrameThenTime().eval(), torch.randn(1, 6, 3, 8, 8)
    continual = co.convert(net, clip, 1)
    state = continual.init_state()
    outs = [continual.forward_step(x, state) for x in clip.unbind(1)]
    torch.testing.assert_close(outs[-1], net(clip))
    video = plain.VideoResNet("mc3", 8, 5).eval()
    clip = torch.randn(VIDEO)
    continual = co.convert(video, clip, approximate=MEAN)
    torch.testing.assert_close(continual(clip)[:, -1], video(clip))


def test_report_names_layers_and_approximations():
    text = str(
        co.convert(plain.VideoResNet("r3d", 8, 5), torch.randn(VIDEO), approximate=MEAN).report()
    )
    assert "layer1.0.conv1.0" in text
    assert "Conv3d, 3 frames" in text
    assert "waits for the slower branch" in text
    assert "running over 1 frames" in text
    assert "running mean: means" in text


class _Reads(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 4, 1, stride=2), nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)[:, :, :1]


REFUSED = [
    (plain.VideoResNet("r3d", 8, 5), VIDEO, 2, r"avgpool \(AdaptiveAvgPool3d\).*running mean"),
    (plain.ShiftedWindows(), VIDEO, 2, "view.*mixes time with other dimensions"),
    (nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 4)), SOUND, 2, r"1 \(GroupNorm\).*batch norm"),
    (nn.Sequential(nn.GRU(8, 3, bidirectional=True, batch_first=True)), ROWS, 1, "bidirectional"),
    (plain.SelfAttention(), ROWS, 1, "dot_product_attention.*windowed attention"),
    (plain.SelfAttention(plain=True), ROWS, 1, "to_deepcot"),
    (_transformer(), (1, 12, 4), 1, r"1 \(TransformerEncoder\).*windowed attention"),
    (_Reads(lambda x: x.flip(2)), SOUND, 2, "flip.*from the beginning"),
    (_Reads(lambda x: x[:, :, 3]), SOUND, 2, "takes frame 3 of the clip"),
    (_Reads(lambda x: x[:, :, 3:9]), SOUND, 2, "takes frames 3:9 of the clip"),
    (_Reads(lambda x: x.cumsum(2)), SOUND, 2, "cumsum"),
    (_Reads(lambda x: nn.functional.interpolate(x, scale_factor=2)), SOUND, 2, "time is merged"),
    (_Reads(lambda x: nn.functional.pad(x, (2, 0))), SOUND, 2, "before frame 0"),
    (_Reads(lambda x: x if x.sum() > 0 else -x), SOUND, 2, "cannot be traced"),
    (_Reads(lambda x: (x, x)), SOUND, 2, "returns several values"),
    (_Branches(), SOUND, 2, "takes frames None:1"),
    (nn.Conv1d(40, 4, 1), (1, 40, 4), 1, "time"),
]  # fmt: skip


@pytest.mark.parametrize(("net", "shape", "axis", "message"), REFUSED)
def test_refusals_name_the_layer(net, shape, axis, message):
    with pytest.raises(co.ConversionError, match=message):
        co.convert(net, torch.randn(shape), axis)


def test_layers_that_do_nothing_yet_are_seen():
    """Weights of zero hide that a layer mixes frames; analysis changes them in a copy."""
    net = nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4))
    nn.init.zeros_(net[1].weight)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(co.ConversionError, match="GroupNorm"):
        co.convert(net, torch.randn(SOUND))
    assert all(torch.equal(a, before[k]) for k, a in net.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"approximate": ["magic"]}, "magic"),
        ({"time_axis": 0}, "1 or more"),
        ({"time_axis": 3}, "1 or"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        co.convert(nn.Conv1d(4, 4, 3), torch.randn(SOUND), **options)
