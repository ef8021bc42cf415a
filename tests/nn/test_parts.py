"""Parts and their compositions: a stream gives what a clip gives, whatever is composed."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import continual
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import costream.nn as co
from kit import plain_nets as plain
from kit.stepping import check_part, chunkings

CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "dilation", "groups", "padding_mode")
CONVOLUTION += ("weight", "bias")
POOLING = ("kernel_size", "ceil_mode")
RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout")
WIDTH = 4  # of random networks, at every place, so that any of them can follow any other


@st.composite
def layers(draw: Any) -> Any:
    """A layer over [B, 4, T, 3] with memory, or one without."""
    kind = draw(st.sampled_from(["conv", "conv", "max", "avg", "delay", "pad", "mean", "plain"]))
    kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    stride, reach = draw(st.sampled_from([1, 1, 1, 2, 3])), (kernel - 1) * dilation
    padding = draw(st.integers(0, reach // 2 if kind == "max" else reach))
    if kind == "conv":
        joints, groups = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2, 4]))
        sizes = {"stride": (stride, 1), "padding": (padding, joints // 2)}
        options = {"dilation": (dilation, 1), "groups": groups}
        return co.Conv2d(WIDTH, WIDTH, (kernel, joints), **sizes, **options)
    if kind == "max":
        padding = min(padding, kernel // 2)
        return co.MaxPool2d((kernel, 1), (stride, 1), (padding, 0), (dilation, 1))
    if kind == "avg":
        return co.AvgPool2d((kernel, 1), (stride, 1), (min(padding, kernel // 2), 0))
    if kind == "delay":
        return draw(st.sampled_from([co.Delay(kernel), co.Skip(kernel - 1, stride)]))
    if kind == "pad":
        return co.Sequential(
            co.Pad(reach), co.Conv2d(WIDTH, WIDTH, (kernel, 1), dilation=(dilation, 1))
        )
    if kind == "mean":
        return co.RunningMean(kernel)
    plain = [
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        co.Linear(WIDTH, WIDTH),
        nn.Conv2d(WIDTH, WIDTH, (3, 1)),
    ]
    return draw(st.sampled_from(plain))


def _compose(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    reductions = st.sampled_from(["sum", "mul", "max"])

    def build(kind: str, modules: list[Any], reduce: str) -> Any:
        strides = {co.as_part(module).stride for module in modules}
        if kind == "branches" and len(strides) == 1:
            return co.Parallel(*modules, reduce=reduce)
        if kind == "residual" and strides == {1}:
            return co.Residual(co.Sequential(*modules), reduce=reduce)
        return co.Sequential(*modules)

    kinds = st.sampled_from(["sequence", "residual", "branches"])
    return st.builds(build, kinds, several, reductions)


networks = st.recursive(layers(), _compose, max_leaves=7)


def _check_random(net: Any, chunks: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    part = co.as_part(net).double().eval()
    for parameter in part.parameters():
        parameter.data.uniform_(-1, 1).div_(parameter[0].numel() ** 0.5)
    length = min(part.receptive_field + 4 * part.stride + 3, 400)
    clip = torch.randn(2, WIDTH, length, 3, dtype=torch.float64)
    if part(clip).shape[2]:
        check_part(part, clip, chunks)


@settings(max_examples=25)
@given(net=networks, chunks=chunkings, seed=st.integers(0, 99))
def test_random_graphs(net, chunks, seed):
    _check_random(net, chunks, seed)


@pytest.mark.long
@settings(max_examples=500)
@given(net=networks, chunks=chunkings, seed=st.integers(0, 99))
def test_five_hundred_random_graphs(net, chunks, seed):
    _check_random(net, chunks, seed)


def _norm_relu(module: nn.Module, channels: int) -> Any:
    return co.Sequential(module, nn.BatchNorm3d(channels), nn.ReLU())


# The compositions of continual-inference's README, in these parts, narrower.
README = {
    "residual": lambda: co.Residual(co.Conv3d(8, 8, kernel_size=3, padding=1)),
    "explicit residual": lambda: co.Sequential(
        co.Broadcast(2),
        co.Parallel(co.Conv3d(8, 8, kernel_size=3, padding=1), co.Delay(0), reduce=None),
        co.Reduce("sum"),
    ),
    "mb_conv": lambda: co.Residual(
        co.Sequential(
            co.Conv3d(8, 16, kernel_size=(1, 1, 1)),
            nn.BatchNorm3d(16),
            nn.ReLU6(),
            co.Conv3d(16, 16, kernel_size=(3, 3, 3), padding=(1, 1, 1), groups=16),
            nn.ReLU6(),
            co.Conv3d(16, 8, kernel_size=(1, 1, 1)),
            nn.BatchNorm3d(8),
        )
    ),
    "squeeze and excitation": lambda: co.Residual(
        co.Sequential(
            OrderedDict(
                pool=co.RunningMean(7, dims=(-2, -1)),
                down=co.Conv3d(8, 2, kernel_size=1),
                act1=nn.ReLU(),
                up=co.Conv3d(2, 8, kernel_size=1),
                act2=nn.Sigmoid(),
            )
        ),
        reduce="mul",
    ),
    "inception": lambda: co.Parallel(
        co.Conv3d(8, 4, kernel_size=1),
        co.Sequential(
            _norm_relu(co.Conv3d(8, 4, kernel_size=1), 4),
            _norm_relu(co.Conv3d(4, 6, kernel_size=3, padding=1), 6),
        ),
        co.Sequential(
            _norm_relu(co.Conv3d(8, 2, kernel_size=1), 2),
            _norm_relu(co.Conv3d(2, 3, kernel_size=5, padding=2), 3),
        ),
        co.Sequential(
            co.MaxPool3d(kernel_size=(1, 3, 3), padding=(0, 1, 1), stride=1),
            _norm_relu(co.Conv3d(8, 3, kernel_size=1), 3),
        ),
        reduce="concat",
    ),
    "strided branches": lambda: co.Parallel(  # a block of R3D: 3 steps and 0, and a stride of 2
        co.Sequential(
            co.Conv3d(8, 4, 3, stride=(2, 1, 1), padding=1), co.Conv3d(4, 8, 3, padding=1)
        ),
        co.Conv3d(8, 8, 1, stride=(2, 1, 1)),
    ),
    "average": lambda: co.AvgPool3d((4, 2, 2), (1, 2, 2)),
    "maximum": lambda: co.MaxPool3d((3, 2, 2), (2, 2, 2), (1, 1, 0)),
}


@pytest.mark.parametrize("name", README)
def test_compositions(name):
    net = README[name]().double().eval()
    check_part(net, torch.randn(2, 8, 19, 5, 5, dtype=torch.float64), [3, 1, 6])


ROWS = {
    "gru": lambda: co.GRU(8, 5, 2),
    "lstm": lambda: co.LSTM(8, 5, batch_first=True),
    "rnn": lambda: co.RNN(8, 5),
    "tcn": lambda: co.Sequential(
        nn.Conv1d(8, 8, 3, dilation=8), nn.LayerNorm(8), co.GRU(8, 4), nn.Linear(4, 2)
    ),
    "pad": lambda: co.Sequential(nn.Conv1d(8, 8, 3), co.GRU(8, 8), co.Pad(4), nn.Conv1d(8, 2, 5)),
    "pads": lambda: co.Sequential(
        *(co.Pad(4), nn.Conv1d(8, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.Conv1d(8, 8, 2)),
        co.Residual(co.Sequential(co.Pad(2), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 3))),
        *(co.Sequential(co.Pad(2), nn.Conv1d(8, 8, 3)), nn.Linear(8, 8), co.Pad(1, value=2.0)),
        *(nn.Conv1d(8, 8, 1), nn.MaxPool1d(3, 1)),
    ),
    "pad and stride": lambda: co.Sequential(
        *(co.Pad(4), nn.Conv1d(8, 8, 3, stride=2), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 3, 2))
    ),
    "encoder": lambda: co.Sequential(
        nn.Conv1d(8, 8, 3, padding=1), co.Encoder(co.EncoderConfig(8, 2, 8, 2, 6)), nn.Linear(8, 3)
    ),
    "deep": lambda: co.Residual(co.DeepEncoder(co.EncoderConfig(8, 2, 8, 3, 5), rotary=True)),
    "conditional": lambda: co.Conditional(lambda x: bool(x.mean() > 0), nn.Conv1d(8, 8, 1)),
    "constant": lambda: co.Sequential(lambda x: 2 * x + 1, co.Conv1d(8, 8, 2)),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    net = ROWS[name]().double().eval()
    check_part(net, torch.randn(2, 8, 31, dtype=torch.float64), [2, 1, 7])


@pytest.mark.parametrize("kind", [co.RNN, co.GRU, co.LSTM])
def test_dropout_ends_with_evaluation(kind):
    net = co.Sequential(kind(8, 6, 2, dropout=0.5)).double()
    clip = torch.randn(2, 8, 9, dtype=torch.float64)
    assert not torch.equal(net(clip), net(clip))
    check_part(net.eval(), clip, [2, 1, 3])
    assert torch.equal(net(clip), net(clip))


@pytest.mark.parametrize("reduce", ["sum", "mul", "max", "concat"])
def test_networks_are_pickled(reduce):
    net = co.Sequential(
        co.Residual(co.Conv1d(4, 4, 3, padding=1), reduce),
        co.Broadcast(2),
        co.Parallel(nn.ReLU(), nn.Sigmoid(), reduce=None),
        co.Reduce(reduce),
        co.Parallel(nn.Tanh(), nn.ReLU(), reduce=reduce),
    )
    clip = torch.randn(1, 4, 9)
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(clip), net(clip))
    state = again.init_state(1, clip[:, :, 0])
    steps = again.forward_steps(clip, state)
    torch.testing.assert_close(steps, net(clip)[:, :, : 9 - net.delay])


def test_costs_and_repetition():
    net = co.Sequential(
        nn.Conv3d(3, 4, (3, 3, 3), stride=(2, 1, 1), padding=1), nn.Flatten(3), co.RunningMean(4)
    )
    frame = torch.randn(1, 3, 6, 6)
    assert net.count_macs(frame) == 4 * 3 * 27 * 36 // 2
    assert net.receptive_field == 3 + 2 * 3
    assert (net.delay, net.stride) == (1, 2)
    with pytest.raises(ValueError, match=r"give one: init_state\(batch_size, frame\)"):
        net.init_state(2)
    assert co.Conv1d(8, 8, 3).count_macs() == co.Conv1d(8, 8, 3).init_state().empty.shape[1] * 24


@pytest.mark.parametrize("kind", [co.Encoder, co.DeepEncoder])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_costs_of_blocks_are_those_of_full_windows(kind, depth):
    block = kind(co.EncoderConfig(8, 2, 16, depth, 6))
    net = co.Sequential(nn.Conv1d(4, 8, 3), block)
    assert net.count_macs(torch.zeros(1, 4)) == 4 * 8 * 3 + block.count_macs()
    soft = co.DeepEncoder(co.EncoderConfig(8, 2, 16, depth, 6), attention="soft")
    assert co.as_part(soft).count_macs() == soft.count_macs()


def test_costs_of_fused_layers():
    assert co.QueryAttention(8, 2, 6).count_macs() == 4 * 64 + 2 * 6 * 8
    assert co.LSTM(8, 4, num_layers=2).count_macs() == 4 * 4 * (8 + 4) + 4 * 4 * (4 + 4)
    assert (co.GRU(8, 4).count_macs(), co.RNN(8, 4).count_macs()) == (144, 48)
    allowed = {"time_axis": 1, "approximate": ["windowed attention"]}
    attention = co.convert(plain.SelfAttention(), torch.zeros(1, 64, 8), **allowed)
    assert attention.count_macs() == 4 * 64 + 2 * 64 * 8
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    within = co.Stateless(lambda x: layer(x.transpose(1, 2)))  # attends in each frame
    assert within.count_macs(torch.zeros(1, 8)) == 4 * 64 + 2 * 8 + 2 * 8 * 16
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    net = co.convert(encoder, torch.zeros(1, 64, 8), **allowed)
    assert net.count_macs() == 2 * (4 * 64 + 2 * 64 * 8 + 2 * 8 * 16)


def test_weights_are_those_of_torch():
    plain = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.GRU(5, 2))
    ours = co.Sequential(OrderedDict(plain.named_children()))
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert all(a is b for a, b in zip(ours.parameters(), plain.parameters(), strict=True))
    clip = torch.randn(1, 3, 12)
    state = ours.init_state()
    before = ours.forward_steps(clip, state.clone())
    with torch.no_grad():
        plain[0].weight.mul_(2)
    assert not torch.equal(before, ours.forward_steps(clip, state))


def test_states_are_saved_and_continue():
    net = README["strided branches"]()
    clip = torch.randn(2, 8, 16, 4, 4)
    state = net.init_state(2, clip[:, :, 0])
    net.forward_steps(clip[:, :, :7], state)
    other = net.init_state(2, clip[:, :, 0])
    other.load_tensors({name: t.clone() for name, t in state.tensors().items()})
    expected = net.forward_steps(clip[:, :, 7:], state)
    torch.testing.assert_close(net.forward_steps(clip[:, :, 7:], other), expected)


OURS_AND_THEIRS = [
    (co.Conv1d(4, 4, 3), continual.Conv1d(4, 4, 3)),
    (co.Conv1d(4, 4, 3, padding=1), continual.Conv1d(4, 4, 3, padding=1)),
    (co.AvgPool1d(3, 1), continual.AvgPool1d(3, 1)),
    (co.MaxPool1d(4, 1), continual.MaxPool1d(4, 1)),
    (
        co.Residual(nn.Conv1d(4, 4, 3)),
        continual.Residual(continual.Conv1d(4, 4, 3), residual_shrink=True),
    ),
    (
        co.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 5)),
        continual.Sequential(continual.Conv1d(4, 4, 3), nn.ReLU(), continual.Conv1d(4, 4, 5)),
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), OURS_AND_THEIRS)
def test_same_as_continual_inference(ours, theirs):
    """Clips give the same outputs with the same weights, and receptive fields agree."""
    theirs.eval()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    for own, other in pairs:
        own.data.copy_(other)
    clip = torch.randn(1, 4, 20)
    assert ours.receptive_field == theirs.receptive_field
    torch.testing.assert_close(ours.eval()(clip), theirs.forward(clip))
    state = ours.init_state(1, clip[:, :, 0])
    expected = [theirs.forward_step(frame) for frame in clip.unbind(2)]
    expected = [x for x in expected if isinstance(x, Tensor)]
    stepped = ours.forward_steps(clip, state)
    newest = min(len(expected), stepped.shape[2])
    torch.testing.assert_close(stepped[:, :, -newest:], torch.stack(expected[-newest:], 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: co.Parallel(nn.Conv1d(1, 1, 1), nn.Conv1d(1, 1, 1, stride=2)), "strides"),
        (lambda: co.Residual(nn.Conv1d(1, 1, 1, stride=2)), "shortcut"),
        (lambda: co.GRU(2, 2, bidirectional=True), "bidirectional=False"),
        (lambda: co.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), "zeros"),
        (lambda: co.Conv1d(1, 1, 2, padding="same"), "even kernel"),
        (lambda: co.AvgPool1d(3, 1, 1, count_include_pad=False), "count_include_pad"),
        (lambda: co.Parallel(nn.ReLU(), reduce="median"), "is not one of"),
        (lambda: co.Sequential(co.Broadcast(2), nn.ReLU()), "Reduce must follow"),
        (lambda: co.Sequential(co.Broadcast(2)), "Reduce must follow"),
        (lambda: co.Conditional(bool, nn.Conv1d(1, 1, 3)), "delay 2"),
        (lambda: co.Delay(-1), "at least 0"),
        (lambda: co.RunningMax(0), "1 or more"),
        (lambda: co.LayerNorm((4, 5)), "channels alone"),
        (lambda: co.Sequential(nn.GroupNorm(2, 4)), "every frame alone"),
        (lambda: co.Sequential(nn.ConstantPad1d((2, 0), 0.0)), "every frame alone"),
        (lambda: co.Sequential(nn.AdaptiveAvgPool3d(1)), "every frame alone"),
        (lambda: co.Sequential(nn.Upsample(scale_factor=2)), "every frame alone"),
        (lambda: co.as_part(nn.Flatten()), "every frame alone"),
        (lambda: co.as_part(nn.MultiheadAttention(4, 2)), "use convert, or an Encoder"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "net",
    [
        co.Pad(1),
        co.Sequential(co.Pad(3), nn.Conv1d(4, 4, 3)),
        co.Sequential(nn.Conv1d(4, 4, 2), co.Sequential(co.Pad(1), nn.Conv1d(4, 4, 1))),
    ],
)
def test_padding_that_no_layer_reaches_over_is_refused(net):
    with pytest.raises(ValueError, match="the layer after a Pad has to reach back over it"):
        net.init_state(1, torch.zeros(1, 4))


@pytest.mark.parametrize("shape", [(2, 4), (1, 5), (4,), (1, 4, 2, 1)])
def test_a_frame_of_another_shape_leaves_the_state_as_it_is(shape):
    net, clip = co.Sequential(co.Skip(2, 2), co.Conv1d(4, 4, 2)), torch.randn(1, 4, 9)
    state = net.init_state(1, clip[:, :, 0])
    for take in (net.forward_step, net.forward_steps):
        with pytest.raises(ValueError, match="does not fit the state for"):
            take(torch.zeros(shape), state)
    torch.testing.assert_close(net.forward_steps(clip, state), net(clip))


MIXING = {  # in clips [B, 4, T, ...] of so many dimensions
    3: [
        *(nn.ReplicationPad1d((2, 0)), nn.CircularPad1d(1), nn.ReflectionPad1d(1)),
        *(nn.ZeroPad1d(1), nn.LPPool1d(2, 3), nn.Upsample(scale_factor=2), nn.Softmax(-1)),
        *(nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, batch_first=True)),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 2, enable_nested_tensor=False),
        nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2), 2),
        *(nn.Flatten(), nn.Softmax(), nn.GLU(), nn.RMSNorm(9), nn.Unflatten(1, (2, 2))),
    ],
    4: [
        *(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, None)), nn.AdaptiveMaxPool2d((3, 3))),
        *(nn.ReplicationPad2d((0, 0, 1, 0)), nn.CircularPad2d(1), nn.ZeroPad2d((0, 0, 2, 0))),
        *(nn.LPPool2d(2, (3, 1)), nn.Upsample(scale_factor=2.0), nn.Upsample((18, 4))),
        *(nn.Flatten(-2), nn.Softmax(2), nn.Unfold(1), nn.PixelShuffle(2), nn.RMSNorm((9, 4))),
    ],
    5: [
        *(nn.AdaptiveAvgPool3d(1), nn.AdaptiveMaxPool3d((1, None, None)), nn.LPPool3d(2, 3)),
        *(nn.ReplicationPad3d(1), nn.ConstantPad3d((0, 0, 0, 0, 1, 0), 1.0), nn.Flatten(2)),
        nn.Upsample(scale_factor=(2, 1, 1), mode="trilinear"),
    ],
}


@pytest.mark.parametrize("rank", MIXING)
def test_layers_that_mix_frames_are_refused(rank):
    clip = torch.randn(1, 4, 9, 4, 4)[(...,) + (0,) * (5 - rank)]
    for layer in MIXING[rank]:
        with pytest.raises(ValueError, match=f"{type(layer).__name__} does not treat"):
            co.Sequential(layer).init_state(1, clip[:, :, 0])
        with pytest.raises(ValueError, match="does not treat every frame alone"):
            co.Sequential(layer)(clip)


ALONE = {
    3: [nn.Softmax(1), nn.GLU(1), nn.ChannelShuffle(2), nn.LocalResponseNorm(2)],
    4: [
        *(nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveMaxPool2d((None, 2)), nn.RMSNorm(4)),
        *(nn.ReplicationPad2d((1, 2, 0, 0)), nn.ZeroPad2d((1, 0, 0, 0)), nn.Softmax(-1)),
        *(nn.LPPool2d(2, (1, 2), (1, 2)), nn.Upsample(scale_factor=(1, 2)), nn.Flatten(3)),
    ],
    5: [
        *(nn.AdaptiveAvgPool3d((None, 1, 1)), nn.ZeroPad2d(1), nn.Flatten(-2), nn.Softmax(-1)),
        *(
            nn.ConstantPad3d((1, 1, 0, 1, 0, 0), 2.0),
            nn.RMSNorm((4, 4)),
            nn.LPPool3d(2, 1, (1, 2, 2)),
        ),
        nn.ReplicationPad3d((1, 1, 0, 1, 0, 0)),
        nn.Upsample(scale_factor=(1, 2, 2), mode="trilinear"),
    ],
}


@pytest.mark.parametrize("rank", ALONE)
def test_layers_within_frames_are_taken(rank):
    clip = torch.randn(2, 4, 9, 4, 4, dtype=torch.float64)[(...,) + (0,) * (5 - rank)]
    for layer in ALONE[rank]:
        check_part(co.Sequential(layer, co.Delay(1)).double(), clip, [2, 1, 5])


@pytest.mark.parametrize(
    "block",
    [
        co.QueryAttention(8, 2, 6, query_index=0),
        co.Sequential(co.Encoder(co.EncoderConfig(8, 2, 16, 2, 6))),
        co.Sequential(co.DeepEncoder(co.EncoderConfig(8, 2, 16, 2, 6))),
    ],
)
def test_one_frame_is_none_of_several_streams(block):
    state = block.eval().init_state(4)
    with pytest.raises((ValueError, RuntimeError)):
        block.forward_step(torch.randn(1, 8), state)


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        *((getattr(co, f"Conv{n}d")(2, 4, 3, dilation=2), CONVOLUTION) for n in (1, 2, 3)),
        *(
            (getattr(co, f"{kind}Pool{n}d")(3), POOLING)
            for kind in ("Max", "Avg")
            for n in (1, 2, 3)
        ),
        *((getattr(co, kind)(2, 4), RECURRENT) for kind in ("RNN", "GRU", "LSTM")),
        (co.Linear(2, 4), ("in_features", "out_features", "weight", "bias")),
        (co.LayerNorm(4), ("normalized_shape", "eps", "weight", "bias")),
    ],
)
def test_settings_are_those_of_the_ordinary_layer(layer, names):
    """``nn.BatchNorm3d(conv.out_channels)`` in code written for other libraries."""
    copies = (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)))
    for name in names:
        told = [getattr(one, name) for one in copies]
        if isinstance(told[0], torch.Tensor):
            assert told[0] is getattr(layer.layer, name)
        else:
            assert told == [getattr(layer.layer, name)] * 3
    with pytest.raises(AttributeError, match=f"'{type(layer).__name__}' object has no .* 'depth'"):
        _ = layer.depth
    assert not hasattr(layer, "_reversed_padding_repeated_twice")  # its private names stay its own
