"""Crops: what is cut out of a picture and of a video, and its colours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.frontends.crops import Crops, temporal_views


def ramp(height: int, width: int) -> torch.Tensor:
    """A picture whose colours say where a pixel is: across, down, and 255."""
    across = torch.arange(width).expand(height, width)
    down = torch.arange(height)[:, None].expand(height, width)
    return torch.stack([across, down, torch.full_like(down, 255)]).to(torch.uint8)[None]


def test_the_middle_and_its_colours() -> None:
    crops = Crops(8)
    (out,) = crops(ramp(8, 21))
    assert out.shape == (1, 3, 8, 8)
    values = (out * 0.225 + 0.45) * 255
    assert torch.allclose(values[0, 0, 0], torch.arange(6.0, 14.0), atol=1e-4)
    assert torch.allclose(values[0, 1, :, 0], torch.arange(8.0), atol=1e-4)
    assert torch.allclose(out[0, 2], torch.tensor((1 - 0.45) / 0.225))


@pytest.mark.parametrize(("size", "axis"), [((8, 21), 0), ((21, 8), 1)])
def test_three_along_the_longer_side(size: tuple[int, int], axis: int) -> None:
    values = (Crops(8)(ramp(*size), 3) * 0.225 + 0.45) * 255
    starts = values[:, 0, axis, 0, 0].round().tolist()
    assert starts == [0, 6, 13]
    assert values[:, 0, 1 - axis, 0, 0].round().tolist() == [0, 0, 0]


@given(st.integers(1, 60), st.integers(1, 60))
def test_pictures_of_every_size_become_squares(height: int, width: int) -> None:
    assert Crops(16)(ramp(height, width)).shape == (1, 1, 3, 16, 16)


def test_a_larger_picture_is_averaged() -> None:
    checks = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    checks[:, :, ::2, ::2] = checks[:, :, 1::2, 1::2] = 255
    (out,) = Crops(8)(checks)
    inner = (out * 0.225 + 0.45)[:, :, 1:-1, 1:-1]
    assert (inner - 0.5).abs().max() < 0.02  # without antialiasing, 0 or 1


@pytest.mark.parametrize(
    ("frames", "length", "stride", "count", "expected"),
    [
        (10, 4, 1, 4, [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]),
        (13, 4, 2, 4, [[0, 2, 4, 6], [1, 3, 5, 7], [3, 5, 7, 9], [5, 7, 9, 11]]),
        (9, 4, 1, 1, [[2, 3, 4, 5]]),
        (3, 4, 1, 2, [[0, 1, 2, 2]] * 2),
    ],
)
def test_views_of_a_video(
    frames: int, length: int, stride: int, count: int, expected: list[list[int]]
) -> None:
    assert temporal_views(frames, length, stride, count) == expected


def test_sizes_that_there_are_not() -> None:
    for arguments in ({"size": 0}, {"deviation": 0.0}):
        with pytest.raises(ValueError, match="must be positive"):
            Crops(**arguments)
