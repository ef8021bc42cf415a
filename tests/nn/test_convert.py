"""Conversion: networks of other people's kinds, frame by frame, or a refusal that is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
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


class _Positions(nn.Module):
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.table, nn.Embedding):
            return x + self.table(torch.arange(x.shape[2])).T
        return x + self.table[:, : x.shape[2]]


class _Pools(nn.Module):
    """ST-GCN's head: a pooling whose kernel is the size of the clip."""

    def __init__(self, kernel: Any, pool: Any = F.avg_pool2d, **options: Any) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 4, (3, 1), padding=(1, 0)), nn.Conv2d(4, 5, 1)
        self.kernel, self.pool, self.options = kernel, pool, options

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.fc(self.pool(x, self.kernel(x), **self.options)).flatten(1)


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
    (_Reads(lambda x: x.cumprod(2)), SOUND, 2, "cumprod.*recurrences"),
    (_Reads(lambda x: F.interpolate(x, scale_factor=2)), SOUND, 2, "interpolate: it gives more"),
    (nn.Sequential(nn.ReLU(), nn.ConvTranspose1d(4, 4, 2, 2)), SOUND, 2, r"^1 \(ConvT.*gives more"),
    (nn.Sequential(nn.ConvTranspose1d(4, 4, 4, 2)), SOUND, 2, r"^0 \(ConvTranspose.*cannot come"),
    (nn.Sequential(nn.Upsample(None, 2), nn.Conv1d(4, 4, 3)), SOUND, 2, r"^0 \(Upsample.*faster"),
    (_Reads(lambda x: x.flatten(1)), SOUND, 2, "flatten: time is merged.*separate dimension"),
    (_Positions(nn.Parameter(torch.randn(4, 99))), SOUND, 2, "add: table has a row.*recycling"),
    (_Positions(nn.Embedding(99, 4)), SOUND, 2, "add: table has a row for each frame.*recycling"),
    (_Pools(lambda x: (x.shape[2] // 2, 1)), (1, 4, 12, 3), 2, "here 6 of 12 frames, grows"),
    (_Pools(lambda x: x.shape[2:]), (1, 4, 12, 3), 2, "avg_pool2d: it is over all 12 "),
    (_Reads(lambda x: F.pad(x, (2, 0))), SOUND, 2, "before frame 0"),
    (_Reads(lambda x: x if x.sum() > 0 else -x), SOUND, 2, "cannot be traced"),
    (_Reads(lambda x: (x, x)), SOUND, 2, "returns several values"),
    (_Branches(), SOUND, 2, "takes frames None:1"),
    (nn.Conv1d(40, 4, 1), (1, 40, 4), 1, "time"),
]  # fmt: skip


@pytest.mark.parametrize(("net", "shape", "axis", "message"), REFUSED)
def test_refusals_name_the_layer(net, shape, axis, message):
    with pytest.raises(co.ConversionError, match=message):
        co.convert(net, torch.randn(shape), axis)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_a_pooling_of_the_size_of_the_clip_is_over_the_whole_clip(pool, named):
    net = _Pools(lambda x: x.size()[2:], pool).eval().double()
    if named:
        net.pool = lambda x, size: pool(x, kernel_size=size)
    continual = co.convert(net, torch.randn(1, 4, 12, 3), approximate=MEAN)
    assert (continual.stride, continual.delay) == (1, 1)
    x, state = torch.randn(2, 4, 30, 3, dtype=torch.float64), continual.init_state(2)
    steps = [continual.forward_step(frame, state) for frame in x.unbind(2)]
    own = net.conv(x)  # but for the zeros at the end of a clip
    for t in (12, 20, 28):
        mean = own[:, :, t - 11 : t + 1].flatten(2)
        wanted = mean.mean(2) if pool is F.avg_pool2d else mean.amax(2)
        torch.testing.assert_close(steps[t + 1], net.fc(wanted[..., None, None]).flatten(1))


def test_a_fixed_pooling_as_long_as_the_clip_is_reported():
    net = nn.Sequential(nn.Conv2d(4, 4, (3, 1)), nn.AvgPool2d((10, 3)), nn.Conv2d(4, 5, 1))
    example = torch.randn(1, 4, 12, 3)
    literal = co.convert(net, example)
    assert literal.stride == 10
    assert "an output every 10 frames; for one at each: approximate=['running mean']" in str(
        literal.report()
    )
    running = co.convert(net, example, approximate=MEAN)
    assert (running.stride, running.delay) == (1, 2)
    sliding = nn.Sequential(nn.AvgPool2d((10, 3), (1, 1)))
    assert co.convert(sliding, example, approximate=MEAN).stride == 1
    with pytest.raises(co.ConversionError, match="pools all frames, and"):
        co.convert(_Pools(lambda x: (x.shape[2], 2)), example, approximate=MEAN)


def _wrapped() -> nn.Module:
    net = _Reads(lambda x: net.inner(x))
    net.inner = co.Conv1d(4, 4, 3)
    return net


@pytest.mark.parametrize(
    ("make", "example", "error", "message"),
    [
        (
            lambda: co.convert(nn.Conv1d(4, 4, 3), torch.zeros(SOUND)),
            SOUND,
            None,
            "already; use its",
        ),
        (lambda: co.Sequential(nn.Conv1d(4, 4, 3)), SOUND, None, "Sequential is continual already"),
        (_wrapped, SOUND, None, "inner is continual already"),
        (lambda: torch.relu, SOUND, TypeError, "an nn.Module, not 'relu'"),
        (lambda: nn.ReLU(), [0.0], TypeError, "a tensor, not list"),
        (lambda: nn.ReLU(), (1, 4, 0), None, r"\(1, 4, 0\) is empty"),
        (lambda: nn.ReLU(), (0, 4, 9), None, "is empty"),
    ],
)
def test_what_is_not_an_ordinary_network_or_clip(make, example, error, message):
    clip = torch.randn(example) if isinstance(example, tuple) else example
    with pytest.raises(error or co.ConversionError, match=message):
        co.convert(make(), clip)


def test_layers_that_do_nothing_yet_are_seen():
    """Weights of zero hide that a layer mixes frames; analysis changes them in a copy."""
    net = nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4))
    nn.init.zeros_(net[1].weight)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(co.ConversionError, match="GroupNorm"):
        co.convert(net, torch.randn(SOUND))
    assert all(torch.equal(a, before[k]) for k, a in net.state_dict().items())


