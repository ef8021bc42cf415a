from __future__ import annotations

import pytest
import torch

from costream.nn.graph import SpatialAttention
from kit.skeleton_nets import randomise


@pytest.mark.parametrize("in_width", [6, 32])
def test_attention_among_joints_and_its_fold(in_width: int) -> None:
    torch.manual_seed(0)
    unit = SpatialAttention(in_width, 32, 5)
    with torch.no_grad():
        randomise(unit)
        unit.double().eval()
        x = torch.randn(2, 3, 5, in_width, dtype=torch.float64)
        norm, first, last = unit.data_bn, *unit.attention_conv.values()
        expected = torch.zeros(2, 3, 5, 32, dtype=torch.float64)
        for n in range(2):
            for t in range(3):
                flat = x[n, t].T.flatten()  # feature c * V + v
                flat = (flat - norm.running_mean) / (norm.running_var + 1e-5).sqrt()
                frame = (flat * norm.weight + norm.bias).view(in_width, 5).T
                q, k, v = (frame @ first.weight[:, :, 0, 0].T + first.bias).split([8, 8, 32], 1)
                heads = []
                for h in range(8):
                    logits = q[:, h : h + 1] @ k[:, h : h + 1].T  # (32 / 32) ** -0.5 is 1
                    heads.append(logits.softmax(1) @ v[:, 4 * h : 4 * h + 4])
                y = torch.cat(heads, 1) @ last.weight[:, :, 0, 0].T + last.bias
                y = y + x[n, t] if in_width == 32 else y
                y = (y - unit.bn.running_mean) / (unit.bn.running_var + 1e-5).sqrt()
                expected[n, t] = (y * unit.bn.weight + unit.bn.bias).relu()
        torch.testing.assert_close(unit(x), expected)
        torch.testing.assert_close(unit.fold()(x.flatten(0, 1)), expected.flatten(0, 1))


def test_queries_are_scaled_by_the_width_of_a_head() -> None:
    torch.manual_seed(0)
    unit = SpatialAttention(64, 64, 5)
    with torch.no_grad():
        randomise(unit)
        unit.double().eval()
        x = torch.randn(1, 2, 5, 64, dtype=torch.float64)
        expected = unit(x)
        torch.testing.assert_close(unit.fold()(x[0]), expected[0])
        unit.attention_conv["qkv_conv"].weight[:16] *= 2**-0.5  # what heads of width 2 divide by
        unit.attention_conv["qkv_conv"].bias[:16] *= 2**-0.5
        assert (unit(x) - expected).abs().max() > 1e-4


def test_widths_and_macs() -> None:
    with pytest.raises(ValueError, match="width 40 of attention is not a multiple of 32"):
        SpatialAttention(8, 40, 5)
    count = SpatialAttention(6, 32, 5).count_macs()
    assert count == 5 * 6 * 48 + 25 * (8 + 32) + 5 * 32 * 32
