"""Stepwise equals clipwise, and both equal torch's convolution of the padded clip."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.nn.convolution import TimeFrequencyConvolution

KERNELS = (((3, 3), (1, 1)), ((3, 3), (2, 2)), ((3, 3), (1, 2)), ((2, 4), (2, 1)), ((5, 1), (3, 1)))


def build(kernel, stride, bias=True):
    layer = TimeFrequencyConvolution(2, 3, kernel, stride, bias=bias).double()
    if bias:
        torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_clip_is_torchs_convolution_behind_zeros(kernel, stride, bias):
    layer, x = build(kernel, stride, bias), torch.randn(2, 12, 8, 2, dtype=torch.float64)
    images = F.pad(x.permute(0, 3, 1, 2), (0, 0, kernel[0] - stride[0], 0))
    pads = (0, (kernel[1] - 1) // 2 if kernel[1] % 2 else 0)
    weight = layer.weight.contiguous()
    expected = F.conv2d(images, weight, layer.bias, stride, pads).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert expected.shape[1:3] == (12 // stride[0], layer.bands(8))


@given(st.sampled_from(KERNELS), st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_chunks_give_the_clip(shape, chunks):
    kernel, stride = shape
    layer, total = build(kernel, stride), sum(chunks) * stride[0]
    x = torch.randn(2, total, 8, 2, dtype=torch.float64)
    past = layer.init_state(2, 8)
    parts = x.split([n * stride[0] for n in chunks], 1)
    out = torch.cat([layer.forward_steps(part, past) for part in parts], 1)
    torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-12)


def test_operations_are_those_of_the_outputs():
    layer = build((3, 3), (2, 2))
    outputs = layer(torch.zeros(1, 16, 8, 2, dtype=torch.float64))
    assert layer.count_macs(16, 8) == outputs.numel() // 3 * layer.weight.numel()


def test_learns():
    layer = build((3, 3), (1, 1))
    with torch.enable_grad():
        layer(torch.randn(1, 6, 8, 2, dtype=torch.float64)).square().sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in layer.parameters())


@pytest.mark.parametrize("sizes", [((2, 3), (3, 1)), ((3, 3), (0, 1)), ((3, 3), (1, 0))])
def test_a_stride_must_fit_its_kernel(sizes):
    with pytest.raises(ValueError, match="strides"):
        TimeFrequencyConvolution(1, 1, *sizes)
