from __future__ import annotations

import pytest
import torch
from torch import nn

from costream.nn.fast import gelu, layer_norm, linear


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


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("shape", [(1, 384), (3, 5, 7), (1, 3), (4, 2), (2, 64, 1024)])
def test_gelu_is_exact_for_every_shape(shape: tuple[int, ...], grad: bool) -> None:
    for x in (torch.randn(shape) * 3, torch.randn(shape).double()):
        exact = x * (1 + torch.erf(x / 2**0.5)) / 2
        with torch.set_grad_enabled(grad):
            for given, wanted in ((x, exact), (x.mT, exact.mT)):
                out = gelu(given.clone())
                assert out.shape == given.shape
                torch.testing.assert_close(out, wanted, atol=2e-6, rtol=1e-5)


def test_gelu_leaves_its_argument_when_a_gradient_is_wanted() -> None:
    x = torch.randn(1, 384, requires_grad=True)
    before = x.detach().clone()
    with torch.enable_grad():
        gelu(x).sum().backward()
    assert torch.equal(x, before)
    assert x.grad is not None
    assert bool(x.grad.any())
