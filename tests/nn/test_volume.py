from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from costream.nn.video3d.convolution import VolumeStep
from costream.nn.video3d.frame_ring import FrameRing


@pytest.mark.parametrize("start", ["zeros", "replicate"])
@pytest.mark.parametrize(
    ("kernel", "groups", "stride"),
    [((3, 3, 3), 6, 1), ((3, 3, 3), 6, 2), ((5, 1, 1), 6, 1), ((3, 1, 1), 1, 1), ((5, 7, 7), 1, 2)],
)
def test_steps_are_a_convolution_of_three_dimensions(
    kernel: tuple[int, int, int], groups: int, stride: int, start: str
) -> None:
    torch.manual_seed(0)
    sides = (0, kernel[1] // 2, kernel[2] // 2)
    conv = nn.Conv3d(6, 6, kernel, (1, stride, stride), sides, groups=groups).double()
    norm = nn.BatchNorm3d(6).double().eval()
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.copy_(torch.rand(6) + 0.5) if tensor.dim() else None
        step = VolumeStep(conv, norm)
        x = torch.randn(2, 9, 7, 5, 6, dtype=torch.float64)
        ring = FrameRing(kernel[0], start)
        state = ring.init_state(2, x.shape[2:], x)
        before = torch.zeros_like(x[:, :1]) if start == "zeros" else x[:, :1]
        whole = torch.cat([*[before] * (kernel[0] - 1), x], 1).movedim(4, 1)
        expected = norm(conv(whole)).movedim(1, 4)
        for t, frame in enumerate(x.unbind(1)):
            rows = [0, 1] if t == 0 and start == "replicate" else []
            time = ring.push(frame, state, rows)
            assert time == t
            if kernel == (5, 1, 1):
                out = (step.weigh(state, time) + step.bias).unsqueeze(1)
            else:
                out = step.over_time(state, time)
            torch.testing.assert_close(out[:, 0], expected[:, t], rtol=0, atol=1e-12)
            assert out.shape[2:] == step.output_size(x.shape[2:])


@pytest.mark.slow
def test_single_frames() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 5, 6)
    with torch.no_grad():
        conv = nn.Conv3d(6, 4, 1, (1, 2, 2))
        maps = F.conv2d(x.permute(0, 3, 1, 2), conv.weight[:, :, 0], conv.bias, 2)
        frames = maps.permute(0, 2, 3, 1)
        step = VolumeStep(conv)
        torch.testing.assert_close(step.product(x, relu=False), frames)
        torch.testing.assert_close(step.product(x, None, frames), (2 * frames).relu())
        wide = nn.Conv3d(6, 4, (1, 3, 3), 1, (0, 1, 1), bias=False)
        maps = F.conv2d(x.permute(0, 3, 1, 2), wide.weight[:, :, 0], None, 1, 1)
        given = VolumeStep(wide).convolve(x.permute(0, 3, 1, 2))
        torch.testing.assert_close(given, maps)


def test_a_ring_keeps_nothing_of_streams_that_have_not_begun() -> None:
    ring = FrameRing(3, "zeros")
    x = torch.ones(2, 1, 1, 1)
    state = ring.init_state(2, (1, 1, 1), x)
    slot = ring.next_slot(state)
    slot.fill_(5)
    ring.push(slot, state, [1])
    assert state.frames.flatten().tolist() == [5, 0, 0, 0, 0, 0]
    ring.push(x, state, [])
    assert ring.frame(state, 1).flatten().tolist() == [1, 1]
    with pytest.raises(ValueError, match="frame of shape"):
        ring.push(torch.ones(2, 1, 1, 2), state, [])
