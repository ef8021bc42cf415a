"""Convolutions with their activation: the readable form is the reference, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costream.nn import fast, fused
from costream.nn.choices import choices
from kit.choices import taking

ACTIVATIONS = [
    (fused.IDENTITY, lambda x: x),
    (fused.RELU, F.relu),
    (fused.RELU6, F.relu6),
    (fused.HARD_SWISH, F.hardswish),
    (fused.leaky_relu(0.1), lambda x: F.leaky_relu(x, 0.1)),
]


def random_layer(channels: int, out: int, kernel: int, stride: int, depthwise: bool) -> nn.Conv2d:
    groups = channels if depthwise else 1
    out = channels if depthwise else out
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=out % 2 == 0)


@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 2, st.sampled_from([1, 3, 5]), st.integers(1, 2)),
    depthwise=st.booleans(),
    shape=st.tuples(st.integers(1, 3), st.integers(3, 19), st.integers(3, 19)),
    pads=st.none() | st.tuples(*[st.integers(0, 1)] * 2),
    kind=st.sampled_from(ACTIVATIONS),
)
@settings(max_examples=30, deadline=None)
def test_a_fused_convolution_is_the_layer_and_its_activation(sizes, depthwise, shape, pads, kind):
    layer = random_layer(*sizes, depthwise)
    activation, reference = kind
    around = None
    if pads is not None:  # one more behind, as in TensorFlow, or the same
        layer.padding, half = (0, 0), layer.kernel_size[0] // 2
        around = (half, half + pads[0], half, half + pads[1])
    count, *size = shape
    x = torch.randn(count, layer.in_channels, *size).contiguous(memory_format=torch.channels_last)
    exact = copy.deepcopy(layer).double()
    with torch.no_grad():
        out = fused.convolve(layer, x, activation, around)
        expected = reference(exact(x.double() if around is None else F.pad(x.double(), around)))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("way", ["oneDNN", "product"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(8, 24, 19), (96, 40, 7), (33, 5, 1), (2, 64, 45)])
def test_pointwise_convolutions_are_the_same_by_either_way(way, kind, sizes):
    channels, out, side = sizes
    layer, x = nn.Conv2d(channels, out, 1), torch.randn(2, channels, side, side)
    activation, reference = kind
    expected = reference(copy.deepcopy(layer).double()(x.double()))
    with taking(way), torch.no_grad():
        found = fused.convolve(layer, x, activation)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not fused.available(), reason="PyTorch without oneDNN's operators")
def test_pointwise_convolutions_are_measured_once_for_sizes_like_these():
    kept = {}
    choices.keep_in(kept)
    with torch.no_grad():
        for size in (9, 10, 11):
            fused.convolve(nn.Conv2d(8, 16, 1), torch.randn(1, 8, size, size), fused.RELU)
        assert [*kept] == ["pointwise, 81 x 8 x 16, relu, 1 thread"]
        fused.convolve(nn.Conv2d(8, 16, 1), torch.randn(1, 8, 12, 12), fused.RELU)
    choices.keep_in({})
    assert len(kept) == 2


def test_large_outputs_of_pointwise_convolutions_are_equal():
    layer, x = nn.Conv2d(8, 64, 1), torch.randn(1, 8, 64, 64)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        out = fused.convolve(layer, x, fused.RELU6)
        torch.testing.assert_close(out, F.relu6(layer(x)), rtol=1e-5, atol=1e-6)
        rows = [fused.convolve(layer, part, fused.RELU6) for part in x.split(8, 2)]
    torch.testing.assert_close(torch.cat(rows, 2), out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", ["in place", "loaded", "other data", "other parameter"])
def test_changed_weights_are_noticed(change):
    layer, x = nn.Conv2d(4, 4, 3, groups=4), torch.randn(1, 4, 5, 5)
    other = nn.Conv2d(4, 4, 3, groups=4)
    with torch.no_grad():
        fused.convolve(layer, x)
        if change == "in place":
            layer.weight.mul_(2)
        elif change == "loaded":
            layer.load_state_dict(other.state_dict())
        elif change == "other data":
            layer.bias.data = other.bias.data
        else:
            layer.weight = other.weight
        torch.testing.assert_close(fused.convolve(layer, x), layer(x))


def test_gradients_hooks_and_other_types_use_the_layer():
    layer, x = nn.Conv2d(4, 4, 1), torch.randn(1, 4, 5, 5)
    with torch.enable_grad():
        fused.convolve(layer, x, fused.RELU).sum().backward()
    assert layer.weight.grad is not None
    seen = []
    layer.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        fused.convolve(layer, x)
        out = fused.convolve(copy.deepcopy(layer).double(), x.double(), fused.RELU)
    assert len(seen) == 2
    assert out.dtype == torch.float64


@pytest.mark.skipif(not fused.available(), reason="PyTorch without oneDNN's operators")
def test_the_readable_form_is_chosen_by_use_kernels():
    layer, x = nn.Conv2d(3, 8, 3, padding=1), torch.randn(1, 3, 9, 9)
    with torch.no_grad(), fast.use_kernels(False):
        assert torch.equal(fused.convolve(layer, x), layer(x))


@pytest.mark.parametrize("kernel", [1, 3])
def test_bfloat16_is_rounded_and_mixed_types_are_refused(kernel):
    layer, x = nn.Conv2d(8, 16, kernel), torch.randn(2, 8, 9, 9)
    low = copy.deepcopy(layer).bfloat16()
    with torch.no_grad():
        out = fused.convolve(low, x.bfloat16(), fused.RELU)
        torch.testing.assert_close(out.float(), F.relu(layer(x)), rtol=0.03, atol=0.03)
        with pytest.raises(RuntimeError):
            fused.convolve(low, x)
