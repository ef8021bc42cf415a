from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from costream.nn.numba_kernels import LANES, PIXELS, Depthwise
from costream.nn.video3d.convolution import depthwise


@given(
    batch=st.integers(1, 2),
    count=st.integers(1, 5),
    height=st.integers(1, 9),
    wider=st.integers(0, 14),
    more=st.integers(0, 40),
    stride=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_it_is_a_convolution_of_three_dimensions(
    batch: int, count: int, height: int, wider: int, more: int, stride: int, seed: int
) -> None:
    torch.manual_seed(seed)
    channels, width = LANES + more, (PIXELS - 1) * stride + 1 + wider
    # What lies around the frames must not be read: it would show.
    shape = (batch, count, height, width, channels)
    memory = torch.full((10_000 + torch.Size(shape).numel() + 10_000,), torch.nan)
    frames = memory[10_000:-10_000].view(shape).copy_(torch.randn(shape))
    weight, bias = torch.randn(channels, 1, count, 3, 3), torch.randn(channels)
    layer = depthwise(weight, bias, stride)
    assert isinstance(layer, Depthwise)
    assert layer.suits(frames)
    oldest = seed % count
    volume = frames.roll(-oldest, 1).permute(0, 4, 1, 2, 3).double()
    expected = F.conv3d(
        volume, weight.double(), bias.double(), (1, stride, stride), (0, 1, 1), 1, channels
    )
    out = layer(frames, oldest)
    torch.testing.assert_close(out.double(), expected[:, :, 0].movedim(1, 3), rtol=0, atol=3e-5)


def test_what_it_is_not_for() -> None:
    def made(weight: torch.Tensor, stride: int = 1) -> Depthwise | None:
        return depthwise(weight, torch.zeros(len(weight)), stride)

    layer = made(torch.zeros(LANES, 1, 3, 3, 3), 2)
    assert layer is not None
    assert layer.suits(torch.zeros(1, 3, 1, 2 * PIXELS - 1, LANES))
    assert not layer.suits(torch.zeros(1, 3, 1, 2 * PIXELS - 2, LANES))
    assert made(torch.zeros(LANES - 1, 1, 3, 3, 3)) is None
    assert made(torch.zeros(LANES, 2, 3, 3, 3)) is None
    assert made(torch.zeros(LANES, 1, 3, 5, 5)) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3), 3) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3).double()) is None
    assert made(torch.zeros(LANES, 1, 3, 3, 3, device="meta")) is None