class _Calls(nn.Module):
    """A function of a clip and of parameters ``w`` [4, 4, 3] and ``b`` [4]."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(4, 4, 3)), nn.Parameter(torch.randn(4))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class _Attends(nn.Module):
    """``nn.MultiheadAttention`` of rows to one another, or ``F.scaled_dot_product_attention``."""

    def __init__(self, mask: Tensor | None = None, layer: Any = nn.MultiheadAttention, **options):
        super().__init__()
        self.layer = None if layer is None else layer(8, 2, batch_first=True, **options)
        self.register_buffer("mask", mask)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is not None:
            return self.layer(x, key=x, value=x, attn_mask=self.mask, need_weights=False)[0]
        return F.scaled_dot_product_attention(x, 2 * x, 3 * x, self.mask, **self.options)


class _Twice(nn.MultiheadAttention):
    def forward(self, query: Tensor, **given: Any) -> Any:
        out, weights = super().forward(query, given["key"], given["value"])
        return 2 * out, weights


class _Scaled(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, **_: Any) -> Tensor:
        x = self.norm1(src + 0.1 * self._sa_block(src, None, None))
        return self.norm2(x + 0.1 * self._ff_block(x))


def _encoder(mask: Tensor) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return _Masked(encoder, mask)


class _Masked(nn.Module):
    def __init__(self, encoder: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.encoder, self.mask = encoder, mask

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, self.mask)


def _convolved(x: Tensor) -> Tensor:
    rows = F.max_pool1d(x, 3, 1).transpose(1, 2)
    return rows + F.scaled_dot_product_attention(rows, rows, rows)


_AGES = torch.arange(12)[:, None] - torch.arange(12)
_LATER, _FAR = _AGES < 0, _AGES.abs() > 2
_CAUSAL = nn.Transformer.generate_square_subsequent_mask(12)
# networks whose newest output is that of the clip of the newest frames, as many as the example has
AGREES: dict[str, tuple[nn.Module, tuple[int, ...], int, tuple[str, ...]]] = {
    "keyword bias": (_Calls(lambda m, x: F.conv1d(x, m.w, bias=m.b).mean(2)), SOUND, 2, MEAN),
    "keyword weight": (_Calls(lambda m, x: F.conv1d(x, weight=m.w).mean(2)), SOUND, 2, MEAN),
    "axis": (_Calls(lambda m, x: F.conv1d(x, m.w, m.b).mean(axis=2)), SOUND, 2, MEAN),
    "input": (_Reads(lambda x: torch.mean(input=x, dim=2)), SOUND, 2, MEAN),
    "attention": (_Attends(), ROWS, 1, WINDOW),
    "causal mask": (_Attends(_CAUSAL), ROWS, 1, WINDOW),
    "bool mask": (_Attends(_LATER), ROWS, 1, WINDOW),
    "scale": (_Attends(None, None, scale=3.0), ROWS, 1, WINDOW),
    "function, bool mask": (_Attends(~_LATER, None), ROWS, 1, WINDOW),
    "own forward": (nn.Sequential(_Scaled(8, 2, 16, batch_first=True)), ROWS, 1, WINDOW),
    "encoder": (_encoder(_CAUSAL), ROWS, 1, WINDOW),
    "shorter": (_Reads(_convolved), (1, 8, 12), 2, WINDOW),
}


@pytest.mark.parametrize("name", AGREES)
def test_newest_output_for_the_example_is_exact(name):
    net, shape, axis, approximate = AGREES[name]
    net, clip = net.double().eval(), torch.randn(2, *shape[1:]).double()
    continual = co.convert(net, clip[:1], axis, approximate=approximate)
    state = continual.init_state(2, clip.select(axis, 0)[:1])
    stream = torch.cat([torch.randn_like(clip), clip], axis)
    with torch.no_grad():
        wanted = net(clip)
    for frames in (clip, stream):  # at first, and later
        state.reset()
        newest = [continual.forward_step(x, state) for x in frames.unbind(axis)][-1]
        wanted = wanted if wanted.dim() == newest.dim() else wanted.select(wanted.dim() - 2, -1)
        torch.testing.assert_close(newest, wanted, rtol=0, atol=1e-9)


LEFT_OUT = [
    (_Attends(_FAR), "has a mask"),
    (_Attends(_AGES.double(), None), "has a mask"),
    (_Attends(_LATER, None), "has a mask"),
    (_encoder(_FAR), "has a mask"),
    (_Attends(None, None, dropout_p=0.5), "dropout"),
    (_Reads(lambda x: F.scaled_dot_product_attention(x, key=x, value=x)), "by position"),
    (_Attends(add_zero_attn=True), "adds a step"),
    (_Attends(add_bias_kv=True), "adds a step"),
    (_Attends(layer=_Twice), "copied|traced|every frame alone"),
]


@pytest.mark.parametrize(("net", "message"), LEFT_OUT)
def test_what_attention_would_lose_is_refused(net, message):
    with pytest.raises(co.ConversionError, match=message):
        co.convert(net, torch.randn(ROWS), 1, approximate=WINDOW)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: F.conv1d(x, m.w, m.b * 2), "its bias is computed"),
        (lambda m, x: F.conv1d(x, m.w * 2), "its weight is computed"),
        (lambda m, x: F.max_pool1d(x, 3, 1, 0, 1, False, True)[0], "indices"),
        (lambda m, x: F.avg_pool2d(x[:, None], (2, 3), 1, 0, False, True, 2)[:, 0], "divisor"),
        (lambda m, x: F.conv1d(x, torch.ones(4, 4, 3)), "its weight is computed"),
    ],
)
def test_what_a_function_would_lose_is_refused(function, message):
    with pytest.raises(co.ConversionError, match=message):
        co.convert(_Calls(function), torch.randn(SOUND))


def test_short_examples_are_refused():
    with pytest.raises(co.ConversionError, match="longer example"):
        co.convert(nn.Conv1d(4, 4, 50), torch.randn(SOUND))


def test_tensors_made_in_forward_are_kept():
    net = _Calls(lambda m, x: F.conv1d(x, m.w, m.b) * torch.full((4, 1), 2.0))
    clip = torch.randn(SOUND)
    continual = co.convert(net, clip)
    torch.testing.assert_close(continual(clip), net(clip))
    torch.testing.assert_close(continual.forward_steps(clip, continual.init_state()), net(clip))


def test_whole_numbers_stay_complete():
    net = _Calls(lambda m, x: m.gru(m.table(x))[0])
    net.table, net.gru = nn.Embedding(10, 4), nn.GRU(4, 3, batch_first=True)
    clip = torch.randint(0, 10, (1, 12))
    continual = co.convert(net, clip, 1)
    assert continual.count_macs() > 0
    steps = continual.forward_steps(clip, continual.init_state())
    torch.testing.assert_close(steps, net(clip))


def test_own_forward_of_a_sequential_is_not_lost():
    class Res(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    net, clip = Res(nn.Conv1d(4, 4, 3, padding=1)), torch.randn(SOUND)
    torch.testing.assert_close(co.convert(net, clip)(clip), net(clip))
    with pytest.raises(ValueError, match="overrides forward"):
        co.as_part(net)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"approximate": ["magic"]}, "magic"),
        ({"time_axis": 0}, "1 or more"),
        ({"time_axis": 3}, "1 or"),
        ({"window": 0}, "1 or more"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        co.convert(nn.Conv1d(4, 4, 3), torch.randn(SOUND), **options)


class _Adds(nn.Module):
    def __init__(self, kernel: int, dilation: int) -> None:
        super().__init__()
        self.long = nn.Conv1d(4, 4, kernel, padding=dilation * (kernel // 2), dilation=dilation)
        self.short = nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.long(x)) + self.short(x)


_KERNELS, _STRIDES = st.integers(1, 4), st.integers(1, 3)
_LAYERS = st.one_of(
    st.builds(
        lambda k, s, d, p: nn.Conv1d(4, 4, k, s, min(p, d * (k - 1)), d),
        *(_KERNELS, _STRIDES, _STRIDES, st.integers(0, 4)),
    ),
    st.builds(lambda k, s, p: nn.MaxPool1d(k, s, min(p, k // 2)), _KERNELS, _STRIDES, _STRIDES),
    st.builds(lambda k, s: nn.AvgPool1d(k, s), _KERNELS, _STRIDES),
    st.builds(_Adds, st.sampled_from([3, 5]), _STRIDES),
    st.builds(nn.SiLU),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_LAYERS, min_size=1, max_size=5), st.integers(24, 40))
def test_any_stack_is_the_network_itself(layers, length):
    net, clip = nn.Sequential(*layers).double().eval(), torch.randn(2, 4, length).double()
    with torch.no_grad():
        try:
            wanted = net(clip)
            continual = co.convert(net, clip)
        except (RuntimeError, co.ConversionError):
            assume(False)  # too short for these layers
        torch.testing.assert_close(continual(clip), wanted, rtol=0, atol=1e-9)
        steps = continual.forward_steps(clip, continual.init_state(2))
        count = 0 if steps is None else steps.shape[2]
        assert count == max(0, -((continual.delay - length) // continual.stride))
        torch.testing.assert_close(steps, wanted[:, :, :count], rtol=0, atol=1e-9)


class _Parts(nn.Module):
    """Takes the outputs of its layers apart, as is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRU(4, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(x)
        y, (_h, _c) = self.lstm(y)
        return y


class _Difference(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, 1:] - x[:, :, :-1], (1, 0))


