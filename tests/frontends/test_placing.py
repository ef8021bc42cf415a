from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.frontends.crops import IMAGENET_MEAN, IMAGENET_STD, Placing


@pytest.mark.parametrize(
    ("long", "height", "width", "picture"),
    [
        (1024, 720, 1280, (576, 1024)),
        (672, 720, 1280, (378, 672)),
        (1024, 1280, 720, (1024, 576)),
        (1024, 480, 640, (640, 853)),
        (672, 480, 640, (420, 560)),
    ],
)
def test_sizes_are_those_of_the_paper(
    long: int, height: int, width: int, picture: tuple[int, int]
) -> None:
    placement = Placing(long).place(height, width)
    assert placement.picture == picture
    assert placement.input == (long, long)


@given(st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_boxes_go_there_and_back(height: int, width: int, square: bool) -> None:
    placement = Placing(224, square=square).place(height, width)
    assert all(p <= i for p, i in zip(placement.picture, placement.input, strict=True))
    assert all(side % 16 == 0 for side in placement.input)
    assert square or all(
        i - p < 16 for p, i in zip(placement.picture, placement.input, strict=True)
    )
    box = torch.tensor([[0.1 * width, 0.2 * height, 0.7 * width, height]], dtype=torch.float64)
    torch.testing.assert_close(placement.to_source(placement.to_input(box)), box)
    outside = torch.tensor([[-9.0, -9.0, 1e6, 1e6]])
    assert placement.to_source(outside).tolist() == [[0, 0, width, height]]


def test_pixels_are_normalised_and_the_rest_is_zero() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (90, 160, 3), dtype=np.uint8)
    x, placement = Placing(160).prepare(rgb)
    assert placement.picture == (90, 160)
    expected = (rgb - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    np.testing.assert_allclose(x[:, :90].permute(1, 2, 0).numpy(), expected, atol=1e-5)
    assert (x[:, 90:] == 0).all()
    flat = np.full((300, 500, 3), 200, np.uint8)
    x, placement = Placing(160).prepare(flat)
    assert placement.picture == (96, 160)
    assert x[0, 50, 50] == pytest.approx((200 - IMAGENET_MEAN[0]) / IMAGENET_STD[0])


def test_sides_are_multiples() -> None:
    with pytest.raises(ValueError, match="100 pixels are not a multiple of 16"):
        Placing(100)
