from __future__ import annotations

import pytest
import torch
from torch import nn

from costream.nn.functional import gelu, layer_norm, linear


class Pair(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.product = nn.Linear(6, 5, bias=bias)
        self.norm = nn.LayerNorm(6, eps=0.1)
        nn.init.normal_(self.norm.weight)


@pytest.mark.parametrize("bias", [True, False])
def test_calls_without_modules_are_the_modules(bias: bool) -> None:
    pair, x = Pair(bias), torch.randn(3, 4, 6)
    assert torch.equal(linear(pair, "product", x), pair.product(x))
    assert torch.equal(layer_norm(pair, "norm", x), pair.norm(x))


@pytest.mark.parametrize("shape", [(1, 384), (3, 5, 7), (1, 3), (4, 2), (2, 64, 1024)])
def test_gelu_is_exact_for_every_shape(shape: tuple[int, ...]) -> None:
    for x in (torch.randn(shape) * 3, torch.randn(shape).double()):
        exact = x * (1 + torch.erf(x / 2**0.5)) / 2
        assert gelu(x).shape == x.shape
        torch.testing.assert_close(gelu(x), exact, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(gelu(x.mT), exact.mT, atol=2e-6, rtol=1e-5)