class _Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(torch.log(x), 3, 1)


class _Chomp(nn.Module):
    """Keeps of a padded convolution what is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[:, :, :-2].relu()


@pytest.mark.parametrize("kind", [_Parts, _Difference, _Logarithm, _Chomp])
def test_usual_forms(kind):
    torch.manual_seed(0)
    axis, model = 1 if kind is _Parts else 2, kind().eval()
    clip = torch.rand(2, 15, 15)[:, :, :4].transpose(1, axis) + 0.1
    net = co.convert(model, clip, axis)
    torch.testing.assert_close(net(clip), model(clip))
    state = net.init_state(2)
    torch.testing.assert_close(net.forward_steps(clip, state), net(clip))


def test_layers_of_an_encoder_that_differ():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    encoder.layers[1].norm_first = True
    with pytest.raises(co.ConversionError, match="layer 1 differs from the first"):
        co.convert(encoder, torch.randn(1, 12, 8), 1, approximate=WINDOW)


def test_weights_that_are_not_numbers():
    layer = nn.Conv1d(4, 4, 3).eval()
    layer.weight.data[0] = torch.nan
    with pytest.raises(co.ConversionError, match="are not finite"):
        co.convert(layer, torch.randn(1, 4, 12))


def test_eight_bit_layers_take_rows_of_a_clip():
    torch.manual_seed(0)
    net = co.to_int8(co.convert(nn.Linear(2048, 512).eval(), torch.randn(1, 4, 2048), 1))
    clip = torch.randn(2, 4, 2048)
    state = net.init_state(2)
    stepped = [net.forward_step(x, state) for x in clip.unbind(1)]
    torch.testing.assert_close(torch.stack(stepped, 1), net(clip), rtol=0, atol=1e-4)
