from __future__ import annotations

import numpy as np
import pytest
import torch

from costream.errors import ModelError
from costream.frontends.base import load_frontend
from costream.frontends.crops import CentreCrop


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (24, 24), (61, 24), (100, 200), (36, 20)])
def test_the_middle_of_pictures_of_any_shape(shape: tuple[int, int]) -> None:
    frontend = CentreCrop(size=16, short_side=24)
    rgb = np.zeros((*shape, 3), np.uint8)
    rgb[:, : shape[1] // 2, 0] = 200  # its left half
    rgb[: shape[0] // 2, :, 1] = 100  # its upper half
    out = frontend.prepare(rgb)
    assert (out.shape, out.dtype) == ((3, 16, 16), np.uint8)
    assert (out[0, 8, :6] == 200).all()
    assert (out[0, 8, -6:] == 0).all()
    assert (out[1, :6, 8] == 100).all()
    assert (out[1, -6:, 8] == 0).all()


def test_pictures_that_fit_are_not_resized() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    out = CentreCrop(size=16, short_side=24).prepare(rgb)
    np.testing.assert_array_equal(out, rgb[4:20, 12:28].transpose(2, 0, 1))


def test_pixels_are_normalised_as_published() -> None:
    frontend = load_frontend("crop", size=2, short_side=2)
    given = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8).expand(1, 3, 2, 2)
    expected = (torch.tensor([[0, 1], [0.2, 0.4]]) - 0.45) / 0.225
    torch.testing.assert_close(frontend.forward_step(given, None)[0, 1], expected)
    assert frontend.double()(given).dtype == torch.float64
    assert frontend.state_dict() == {}


def test_a_square_that_is_too_large() -> None:
    with pytest.raises(ModelError, match="size 30 is not between 1 and short_side 20"):
        load_frontend("crop", size=30, short_side=20)
